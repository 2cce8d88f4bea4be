"""Mixtral: Mistral whose MLP is num_local_experts of them; each token goes to the num_experts_per_tok of highest softmax, whose weights
are renormalised to 1. Experts are called w1 (gate), w3 (up), w2 (down).

transformers 5 fuses experts in memory; folders on the hub have one tensor for each, as here. router_jitter_noise is noise in
training only and left out; router_aux_loss_coef adds a loss where output_router_logits asks for it, which isn't part of what is
computed here. Sources: huggingface/transformers src/transformers/models/mixtral/{configuration,modular}_mixtral.py;
arXiv 2401.04088.
"""
import blocks
import mistral
from decoder import linears


class Mixtral(mistral.Mistral):
    MODEL_TYPES = ("mixtral",)
    ARCHITECTURE = "MixtralForCausalLM"
    DEFAULTS = dict(
        mistral.Mistral.DEFAULTS, rms_norm_eps=1e-5, sliding_window=None, num_experts_per_tok=2, num_local_experts=8,
        output_router_logits=False, router_aux_loss_coef=0.001, router_jitter_noise=0.0)
    THETA = 1000000.0
    TINY = {"plain": dict(num_local_experts=5, num_experts_per_tok=2), "window": dict(num_local_experts=3, sliding_window=4)}
    P = "block_sparse_moe."

    def route(self, run, p, x):
        """Weights and numbers of the experts of x [N, h]."""
        return blocks.softmax_router(blocks.linear(run.w, p + "gate", x), self.c.num_experts_per_tok, renormalise=True)

    def feed_forward(self, run, layer, x):
        p = f"model.layers.{layer}.{self.P}"
        rows = x.flatten(0, 1)
        weights, chosen = self.route(run, p, rows)
        return blocks.mixture(rows, weights, chosen, lambda number, of: blocks.gated_mlp(
            run.w, f"{p}experts.{number}.", of, self.c.hidden_act, ("w1", "w3", "w2"))).view_as(x)

    def feed_forward_shapes(self, layer):
        c, p = self.c, f"model.layers.{layer}.{self.P}"
        h, f = c.hidden_size, c.intermediate_size
        shapes = linears(p, False, gate=(c.num_local_experts, h))
        for number in range(c.num_local_experts):
            shapes.update(linears(f"{p}experts.{number}.", False, w1=(f, h), w2=(h, f), w3=(f, h)))
        return shapes


FAMILY = Mixtral
