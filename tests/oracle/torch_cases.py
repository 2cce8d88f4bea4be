#!/usr/bin/python3
"""PyTorch as an outside witness: random cases of a Llama block or model, written as files with what autograd says of them in f64.

  torch_cases.py blocks|models FOLDER [--count N] [--seed N]

FOLDER/block_00, ... each hold what `tsprun block` takes and must give:
  config.json           Hugging Face's
  W.safetensors         the weights of layer 0, Hugging Face's names
  X.safetensors         x [B, S, h], dy [B, S, h]
  expected.safetensors  y, dx, grad.<weight name>; F64

FOLDER/model_00, ... each are a Hugging Face model folder with tokens beside it:
  config.json, model.safetensors
  case.json             batch, sequence, ids [B][S], labels [B][S] (-1: none), loss; eval_sequence, eval_loss
  data.bin              uint16 ids: eval_loss is the loss of their windows of eval_sequence tokens, the last one short
  expected.safetensors  logits [B, S, V], grad.<parameter name> of loss; F64

Weights and inputs are stored as F64, F32, F16 or BF16; what is expected follows from the stored values. The same seed writes the
same cases. The model is written after Hugging Face's modeling_llama.py (transformers is not in Debian), all in f64.
"""
import argparse
import json
import pathlib
import random
import struct
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(f"torch_cases.py: {error}: PyTorch is missing; install Debian's package python3-torch")

STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def write_safetensors(path, tensors, dtype):
    """8 bytes of header length, JSON, data (github.com/huggingface/safetensors)."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        bits = tensor.detach().to(STORED[dtype]).contiguous()
        # numpy has no bf16: any 2-byte integer carries its bits.
        raw = (bits.view(torch.int16) if dtype == "BF16" else bits).numpy().tobytes()
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


# The model: Hugging Face's LlamaForCausalLM, eager attention. w maps its names to tensors.

def rms_norm(x, weight, epsilon):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon))


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def apply_rotary(x, theta):
    """x [B, heads, S, d]"""
    s, d = x.shape[-2:]
    inverse_frequency = 1.0 / (theta ** (torch.arange(0, d, 2, dtype=x.dtype) / d))
    frequencies = torch.outer(torch.arange(s, dtype=x.dtype), inverse_frequency)
    angles = torch.cat((frequencies, frequencies), dim=-1)
    return x * angles.cos() + rotate_half(x) * angles.sin()


def repeat_kv(x, times):
    """[B, n_kv, S, d] -> [B, n_kv * times, S, d]"""
    b, heads, s, d = x.shape
    return x[:, :, None].expand(b, heads, times, s, d).reshape(b, heads * times, s, d)


def attention(c, w, prefix, x):
    b, s, _ = x.shape
    n_h, n_kv, d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    q = F.linear(x, w[prefix + "q_proj.weight"]).view(b, s, n_h, d).transpose(1, 2)
    k = F.linear(x, w[prefix + "k_proj.weight"]).view(b, s, n_kv, d).transpose(1, 2)
    v = F.linear(x, w[prefix + "v_proj.weight"]).view(b, s, n_kv, d).transpose(1, 2)
    q, k = apply_rotary(q, c["rope_theta"]), apply_rotary(k, c["rope_theta"])
    k, v = repeat_kv(k, n_h // n_kv), repeat_kv(v, n_h // n_kv)
    causal = torch.full((s, s), float("-inf"), dtype=x.dtype).triu(1)
    probabilities = torch.softmax(q @ k.transpose(2, 3) * d ** -0.5 + causal, dim=-1)
    output = (probabilities @ v).transpose(1, 2).reshape(b, s, n_h * d)
    return F.linear(output, w[prefix + "o_proj.weight"])


def mlp(w, prefix, x):
    gate, up = F.linear(x, w[prefix + "gate_proj.weight"]), F.linear(x, w[prefix + "up_proj.weight"])
    return F.linear(F.silu(gate) * up, w[prefix + "down_proj.weight"])


def block(c, w, layer, x):
    p = f"model.layers.{layer}."
    x = x + attention(c, w, p + "self_attn.", rms_norm(x, w[p + "input_layernorm.weight"], c["rms_norm_eps"]))
    return x + mlp(w, p + "mlp.", rms_norm(x, w[p + "post_attention_layernorm.weight"], c["rms_norm_eps"]))


def logits_of(c, w, ids):
    x = F.embedding(ids, w["model.embed_tokens.weight"])
    for layer in range(c["num_hidden_layers"]):
        x = block(c, w, layer, x)
    x = rms_norm(x, w["model.norm.weight"], c["rms_norm_eps"])
    return F.linear(x, w["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"])


# Cases.

def block_shapes(c, layer):
    h, f = c["hidden_size"], c["intermediate_size"]
    a, k = (c[heads] * c["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    p = f"model.layers.{layer}."
    return {p + "input_layernorm.weight": (h,), p + "self_attn.q_proj.weight": (a, h), p + "self_attn.k_proj.weight": (k, h),
            p + "self_attn.v_proj.weight": (k, h), p + "self_attn.o_proj.weight": (h, a),
            p + "post_attention_layernorm.weight": (h,), p + "mlp.gate_proj.weight": (f, h), p + "mlp.up_proj.weight": (f, h),
            p + "mlp.down_proj.weight": (h, f)}


def model_shapes(c):
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], c["hidden_size"])}
    for layer in range(c["num_hidden_layers"]):
        shapes.update(block_shapes(c, layer))
    shapes["model.norm.weight"] = (c["hidden_size"],)
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], c["hidden_size"])
    return shapes


def random_config(pick, number, layers):
    """The first cases go through MHA, GQA and one K/V head in turn; sizes are drawn."""
    n_kv = pick.choice((1, 2, 3, 4))
    groups = pick.choice((2, 3, 4))
    n_h, n_kv = ((n_kv, n_kv), (n_kv * groups, n_kv), (2 * groups, 1))[number % 3]
    # Every other case: head_dim is what h / n_h would be, where that is even.
    d = pick.choice((2, 4, 6, 8, 16))
    h = n_h * d if number % 2 else pick.choice((5, 8, 24, 33, 64))
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": h,
            "num_hidden_layers": layers, "num_attention_heads": n_h, "num_key_value_heads": n_kv, "head_dim": d,
            "intermediate_size": pick.choice((3, 16, 45, 96)), "vocab_size": pick.choice((7, 32, 61)),
            "max_position_embeddings": 64, "rms_norm_eps": pick.choice((1e-6, 1e-5, 1e-2)),
            "rope_theta": pick.choice((100.0, 10000.0, 500000.0)), "tie_word_embeddings": number % 2 == 0,
            "attention_bias": False, "mlp_bias": False, "torch_dtype": "float32"}


def random_weights(shapes, stored):
    """As they are stored, in f64; large enough that attention isn't flat."""
    weights = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, dtype=torch.float64)
        if len(shape) == 1:
            values = 1 + 0.3 * values
        elif name != "model.embed_tokens.weight":
            values *= 1.5 / shape[1] ** 0.5
        weights[name] = values.to(STORED[stored]).double().requires_grad_()
    return weights


