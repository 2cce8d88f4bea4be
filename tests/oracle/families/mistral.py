"""Mistral: Llama with a window in every layer (sliding_window; null since 0.2), no biases.

Sources: huggingface/transformers src/transformers/models/mistral/{configuration,modular}_mistral.py; arXiv 2310.06825.
"""
from decoder import Decoder


class Mistral(Decoder):
    MODEL_TYPES = ("mistral",)
    ARCHITECTURE = "MistralForCausalLM"
    DEFAULTS = dict(
        vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, head_dim=None, hidden_act="silu", max_position_embeddings=131072, initializer_range=0.02,
        rms_norm_eps=1e-6, use_cache=True, pad_token_id=None, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
        sliding_window=4096, attention_dropout=0.0)
    TINY = {"window": dict(sliding_window=4), "plain": dict(sliding_window=None)}

    def window(self, layer):
        return self.c.sliding_window


FAMILY = Mistral
