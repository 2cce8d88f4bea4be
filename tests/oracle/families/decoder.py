"""A decoder in the form of Llama, whose parts a family replaces: one class for each family, one method for each part.

A family states its configuration's fields with transformers' defaults (DEFAULTS) and refuses fields that it doesn't know, so that
none is passed over in silence."""
import torch
import torch.nn.functional as F

import blocks

# What any configuration may hold and what changes no logits.
HARMLESS = {
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "auto_map", "use_cache",
    "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "max_length", "output_router_logits",
    "router_aux_loss_coef", "router_jitter_noise", "pretraining_tp", "attention_dropout", "cache_implementation",
    "tie_word_embeddings", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "_attn_implementation",
    "hidden_dropout", "residual_dropout", "embedding_dropout", "resid_pdrop", "embd_pdrop", "sliding_window_pattern",
    "_sliding_window_pattern", "is_decoder", "output_attentions", "output_hidden_states", "return_dict",
}


class Config(dict):
    """Fields as attributes."""
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Cache:
    """Keys and values (or what a family keeps instead) by layer, of the tokens so far."""

    def __init__(self):
        self.tokens, self.kept = 0, {}

    def append(self, layer, *tensors):
        """tensors [B, S, ...]: returns them behind those before."""
        if layer in self.kept:
            tensors = tuple(torch.cat(pair, 1) for pair in zip(self.kept[layer], tensors))
        self.kept[layer] = tensors
        return tensors


class Run:
    """One pass over ids [B, S], of which the first stands at the cache's end. With document_end ids are one sequence [1, S], in
    which each such id ends a document."""

    def __init__(self, weights, ids, cache, length, document_end=None):
        self.w, self.ids = weights, ids
        self.cache = cache if cache is not None else Cache()
        start = self.cache.tokens
        self.positions = torch.arange(start, start + ids.shape[1])
        self.keys = torch.arange(start + ids.shape[1])
        self.length = length or len(self.keys)
        self.documents = None
        if document_end is not None:
            ends = (ids[0] == document_end).long()
            self.documents = ends.cumsum(0) - ends
            firsts = torch.tensor([(self.documents == number).nonzero()[0].item() for number in self.documents])
            self.positions = self.keys = torch.arange(ids.shape[1]) - firsts
        self.shared = {}


def linears(prefix, bias, **sizes):
    """Shapes of linear layers: name=(out, in)."""
    shapes = {}
    for name, (rows, columns) in sizes.items():
        shapes[f"{prefix}{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{prefix}{name}.bias"] = (rows,)
    return shapes


