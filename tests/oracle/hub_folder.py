#!/usr/bin/python3
"""Writes a model folder exactly as the hub has it, with random weights: config.json as transformers writes it for the family,
generation_config.json, shards with model.safetensors.index.json (or one model.safetensors), the hub's names and dtype, no tensor for
a tied head, and a tokenizer's files where they are given. It shares no code with tsprun.

  hub_folder.py MODEL_TYPE DIR [--size tiny|0.5b|1b|default] [--variant NAME] [--set FIELD=JSON]... [--dtype bf16|f16|f32|f64]
                [--shard-bytes N] [--transformers 4|5] [--tokenizer DIR] [--seed N]
  hub_folder.py --list          families and their tiny variants

--size: tiny (a variant of families/*.py in which what is special happens), the shapes of an 0.5 B model (Qwen2.5-0.5B's) or of a 1 B
model (Llama-3.2-1B's) with the family's own vocabulary, or the family's defaults. --set changes any field, last. --transformers 5
writes rope_parameters and dtype, 4 rope_theta, rope_scaling and torch_dtype. Weights depend on the seed and their names alone: not on
shards. One tensor is held at a time, but of a folder whose model sees images, too (MODEL_TYPE gemma3, gemma4,
mistral3), all of its text model's.
"""
import argparse
import json
import pathlib
import shutil
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "families"))

import torch  # noqa: E402

import families  # noqa: E402
import tensor_files  # noqa: E402

DTYPES = {"bf16": ("BF16", "bfloat16"), "f16": ("F16", "float16"), "f32": ("F32", "float32"), "f64": ("F64", "float64")}
VERSIONS = {4: "4.57.1", 5: "5.0.0"}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
                   "tokenizer.model", "chat_template.jinja", "chat_template.json")

SIZES = {
    # Qwen2.5-0.5B and Llama-3.2-1B.
    "0.5b": dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
                 head_dim=64),
    "1b": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
               head_dim=64),
    "tiny": dict(vocab_size=23, hidden_size=20, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=6, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0),
    "default": {},
}
# Beside SIZES, so that experts don't outgrow the size; latent attention has no K/V heads of its own.
EXPERTS = dict(num_local_experts=8, num_experts=8, n_routed_experts=8, moe_intermediate_size=512, num_experts_per_tok=2)


# model_types of models that see images, too, whose text models are here: of each the text model's, and the architecture.
WITHIN = {"gemma3": ("gemma3_text", "Gemma3ForConditionalGeneration"), "gemma4": ("gemma4_text", "Gemma4ForConditionalGeneration"),
          "mistral3": ("mistral", "Mistral3ForConditionalGeneration")}


def has_own_head_dim(family):
    return "head_dim" in family.DEFAULTS and family.ARCHITECTURE != "Cohere2ForCausalLM"


def fields_of(kind, size="tiny", variant=None, changes=None):
    """The configuration of a family in a size, before transformers' form of writing it."""
    family = families.FAMILIES[kind]
    fields = dict(SIZES[size])
    if not has_own_head_dim(family):
        fields.pop("head_dim", None)
        if size == "tiny":
            fields["hidden_size"] = 32
    if size == "tiny":
        fields.update(family.TINY[variant or next(iter(family.TINY))])
    elif size != "default":
        fields.update({field: value for field, value in EXPERTS.items() if field in family.DEFAULTS})
        if "kv_lora_rank" in family.DEFAULTS:
            fields["num_key_value_heads"] = fields["num_attention_heads"]
        if "first_k_dense_replace" in family.DEFAULTS:
            fields["first_k_dense_replace"] = 1
    fields = {family.RENAMED.get(field, field): value for field, value in fields.items()}
    if family.RENAMED:
        fields = {field: value for field, value in fields.items() if field in family.DEFAULTS}
    fields.update(changes or {})
    return {"model_type": kind, **fields}


