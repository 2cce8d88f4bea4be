"""Phi 3, 3.5 and 4 (whose model_type is phi3, too): q, k and v are rows of one qkv_proj, gate and up of one gate_up_proj; a window in
every layer; longrope, whose lists Phi's documents called "su" and "yarn" once; Phi-4-mini rotates three quarters of a head.

original_max_position_embeddings stands beside rope_scaling, and its ratio to max_position_embeddings gives longrope's attention
factor, whatever factor says. Sources: huggingface/transformers src/transformers/models/phi3/{configuration,modular}_phi3.py and
modeling_rope_utils.py (_compute_longrope_parameters).
"""
import blocks
import mistral


class Phi3(mistral.Mistral):
    MODEL_TYPES = ("phi3",)
    ARCHITECTURE = "Phi3ForCausalLM"
    DEFAULTS = dict(
        vocab_size=32064, hidden_size=3072, intermediate_size=8192, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=None, resid_pdrop=0.0, embd_pdrop=0.0, attention_dropout=0.0, hidden_act="silu",
        max_position_embeddings=4096, original_max_position_embeddings=4096, initializer_range=0.02, rms_norm_eps=1e-5,
        use_cache=True, tie_word_embeddings=False, bos_token_id=1, eos_token_id=32000, pad_token_id=32000, sliding_window=None)
    EXPECTED = dict(attention_bias=(False,), mlp_bias=(False,), full_attn_mod=(1,), interpolate_factor=(1,), lm_head_bias=(False,),
                    head_dim=Ellipsis)
    TINY = {
        "plain": dict(sliding_window=64),
        "window": dict(sliding_window=4),
        "longrope": dict(max_position_embeddings=32, original_max_position_embeddings=8, partial_rotary_factor=0.75,
                         tie_word_embeddings=True,
                         rope_scaling=dict(type="longrope", short_factor=[1.0, 1.1, 1.3], long_factor=[1.0, 2.0, 3.5])),
    }

    def rope_of(self, layer):
        p = super().rope_of(layer)
        if p["rope_type"] in ("su", "yarn"):
            p["rope_type"] = "longrope"
        if p["rope_type"] == "longrope":
            original = self.c.original_max_position_embeddings
            p["original_max_position_embeddings"] = original
            p["factor"] = self.c.max_position_embeddings / original
        return p

    def project(self, run, layer, x):
        c = self.c
        sizes = [heads * c.head_dim for heads in (c.num_attention_heads, c.num_key_value_heads, c.num_key_value_heads)]
        fused = blocks.linear(run.w, f"model.layers.{layer}.self_attn.qkv_proj", x)
        return tuple(part.unflatten(-1, (-1, c.head_dim)) for part in fused.split(sizes, -1))

    def feed_forward(self, run, layer, x):
        return blocks.fused_gated_mlp(run.w, f"model.layers.{layer}.mlp.", x, self.c.hidden_act)

    def attention_shapes(self, layer):
        c, p = self.c, f"model.layers.{layer}.self_attn."
        rows, columns = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        return {p + "qkv_proj.weight": (rows + 2 * columns, c.hidden_size), p + "o_proj.weight": (c.hidden_size, rows)}

    def mlp_shapes(self, p, f, bias=False):
        h = self.c.hidden_size
        return {p + "gate_up_proj.weight": (2 * f, h), p + "down_proj.weight": (h, f)}


FAMILY = Phi3