class Decoder:
    """Llama: RMSNorm before each sublayer, rotary halves, grouped heads, a gated MLP."""
    MODEL_TYPES = ()
    ARCHITECTURE = ""
    DEFAULTS = {}
    THETA = 10000.0
    # The id that ends a document, where attention and positions heed it: set by whoever wants it.
    document_end = None
    # What a family calls these fields: ours -> its own.
    RENAMED = {}
    # With which its tensors' names begin, but the head's.
    PREFIX = "model."
    # Linear layers are stored [in, out].
    INPUTS_FIRST = False
    # Names of tensors that are no parameters: no gradient, no step.
    BUFFERS = ()
    # Fields beyond DEFAULTS that folders on the hub have: field -> the values that are understood; Ellipsis: any (because it changes
    # nothing, or because the family reads it).
    EXPECTED = {}

    def __init__(self, config):
        unknown = set(config) - set(self.DEFAULTS) - HARMLESS - set(self.EXPECTED)
        if unknown:
            raise ValueError(f"{config['model_type']}: unknown fields {sorted(unknown)}")
        for field, values in self.EXPECTED.items():
            if values is not Ellipsis and field in config and config[field] not in values:
                raise ValueError(f"{config['model_type']}: {field} is {config[field]!r}; understood: {values}")
        self.c = Config({**self.DEFAULTS, **config})
        self.c.update({ours: self.c[own] for ours, own in self.RENAMED.items()})
        for field in ("num_key_value_heads", "head_dim"):
            if self.c.get(field) is None:
                self.c[field] = {"num_key_value_heads": self.c.num_attention_heads,
                                 "head_dim": self.c.hidden_size // self.c.num_attention_heads}[field]
        self.read(self.c)

    def read(self, c):
        """Completes the configuration as the family's does."""

    @property
    def tied(self):
        return self.c.tie_word_embeddings

    # Rotary parameters, in both forms that config.json has.

    def rope_of(self, layer):
        """rope_parameters of a layer. transformers 5 writes one dictionary rope_parameters (one for each type of layer in some
        families); before, rope_theta, rope_scaling and partial_rotary_factor stood apart."""
        c = self.c
        p = c.get("rope_parameters")
        if p is not None and any(isinstance(value, dict) for value in p.values()):
            p = p[c.layer_types[layer]]
        if p is None:
            p = dict(c.get("rope_scaling") or {})
        p = dict(p)
        p.setdefault("rope_theta", c.get("rope_theta") if c.get("rope_theta") is not None else self.THETA)
        if c.get("partial_rotary_factor") is not None:
            p.setdefault("partial_rotary_factor", c.partial_rotary_factor)
        p["rope_type"] = p.get("rope_type") or p.get("type") or "default"
        return p

    def angles(self, run, layer, dim=None):
        return blocks.rotary_angles(self.rope_of(layer), dim or self.c.head_dim, run.positions, self.c.max_position_embeddings,
                                    run.length, run.w["model.embed_tokens.weight"].dtype)

    # The parts.

    def norm(self, run, name, x):
        return blocks.rms_norm(x, run.w[name + ".weight"], self.c.rms_norm_eps)

    def embed(self, run):
        return F.embedding(run.ids, run.w["model.embed_tokens.weight"])

    def head(self, run, x):
        x = self.norm(run, "model.norm", x)
        return F.linear(x, run.w["model.embed_tokens.weight" if self.tied else "lm_head.weight"], run.w.get("lm_head.bias"))

    def project(self, run, layer, x):
        """q, k, v [B, S, heads, d], before rotation."""
        p, d = f"model.layers.{layer}.self_attn.", self.c.head_dim
        return tuple(blocks.linear(run.w, p + name, x).unflatten(-1, (-1, d)) for name in ("q_proj", "k_proj", "v_proj"))

    def rotate(self, run, layer, q, k):
        cos, sin = self.angles(run, layer)
        return blocks.rotate(q, cos, sin), blocks.rotate(k, cos, sin)

    def window(self, layer):
        """None, or how many tokens a query of this layer sees."""
        return None

    def scale(self, layer):
        return self.c.head_dim ** -0.5

    def sinks(self, run, layer):
        return None

    def attention(self, run, layer, x):
        q, k, v = self.project(run, layer, x)
        q, k = self.rotate(run, layer, q, k)
        k, v = run.cache.append(layer, k, v)
        seen = blocks.visible(run.positions, run.keys, self.window(layer), run.documents)
        y = blocks.attend(q, k, v, seen, self.scale(layer), self.c.get("attn_logit_softcapping"), self.sinks(run, layer))
        return blocks.linear(run.w, f"model.layers.{layer}.self_attn.o_proj", y)

    def feed_forward(self, run, layer, x):
        return blocks.gated_mlp(run.w, f"model.layers.{layer}.mlp.", x, self.c.hidden_act)

    def block(self, run, layer, x):
        p = f"model.layers.{layer}."
        x = x + self.attention(run, layer, self.norm(run, p + "input_layernorm", x))
        return x + self.feed_forward(run, layer, self.norm(run, p + "post_attention_layernorm", x))

    def logits(self, weights, ids, cache=None, length=None):
        """[B, S, V] of ids [B, S]. With a cache, ids follow what it holds. length: of the whole text, where it is known."""
        if self.document_end is not None and len(ids) > 1:
            return torch.cat([self.logits(weights, row[None], length=length) for row in ids])
        run = Run(weights, ids, cache, length, self.document_end)
        x = self.embed(run)
        for layer in range(self.c.num_hidden_layers):
            x = self.block(run, layer, x)
        run.cache.tokens += ids.shape[1]
        return self.head(run, x)

    # Names and shapes of the weights, as the hub has them.

    NORMS = ("input_layernorm", "post_attention_layernorm")

    def norm_shapes(self, name):
        return {name + ".weight": (self.c.hidden_size,)}

    def attention_shapes(self, layer):
        return self.attention_linears(layer, qkv=self.c.get("attention_bias", False), o=self.c.get("attention_bias", False))

    def attention_linears(self, layer, qkv, o):
        """q, k, v and o with or without biases."""
        c, p = self.c, f"model.layers.{layer}.self_attn."
        rows, columns = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        return {**linears(p, qkv, q_proj=(rows, c.hidden_size), k_proj=(columns, c.hidden_size), v_proj=(columns, c.hidden_size)),
                **linears(p, o, o_proj=(c.hidden_size, rows))}

    def feed_forward_shapes(self, layer):
        return self.mlp_shapes(f"model.layers.{layer}.mlp.", self.c.intermediate_size, self.c.get("mlp_bias", False))

    def mlp_shapes(self, p, f, bias=False):
        h = self.c.hidden_size
        return linears(p, bias, gate_proj=(f, h), up_proj=(f, h), down_proj=(h, f))

    def shapes(self):
        c = self.c
        shapes = {"model.embed_tokens.weight": (c.vocab_size, c.hidden_size)}
        for layer in range(c.num_hidden_layers):
            for name in self.NORMS:
                shapes.update(self.norm_shapes(f"model.layers.{layer}.{name}"))
            shapes.update(self.attention_shapes(layer))
            shapes.update(self.feed_forward_shapes(layer))
        shapes.update(self.norm_shapes("model.norm"))
        if not self.tied:
            shapes["lm_head.weight"] = (c.vocab_size, c.hidden_size)
        return shapes

    def is_buffer(self, name):
        return name.endswith(self.BUFFERS) if self.BUFFERS else False

    # For tests: fields over DEFAULTS that make a tiny model in which everything special happens.

    TINY = {}
