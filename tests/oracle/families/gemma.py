"""Gemma: gains of norms are stored as w and used as 1 + w; embeddings are multiplied by sqrt(hidden_size); GeLU gates; head dims of
their own; the head is always tied.

transformers rounds sqrt(hidden_size) to the weights' dtype (bf16: 45.25 for 45.2548); exact here. The first folders say
hidden_act "gelu" with hidden_activation null: the model was trained with the tanh form, which transformers 4 took with a warning
and llama.cpp takes; transformers 5 takes hidden_act literally. The tanh form is taken here.
Sources: huggingface/transformers src/transformers/models/gemma/{configuration,modular}_gemma.py; ggml-org/llama.cpp
src/models/gemma.cpp; google/gemma_pytorch gemma/model.py.
"""
import blocks
from decoder import Decoder


class Gemma(Decoder):
    MODEL_TYPES = ("gemma",)
    ARCHITECTURE = "GemmaForCausalLM"
    DEFAULTS = dict(
        vocab_size=256000, hidden_size=3072, intermediate_size=24576, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=16, head_dim=256, hidden_act="gelu_pytorch_tanh", max_position_embeddings=8192, initializer_range=0.02,
        rms_norm_eps=1e-6, use_cache=True, pad_token_id=0, eos_token_id=1, bos_token_id=2, tie_word_embeddings=True,
        attention_bias=False, attention_dropout=0.0)
    EXPECTED = dict(hidden_activation=Ellipsis, use_bidirectional_attention=(None, False))
    TINY = {"plain": dict(num_key_value_heads=1), "exact": dict(hidden_act="silu", hidden_activation="gelu"),
            "biases": dict(attention_bias=True, hidden_act="gelu", hidden_activation=None)}

    @property
    def activation(self):
        named = self.c.get("hidden_activation") or self.c.get("hidden_act")
        return "gelu_pytorch_tanh" if named == "gelu" and not self.c.get("hidden_activation") else named

    def norm(self, run, name, x):
        return blocks.rms_norm(x, 1 + run.w[name + ".weight"], self.c.rms_norm_eps)

    def embed(self, run):
        return super().embed(run) * self.c.hidden_size ** 0.5

    def feed_forward(self, run, layer, x):
        return blocks.gated_mlp(run.w, f"model.layers.{layer}.mlp.", x, self.activation)


FAMILY = Gemma
