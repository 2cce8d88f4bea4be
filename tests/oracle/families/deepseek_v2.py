"""DeepSeek V2 and V2-Lite: V3's latent attention, with a softmax router: the best k (greedy), or the best k within the groups whose
best expert is highest (group_limited_greedy); weights times routed_scaling_factor, not renormalised.

Sources disagree twice. Yarn's mscale squared on the scores: DeepSeek's own modeling_deepseek.py, vLLM and llama.cpp multiply, as
here; transformers' own class doesn't. norm_topk_prob: DeepSeek renormalises instead of scaling, transformers ignores it; no folder
sets it, so it is refused here. Sources: huggingface/transformers src/transformers/models/deepseek_v2/modular_deepseek_v2.py;
deepseek-ai/DeepSeek-V2-Lite modeling_deepseek.py (hub); vllm-project/vllm vllm/model_executor/models/deepseek_v2.py;
ggml-org/llama.cpp src/models/deepseek2.cpp; arXiv 2405.04434.
"""
import torch

import blocks
import deepseek_v3


class DeepseekV2(deepseek_v3.DeepseekV3):
    MODEL_TYPES = ("deepseek_v2",)
    ARCHITECTURE = "DeepseekV2ForCausalLM"
    BUFFERS = ()
    DEFAULTS = dict(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=None, hidden_act="silu", max_position_embeddings=2048, initializer_range=0.02, rms_norm_eps=1e-6,
        use_cache=True, pad_token_id=None, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False, attention_bias=False,
        attention_dropout=0.0, mlp_bias=False, first_k_dense_replace=0, kv_lora_rank=512, q_lora_rank=1536, n_group=None,
        n_routed_experts=64, n_shared_experts=2, qk_nope_head_dim=128, qk_rope_head_dim=64, routed_scaling_factor=1.0,
        topk_group=None, topk_method="greedy", norm_topk_prob=False, v_head_dim=128, num_experts_per_tok=None,
        moe_intermediate_size=1407)
    EXPECTED = dict(moe_layer_freq=(1,), scoring_func=("softmax",), norm_topk_prob=(False,), mlp_bias=(False,), ep_size=Ellipsis,
                    aux_loss_alpha=Ellipsis, seq_aux=Ellipsis, head_dim=Ellipsis)
    SMALL = dict(deepseek_v3.DeepseekV3.LATENT, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=5)
    TINY = {
        "greedy": dict(SMALL, q_lora_rank=None, first_k_dense_replace=1, rope_scaling=dict(
            type="yarn", factor=40, original_max_position_embeddings=16, beta_fast=32, beta_slow=1, mscale=0.707,
            mscale_all_dim=0.707)),
        "groups": dict(SMALL, topk_method="group_limited_greedy", n_group=3, topk_group=2, routed_scaling_factor=4.0),
    }

    def read(self, c):
        c["rope_interleave"] = True
        if c.topk_method not in ("greedy", "group_limited_greedy"):
            raise ValueError(f"deepseek_v2: topk_method is {c.topk_method!r}; understood: greedy, group_limited_greedy")

    def route(self, run, p, x):
        c = self.c
        scores = torch.softmax(blocks.linear(run.w, p + "gate", x), -1)
        choice = scores.detach()
        if c.topk_method == "group_limited_greedy":
            choice = blocks.within_best_groups(choice, c.n_group, c.topk_group, 1)
        chosen = choice.topk(c.num_experts_per_tok, -1).indices
        return scores.gather(1, chosen) * c.routed_scaling_factor, chosen


FAMILY = DeepseekV2
