"""Granite: Llama with four multipliers: embeddings times embedding_multiplier, scores times attention_multiplier (instead of
1/sqrt(d)), each sublayer's output times residual_multiplier, logits divided by logits_scaling.

Sources: huggingface/transformers src/transformers/models/granite/{configuration,modular}_granite.py.
"""
from decoder import Decoder


class Granite(Decoder):
    MODEL_TYPES = ("granite",)
    ARCHITECTURE = "GraniteForCausalLM"
    DEFAULTS = dict(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=None, hidden_act="silu", max_position_embeddings=2048, initializer_range=0.02, rms_norm_eps=1e-6,
        use_cache=True, pad_token_id=None, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, attention_bias=False,
        attention_dropout=0.0, mlp_bias=False, embedding_multiplier=1.0, logits_scaling=1.0, residual_multiplier=1.0,
        attention_multiplier=1.0)
    EXPECTED = dict(head_dim=Ellipsis)
    TINY = {"plain": dict(embedding_multiplier=12.0, logits_scaling=8.0, residual_multiplier=0.22, attention_multiplier=0.3,
                          tie_word_embeddings=True),
            "attention_bias": dict(attention_bias=True, attention_multiplier=0.5, logits_scaling=0.5, residual_multiplier=1.5),
            "biases": dict(attention_bias=True, mlp_bias=True, attention_multiplier=0.5, logits_scaling=0.5)}

    def embed(self, run):
        return super().embed(run) * self.c.embedding_multiplier

    def scale(self, layer):
        return self.c.attention_multiplier

    def attention(self, run, layer, x):
        return super().attention(run, layer, x) * self.c.residual_multiplier

    def feed_forward(self, run, layer, x):
        return super().feed_forward(run, layer, x) * self.c.residual_multiplier

    def head(self, run, x):
        return super().head(run, x) / self.c.logits_scaling


FAMILY = Granite
