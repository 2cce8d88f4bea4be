"""Gemma 4, text: gains of norms are plain w again; head dims differ between windowed layers (head_dim) and full ones
(global_head_dim); q, k and v of each head are normed (v without a gain) and scores aren't scaled; full layers rotate a part of the
frequencies of the whole head ("proportional"); with attention_k_eq_v full layers have num_global_key_value_heads and no v_proj: v is
k before its norm; the last num_kv_shared_layers take k and v of the last layer of their type before them, and may have an MLP twice
as wide. Every layer's output is multiplied by layer_scalar (a buffer).

hidden_size_per_layer_input > 0 adds, after each layer's MLP, a gated projection of a vector for each token and layer: an embedding
of its own (embed_tokens_per_layer, times the square root of its width) plus a normed projection of the token's embedding, over
sqrt(2). enable_moe_block adds experts beside the MLP, behind norms of their own; their router reads the residual.

Bidirectional attention (use_bidirectional_attention "all") is refused; "vision" concerns images alone.
Sources: huggingface/transformers src/transformers/models/gemma4/{configuration,modular}_gemma4.py, modeling_rope_utils.py
(_compute_proportional_rope_parameters) and gemma3n/modeling_gemma3n.py (RMSNorm).
"""
import torch
import torch.nn.functional as F

import blocks
import gemma2
from decoder import linears


