"""GLM-4.5 and 4.6: Llama's block with half of each head rotated in halves (GLM-4 dense turns neighbouring pairs), biases on q, k and v
by attention_bias, norms over heads of q and k by use_qk_norm, and DeepSeek-V3's experts from first_k_dense_replace on.

Layers beyond num_hidden_layers (multi-token prediction) aren't read.
Sources: huggingface/transformers src/transformers/models/glm4_moe/{modular,modeling}_glm4_moe.py; ggml-org/llama.cpp
src/models/glm4-moe.cpp.
"""
import deepseek_v3
from decoder import Decoder


class Glm4Moe(deepseek_v3.DeepseekV3):
    MODEL_TYPES = ("glm4_moe",)
    ARCHITECTURE = "Glm4MoeForCausalLM"
    DEFAULTS = dict(
        vocab_size=151552, hidden_size=4096, intermediate_size=10944, num_hidden_layers=46, num_attention_heads=96,
        partial_rotary_factor=0.5, num_key_value_heads=8, hidden_act="silu", max_position_embeddings=131072, initializer_range=0.02,
        rms_norm_eps=1e-5, use_cache=True, tie_word_embeddings=False, attention_bias=False, attention_dropout=0.0,
        moe_intermediate_size=1408, num_experts_per_tok=8, n_shared_experts=1, n_routed_experts=128, routed_scaling_factor=1.0,
        n_group=1, topk_group=1, first_k_dense_replace=1, norm_topk_prob=True, use_qk_norm=False, pad_token_id=None)
    EXPECTED = dict(head_dim=Ellipsis, num_nextn_predict_layers=Ellipsis)
    SMALL = dict(n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=5, head_dim=8)
    TINY = {"norms": dict(SMALL, use_qk_norm=True, attention_bias=True, routed_scaling_factor=2.5),
            "groups": dict(SMALL, n_group=3, topk_group=2)}

    attention, scale = Decoder.attention, Decoder.scale

    def project(self, run, layer, x):
        q, k, v = super().project(run, layer, x)
        if self.c.use_qk_norm:
            p = f"model.layers.{layer}.self_attn."
            q, k = self.norm(run, p + "q_norm", q), self.norm(run, p + "k_norm", k)
        return q, k, v

    def attention_shapes(self, layer):
        shapes, p = self.attention_linears(layer, qkv=self.c.attention_bias, o=False), f"model.layers.{layer}.self_attn."
        if self.c.use_qk_norm:
            shapes.update({p + "q_norm.weight": (self.c.head_dim,), p + "k_norm.weight": (self.c.head_dim,)})
        return shapes


FAMILY = Glm4Moe
