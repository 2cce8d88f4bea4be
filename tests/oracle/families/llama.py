"""Llama 2 to 3.x: the form that decoder.py writes down. Special: rotary scaling "llama3" since 3.1, biases where attention_bias and
mlp_bias say so (all of q, k, v, o; all of gate, up, down), a head_dim of its own.

Sources: huggingface/transformers src/transformers/models/llama/{configuration,modeling}_llama.py and modeling_rope_utils.py;
meta-llama/llama-models models/llama3/model.py (apply_scaling).
"""
from decoder import Decoder


class Llama(Decoder):
    MODEL_TYPES = ("llama",)
    ARCHITECTURE = "LlamaForCausalLM"
    DEFAULTS = dict(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=None, hidden_act="silu", max_position_embeddings=2048, initializer_range=0.02, rms_norm_eps=1e-6,
        use_cache=True, pad_token_id=None, bos_token_id=1, eos_token_id=2, pretraining_tp=1, tie_word_embeddings=False,
        attention_bias=False, attention_dropout=0.0, mlp_bias=False, head_dim=None)
    TINY = {
        "plain": {},
        "llama3": dict(tie_word_embeddings=True, rope_theta=500.0, max_position_embeddings=64, rope_scaling=dict(
            rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)),
        "linear": dict(rope_scaling=dict(type="linear", factor=2.5)),
        "biases": dict(attention_bias=True, mlp_bias=True, rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=100.0)),
        "yarn": dict(rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=16)),
    }


FAMILY = Llama
