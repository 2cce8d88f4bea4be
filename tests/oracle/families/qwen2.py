"""Qwen 2 and 2.5: Llama with biases on q, k and v, none on o. A window, where use_sliding_window says so, holds in layers from
max_window_layers on, or as layer_types says.

Sources: huggingface/transformers src/transformers/models/qwen2/{configuration,modeling}_qwen2.py.
"""
from decoder import Decoder


class Qwen2(Decoder):
    MODEL_TYPES = ("qwen2",)
    ARCHITECTURE = "Qwen2ForCausalLM"
    DEFAULTS = dict(
        vocab_size=151936, hidden_size=4096, intermediate_size=22016, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=32, hidden_act="silu", max_position_embeddings=32768, initializer_range=0.02, rms_norm_eps=1e-6,
        use_cache=True, tie_word_embeddings=False, use_sliding_window=False, sliding_window=4096, max_window_layers=28,
        layer_types=None, attention_dropout=0.0)
    # transformers' class has none, but its attention takes it where a folder has one.
    EXPECTED = dict(head_dim=Ellipsis, use_mrope=(False,))
    TINY = {
        "plain": dict(tie_word_embeddings=True),
        "untied": {},
        "window": dict(use_sliding_window=True, sliding_window=3, max_window_layers=1, num_hidden_layers=3),
        "yarn": dict(rope_theta=1000.0, rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=16)),
    }

    def read(self, c):
        c.setdefault("use_sliding_window", False)
        if not c.use_sliding_window:
            c["sliding_window"] = None
        if c.layer_types is None:
            c["layer_types"] = ["sliding_attention" if c.sliding_window is not None and layer >= c.max_window_layers
                                else "full_attention" for layer in range(c.num_hidden_layers)]

    def window(self, layer):
        return self.c.sliding_window if self.c.layer_types[layer] == "sliding_attention" else None

    def attention_shapes(self, layer):
        return self.attention_linears(layer, qkv=True, o=False)


FAMILY = Qwen2
