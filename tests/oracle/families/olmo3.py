"""OLMo 3: OLMo 2 with a window in three layers of four, and rotary scaling (yarn) in the layers without a window alone.

Sources disagree: huggingface/transformers src/transformers/models/olmo3/modular_olmo3.py says in its comment, and did in 4.57, that
windowed layers aren't scaled; its code since 5 has one rotary embedding for all layers. vllm-project/vllm
vllm/model_executor/models/olmo2.py and ggml-org/llama.cpp src/models/olmo2.cpp scale the full layers alone: taken, as three of four
sources, the model's authors' comment among them, say so. rope_parameters given for each type of layer count as they stand.
"""
import olmo2


class Olmo3(olmo2.Olmo2):
    MODEL_TYPES = ("olmo3",)
    ARCHITECTURE = "Olmo3ForCausalLM"
    DEFAULTS = dict(olmo2.Olmo2.DEFAULTS, sliding_window=4096, layer_types=None)
    TINY = {"yarn": dict(num_hidden_layers=4, sliding_window=3, rope_theta=500.0, rope_scaling=dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0,
        attention_factor=1.2079441541679836))}

    def read(self, c):
        if c.layer_types is None:
            c["layer_types"] = ["sliding_attention" if (layer + 1) % 4 else "full_attention" for layer in range(c.num_hidden_layers)]

    def window(self, layer):
        return self.c.sliding_window if self.c.layer_types[layer] == "sliding_attention" else None

    def rope_of(self, layer):
        p = super().rope_of(layer)
        by_type = any(isinstance(value, dict) for value in (self.c.get("rope_parameters") or {}).values())
        if by_type or self.c.layer_types[layer] == "full_attention":
            return p
        return dict(rope_theta=p["rope_theta"], rope_type="default")


FAMILY = Olmo3
