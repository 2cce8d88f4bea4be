"""Cohere (Command R): attention and MLP stand side by side behind one LayerNorm without a bias; rotary in neighbouring pairs; logits
times logit_scale; the head is tied. Command R+ has use_qk_norm: a LayerNorm over each head of q and k with gains of its own for
every head ([heads, d]).

Sources: huggingface/transformers src/transformers/models/cohere/{configuration,modular}_cohere.py; ggml-org/llama.cpp
src/models/command-r.cpp.
"""
import blocks
from decoder import Decoder


class Cohere(Decoder):
    MODEL_TYPES = ("cohere",)
    ARCHITECTURE = "CohereForCausalLM"
    DEFAULTS = dict(
        vocab_size=256000, hidden_size=8192, intermediate_size=22528, logit_scale=0.0625, num_hidden_layers=40,
        num_attention_heads=64, num_key_value_heads=None, hidden_act="silu", max_position_embeddings=8192, initializer_range=0.02,
        layer_norm_eps=1e-5, use_cache=True, pad_token_id=0, bos_token_id=5, eos_token_id=255001, tie_word_embeddings=True,
        attention_bias=False, attention_dropout=0.0, use_qk_norm=False)
    EXPECTED = dict(model_max_length=Ellipsis, head_dim=Ellipsis)
    NORMS = ("input_layernorm",)
    TINY = {"plain": dict(logit_scale=0.5), "biases": dict(attention_bias=True, tie_word_embeddings=False),
            "norms": dict(use_qk_norm=True, attention_bias=True, logit_scale=2.0)}

    def norm(self, run, name, x):
        return blocks.layer_norm(x, run.w[name + ".weight"], None, self.c.layer_norm_eps)

    def project(self, run, layer, x):
        q, k, v = super().project(run, layer, x)
        if self.c.use_qk_norm:
            p = f"model.layers.{layer}.self_attn."
            q, k = self.norm(run, p + "q_norm", q), self.norm(run, p + "k_norm", k)
        return q, k, v

    def rotate(self, run, layer, q, k):
        cos, sin = self.angles(run, layer)
        return blocks.rotate(q, cos, sin, interleaved=True), blocks.rotate(k, cos, sin, interleaved=True)

    def block(self, run, layer, x):
        normed = self.norm(run, f"model.layers.{layer}.input_layernorm", x)
        return x + self.attention(run, layer, normed) + self.feed_forward(run, layer, normed)

    def head(self, run, x):
        return super().head(run, x) * self.c.logit_scale

    def attention_shapes(self, layer):
        c, p, shapes = self.c, f"model.layers.{layer}.self_attn.", super().attention_shapes(layer)
        if c.use_qk_norm:
            shapes[p + "q_norm.weight"] = (c.num_attention_heads, c.head_dim)
            shapes[p + "k_norm.weight"] = (c.num_key_value_heads, c.head_dim)
        return shapes


FAMILY = Cohere
