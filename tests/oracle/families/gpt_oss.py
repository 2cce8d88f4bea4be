"""gpt-oss: windows in every other layer (the first has one); a sink for each head that takes its share of the softmax; biases on q, k,
v, o and the router; experts stacked in tensors [E, in, out] whose columns alternate gate and up; the best k, then softmax over these.
An expert's activation is (up + 1) * gate * sigmoid(alpha * gate), gate clamped from above and up from both sides at swiglu_limit.
Yarn with truncate false: the ramp's ends aren't rounded.

The official folders hold MXFP4 blocks (gate_up_proj_blocks, _scales); these names are those of bf16 folders, which transformers
writes. Sources: huggingface/transformers src/transformers/models/gpt_oss/{configuration,modular}_gpt_oss.py; openai/gpt-oss
gpt_oss/torch/model.py.
"""
import torch

import blocks
from decoder import Decoder


class GptOss(Decoder):
    MODEL_TYPES = ("gpt_oss",)
    ARCHITECTURE = "GptOssForCausalLM"
    THETA = 150000.0
    DEFAULTS = dict(
        num_hidden_layers=36, num_local_experts=128, vocab_size=201088, hidden_size=2880, intermediate_size=2880, head_dim=64,
        num_attention_heads=64, num_key_value_heads=8, sliding_window=128, tie_word_embeddings=False, hidden_act="silu",
        initializer_range=0.02, max_position_embeddings=131072, rms_norm_eps=1e-5, attention_dropout=0.0, num_experts_per_tok=4,
        swiglu_limit=7.0, router_aux_loss_coef=0.001, output_router_logits=False, use_cache=True, layer_types=None,
        pad_token_id=None, bos_token_id=None, eos_token_id=None, attention_bias=True,
        rope_scaling=dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                          original_max_position_embeddings=4096))
    EXPECTED = dict(swiglu_alpha=Ellipsis, initial_context_length=Ellipsis, experts_per_token=Ellipsis)
    TINY = {"plain": dict(num_hidden_layers=2, sliding_window=3, num_local_experts=4, num_experts_per_tok=2, swiglu_limit=1.0,
                          head_dim=8, rope_theta=1000.0, rope_scaling=dict(
                              rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                              original_max_position_embeddings=16))}

    def read(self, c):
        if c.layer_types is None:
            c["layer_types"] = ["sliding_attention" if layer % 2 == 0 else "full_attention" for layer in range(c.num_hidden_layers)]

    def window(self, layer):
        return self.c.sliding_window if self.c.layer_types[layer] == "sliding_attention" else None

    def sinks(self, run, layer):
        return run.w[f"model.layers.{layer}.self_attn.sinks"]

    def feed_forward(self, run, layer, x):
        c, p, w, rows = self.c, f"model.layers.{layer}.mlp.", run.w, x.flatten(0, 1)
        alpha, limit = c.get("swiglu_alpha", 1.702), c.swiglu_limit

        def expert(number, of):
            both = of @ w[p + "experts.gate_up_proj"][number] + w[p + "experts.gate_up_proj_bias"][number]
            gate, up = both[:, 0::2].clamp(max=limit), both[:, 1::2].clamp(-limit, limit)
            inner = (up + 1) * gate * torch.sigmoid(alpha * gate)
            return inner @ w[p + "experts.down_proj"][number] + w[p + "experts.down_proj_bias"][number]

        weights, chosen = blocks.top_k_softmax_router(blocks.linear(w, p + "router", rows), c.num_experts_per_tok)
        return blocks.mixture(rows, weights, chosen, expert).view_as(x)

    def attention_shapes(self, layer):
        return {**super().attention_shapes(layer), f"model.layers.{layer}.self_attn.sinks": (self.c.num_attention_heads,)}

    def feed_forward_shapes(self, layer):
        c, p = self.c, f"model.layers.{layer}.mlp."
        e, h, f = c.num_local_experts, c.hidden_size, c.intermediate_size
        return {p + "router.weight": (e, h), p + "router.bias": (e,), p + "experts.gate_up_proj": (e, h, 2 * f),
                p + "experts.gate_up_proj_bias": (e, 2 * f), p + "experts.down_proj": (e, f, h), p + "experts.down_proj_bias": (e, h)}


FAMILY = GptOss
