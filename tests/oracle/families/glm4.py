"""GLM-4 (0414): the first half of each head is rotated in neighbouring pairs; norms before and after both sublayers, under names of
their own (post_attention_layernorm stands before the MLP, post_self_attn_layernorm after attention); gate and up are rows of one
gate_up_proj; attention_bias means q, k and v, never o.

Sources: huggingface/transformers src/transformers/models/glm4/{configuration,modular}_glm4.py and glm/modular_glm.py;
ggml-org/llama.cpp src/models/glm4.cpp.
"""
import blocks
from decoder import Decoder


class Glm4(Decoder):
    MODEL_TYPES = ("glm4",)
    ARCHITECTURE = "Glm4ForCausalLM"
    DEFAULTS = dict(
        vocab_size=151552, hidden_size=4096, intermediate_size=13696, num_hidden_layers=40, num_attention_heads=32,
        num_key_value_heads=2, head_dim=128, hidden_act="silu", attention_dropout=0.0, max_position_embeddings=131072,
        initializer_range=0.02, rms_norm_eps=1.5625e-07, use_cache=True, tie_word_embeddings=False, pad_token_id=151329,
        eos_token_id=[151329, 151336, 151338], bos_token_id=None, attention_bias=True, partial_rotary_factor=0.5)
    NORMS = ("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm")
    TINY = {"biases": dict(head_dim=8), "plain": dict(attention_bias=False, head_dim=4, tie_word_embeddings=True)}

    def rotate(self, run, layer, q, k):
        cos, sin = self.angles(run, layer)
        return blocks.rotate(q, cos, sin, interleaved=True), blocks.rotate(k, cos, sin, interleaved=True)

    def feed_forward(self, run, layer, x):
        return blocks.fused_gated_mlp(run.w, f"model.layers.{layer}.mlp.", x, self.c.hidden_act)

    def block(self, run, layer, x):
        p = f"model.layers.{layer}."
        y = self.attention(run, layer, self.norm(run, p + "input_layernorm", x))
        x = x + self.norm(run, p + "post_self_attn_layernorm", y)
        y = self.feed_forward(run, layer, self.norm(run, p + "post_attention_layernorm", x))
        return x + self.norm(run, p + "post_mlp_layernorm", y)

    def attention_shapes(self, layer):
        return self.attention_linears(layer, qkv=self.c.attention_bias, o=False)

    def mlp_shapes(self, p, f, bias=False):
        h = self.c.hidden_size
        return {p + "gate_up_proj.weight": (2 * f, h), p + "down_proj.weight": (h, f)}


FAMILY = Glm4
