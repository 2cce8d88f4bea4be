"""Gemma 2: Gemma with norms before and after both sublayers, a window in every other layer (the first has one), soft caps on scores
(50) and logits (30), scores scaled by query_pre_attn_scalar^-0.5 instead of the head dim's.

Sources: huggingface/transformers src/transformers/models/gemma2/{configuration,modular}_gemma2.py; arXiv 2408.00118.
"""
import torch

import gemma


class Gemma2(gemma.Gemma):
    MODEL_TYPES = ("gemma2",)
    ARCHITECTURE = "Gemma2ForCausalLM"
    DEFAULTS = dict(
        vocab_size=256000, hidden_size=2304, intermediate_size=9216, num_hidden_layers=26, num_attention_heads=8,
        num_key_value_heads=4, head_dim=256, hidden_activation="gelu_pytorch_tanh", max_position_embeddings=8192,
        initializer_range=0.02, rms_norm_eps=1e-6, use_cache=True, pad_token_id=0, eos_token_id=1, bos_token_id=2,
        tie_word_embeddings=True, attention_bias=False, attention_dropout=0.0, query_pre_attn_scalar=256, sliding_window=4096,
        layer_types=None, final_logit_softcapping=30.0, attn_logit_softcapping=50.0)
    EXPECTED = dict(hidden_act=Ellipsis, use_bidirectional_attention=(None, False))
    # Every so manieth layer is a full one; the default is 2.
    PATTERN = 2
    NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    TINY = {"plain": dict(num_hidden_layers=3, sliding_window=3, query_pre_attn_scalar=5, attn_logit_softcapping=2.0,
                          final_logit_softcapping=3.0),
            "biases": dict(attention_bias=True, num_hidden_layers=2, sliding_window=2, attn_logit_softcapping=None)}

    def read(self, c):
        if c.layer_types is None:
            pattern = c.get("sliding_window_pattern") or c.get("_sliding_window_pattern") or self.PATTERN
            c["layer_types"] = ["sliding_attention" if (layer + 1) % pattern else "full_attention"
                                for layer in range(c.num_hidden_layers)]

    def window(self, layer):
        return self.c.sliding_window if self.c.layer_types[layer] == "sliding_attention" else None

    def scale(self, layer):
        return self.c.query_pre_attn_scalar ** -0.5

    def block(self, run, layer, x):
        p = f"model.layers.{layer}."
        y = self.attention(run, layer, self.norm(run, p + "input_layernorm", x))
        x = x + self.norm(run, p + "post_attention_layernorm", y)
        y = self.feed_forward(run, layer, self.norm(run, p + "pre_feedforward_layernorm", x))
        return x + self.norm(run, p + "post_feedforward_layernorm", y)

    def head(self, run, x):
        logits, cap = super().head(run, x), self.c.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)


FAMILY = Gemma2
