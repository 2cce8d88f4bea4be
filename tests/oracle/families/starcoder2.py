"""StarCoder2: LayerNorm with biases, biases on every linear layer (use_bias), an MLP without a gate (c_fc, GeLU's tanh form, c_proj),
a window in every layer, tied.

Sources: huggingface/transformers src/transformers/models/starcoder2/{configuration,modular}_starcoder2.py; arXiv 2402.19173.
"""
import blocks
from decoder import Decoder, linears


class Starcoder2(Decoder):
    MODEL_TYPES = ("starcoder2",)
    ARCHITECTURE = "Starcoder2ForCausalLM"
    DEFAULTS = dict(
        vocab_size=49152, hidden_size=3072, intermediate_size=12288, num_hidden_layers=30, num_attention_heads=24,
        num_key_value_heads=2, hidden_act="gelu_pytorch_tanh", max_position_embeddings=4096, initializer_range=0.018042,
        norm_epsilon=1e-5, use_cache=True, bos_token_id=50256, eos_token_id=50256, sliding_window=None, attention_dropout=0.0,
        residual_dropout=0.0, embedding_dropout=0.0, use_bias=True, tie_word_embeddings=True)
    EXPECTED = dict(norm_type=("layer_norm",), mlp_type=("default",), activation_function=Ellipsis,
                    attention_softmax_in_fp32=Ellipsis, scale_attention_softmax_in_fp32=Ellipsis, scale_attn_weights=(True,),
                    layer_norm_epsilon=Ellipsis, head_dim=Ellipsis)
    TINY = {"window": dict(sliding_window=4), "plain": dict(use_bias=False, tie_word_embeddings=False),
            "biases": dict(tie_word_embeddings=False)}

    def norm(self, run, name, x):
        return blocks.layer_norm(x, run.w[name + ".weight"], run.w[name + ".bias"], self.c.norm_epsilon)

    def window(self, layer):
        return self.c.sliding_window

    def feed_forward(self, run, layer, x):
        p = f"model.layers.{layer}.mlp."
        return blocks.linear(run.w, p + "c_proj", blocks.ACTIVATIONS[self.c.hidden_act](blocks.linear(run.w, p + "c_fc", x)))

    def norm_shapes(self, name):
        return {name + ".weight": (self.c.hidden_size,), name + ".bias": (self.c.hidden_size,)}

    def attention_shapes(self, layer):
        return self.attention_linears(layer, qkv=self.c.use_bias, o=self.c.use_bias)

    def feed_forward_shapes(self, layer):
        h, f = self.c.hidden_size, self.c.intermediate_size
        return linears(f"model.layers.{layer}.mlp.", self.c.use_bias, c_fc=(f, h), c_proj=(h, f))


FAMILY = Starcoder2
