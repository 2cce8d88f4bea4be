"""MiniMax M2: Mixtral with norms over the full width of q and k, rotary_dim of each head's dims rotated in halves, and sigmoid scores
with a correction bias for choosing (DeepSeek-V3's, without groups or a scale).

The hub's config.json has rotary_dim; transformers 5 reads it as partial_rotary_factor. Folders with multi-token prediction have
layers beyond num_hidden_layers, which aren't read. Sources: huggingface/transformers
src/transformers/models/minimax_m2/modular_minimax_m2.py; vllm-project/vllm vllm/model_executor/models/minimax_m2.py.
"""
import blocks
import mixtral
import olmo2


class MiniMaxM2(mixtral.Mixtral):
    MODEL_TYPES = ("minimax_m2",)
    ARCHITECTURE = "MiniMaxM2ForCausalLM"
    BUFFERS = ("e_score_correction_bias",)
    THETA = 5000000.0
    DEFAULTS = dict(
        vocab_size=200064, hidden_size=3072, intermediate_size=1536, num_hidden_layers=62, num_attention_heads=48,
        num_key_value_heads=8, head_dim=128, hidden_act="silu", max_position_embeddings=196608, initializer_range=0.02,
        rms_norm_eps=1e-6, use_cache=True, pad_token_id=None, bos_token_id=200034, eos_token_id=200020, tie_word_embeddings=False,
        attention_dropout=0.0, num_experts_per_tok=8, num_local_experts=256, output_router_logits=False, router_aux_loss_coef=0.001,
        router_jitter_noise=0.0)
    EXPECTED = dict(rotary_dim=Ellipsis, use_qk_norm=(True,), qk_norm_type=("per_layer",), scoring_func=("sigmoid",),
                    use_routing_bias=(True,), shared_intermediate_size=(0,), attn_type_list=Ellipsis, use_mtp=Ellipsis,
                    num_mtp_modules=Ellipsis, mtp_transformer_layers=Ellipsis, sliding_window=(None,), layernorm_full_attention_beta=(1.0,),
                    layernorm_linear_attention_beta=(1.0,), layernorm_mlp_beta=(1.0,))
    TINY = {"plain": dict(num_local_experts=5, num_experts_per_tok=2, head_dim=8, rotary_dim=4)}

    def read(self, c):
        c["sliding_window"] = None
        if any(kind != 1 for kind in c.get("attn_type_list") or []):
            raise ValueError("minimax_m2: attn_type_list has other than 1 (full attention)")

    def rope_of(self, layer):
        p = super().rope_of(layer)
        if "rotary_dim" in self.c:
            p.setdefault("partial_rotary_factor", self.c.rotary_dim / self.c.head_dim)
        return p

    project = olmo2.Olmo2.project

    def route(self, run, p, x):
        return blocks.sigmoid_router(blocks.linear(run.w, p + "gate", x), self.c.num_experts_per_tok,
                                     run.w[p + "e_score_correction_bias"].detach(), renormalise=True, scale=1.0)

    def attention_shapes(self, layer):
        c, p = self.c, f"model.layers.{layer}.self_attn."
        return {**super().attention_shapes(layer), p + "q_norm.weight": (c.num_attention_heads * c.head_dim,),
                p + "k_norm.weight": (c.num_key_value_heads * c.head_dim,)}

    def feed_forward_shapes(self, layer):
        return {**super().feed_forward_shapes(layer),
                f"model.layers.{layer}.{self.P}e_score_correction_bias": (self.c.num_local_experts,)}


FAMILY = MiniMaxM2
