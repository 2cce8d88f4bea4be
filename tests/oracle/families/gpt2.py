"""GPT-2: LayerNorm before each sublayer, learned positions, an MLP without a gate, biases everywhere; q, k and v lie in one matrix, and
linear layers store [in, out]. Its fields and tensors have names of their own; official folders' tensors bear no prefix. The inner width
is 4 times the hidden one where n_inner is null.

Source: huggingface/transformers src/transformers/models/gpt2/{configuration,modeling}_gpt2.py.
"""
import torch.nn.functional as F

import blocks
from decoder import Decoder, Run


class GPT2(Decoder):
    MODEL_TYPES = ("gpt2",)
    ARCHITECTURE = "GPT2LMHeadModel"
    THETA = None
    RENAMED = dict(hidden_size="n_embd", num_hidden_layers="n_layer", num_attention_heads="n_head", intermediate_size="n_inner",
                   max_position_embeddings="n_positions")
    DEFAULTS = dict(
        vocab_size=50257, n_positions=1024, n_embd=768, n_layer=12, n_head=12, n_inner=None, activation_function="gelu_new",
        resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1, layer_norm_epsilon=1e-5, initializer_range=0.02, summary_type="cls_index",
        summary_use_proj=True, summary_activation=None, summary_proj_to_labels=True, summary_first_dropout=0.1,
        scale_attn_weights=True, use_cache=True, bos_token_id=50256, eos_token_id=50256, scale_attn_by_inverse_layer_idx=False,
        reorder_and_upcast_attn=False, tie_word_embeddings=True)
    EXPECTED = dict(n_ctx=Ellipsis)
    UNDROPPED = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    TINY = {"plain": UNDROPPED, "exact": dict(n_inner=None, activation_function="gelu", tie_word_embeddings=False, **UNDROPPED)}
    PREFIX = ""
    INPUTS_FIRST = True

    def read(self, c):
        c.intermediate_size = c.n_inner or 4 * c.n_embd

    def norm(self, run, name, x):
        return blocks.layer_norm(x, run.w[name + ".weight"], run.w[name + ".bias"], self.c.layer_norm_epsilon)

    def affine(self, run, name, x):
        return x @ run.w[name + ".weight"] + run.w[name + ".bias"]

    def attention(self, run, layer, x):
        p = f"h.{layer}.attn."
        q, k, v = (part.unflatten(-1, (self.c.n_head, -1)) for part in self.affine(run, p + "c_attn", x).chunk(3, -1))
        k, v = run.cache.append(layer, k, v)
        scale = q.shape[-1] ** -0.5 if self.c.scale_attn_weights else 1.0
        if self.c.scale_attn_by_inverse_layer_idx:
            scale /= layer + 1
        y = blocks.attend(q, k, v, blocks.visible(run.positions, run.keys, None, run.documents), scale)
        return self.affine(run, p + "c_proj", y)

    def logits(self, weights, ids, cache=None, length=None):
        if self.document_end is not None and len(ids) > 1:
            return super().logits(weights, ids, length=length)
        run = Run(weights, ids, cache, length, self.document_end)
        x = F.embedding(ids, run.w["wte.weight"]) + run.w["wpe.weight"][run.positions]
        for layer in range(self.c.n_layer):
            p = f"h.{layer}."
            x = x + self.attention(run, layer, self.norm(run, p + "ln_1", x))
            up = blocks.ACTIVATIONS[self.c.activation_function](self.affine(run, p + "mlp.c_fc", self.norm(run, p + "ln_2", x)))
            x = x + self.affine(run, p + "mlp.c_proj", up)
        run.cache.tokens += ids.shape[1]
        return F.linear(self.norm(run, "ln_f", x), run.w["wte.weight" if self.tied else "lm_head.weight"])

    def shapes(self):
        c, h = self.c, self.c.n_embd
        shapes = {"wte.weight": (c.vocab_size, h), "wpe.weight": (c.n_positions, h)}
        for layer in range(c.n_layer):
            p = f"h.{layer}."
            for name, (rows, columns) in {"attn.c_attn": (h, 3 * h), "attn.c_proj": (h, h), "mlp.c_fc": (h, c.intermediate_size),
                                          "mlp.c_proj": (c.intermediate_size, h)}.items():
                shapes.update({p + name + ".weight": (rows, columns), p + name + ".bias": (columns,)})
            for name in ("ln_1", "ln_2"):
                shapes.update({p + name + ".weight": (h,), p + name + ".bias": (h,)})
        shapes.update({"ln_f.weight": (h,), "ln_f.bias": (h,)})
        if not self.tied:
            shapes["lm_head.weight"] = (c.vocab_size, h)
        return shapes


FAMILY = GPT2
