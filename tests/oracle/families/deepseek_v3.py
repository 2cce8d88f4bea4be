"""DeepSeek V3, R1, and Kimi K2 (model_type kimi_k2, the same form): multi-head latent attention, and experts chosen by sigmoid scores
with a correction bias within the best groups, plus shared experts, in all layers from first_k_dense_replace on.

Latent attention: k and v of every head are rows of kv_b_proj times a normed latent of kv_lora_rank; one rotated part of
qk_rope_head_dim is shared by all heads. The cache here holds the latent and that part, as serving programs do, so that decoding
step by step projects up again: a second way to the same values. Where yarn's mscale_all_dim stands, scores are multiplied by its
mscale squared. The norms of the latents have epsilon 1e-6 whatever rms_norm_eps says (transformers and DeepSeek's own code; vLLM
takes rms_norm_eps; the folders have 1e-6). Layers beyond num_hidden_layers (multi-token prediction) aren't read.

Sources: huggingface/transformers src/transformers/models/deepseek_v3/{configuration,modular}_deepseek_v3.py; deepseek-ai/DeepSeek-V3
inference/model.py; arXiv 2412.19437; what the sources disagree on stands at blocks.sigmoid_router.
"""
import torch

import blocks
from decoder import Decoder, linears


class DeepseekV3(Decoder):
    MODEL_TYPES = ("deepseek_v3", "kimi_k2")
    ARCHITECTURE = "DeepseekV3ForCausalLM"
    BUFFERS = ("e_score_correction_bias",)
    DEFAULTS = dict(
        vocab_size=129280, hidden_size=7168, intermediate_size=18432, moe_intermediate_size=2048, num_hidden_layers=61,
        num_attention_heads=128, num_key_value_heads=128, n_shared_experts=1, n_routed_experts=256, routed_scaling_factor=2.5,
        kv_lora_rank=512, q_lora_rank=1536, qk_rope_head_dim=64, v_head_dim=128, qk_nope_head_dim=128, n_group=8, topk_group=4,
        num_experts_per_tok=8, first_k_dense_replace=3, norm_topk_prob=True, hidden_act="silu", max_position_embeddings=4096,
        initializer_range=0.02, rms_norm_eps=1e-6, use_cache=True, pad_token_id=None, bos_token_id=0, eos_token_id=1,
        pretraining_tp=1, tie_word_embeddings=False, rope_interleave=True, attention_bias=False, attention_dropout=0.0)
    EXPECTED = dict(moe_layer_freq=(1,), scoring_func=("sigmoid",), topk_method=("noaux_tc",), ep_size=Ellipsis,
                    num_nextn_predict_layers=Ellipsis, aux_loss_alpha=Ellipsis, seq_aux=Ellipsis, qk_head_dim=Ellipsis,
                    head_dim=Ellipsis)
    LATENT = dict(kv_lora_rank=10, q_lora_rank=9, qk_rope_head_dim=4, v_head_dim=7, qk_nope_head_dim=6, num_key_value_heads=4)
    TINY = {
        "plain": dict(LATENT, n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, moe_intermediate_size=5,
                      first_k_dense_replace=1, rope_theta=500.0, rope_scaling=dict(
                          type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32, beta_slow=1, mscale=1.0,
                          mscale_all_dim=1.0)),
        "one group": dict(LATENT, q_lora_rank=None, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2,
                          moe_intermediate_size=5, first_k_dense_replace=0, n_shared_experts=2, attention_bias=True,
                          norm_topk_prob=False, rope_interleave=False),
    }

    def latent_norm(self, run, name, x):
        return blocks.rms_norm(x, run.w[name + ".weight"], 1e-6)

    def scale(self, layer):
        p = self.rope_of(layer)
        scale = (self.c.qk_nope_head_dim + self.c.qk_rope_head_dim) ** -0.5
        if p["rope_type"] == "default" or not p.get("mscale_all_dim"):
            return scale
        return scale * blocks.yarn_mscale(p["factor"], p["mscale_all_dim"]) ** 2

    def attention(self, run, layer, x):
        c, w, p = self.c, run.w, f"model.layers.{layer}.self_attn."
        if c.q_lora_rank is None:
            q = blocks.linear(w, p + "q_proj", x)
        else:
            q = blocks.linear(w, p + "q_b_proj", self.latent_norm(run, p + "q_a_layernorm", blocks.linear(w, p + "q_a_proj", x)))
        q_plain, q_turned = q.unflatten(-1, (c.num_attention_heads, -1)).split([c.qk_nope_head_dim, c.qk_rope_head_dim], -1)
        latent, k_turned = blocks.linear(w, p + "kv_a_proj_with_mqa", x).split([c.kv_lora_rank, c.qk_rope_head_dim], -1)

        cos, sin = self.angles(run, layer, c.qk_rope_head_dim)
        q_turned = blocks.rotate(q_turned, cos, sin, c.rope_interleave)
        k_turned = blocks.rotate(k_turned[:, :, None], cos, sin, c.rope_interleave)

        latent, k_turned = run.cache.append(layer, self.latent_norm(run, p + "kv_a_layernorm", latent), k_turned)
        k_plain, v = blocks.linear(w, p + "kv_b_proj", latent).unflatten(-1, (c.num_attention_heads, -1)).split(
            [c.qk_nope_head_dim, c.v_head_dim], -1)
        q = torch.cat((q_plain, q_turned), -1)
        k = torch.cat((k_plain, k_turned.expand(*k_plain.shape[:-1], -1)), -1)
        y = blocks.attend(q, k, v, blocks.visible(run.positions, run.keys, None), self.scale(layer))
        return blocks.linear(w, p + "o_proj", y)

    def route(self, run, p, x):
        c = self.c
        return blocks.sigmoid_router(blocks.linear(run.w, p + "gate", x), c.num_experts_per_tok,
                                     run.w[p + "gate.e_score_correction_bias"].detach(),
                                     c.norm_topk_prob, c.routed_scaling_factor, c.n_group, c.topk_group)

    def sparse(self, layer):
        return layer >= self.c.first_k_dense_replace

    def feed_forward(self, run, layer, x):
        c, p, rows = self.c, f"model.layers.{layer}.mlp.", x.flatten(0, 1)
        if not self.sparse(layer):
            return blocks.gated_mlp(run.w, p, x, c.hidden_act)
        weights, chosen = self.route(run, p, rows)
        y = blocks.mixture(rows, weights, chosen, lambda number, of: blocks.gated_mlp(
            run.w, f"{p}experts.{number}.", of, c.hidden_act)).view_as(x)
        return y + blocks.gated_mlp(run.w, p + "shared_experts.", x, c.hidden_act) if c.n_shared_experts else y

    def attention_shapes(self, layer):
        c, p = self.c, f"model.layers.{layer}.self_attn."
        n, h, d, r = c.num_attention_heads, c.hidden_size, c.qk_nope_head_dim + c.qk_rope_head_dim, c.q_lora_rank
        if r is None:
            shapes = linears(p, False, q_proj=(n * d, h))
        else:
            shapes = {**linears(p, c.attention_bias, q_a_proj=(r, h)), p + "q_a_layernorm.weight": (r,),
                      **linears(p, False, q_b_proj=(n * d, r))}
        return {**shapes, **linears(p, c.attention_bias, kv_a_proj_with_mqa=(c.kv_lora_rank + c.qk_rope_head_dim, h)),
                p + "kv_a_layernorm.weight": (c.kv_lora_rank,),
                **linears(p, False, kv_b_proj=(n * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank)),
                **linears(p, c.attention_bias, o_proj=(h, n * c.v_head_dim))}

    def feed_forward_shapes(self, layer):
        c, p = self.c, f"model.layers.{layer}.mlp."
        if not self.sparse(layer):
            return self.mlp_shapes(p, c.intermediate_size)
        shapes = linears(p, False, gate=(c.n_routed_experts, c.hidden_size))
        if self.BUFFERS:
            shapes[p + "gate.e_score_correction_bias"] = (c.n_routed_experts,)
        for number in range(c.n_routed_experts):
            shapes.update(self.mlp_shapes(f"{p}experts.{number}.", c.moe_intermediate_size))
        if c.n_shared_experts:
            shapes.update(self.mlp_shapes(p + "shared_experts.", c.moe_intermediate_size * c.n_shared_experts))
        return shapes


FAMILY = DeepseekV3