class Gemma4(gemma2.Gemma2):
    MODEL_TYPES = ("gemma4_text",)
    ARCHITECTURE = "Gemma4ForCausalLM"
    BUFFERS = ("layer_scalar",)
    DEFAULTS = dict(
        vocab_size=262144, hidden_size=2304, intermediate_size=9216, num_hidden_layers=30, num_attention_heads=8,
        num_key_value_heads=4, head_dim=256, hidden_activation="gelu_pytorch_tanh", max_position_embeddings=131072,
        initializer_range=0.02, rms_norm_eps=1e-6, use_cache=True, pad_token_id=0, eos_token_id=1, bos_token_id=2,
        tie_word_embeddings=True, attention_bias=False, attention_dropout=0.0, sliding_window=512, layer_types=None,
        final_logit_softcapping=None, use_bidirectional_attention=None, vocab_size_per_layer_input=262144,
        hidden_size_per_layer_input=256, attention_k_eq_v=False, num_kv_shared_layers=0, enable_moe_block=False,
        use_double_wide_mlp=False, num_experts=None, top_k_experts=None, moe_intermediate_size=None, global_head_dim=512,
        num_global_key_value_heads=None,
        rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=10000.0),
                             full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1000000.0)))
    EXPECTED = dict(use_bidirectional_attention=(None, "vision", False))
    PATTERN = 6
    ROPE = dict(sliding_attention=dict(rope_type="default", rope_theta=100.0),
                full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1000.0))
    PLAIN = dict(hidden_size_per_layer_input=0, attention_k_eq_v=True)
    TINY = {
        "dense": dict(PLAIN, num_hidden_layers=3, sliding_window=3, head_dim=6, global_head_dim=8, num_global_key_value_heads=1,
                      rope_parameters=ROPE, final_logit_softcapping=5.0,
                      layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
        "biases": dict(PLAIN, num_hidden_layers=2, sliding_window=2, global_head_dim=None, attention_bias=True,
                       layer_types=["sliding_attention", "full_attention"],
                       rope_parameters=dict(ROPE, full_attention=dict(rope_type="proportional", partial_rotary_factor=0.7, factor=2.0,
                                                                      rope_theta=1000.0))),
        "lent": dict(PLAIN, num_hidden_layers=6, sliding_window=3, head_dim=6, global_head_dim=8, num_global_key_value_heads=1,
                     num_kv_shared_layers=3, use_double_wide_mlp=True, rope_parameters=ROPE,
                     layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2),
        "inputs": dict(num_hidden_layers=2, sliding_window=3, hidden_size_per_layer_input=5, vocab_size_per_layer_input=23,
                       global_head_dim=None, rope_parameters=ROPE, layer_types=["sliding_attention", "full_attention"]),
        "shared": dict(num_hidden_layers=6, sliding_window=3, head_dim=6, global_head_dim=8, hidden_size_per_layer_input=5,
                       vocab_size_per_layer_input=23, num_kv_shared_layers=3, use_double_wide_mlp=True, rope_parameters=ROPE,
                       final_logit_softcapping=5.0, layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2),
        "experts": dict(num_hidden_layers=2, sliding_window=3, head_dim=6, global_head_dim=8, hidden_size_per_layer_input=0,
                        attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=5, top_k_experts=2,
                        moe_intermediate_size=7, rope_parameters=ROPE, layer_types=["sliding_attention", "full_attention"]),
    }

    def read(self, c):
        super().read(c)
        c["layer_types"] = [*c.layer_types[:-1], "full_attention"]
        self.first_shared = c.num_hidden_layers - c.num_kv_shared_layers

    # What differs from layer to layer.

    def full(self, layer):
        return self.c.layer_types[layer] == "full_attention"

    def dim(self, layer):
        return self.c.global_head_dim if self.full(layer) and self.c.global_head_dim else self.c.head_dim

    def k_is_v(self, layer):
        return self.c.attention_k_eq_v and self.full(layer)

    def kv_heads(self, layer):
        given = self.c.num_global_key_value_heads
        return given if self.k_is_v(layer) and given is not None else self.c.num_key_value_heads

    def shares(self, layer):
        return layer >= self.first_shared

    def lender(self, layer):
        """The layer whose k and v a sharing layer takes."""
        return max(other for other in range(self.first_shared) if self.c.layer_types[other] == self.c.layer_types[layer])

    def norm(self, run, name, x):
        return blocks.rms_norm(x, run.w[name + ".weight"], self.c.rms_norm_eps)

    def attention(self, run, layer, x):
        p, d, w = f"model.layers.{layer}.self_attn.", self.dim(layer), run.w
        cos, sin = self.angles(run, layer, d)
        q = blocks.linear(w, p + "q_proj", x).unflatten(-1, (-1, d))
        q = blocks.rotate(self.norm(run, p + "q_norm", q), cos, sin)
        if self.shares(layer):
            k, v = run.cache.kept[self.lender(layer)]
        else:
            k = blocks.linear(w, p + "k_proj", x).unflatten(-1, (-1, d))
            v = k if self.k_is_v(layer) else blocks.linear(w, p + "v_proj", x).unflatten(-1, (-1, d))
            k = blocks.rotate(self.norm(run, p + "k_norm", k), cos, sin)
            k, v = run.cache.append(layer, k, blocks.rms(v, self.c.rms_norm_eps))
        y = blocks.attend(q, k, v, blocks.visible(run.positions, run.keys, self.window(layer)), scale=1.0)
        return blocks.linear(w, p + "o_proj", y)

    def experts(self, run, layer, residual):
        """The experts' part beside the MLP: the router reads the residual, bare of its root mean square."""
        c, p, w = self.c, f"model.layers.{layer}.", run.w
        rows = residual.flatten(0, 1)
        routed = blocks.rms(rows, c.rms_norm_eps) * w[p + "router.scale"] * c.hidden_size ** -0.5
        weights, chosen = blocks.softmax_router(blocks.linear(w, p + "router.proj", routed), c.top_k_experts, renormalise=True)
        weights = weights * w[p + "router.per_expert_scale"][chosen]

        def expert(number, of):
            gate, up = F.linear(of, w[p + "experts.gate_up_proj"][number]).chunk(2, -1)
            return F.linear(blocks.ACTIVATIONS[self.activation](gate) * up, w[p + "experts.down_proj"][number])

        rows = self.norm(run, p + "pre_feedforward_layernorm_2", rows)
        return self.norm(run, p + "post_feedforward_layernorm_2", blocks.mixture(rows, weights, chosen, expert)).view_as(residual)

    def per_layer_inputs(self, run, embedded):
        """[B, S, layers, width]: what each layer gets of each token."""
        c, width = self.c, self.c.hidden_size_per_layer_input
        own = F.embedding(run.ids, run.w["model.embed_tokens_per_layer.weight"]) * width ** 0.5
        projected = blocks.linear(run.w, "model.per_layer_model_projection", embedded) * c.hidden_size ** -0.5
        projected = self.norm(run, "model.per_layer_projection_norm", projected.unflatten(-1, (-1, width)))
        return (projected + own.unflatten(-1, (-1, width))) * 2 ** -0.5

    def embed(self, run):
        x = super().embed(run)
        if self.c.hidden_size_per_layer_input:
            run.shared["inputs"] = self.per_layer_inputs(run, x)
        return x

    def block(self, run, layer, x):
        p = f"model.layers.{layer}."
        y = self.attention(run, layer, self.norm(run, p + "input_layernorm", x))
        x = x + self.norm(run, p + "post_attention_layernorm", y)
        y = self.feed_forward(run, layer, self.norm(run, p + "pre_feedforward_layernorm", x))
        if self.c.enable_moe_block:
            y = self.norm(run, p + "post_feedforward_layernorm_1", y) + self.experts(run, layer, x)
        x = x + self.norm(run, p + "post_feedforward_layernorm", y)
        if self.c.hidden_size_per_layer_input:
            gate = blocks.ACTIVATIONS[self.activation](blocks.linear(run.w, p + "per_layer_input_gate", x))
            y = blocks.linear(run.w, p + "per_layer_projection", gate * run.shared["inputs"][:, :, layer])
            x = x + self.norm(run, p + "post_per_layer_input_norm", y)
        return x * run.w[p + "layer_scalar"]

    def attention_shapes(self, layer):
        c, p, d, h = self.c, f"model.layers.{layer}.self_attn.", self.dim(layer), self.c.hidden_size
        rows, columns = c.num_attention_heads * d, self.kv_heads(layer) * d
        shapes = {**linears(p, c.attention_bias, q_proj=(rows, h), o_proj=(h, rows)), p + "q_norm.weight": (d,)}
        if not self.shares(layer):
            shapes.update({**linears(p, c.attention_bias, k_proj=(columns, h)), p + "k_norm.weight": (d,)})
            if not self.k_is_v(layer):
                shapes.update(linears(p, c.attention_bias, v_proj=(columns, h)))
        return shapes

    def feed_forward_shapes(self, layer):
        c, p, h = self.c, f"model.layers.{layer}.", self.c.hidden_size
        wide = 2 if c.use_double_wide_mlp and self.shares(layer) else 1
        shapes = {**self.mlp_shapes(p + "mlp.", c.intermediate_size * wide), p + "layer_scalar": (1,)}
        if c.enable_moe_block:
            e, f = c.num_experts, c.moe_intermediate_size
            shapes.update({p + "router.proj.weight": (e, h), p + "router.scale": (h,), p + "router.per_expert_scale": (e,),
                           p + "experts.gate_up_proj": (e, 2 * f, h), p + "experts.down_proj": (e, h, f)})
            for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
                shapes[p + name + ".weight"] = (h,)
        if c.hidden_size_per_layer_input:
            width = c.hidden_size_per_layer_input
            shapes.update({**linears(p, False, per_layer_input_gate=(width, h), per_layer_projection=(h, width)),
                           p + "post_per_layer_input_norm.weight": (h,)})
        return shapes

    def shapes(self):
        c, shapes, width = self.c, super().shapes(), self.c.hidden_size_per_layer_input
        if width:
            total = c.num_hidden_layers * width
            shapes.update({"model.embed_tokens_per_layer.weight": (c.vocab_size_per_layer_input, total),
                           "model.per_layer_model_projection.weight": (total, c.hidden_size),
                           "model.per_layer_projection_norm.weight": (width,)})
        return shapes


FAMILY = Gemma4