def rope_parameters(model, fields):
    """transformers 5's form of what stood apart."""
    c = model.c
    theta = fields.get("rope_theta", model.THETA)
    scaled = {field: value for field, value in (fields.get("rope_scaling") or {}).items() if field != "type"}
    scaled["rope_type"] = (fields.get("rope_scaling") or {}).get("type", scaled.get("rope_type", "default"))
    scaled["rope_theta"] = theta
    if c.get("partial_rotary_factor") is not None:
        scaled["partial_rotary_factor"] = c.partial_rotary_factor
    if c.model_type == "gemma3_text":
        return {"full_attention": scaled, "sliding_attention": {
            "rope_type": "default", "rope_theta": fields.get("rope_local_base_freq", 10000.0)}}
    return scaled


def config_of(kind, fields, dtype="bf16", transformers=4):
    """config.json, its keys sorted as transformers sorts them: every field of the family with its value."""
    model = families.FAMILIES[kind](fields)
    config = {field: model.c[field] for field in {*model.DEFAULTS, *fields}}
    config.update(architectures=[model.ARCHITECTURE], model_type=kind, transformers_version=VERSIONS[transformers])
    config["torch_dtype" if transformers == 4 else "dtype"] = DTYPES[dtype][1]
    if "rope_parameters" not in config and model.THETA is not None:
        given = {field: value for field, value in config.items() if field in ("rope_theta", "rope_scaling", "rope_local_base_freq")}
        if transformers == 5:
            config["rope_parameters"] = rope_parameters(model, given)
            for field in ("rope_theta", "rope_scaling", "partial_rotary_factor", "rope_local_base_freq"):
                config.pop(field, None)
        else:
            config.setdefault("rope_theta", model.THETA)
            config.setdefault("rope_scaling", None)
    return dict(sorted(config.items()))


def generation_config(config):
    ids = {field: config[field] for field in ("bos_token_id", "eos_token_id", "pad_token_id") if config.get(field) is not None}
    return {"_from_model_config": True, **ids, "transformers_version": config["transformers_version"]}


def random_tensor(model, name, shape, seed, deviation):
    """Gains lie about 1 (Gemma's about 0, as they are stored); what is multiplied keeps sizes up, unless deviation says a size."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}.{name}".encode()))
    values = torch.randn(shape, generator=generator, dtype=torch.float64 if deviation is None else torch.float32)
    gain = (("norm" in name or "ln_" in name) and name.endswith("weight")
            or name.endswith(("layer_scalar", "router.scale", "per_expert_scale")))
    if gain:
        plain = isinstance(model, families.importlib.import_module("gemma").Gemma) and not model.ARCHITECTURE.startswith("Gemma4")
        return 0.3 * values + (0 if plain else 1)
    if len(shape) == 1 or name.endswith("bias"):
        return 0.3 * values
    if deviation is not None:
        return deviation * values
    # [out, in] but for gpt-oss' stacks, [E, in, out], and GPT-2; embeddings as they are.
    inputs_first = len(shape) == 3 if model.ARCHITECTURE.startswith("GptOss") else model.INPUTS_FIRST
    inputs = shape[-2 if inputs_first else -1]
    return values if "embed_tokens" in name or name.startswith("w") else values * 1.5 / inputs ** 0.5


def shards_of(shapes, size, limit):
    """Lists of names, each at most limit bytes where a tensor isn't larger itself."""
    shards, held = [[]], 0
    for name, shape in shapes.items():
        count = size
        for extent in shape:
            count *= extent
        if shards[-1] and held + count > limit:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += count
    return shards


