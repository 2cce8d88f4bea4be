"""Gemma 3, text: Gemma 2 without caps (they may be set), with a norm over each head of q and k (gain 1 + w), five windowed layers to
a full one, and two rotary bases: windowed layers turn by rope_local_base_freq, unscaled; full ones by rope_theta and its scaling.

Sources: huggingface/transformers src/transformers/models/gemma3/{configuration,modular}_gemma3.py; arXiv 2503.19786.
"""
import gemma2


class Gemma3(gemma2.Gemma2):
    MODEL_TYPES = ("gemma3_text",)
    ARCHITECTURE = "Gemma3ForCausalLM"
    DEFAULTS = dict(
        gemma2.Gemma2.DEFAULTS, vocab_size=262208, max_position_embeddings=131072, final_logit_softcapping=None,
        attn_logit_softcapping=None)
    EXPECTED = dict(gemma2.Gemma2.EXPECTED, rope_local_base_freq=Ellipsis)
    PATTERN = 6
    THETA = 1000000.0
    TINY = {"plain": dict(num_hidden_layers=4, sliding_window=3, query_pre_attn_scalar=6, sliding_window_pattern=3,
                          rope_theta=1000.0, rope_local_base_freq=50.0, rope_scaling=dict(rope_type="linear", factor=8.0)),
            "parameters": dict(num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"], sliding_window=4,
                               rope_parameters=dict(
                                   full_attention=dict(rope_type="linear", factor=2.0, rope_theta=1000.0),
                                   sliding_attention=dict(rope_type="default", rope_theta=100.0)))}

    def rope_of(self, layer):
        by_type = any(isinstance(value, dict) for value in (self.c.get("rope_parameters") or {}).values())
        if by_type or self.c.layer_types[layer] == "full_attention":
            return super().rope_of(layer)
        return dict(rope_theta=self.c.get("rope_local_base_freq", 10000.0), rope_type="default")

    def project(self, run, layer, x):
        q, k, v = super().project(run, layer, x)
        p = f"model.layers.{layer}.self_attn."
        return self.norm(run, p + "q_norm", q), self.norm(run, p + "k_norm", k), v

    def attention_shapes(self, layer):
        p = f"model.layers.{layer}.self_attn."
        return {**super().attention_shapes(layer), p + "q_norm.weight": (self.c.head_dim,), p + "k_norm.weight": (self.c.head_dim,)}


FAMILY = Gemma3
