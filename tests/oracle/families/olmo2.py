"""OLMo 2: norms stand after the sublayers, inside the residual branch, none before; q and k are normed over their full width (all
heads together) before they are cut into heads.

Sources: huggingface/transformers src/transformers/models/olmo2/{configuration,modular}_olmo2.py; arXiv 2501.00656.
"""
import blocks
from decoder import Decoder


class Olmo2(Decoder):
    MODEL_TYPES = ("olmo2",)
    ARCHITECTURE = "Olmo2ForCausalLM"
    DEFAULTS = dict(
        vocab_size=50304, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=None, hidden_act="silu", max_position_embeddings=2048, initializer_range=0.02, use_cache=True,
        pad_token_id=1, bos_token_id=None, eos_token_id=50279, tie_word_embeddings=False, attention_bias=False,
        attention_dropout=0.0, rms_norm_eps=1e-5)
    EXPECTED = dict(head_dim=Ellipsis)
    TINY = {"plain": {}, "biases": dict(attention_bias=True, tie_word_embeddings=True)}
    NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")

    def project(self, run, layer, x):
        p = f"model.layers.{layer}.self_attn."
        q, k, v = (blocks.linear(run.w, p + name, x) for name in ("q_proj", "k_proj", "v_proj"))
        q, k = self.norm(run, p + "q_norm", q), self.norm(run, p + "k_norm", k)
        return tuple(part.unflatten(-1, (-1, self.c.head_dim)) for part in (q, k, v))

    def block(self, run, layer, x):
        p = f"model.layers.{layer}."
        x = x + self.norm(run, p + "post_attention_layernorm", self.attention(run, layer, x))
        return x + self.norm(run, p + "post_feedforward_layernorm", self.feed_forward(run, layer, x))

    def attention_shapes(self, layer):
        c, p = self.c, f"model.layers.{layer}.self_attn."
        return {**super().attention_shapes(layer), p + "q_norm.weight": (c.num_attention_heads * c.head_dim,),
                p + "k_norm.weight": (c.num_key_value_heads * c.head_dim,)}


FAMILY = Olmo2