def write_folder(folder, kind, fields, dtype="bf16", shard_bytes=5_000_000_000, seed=0, transformers=4, tokenizer=None,
                 deviation=None):
    """Writes the folder, which may exist. Returns the configuration as written."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(kind, fields, dtype, transformers)
    model = families.FAMILIES[kind](fields)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(generation_config(config), indent=2) + "\n")

    shapes, stored = model.shapes(), DTYPES[dtype][0]
    size = torch.empty((), dtype=tensor_files.STORED[stored]).element_size()
    shards = shards_of(shapes, size, shard_bytes)
    weight_map = {}
    for number, names in enumerate(shards, 1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        weight_map.update(dict.fromkeys(names, name))
        tensor_files.write_file(folder / name, {each: shapes[each] for each in names},
                                lambda each: random_tensor(model, each, shapes[each], seed, deviation), stored)
    if len(shards) > 1:
        count = sum(torch.Size(shape).numel() for shape in shapes.values())
        (folder / "model.safetensors.index.json").write_text(json.dumps(
            {"metadata": {"total_parameters": count, "total_size": count * size}, "weight_map": weight_map}, indent=2,
            sort_keys=True) + "\n")
    if tokenizer is not None:
        copied = [name for name in TOKENIZER_FILES if (pathlib.Path(tokenizer) / name).exists()]
        if not copied:
            raise ValueError(f"{tokenizer} has none of {', '.join(TOKENIZER_FILES)}")
        for name in copied:
            shutil.copyfile(pathlib.Path(tokenizer) / name, folder / name)
    return config


def put_within(folder, name, transformers):
    """Makes a text model's folder that of a model of WITHIN, with a tensor for each part that sees images."""
    folder = pathlib.Path(folder)
    text, tensors = json.loads((folder / "config.json").read_text()), tensor_files.read_folder(folder)
    dtype = next(stored for stored, each in tensor_files.STORED.items() if each == next(iter(tensors.values())).dtype)
    outer = {field: text.pop(field) for field in ("tie_word_embeddings", "transformers_version", "torch_dtype", "dtype") if field in text}
    text.pop("architectures")
    (folder / "config.json").write_text(json.dumps({"architectures": [WITHIN[name][1]], "model_type": name, "text_config": text,
                                                    "vision_config": {"hidden_size": 4}, "image_token_index": 3, **outer}, indent=2))
    for file in folder.glob("model*"):
        file.unlink()
    images = {"vision_tower.encoder.weight": torch.ones(3, 2), "multi_modal_projector.bias": torch.ones(2)}
    if transformers == 4:
        named = {"language_model." + each: tensor for each, tensor in tensors.items()} | images
    else:
        named = {each.replace("model.", "model.language_model.", 1): tensor for each, tensor in tensors.items()}
        named |= {"model." + each: tensor for each, tensor in images.items()}
    tensor_files.write_tensors(folder / "model.safetensors", named, dtype)


def main():
    parser = argparse.ArgumentParser(description="a model folder as on the hub, with random weights")
    parser.add_argument("model_type", nargs="?")
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--variant")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=JSON")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--shard-bytes", type=int, default=5_000_000_000)
    parser.add_argument("--transformers", type=int, choices=VERSIONS, default=4)
    parser.add_argument("--tokenizer", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    if a.list:
        for kind, family in families.FAMILIES.items():
            print(kind + ":", ", ".join(family.TINY))
        for name, (kind, _) in WITHIN.items():
            print(f"{name}: as {kind}")
        return
    if a.folder is None:
        parser.error("give a model_type and a folder")
    kind = WITHIN.get(a.model_type, (a.model_type,))[0]
    if kind not in families.FAMILIES:
        raise ValueError(f"model_type {a.model_type!r} is none of {sorted([*families.FAMILIES, *WITHIN])}")
    if a.variant and (a.size != "tiny" or a.variant not in families.FAMILIES[kind].TINY):
        raise ValueError(f"--variant {a.variant!r} is none of {list(families.FAMILIES[kind].TINY)}, which --size tiny has")
    changes = {}
    for change in a.set:
        field, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"--set {change}: FIELD=JSON is expected")
        changes[field] = json.loads(value)
    torch.set_num_threads(1)
    write_folder(a.folder, kind, fields_of(kind, a.size, a.variant, changes), a.dtype, a.shard_bytes, a.seed, a.transformers,
                 a.tokenizer, None if a.size == "tiny" else 0.02)
    if kind != a.model_type:
        put_within(a.folder, a.model_type, a.transformers)


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"hub_folder.py: {error}")
