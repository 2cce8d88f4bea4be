#!/usr/bin/python3
"""PyTorch as an outside witness of GPT-2: random model folders with what autograd says of them in f64.

  torch_gpt2_cases.py models FOLDER [--count N] [--seed N]

FOLDER/model_00, ... hold what those of torch_cases.py hold, with Hugging Face's names of GPT-2: bare (wte.weight) or with the prefix
"transformer.", some with the causal masks that old files have. Gradients in expected.safetensors bear bare names. The model is
written after Hugging Face's modeling_gpt2.py, all in f64, without dropout.
"""
import argparse
import json
import pathlib
import random
import struct

import torch_cases
import torch
import torch.nn.functional as F


APPROXIMATIONS = {"gelu": "none", "gelu_new": "tanh"}


def conv1d(w, prefix, x):
    """GPT-2 stores linear weights [in, out]."""
    return x @ w[prefix + ".weight"] + w[prefix + ".bias"]


def layer_norm(w, prefix, x, epsilon):
    return F.layer_norm(x, (x.shape[-1],), w[prefix + ".weight"], w[prefix + ".bias"], epsilon)


def attention(c, w, prefix, x):
    b, s, h = x.shape
    heads = c["n_head"]
    q, k, v = (part.view(b, s, heads, h // heads).transpose(1, 2) for part in conv1d(w, prefix + "c_attn", x).split(h, dim=2))
    causal = torch.full((s, s), float("-inf"), dtype=x.dtype).triu(1)
    probabilities = torch.softmax(q @ k.transpose(2, 3) / (h // heads) ** 0.5 + causal, dim=-1)
    return conv1d(w, prefix + "c_proj", (probabilities @ v).transpose(1, 2).reshape(b, s, h))


def logits_of(c, w, ids):
    x = F.embedding(ids, w["wte.weight"]) + w["wpe.weight"][:ids.shape[1]]
    epsilon = c["layer_norm_epsilon"]
    for layer in range(c["n_layer"]):
        p = f"h.{layer}."
        x = x + attention(c, w, p + "attn.", layer_norm(w, p + "ln_1", x, epsilon))
        up = conv1d(w, p + "mlp.c_fc", layer_norm(w, p + "ln_2", x, epsilon))
        x = x + conv1d(w, p + "mlp.c_proj", F.gelu(up, approximate=APPROXIMATIONS[c["activation_function"]]))
    x = layer_norm(w, "ln_f", x, epsilon)
    return F.linear(x, w["wte.weight" if c["tie_word_embeddings"] else "lm_head.weight"])


def shapes_of(c):
    h, f = c["n_embd"], c["n_inner"] or 4 * c["n_embd"]
    shapes = {"wte.weight": (c["vocab_size"], h), "wpe.weight": (c["n_positions"], h), "ln_f.weight": (h,), "ln_f.bias": (h,)}
    for layer in range(c["n_layer"]):
        p = f"h.{layer}."
        for norm in ("ln_1", "ln_2"):
            shapes.update({p + norm + ".weight": (h,), p + norm + ".bias": (h,)})
        for linear, (rows, columns) in {"attn.c_attn": (h, 3 * h), "attn.c_proj": (h, h), "mlp.c_fc": (h, f),
                                        "mlp.c_proj": (f, h)}.items():
            shapes.update({p + linear + ".weight": (rows, columns), p + linear + ".bias": (columns,)})
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], h)
    return shapes


def random_config(pick, number):
    heads, d = pick.choice((1, 2, 3, 4)), pick.choice((2, 3, 4, 8, 16))
    return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
            "activation_function": "gelu" if number % 2 else "gelu_new", "n_embd": heads * d,
            "n_layer": 1 + number % 3, "n_head": heads, "n_inner": pick.choice((None, 3, 45)), "n_positions": 40, "n_ctx": 40,
            "vocab_size": pick.choice((7, 32, 61)), "layer_norm_epsilon": pick.choice((1e-6, 1e-5, 1e-2)),
            "tie_word_embeddings": number % 4 != 3, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
            "torch_dtype": "float32"}


def random_weights(shapes, stored):
    """As they are stored, in f64; large enough that attention isn't flat."""
    weights = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, dtype=torch.float64)
        if len(shape) == 1:
            values = 0.3 * values + (0 if name.endswith("bias") else 1)
        elif not name.startswith("w"):
            values *= 1.5 / shape[0] ** 0.5
        weights[name] = values.to(torch_cases.STORED[stored]).double().requires_grad_()
    return weights


def write_model(folder, pick, number):
    c = random_config(pick, number)
    b, s = torch_cases.sizes(pick, number)
    v = c["vocab_size"]
    stored = torch_cases.dtype_of(number)
    w = random_weights(shapes_of(c), stored)
    ids, labels = torch.randint(v, (b, s)), torch.randint(v, (b, s))
    labels[torch.rand(b, s) < 0.2] = -1
    labels[-1, -1] = 0
    logits = logits_of(c, w, ids)
    loss = F.cross_entropy(logits.view(-1, v), labels.view(-1), ignore_index=-1)
    loss.backward()

    window = pick.choice((3, 8, 11))
    stream = torch.randint(v, (2 * window + 1 + pick.randrange(window),))
    with torch.no_grad():
        total = 0.0
        for first in range(0, len(stream) - 1, window):
            inputs, targets = stream[first:first + window], stream[first + 1:first + 1 + window]
            total += F.cross_entropy(logits_of(c, w, inputs[None, :len(targets)])[0], targets, reduction="sum").item()

    prefix = "transformer." if number % 2 else ""
    tensors = {(name if name == "lm_head.weight" else prefix + name): tensor for name, tensor in w.items()}
    if number % 3 == 0:
        for layer in range(c["n_layer"]):
            tensors[f"{prefix}h.{layer}.attn.bias"] = torch.ones(1, 1, 40, 40).tril()
            tensors[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    (folder / "config.json").write_text(json.dumps(c, indent=2))
    torch_cases.write_safetensors(folder / "model.safetensors", tensors, stored)
    (folder / "data.bin").write_bytes(struct.pack(f"<{len(stream)}H", *stream.tolist()))
    (folder / "case.json").write_text(json.dumps({
        "batch": b, "sequence": s, "ids": ids.tolist(), "labels": labels.tolist(), "loss": loss.item(),
        "eval_sequence": window, "eval_loss": total / (len(stream) - 1)}))
    torch_cases.write_safetensors(folder / "expected.safetensors", {"logits": logits, **torch_cases.gradients_of(w)}, "F64")


def main():
    parser = argparse.ArgumentParser(description="random GPT-2 models with what PyTorch's autograd says of them")
    parser.add_argument("kind", choices=("models",))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    pick = random.Random(arguments.seed)
    for number in range(arguments.count):
        folder = arguments.folder / f"model_{number:02}"
        folder.mkdir(parents=True)
        write_model(folder, pick, number)


if __name__ == "__main__":
    main()
