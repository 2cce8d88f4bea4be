"""Qwen 3 MoE: Qwen 3 whose layers have num_experts MLPs of moe_intermediate_size, but for mlp_only_layers and those that
decoder_sparse_step leaves out (a layer has experts if its number + 1 is a multiple). Softmax over all experts, the best
num_experts_per_tok, renormalised where norm_topk_prob says so. A window, where use_sliding_window says so, holds in every layer.

Sources: huggingface/transformers src/transformers/models/qwen3_moe/{configuration,modular}_qwen3_moe.py and
qwen2_moe/modeling_qwen2_moe.py.
"""
import blocks
import qwen3
from decoder import linears


class Qwen3Moe(qwen3.Qwen3):
    MODEL_TYPES = ("qwen3_moe",)
    ARCHITECTURE = "Qwen3MoeForCausalLM"
    DEFAULTS = dict(
        vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=24, num_attention_heads=32,
        num_key_value_heads=4, hidden_act="silu", max_position_embeddings=32768, initializer_range=0.02, rms_norm_eps=1e-6,
        use_cache=True, tie_word_embeddings=False, attention_bias=False, use_sliding_window=False, sliding_window=4096,
        attention_dropout=0.0, decoder_sparse_step=1, moe_intermediate_size=768, num_experts_per_tok=8, num_experts=128,
        norm_topk_prob=False, output_router_logits=False, router_aux_loss_coef=0.001, mlp_only_layers=None)
    EXPECTED = dict(head_dim=Ellipsis, max_window_layers=Ellipsis)
    TINY = {"plain": dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=5, norm_topk_prob=True, head_dim=6),
            "mixed": dict(num_experts=4, num_experts_per_tok=1, moe_intermediate_size=7, num_hidden_layers=4, mlp_only_layers=[1],
                          decoder_sparse_step=2, use_sliding_window=True, sliding_window=4)}

    def read(self, c):
        if not c.use_sliding_window:
            c["sliding_window"] = None
        c["mlp_only_layers"] = c.mlp_only_layers or []

    def window(self, layer):
        return self.c.sliding_window

    def sparse(self, layer):
        c = self.c
        return layer not in c.mlp_only_layers and c.num_experts > 0 and (layer + 1) % c.decoder_sparse_step == 0

    def route(self, run, p, x):
        c = self.c
        return blocks.softmax_router(blocks.linear(run.w, p + "gate", x), c.num_experts_per_tok, c.norm_topk_prob)

    def feed_forward(self, run, layer, x):
        if not self.sparse(layer):
            return super().feed_forward(run, layer, x)
        p, rows = f"model.layers.{layer}.mlp.", x.flatten(0, 1)
        weights, chosen = self.route(run, p, rows)
        return blocks.mixture(rows, weights, chosen, lambda number, of: blocks.gated_mlp(
            run.w, f"{p}experts.{number}.", of, self.c.hidden_act)).view_as(x)

    def feed_forward_shapes(self, layer):
        if not self.sparse(layer):
            return super().feed_forward_shapes(layer)
        c, p = self.c, f"model.layers.{layer}.mlp."
        shapes = linears(p, False, gate=(c.num_experts, c.hidden_size))
        for number in range(c.num_experts):
            shapes.update(self.mlp_shapes(f"{p}experts.{number}.", c.moe_intermediate_size))
        return shapes


FAMILY = Qwen3Moe
