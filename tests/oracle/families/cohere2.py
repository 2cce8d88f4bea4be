"""Cohere 2 (Command R7B, Command A): Cohere with windows in three layers of four; the full ones rotate nothing.

Sources: huggingface/transformers src/transformers/models/cohere2/modular_cohere2.py; ggml-org/llama.cpp src/models/cohere2.cpp.
"""
import cohere


class Cohere2(cohere.Cohere):
    MODEL_TYPES = ("cohere2",)
    ARCHITECTURE = "Cohere2ForCausalLM"
    DEFAULTS = dict({field: value for field, value in cohere.Cohere.DEFAULTS.items() if field != "use_qk_norm"},
                    sliding_window=4096, layer_types=None, head_dim=None)
    # What the hub's folders have besides.
    EXPECTED = dict(use_qk_norm=(False,), order_of_interleaved_layers=("local_attn_first",), position_embedding_type=("rope_gptj",),
                    rotary_pct=(1.0,), use_embedding_sharing=(True,), use_gated_activation=(True,), use_parallel_block=(True,),
                    use_parallel_embedding=(False,), layer_switch=Ellipsis)
    TINY = {"plain": dict(num_hidden_layers=4, sliding_window=3, logit_scale=0.25),
            "pattern": dict(num_hidden_layers=3, sliding_window=4, sliding_window_pattern=2, attention_bias=True)}

    def read(self, c):
        c.setdefault("use_qk_norm", False)
        if c.layer_types is None:
            pattern = c.get("sliding_window_pattern") or 4
            c["layer_types"] = ["sliding_attention" if (layer + 1) % pattern else "full_attention"
                                for layer in range(c.num_hidden_layers)]

    def window(self, layer):
        return self.c.sliding_window if self.c.layer_types[layer] == "sliding_attention" else None

    def rotate(self, run, layer, q, k):
        return (q, k) if self.window(layer) is None else super().rotate(run, layer, q, k)


FAMILY = Cohere2
