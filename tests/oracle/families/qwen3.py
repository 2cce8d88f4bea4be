"""Qwen 3: Qwen 2 without its biases (attention_bias: all of q, k, v, o), with an RMSNorm over each head of q and of k before the
rotation, one gain of head_dim for all heads.

Sources: huggingface/transformers src/transformers/models/qwen3/{configuration,modular}_qwen3.py; ggml-org/llama.cpp
src/models/qwen3.cpp.
"""
import qwen2


class Qwen3(qwen2.Qwen2):
    MODEL_TYPES = ("qwen3",)
    ARCHITECTURE = "Qwen3ForCausalLM"
    DEFAULTS = dict(qwen2.Qwen2.DEFAULTS, head_dim=128, attention_bias=False)
    EXPECTED = {}
    TINY = {
        "plain": dict(tie_word_embeddings=True),
        "window": dict(use_sliding_window=True, sliding_window=3, max_window_layers=1, num_hidden_layers=3, attention_bias=True),
        "types": dict(use_sliding_window=True, sliding_window=4, num_hidden_layers=3, tie_word_embeddings=True,
                      layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    }

    def project(self, run, layer, x):
        q, k, v = super().project(run, layer, x)
        p = f"model.layers.{layer}.self_attn."
        return self.norm(run, p + "q_norm", q), self.norm(run, p + "k_norm", k), v

    def attention_shapes(self, layer):
        p = f"model.layers.{layer}.self_attn."
        return {**self.attention_linears(layer, qkv=self.c.attention_bias, o=self.c.attention_bias),
                p + "q_norm.weight": (self.c.head_dim,), p + "k_norm.weight": (self.c.head_dim,)}


FAMILY = Qwen3
