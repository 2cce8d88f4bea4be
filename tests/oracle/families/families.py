#!/usr/bin/python3
"""PyTorch as an outside witness of model families: what a folder laid out as on the hub computes, in f64.

  families.py DIR --ids IDS [--labels LABELS] [--output FILE.safetensors] [--steps N] [--greedy N] [AdamW's options]
  families.py DIR --random B,S[,SEED] ...          draws ids and labels, and prints them
  families.py --list                               the model_types that there are

IDS and LABELS: rows of numbers, "1 2 3; 4 5 6", or a .json file with a list of rows (or with keys "ids" and "labels"). A label of
-1 counts for nothing. The loss is the mean over the labels that count.

Prints one JSON object: model_type, parameters (their number), ids, labels, loss, gradient_norm, steps (the loss before each of N
AdamW steps and after the last, N + 1 in all; every step has the same ids), greedy (rows of N ids that follow each row of ids, decoded
step by step with a cache; of equal logits the lower id wins). --output gets logits [B, S, V], grad.<name> of every parameter, and
after.<name> after the steps: F64, the hub's names.

AdamW: p <- p (1 - lr decay) - lr m^ / (sqrt(v^) + eps). decay: of matrices alone (two dims or more, and neither a bias nor a norm's
gain; a weight without gradient, such as an expert that nobody chose, decays, too). The gradients' norm, all of them as one vector,
is cut to --clip (0: not). The options' defaults are those of `tsprun train`.

Families are written from public descriptions (each file names them), in the plainest way, and share no code with tsprun.
"""
import argparse
import importlib
import json
import math
import pathlib
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(f"families.py: {error}: PyTorch is missing; install Debian's package python3-torch")

import decoder
import tensor_files

MODULES = ("llama", "qwen2", "qwen3", "mistral", "ministral3", "phi3", "olmo2", "olmo3", "smollm3", "gemma2", "gemma3", "granite", "glm4",
           "exaone4", "cohere2", "gemma", "cohere", "stablelm", "starcoder2", "phi", "mixtral", "qwen3_moe", "gpt_oss", "olmoe",
           "deepseek_v2", "deepseek_v3", "glm4_moe", "minimax_m2", "gemma4", "gpt2")
FAMILIES = {kind: importlib.import_module(module).FAMILY for module in MODULES
            for kind in importlib.import_module(module).FAMILY.MODEL_TYPES}


def family_of(config):
    """The decoder of a config.json; of a multi-modal one, that of its text_config."""
    if "text_config" in config:
        config = {**{field: config[field] for field in ("tie_word_embeddings",) if field in config}, **config["text_config"]}
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(f"model_type {kind!r} is none of {sorted(FAMILIES)}")
    return FAMILIES[kind](config)


def hub_names(tensors, layers, prefix="model."):
    """Names as a text model has them: without the prefixes of multi-modal folders and base models, without other modalities' tensors,
    buffers of old files and layers beyond the last (multi-token prediction). prefix: with which a family's names begin."""
    if not prefix:
        return dict(tensors)
    named = {}
    for name, tensor in tensors.items():
        if name.endswith("rotary_emb.inv_freq") or any(part in name for part in ("vision_", "multi_modal_projector", "audio_")):
            continue
        for prefix in ("language_model.model.", "model.language_model."):
            if name.startswith(prefix):
                name = "model." + name[len(prefix):]
        name = name.removeprefix("language_model.")
        if not name.startswith(("model.", "lm_head.")):
            name = "model." + name
        parts = name.split(".")
        if parts[1] == "layers" and int(parts[2]) >= layers:
            continue
        named[name] = tensor
    return named


def load(folder):
    """The decoder and the weights, in f64, parameters with requires_grad."""
    folder = pathlib.Path(folder)
    model = family_of(json.loads((folder / "config.json").read_text()))
    shapes = model.shapes()
    tensors = hub_names(tensor_files.read_folder(folder), model.c.num_hidden_layers, model.PREFIX)
    if model.tied and "lm_head.weight" in tensors and "lm_head.weight" not in shapes:
        if not torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"]):
            raise ValueError(f"{folder}: tie_word_embeddings, but lm_head.weight isn't model.embed_tokens.weight")
        del tensors["lm_head.weight"]
    if set(tensors) != set(shapes):
        missing, foreign = sorted(set(shapes) - set(tensors)), sorted(set(tensors) - set(shapes))
        raise ValueError(f"{folder}: missing {missing[:5]}, not understood {foreign[:5]}")
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != tuple(shape):
            raise ValueError(f"{folder}: {name} has shape {tuple(tensors[name].shape)}, expected {shape}")
    weights = {name: tensors[name].double().clone() for name in shapes}
    for name, tensor in weights.items():
        tensor.requires_grad_(not model.is_buffer(name))
    return model, weights


def parameters_of(weights):
    return {name: tensor for name, tensor in weights.items() if tensor.requires_grad}


def loss_of(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1)


def gradients(model, weights, ids, labels):
    """Logits, loss, and the gradient of every parameter; zeros where a parameter had no part (an expert that nobody chose)."""
    parameters = parameters_of(weights)
    logits = model.logits(weights, ids)
    loss = loss_of(logits, labels)
    values = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return logits.detach(), loss.item(), {name: torch.zeros_like(parameters[name]) if value is None else value
                                          for name, value in zip(parameters, values)}


