"""StableLM: LayerNorm with biases; a quarter of each head rotated; biases on q, k, v where use_qkv_bias says so. StableLM 2 12B adds
use_parallel_residual (attention and MLP behind input_layernorm side by side) and qk_layernorm (a LayerNorm for each head, gain
without bias, each under a name of its own).

Sources: huggingface/transformers src/transformers/models/stablelm/{configuration,modeling}_stablelm.py; ggml-org/llama.cpp
src/models/stablelm.cpp.
"""
import torch

import blocks
from decoder import Decoder


class StableLm(Decoder):
    MODEL_TYPES = ("stablelm",)
    ARCHITECTURE = "StableLmForCausalLM"
    DEFAULTS = dict(
        vocab_size=50304, intermediate_size=6912, hidden_size=2560, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=32, hidden_act="silu", max_position_embeddings=4096, initializer_range=0.02, layer_norm_eps=1e-5,
        use_cache=True, tie_word_embeddings=False, use_qkv_bias=False, qk_layernorm=False, use_parallel_residual=False,
        hidden_dropout=0.0, attention_dropout=0.0, bos_token_id=0, eos_token_id=0, pad_token_id=None, partial_rotary_factor=0.25)
    EXPECTED = dict(head_dim=Ellipsis)
    TINY = {"biases": dict(use_qkv_bias=True), "plain": {},
            "parallel": dict(use_parallel_residual=True, qk_layernorm=True, partial_rotary_factor=0.5)}

    def read(self, c):
        if c.head_dim != c.hidden_size // c.num_attention_heads:
            raise ValueError("stablelm: head_dim isn't hidden_size / num_attention_heads, by which transformers projects")

    def norm(self, run, name, x):
        return blocks.layer_norm(x, run.w[name + ".weight"], run.w[name + ".bias"], self.c.layer_norm_eps)

    def project(self, run, layer, x):
        q, k, v = super().project(run, layer, x)
        if self.c.qk_layernorm:
            p = f"model.layers.{layer}.self_attn."
            q, k = (blocks.layer_norm(part, torch.stack([run.w[f"{p}{name}.norms.{head}.weight"] for head in range(part.shape[2])]),
                                      None, self.c.layer_norm_eps) for name, part in (("q_layernorm", q), ("k_layernorm", k)))
        return q, k, v

    def block(self, run, layer, x):
        if not self.c.use_parallel_residual:
            return super().block(run, layer, x)
        normed = self.norm(run, f"model.layers.{layer}.input_layernorm", x)
        return x + self.attention(run, layer, normed) + self.feed_forward(run, layer, normed)

    @property
    def NORMS(self):
        return ("input_layernorm",) if self.c.use_parallel_residual else ("input_layernorm", "post_attention_layernorm")

    def norm_shapes(self, name):
        return {name + ".weight": (self.c.hidden_size,), name + ".bias": (self.c.hidden_size,)}

    def attention_shapes(self, layer):
        c, p, shapes = self.c, f"model.layers.{layer}.self_attn.", self.attention_linears(layer, qkv=self.c.use_qkv_bias, o=False)
        if c.qk_layernorm:
            for name, heads in (("q_layernorm", c.num_attention_heads), ("k_layernorm", c.num_key_value_heads)):
                shapes.update({f"{p}{name}.norms.{head}.weight": (c.head_dim,) for head in range(heads)})
        return shapes


FAMILY = StableLm
