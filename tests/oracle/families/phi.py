"""Phi 1, 1.5 and 2: attention and MLP side by side behind one LayerNorm; biases everywhere, the head's among them; half of each head
rotated; o is called dense, the MLP fc1 and fc2, the last norm final_layernorm; qk_layernorm norms each head of q and k (one gain and
bias for all heads).

Sources: huggingface/transformers src/transformers/models/phi/{configuration,modular,modeling}_phi.py; ggml-org/llama.cpp
src/models/phi2.cpp.
"""
import torch.nn.functional as F

import blocks
from decoder import Decoder, linears


class Phi(Decoder):
    MODEL_TYPES = ("phi",)
    ARCHITECTURE = "PhiForCausalLM"
    DEFAULTS = dict(
        vocab_size=51200, hidden_size=2048, intermediate_size=8192, num_hidden_layers=24, num_attention_heads=32,
        num_key_value_heads=None, resid_pdrop=0.0, embd_pdrop=0.0, attention_dropout=0.0, hidden_act="gelu_new",
        max_position_embeddings=2048, initializer_range=0.02, layer_norm_eps=1e-5, use_cache=True, tie_word_embeddings=False,
        qk_layernorm=False, bos_token_id=1, eos_token_id=2, pad_token_id=None, partial_rotary_factor=0.5)
    EXPECTED = dict(head_dim=Ellipsis)  # PhiAttention reads it, though PhiConfig doesn't name it
    NORMS = ("input_layernorm",)
    TINY = {"plain": {}, "norms": dict(qk_layernorm=True), "heads": dict(head_dim=12, tie_word_embeddings=True)}

    def norm(self, run, name, x):
        return blocks.layer_norm(x, run.w[name + ".weight"], run.w[name + ".bias"], self.c.layer_norm_eps)

    def project(self, run, layer, x):
        q, k, v = super().project(run, layer, x)
        if self.c.qk_layernorm:
            p = f"model.layers.{layer}.self_attn."
            q, k = self.norm(run, p + "q_layernorm", q), self.norm(run, p + "k_layernorm", k)
        return q, k, v

    def attention(self, run, layer, x):
        p = f"model.layers.{layer}.self_attn."
        q, k, v = self.project(run, layer, x)
        q, k = self.rotate(run, layer, q, k)
        k, v = run.cache.append(layer, k, v)
        y = blocks.attend(q, k, v, blocks.visible(run.positions, run.keys, None), self.scale(layer))
        return blocks.linear(run.w, p + "dense", y)

    def feed_forward(self, run, layer, x):
        p = f"model.layers.{layer}.mlp."
        return blocks.linear(run.w, p + "fc2", blocks.ACTIVATIONS[self.c.hidden_act](blocks.linear(run.w, p + "fc1", x)))

    def block(self, run, layer, x):
        normed = self.norm(run, f"model.layers.{layer}.input_layernorm", x)
        return x + self.attention(run, layer, normed) + self.feed_forward(run, layer, normed)

    def head(self, run, x):
        weight = run.w["model.embed_tokens.weight" if self.tied else "lm_head.weight"]
        return F.linear(self.norm(run, "model.final_layernorm", x), weight, run.w["lm_head.bias"])

    def norm_shapes(self, name):
        name = name.replace("model.norm", "model.final_layernorm")
        return {name + ".weight": (self.c.hidden_size,), name + ".bias": (self.c.hidden_size,)}

    def attention_shapes(self, layer):
        c, p = self.c, f"model.layers.{layer}.self_attn."
        rows, columns = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        shapes = linears(p, True, q_proj=(rows, c.hidden_size), k_proj=(columns, c.hidden_size), v_proj=(columns, c.hidden_size),
                         dense=(c.hidden_size, rows))
        for name in ("q_layernorm", "k_layernorm") if c.qk_layernorm else ():
            shapes.update({f"{p}{name}.weight": (c.head_dim,), f"{p}{name}.bias": (c.head_dim,)})
        return shapes

    def feed_forward_shapes(self, layer):
        h, f = self.c.hidden_size, self.c.intermediate_size
        return linears(f"model.layers.{layer}.mlp.", True, fc1=(f, h), fc2=(h, f))

    def shapes(self):
        return {**super().shapes(), "lm_head.bias": (self.c.vocab_size,)}


FAMILY = Phi