def is_matrix(name, tensor):
    return tensor.dim() >= 2 and not name.endswith("bias") and "norm" not in name


def norm_of(tensors):
    return math.sqrt(sum(tensor.pow(2).sum().item() for tensor in tensors.values()))


def train(model, weights, ids, labels, steps, lr=3e-4, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.01, clip=1.0):
    """The losses before each step and after the last, and the weights then. The given weights stay as they are."""
    weights = {name: tensor.detach().clone().requires_grad_(tensor.requires_grad) for name, tensor in weights.items()}
    first = {name: torch.zeros_like(tensor) for name, tensor in parameters_of(weights).items()}
    second = {name: torch.zeros_like(tensor) for name, tensor in first.items()}
    losses = []
    for step in range(1, steps + 1):
        _, loss, grads = gradients(model, weights, ids, labels)
        losses.append(loss)
        norm = norm_of(grads)
        cut = clip / norm if clip > 0 and norm > clip else 1.0
        with torch.no_grad():
            for name, grad in grads.items():
                grad = grad * cut
                first[name] = beta1 * first[name] + (1 - beta1) * grad
                second[name] = beta2 * second[name] + (1 - beta2) * grad * grad
                m, v = first[name] / (1 - beta1 ** step), second[name] / (1 - beta2 ** step)
                decay = weight_decay if is_matrix(name, grad) else 0.0
                weights[name].copy_(weights[name] * (1 - lr * decay) - lr * m / (v.sqrt() + eps))
    with torch.no_grad():
        losses.append(loss_of(model.logits(weights, ids), labels).item())
    return losses, weights


def greedy(model, weights, ids, tokens):
    """[B][tokens] that follow ids [B, S]."""
    with torch.no_grad():
        cache, length, rows = decoder.Cache(), ids.shape[1] + tokens, []
        logits = model.logits(weights, ids, cache, length)[:, -1]
        for number in range(tokens):
            rows.append(logits.argmax(-1))
            if number + 1 < tokens:
                logits = model.logits(weights, rows[-1][:, None], cache, length)[:, -1]
        return torch.stack(rows, 1).tolist() if rows else [[] for _ in ids]


def rows_of(text, key):
    """[B, S] of a text of rows or a .json file."""
    if text.endswith(".json"):
        rows = json.loads(pathlib.Path(text).read_text())
        rows = rows[key] if isinstance(rows, dict) else rows
    else:
        rows = [[int(number) for number in row.replace(",", " ").split()] for row in text.split(";")]
    if not rows or any(len(row) != len(rows[0]) or not row for row in rows):
        raise ValueError(f"--{key}: rows must have one length, at least 1")
    return torch.tensor(rows)


def draw(vocabulary, text):
    """Ids and labels of B,S[,SEED]; a fifth of the labels is -1, never the last."""
    batch, tokens, seed = ([int(part) for part in text.split(",")] + [0])[:3]
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocabulary, (batch, tokens), generator=generator)
    labels = torch.randint(vocabulary, (batch, tokens), generator=generator)
    labels[torch.rand(batch, tokens, generator=generator) < 0.2] = -1
    labels[-1, -1] = 0
    return ids, labels


def main():
    parser = argparse.ArgumentParser(description="what a model folder computes, in f64", epilog="the file's comment says more")
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--ids")
    parser.add_argument("--labels")
    parser.add_argument("--random", metavar="B,S[,SEED]")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--greedy", type=int, default=0)
    for name, default in (("lr", 3e-4), ("beta1", 0.9), ("beta2", 0.95), ("eps", 1e-8), ("weight-decay", 0.01), ("clip", 1.0)):
        parser.add_argument("--" + name, type=float, default=default)
    a = parser.parse_args()
    if a.list:
        print("\n".join(FAMILIES))
        return
    if a.folder is None or (a.ids is None) == (a.random is None):
        parser.error("give a folder, and either --ids or --random")
    torch.set_num_threads(1)

    model, weights = load(a.folder)
    if a.random:
        ids, labels = draw(model.c.vocab_size, a.random)
    else:
        ids = rows_of(a.ids, "ids")
        labels = rows_of(a.labels, "labels") if a.labels else None
    if ids.min() < 0 or ids.max() >= model.c.vocab_size:
        raise ValueError(f"--ids: {ids.min()} to {ids.max()} in a vocabulary of {model.c.vocab_size}")

    result = {"model_type": model.c.model_type, "parameters": sum(t.numel() for t in parameters_of(weights).values()),
              "ids": ids.tolist()}
    tensors = {}
    if labels is None:
        with torch.no_grad():
            tensors["logits"] = model.logits(weights, ids)
    else:
        tensors["logits"], loss, grads = gradients(model, weights, ids, labels)
        result.update(labels=labels.tolist(), loss=loss, gradient_norm=norm_of(grads))
        tensors.update({f"grad.{name}": grad for name, grad in grads.items()})
    if a.steps:
        if labels is None:
            raise ValueError("--steps needs labels")
        result["steps"], after = train(model, weights, ids, labels, a.steps, a.lr, a.beta1, a.beta2, a.eps, a.weight_decay, a.clip)
        tensors.update({f"after.{name}": tensor for name, tensor in after.items()})
    if a.greedy:
        result["greedy"] = greedy(model, weights, ids, a.greedy)
    if a.output:
        tensor_files.write_tensors(a.output, tensors)
    print(json.dumps(result))


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"families.py: {error}")