def sizes(pick, number):
    """B and S: S = 1, then any up to 40."""
    return pick.choice((1, 2, 3)), 1 if number % 8 == 7 else pick.choice((2, 3, 7, 16, 25, 40))


def dtype_of(number):
    """Mostly F64; each of the others is somewhere."""
    return ("F64", "F32", "F64", "BF16", "F64", "F16")[number % 6]


def gradients_of(tensors):
    return {f"grad.{name}": tensor.grad for name, tensor in tensors.items()}


def write_block(folder, pick, number):
    c = random_config(pick, number, 1)
    b, s = sizes(pick, number)
    stored = dtype_of(number)
    w = random_weights(block_shapes(c, 0), stored)
    x, dy = (torch.randn((b, s, c["hidden_size"]), dtype=torch.float64).to(STORED[stored]).double() for _ in range(2))
    x.requires_grad_()
    y = block(c, w, 0, x)
    y.backward(dy)
    (folder / "config.json").write_text(json.dumps(c, indent=2))
    write_safetensors(folder / "W.safetensors", w, stored)
    write_safetensors(folder / "X.safetensors", {"x": x, "dy": dy}, stored)
    write_safetensors(folder / "expected.safetensors", {"y": y, "dx": x.grad, **gradients_of(w)}, "F64")


def write_model(folder, pick, number):
    c = random_config(pick, number, 1 + number % 3)
    b, s = sizes(pick, number)
    v = c["vocab_size"]
    w = random_weights(model_shapes(c), dtype_of(number))
    ids = torch.randint(v, (b, s))
    labels = torch.randint(v, (b, s))
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

    (folder / "config.json").write_text(json.dumps(c, indent=2))
    write_safetensors(folder / "model.safetensors", w, dtype_of(number))
    (folder / "data.bin").write_bytes(struct.pack(f"<{len(stream)}H", *stream.tolist()))
    (folder / "case.json").write_text(json.dumps({
        "batch": b, "sequence": s, "ids": ids.tolist(), "labels": labels.tolist(), "loss": loss.item(),
        "eval_sequence": window, "eval_loss": total / (len(stream) - 1)}))
    write_safetensors(folder / "expected.safetensors", {"logits": logits, **gradients_of(w)}, "F64")


def main():
    parser = argparse.ArgumentParser(description="random cases with what PyTorch's autograd says of them")
    parser.add_argument("kind", choices=("blocks", "models"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    pick = random.Random(arguments.seed)
    for number in range(arguments.count):
        folder = arguments.folder / f"{arguments.kind[:-1]}_{number:02}"
        folder.mkdir(parents=True)
        (write_block if arguments.kind == "blocks" else write_model)(folder, pick, number)


if __name__ == "__main__":
    main()
