"""OLMoE: Llama's block with OLMo 2's norms over the full width of q and k, optional clipping of q, k and v (clip_qkv), and experts in
every layer: softmax over all, the best k, not renormalised by default.

Sources: huggingface/transformers src/transformers/models/olmoe/{configuration,modeling}_olmoe.py; arXiv 2409.02060.
"""
import blocks
import olmo2
from decoder import Decoder, linears


class Olmoe(olmo2.Olmo2):
    MODEL_TYPES = ("olmoe",)
    ARCHITECTURE = "OlmoeForCausalLM"
    DEFAULTS = dict(
        vocab_size=50304, hidden_size=2048, intermediate_size=2048, num_hidden_layers=16, num_attention_heads=16,
        num_key_value_heads=None, hidden_act="silu", max_position_embeddings=4096, initializer_range=0.02, rms_norm_eps=1e-5,
        use_cache=True, pad_token_id=1, bos_token_id=None, eos_token_id=50279, tie_word_embeddings=False, attention_bias=False,
        attention_dropout=0.0, clip_qkv=None, num_experts_per_tok=8, num_experts=64, output_router_logits=False,
        router_aux_loss_coef=0.01, norm_topk_prob=False)
    NORMS = Decoder.NORMS
    TINY = {"plain": dict(num_experts=6, num_experts_per_tok=3),
            "clipped": dict(num_experts=4, num_experts_per_tok=2, clip_qkv=0.7, norm_topk_prob=True)}

    def project(self, run, layer, x):
        parts = super().project(run, layer, x)
        clip = self.c.clip_qkv
        return parts if clip is None else tuple(part.clamp(-clip, clip) for part in parts)

    block = Decoder.block

    def feed_forward(self, run, layer, x):
        c, p, rows = self.c, f"model.layers.{layer}.mlp.", x.flatten(0, 1)
        weights, chosen = blocks.softmax_router(blocks.linear(run.w, p + "gate", rows), c.num_experts_per_tok, c.norm_topk_prob)
        return blocks.mixture(rows, weights, chosen, lambda number, of: blocks.gated_mlp(
            run.w, f"{p}experts.{number}.", of, c.hidden_act)).view_as(x)

    def feed_forward_shapes(self, layer):
        c, p = self.c, f"model.layers.{layer}.mlp."
        shapes = linears(p, False, gate=(c.num_experts, c.hidden_size))
        for number in range(c.num_experts):
            shapes.update(self.mlp_shapes(f"{p}experts.{number}.", c.intermediate_size))
        return shapes


FAMILY = Olmoe
