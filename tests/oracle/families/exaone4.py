"""EXAONE 4: norms after the sublayers as OLMo 2's; a norm over each head of q and k; hybrids (with a sliding_window) have windowed
layers, which rotate, and full ones, which don't; models without a window rotate everywhere.

sliding_window_pattern is a number (every so manieth layer is full) or letters such as LLLG, repeated. Without a window and
layer_types transformers divides by zero; here all layers are full then, as the 1.2 B model's layer_types say. With letters
transformers' code raises, too, unless layer_types stands beside; they are read as its documentation says, the last layer being
full. Sources: huggingface/transformers src/transformers/models/exaone4/modular_exaone4.py; ggml-org/llama.cpp
src/models/exaone4.cpp; arXiv 2507.11407.
"""
import olmo2


class Exaone4(olmo2.Olmo2):
    MODEL_TYPES = ("exaone4",)
    ARCHITECTURE = "Exaone4ForCausalLM"
    DEFAULTS = dict(
        vocab_size=102400, hidden_size=4096, intermediate_size=16384, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=32, hidden_act="silu", max_position_embeddings=2048, initializer_range=0.02, rms_norm_eps=1e-5,
        use_cache=True, bos_token_id=0, eos_token_id=2, pad_token_id=None, tie_word_embeddings=False, attention_dropout=0.0,
        sliding_window=4096, sliding_window_pattern=4, layer_types=None)
    TINY = {"hybrid": dict(num_hidden_layers=4, sliding_window=3, sliding_window_pattern="LLLG",
                           rope_scaling=dict(rope_type="llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                             original_max_position_embeddings=16)),
            "full": dict(sliding_window=None, tie_word_embeddings=True)}

    def read(self, c):
        layers, pattern = range(c.num_hidden_layers), c.sliding_window_pattern
        if c.layer_types is not None:
            return
        if c.sliding_window is None:
            full = [True for _ in layers]
        elif isinstance(pattern, str):
            full = [pattern[layer % len(pattern)] == "G" or layer == layers[-1] for layer in layers]
        else:
            full = [(layer + 1) % pattern == 0 for layer in layers]
        c["layer_types"] = ["full_attention" if of_layer else "sliding_attention" for of_layer in full]

    def window(self, layer):
        return self.c.sliding_window if self.c.layer_types[layer] == "sliding_attention" else None

    def project(self, run, layer, x):
        q, k, v = super(olmo2.Olmo2, self).project(run, layer, x)
        p = f"model.layers.{layer}.self_attn."
        return self.norm(run, p + "q_norm", q), self.norm(run, p + "k_norm", k), v

    def rotate(self, run, layer, q, k):
        turns = self.c.sliding_window is None or self.c.layer_types[layer] == "sliding_attention"
        return super().rotate(run, layer, q, k) if turns else (q, k)

    def attention_shapes(self, layer):
        p = f"model.layers.{layer}.self_attn."
        return {**self.attention_linears(layer, qkv=False, o=False), p + "q_norm.weight": (self.c.head_dim,),
                p + "k_norm.weight": (self.c.head_dim,)}


FAMILY = Exaone4
