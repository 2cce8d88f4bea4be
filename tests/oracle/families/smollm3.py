"""SmolLM3: Llama whose every fourth layer rotates nothing (NoPE): no_rope_layers has 1 where a layer rotates, 0 where it doesn't.
Windows, where use_sliding_window asks for them, hold in the layers without rotation.

Sources: huggingface/transformers src/transformers/models/smollm3/modular_smollm3.py; ggml-org/llama.cpp src/models/smollm3.cpp.
"""
from decoder import Decoder


class SmolLM3(Decoder):
    MODEL_TYPES = ("smollm3",)
    ARCHITECTURE = "SmolLM3ForCausalLM"
    THETA = 2000000.0
    DEFAULTS = dict(
        vocab_size=128256, hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16,
        num_key_value_heads=4, hidden_act="silu", max_position_embeddings=32768, initializer_range=0.02, rms_norm_eps=1e-6,
        use_cache=True, pad_token_id=128004, bos_token_id=128000, eos_token_id=128001, use_sliding_window=False,
        sliding_window=None, no_rope_layers=None, no_rope_layer_interval=4, layer_types=None, attention_bias=False,
        attention_dropout=0.0, mlp_bias=False, tie_word_embeddings=True)
    EXPECTED = dict(head_dim=Ellipsis, max_window_layers=Ellipsis)
    TINY = {"plain": dict(num_hidden_layers=4),
            "list": dict(no_rope_layers=[0, 1, 0], num_hidden_layers=3),
            "window": dict(no_rope_layers=[1, 0, 1], num_hidden_layers=3, use_sliding_window=True, sliding_window=3,
                           attention_bias=True, mlp_bias=True, tie_word_embeddings=False),
            "unbiased": dict(no_rope_layers=[1, 0, 0], num_hidden_layers=3, use_sliding_window=True, sliding_window=3)}

    def read(self, c):
        if c.no_rope_layers is None:
            c["no_rope_layers"] = [int((layer + 1) % c.no_rope_layer_interval != 0) for layer in range(c.num_hidden_layers)]
        if c.layer_types is None:
            windows = c.use_sliding_window and c.sliding_window is not None
            c["layer_types"] = ["sliding_attention" if windows and not c.no_rope_layers[layer] else "full_attention"
                                for layer in range(c.num_hidden_layers)]

    def rotate(self, run, layer, q, k):
        return super().rotate(run, layer, q, k) if self.c.no_rope_layers[layer] else (q, k)

    def window(self, layer):
        sliding = self.c.use_sliding_window and self.c.layer_types[layer] == "sliding_attention"
        return self.c.sliding_window if sliding else None


FAMILY = SmolLM3
