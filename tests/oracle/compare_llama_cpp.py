#!/usr/bin/python3
"""The witnesses of families/ beside llama.cpp: tiny random models written as GGUF files, and the largest difference between the
probabilities that both give after every token of a text. Run by hand, where somebody has doubts or adds a family:

  npm install --prefix PEER --ignore-scripts node-llama-cpp
  compare_llama_cpp.py PEER [NAME...]

Differences are f32's, 1e-5 or less; GeLU is a table of f16 in ggml (StarCoder2, Phi 2: 1e-3). Where llama.cpp can't do what a folder
says, the case is changed so that both can: it always rounds yarn's ramp (gpt-oss: truncate), has windows in EXAONE 4 of 64 layers
alone, and none in Mistral, Qwen, Phi and StarCoder2. Gemma 4 isn't here. Exits with 1 if a difference is above its bound.
"""
import argparse
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "families"))

import torch  # noqa: E402

import blocks  # noqa: E402
import families  # noqa: E402
import hub_folder  # noqa: E402

VOCABULARY = 320
SPECIAL = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.dense": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.qkv_proj": "attn_qkv", "self_attn.sinks": "attn_sinks", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm", "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
    **{f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}}
POST = {"post_attention_layernorm": "post_attention_norm"}
EXPERT_PARTS = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def metadata_value(value):
    """GGUF's number of a type, and the bytes: bool, uint32, float32, text, or a list of one of these (int32 for numbers)."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, str):
        return 8, text(value)
    if isinstance(value, (int, float)):
        return (6, struct.pack("<f", value)) if isinstance(value, float) else (4, struct.pack("<I", value))
    kind = {str: 8, float: 6, int: 5, bool: 7}[type(value[0])]
    packed = b"".join(struct.pack("<i", each) if kind == 5 else metadata_value(each)[1] for each in value)
    return 9, struct.pack("<IQ", kind, len(value)) + packed


def write_gguf(path, metadata, tensors):
    infos, data = b"", b""
    for name, tensor in tensors.items():
        sizes = list(tensor.shape)[::-1]
        infos += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, len(data))
        data += tensor.detach().float().contiguous().numpy().tobytes()
        data += bytes(-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, packed = metadata_value(value)
        head += text(key) + struct.pack("<I", kind) + packed
    head += infos
    path.write_bytes(head + bytes(-len(head) % 32) + data)


def ggml_tensors(weights, c, names, gain_offset, permute):
    """llama.cpp's names. permute: q's and k's rows as its "llama" family wants them, neighbouring pairs instead of halves."""
    tensors, experts = {}, {}
    for name, tensor in weights.items():
        tensor, (stem, end) = tensor.detach(), name.rsplit(".", 1)
        if stem in ("model.embed_tokens", "lm_head"):
            tensors[f"{'output' if stem == 'lm_head' else 'token_embd'}.{end}"] = tensor
            continue
        if stem in ("model.norm", "model.final_layernorm"):
            tensors[f"output_norm.{end}"] = tensor + gain_offset
            continue
        _, _, layer, rest = name.split(".", 3)
        parts = rest.split(".")
        if parts[-1] == "e_score_correction_bias":
            tensors[f"blk.{layer}.exp_probs_b.bias"] = tensor
        elif "experts" in parts and parts[-2] in EXPERT_PARTS:
            experts.setdefault(f"blk.{layer}.ffn_{EXPERT_PARTS[parts[-2]]}_exps.weight", []).append(tensor)
        elif "experts" in parts:
            tensors[f"{layer}.{parts[-1]}"] = tensor
        else:
            stem, end = rest.rsplit(".", 1) if end in ("weight", "bias") else (rest, "weight")
            known = names[stem]
            if permute and known in ("attn_q", "attn_k"):
                heads = c.num_attention_heads if known == "attn_q" else c.num_key_value_heads
                tensor = tensor.reshape(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
            tensors[f"blk.{layer}.{known}.{end}"] = tensor + gain_offset if "norm" in known else tensor
    return {**tensors, **{name: torch.stack(parts) for name, parts in experts.items()}}


def split_stacks(tensors, c):
    """gpt-oss' stacked experts, whose columns alternate gate and up."""
    for layer in range(c.num_hidden_layers):
        p = f"blk.{layer}.ffn_"
        both, bias = tensors.pop(f"{layer}.gate_up_proj"), tensors.pop(f"{layer}.gate_up_proj_bias")
        for first, part in enumerate(("gate", "up")):
            tensors[f"{p}{part}_exps.weight"] = both[:, :, first::2].transpose(1, 2)
            tensors[f"{p}{part}_exps.bias"] = bias[:, first::2]
        tensors[p + "down_exps.weight"] = tensors.pop(f"{layer}.down_proj").transpose(1, 2)
        tensors[p + "down_exps.bias"] = tensors.pop(f"{layer}.down_proj_bias")


def llama3_divisors(tensors, c):
    plain = c.rope_theta ** -(torch.arange(0, 16, 2, dtype=torch.float64) / 16)
    tensors["rope_freqs.weight"] = plain / blocks.llama3_frequencies(c.rope_scaling, plain)


def longrope_divisors(tensors, c):
    for which in ("long", "short"):
        tensors[f"rope_factors_{which}.weight"] = torch.tensor(c.rope_scaling[which + "_factor"])


def yarn(factor, original, **more):
    return {"rope.scaling.type": "yarn", "rope.scaling.factor": factor, "rope.scaling.original_context_length": original,
            **{f"rope.scaling.{key}": value for key, value in more.items()}}


def experts(count, used, width, **more):
    return {"expert_count": count, "expert_used_count": used, "expert_feed_forward_length": width,
            **{f"expert_{key}": value for key, value in more.items()}}


YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
SIGMOID = dict(gating_func=2, weights_norm=True)
LONG = dict(type="longrope", short_factor=[1.0, 1.1, 1.3, 1.2, 1.4, 1.5], long_factor=[1.0, 2.0, 3.5, 4.0, 5.0, 6.0])
LATENT = {"attention.key_length": 10, "attention.value_length": 7, "rope.dimension_count": 4, "attention.kv_lora_rank": 10,
          "attention.q_lora_rank": 9, "leading_dense_block_count": 1}
WINDOW = {"attention.sliding_window": 4}

# name: model_type, llama.cpp's architecture, and: variant, changes (fields), metadata, names, gain_offset, permute, more (a function
# that adds or changes tensors), bound.
CASES = {
    "llama3": ("llama", "llama", dict(variant="llama3", permute=True, more=llama3_divisors)),
    "llama-yarn": ("llama", "llama", dict(variant="yarn", permute=True, metadata=yarn(4.0, 16))),
    "qwen2": ("qwen2", "qwen2", {}),
    "qwen3": ("qwen3", "qwen3", {}),
    "ministral3": ("ministral3", "mistral3", dict(permute=True, metadata={
        "rope.freq_base": 1000.0, "attention.temperature_scale": 0.1, **yarn(4.0, 4, yarn_log_multiplier=1.0)})),
    "phi3": ("phi3", "phi3", dict(variant="window", changes=dict(sliding_window=None), metadata={
        "rope.scaling.original_context_length": 64, "attention.sliding_window": 0})),
    "phi3-longrope": ("phi3", "phi3", dict(variant="longrope", changes=dict(rope_scaling=LONG), more=longrope_divisors, metadata={
        "rope.dimension_count": 12, "rope.scaling.original_context_length": 8, "attention.sliding_window": 0,
        "rope.scaling.attn_factor": math.sqrt(1 + math.log(4) / math.log(8))})),
    "olmo2": ("olmo2", "olmo2", dict(names=POST)),
    "olmo3": ("olmo3", "olmo2", dict(changes=dict(sliding_window=4, rope_theta=10000.0, rope_scaling=YARN), names=POST, metadata={
        **WINDOW, "attention.sliding_window_pattern": [True, True, True, False], **yarn(4.0, 16)})),
    "smollm3": ("smollm3", "smollm3", dict(permute=True, metadata={"rope.freq_base": 2e6})),
    "gemma": ("gemma", "gemma", dict(gain_offset=1)),
    "gemma2": ("gemma2", "gemma2", dict(
        changes=dict(sliding_window=4, num_hidden_layers=4, query_pre_attn_scalar=16, final_logit_softcapping=9.0), names=POST,
        gain_offset=1, metadata={**WINDOW, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 9.0})),
    "gemma3": ("gemma3_text", "gemma3", dict(
        changes=dict(sliding_window=4, num_hidden_layers=6, query_pre_attn_scalar=16, sliding_window_pattern=6,
                     rope_local_base_freq=10000.0), names=POST, gain_offset=1,
        metadata={**WINDOW, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0})),
    "granite": ("granite", "granite", dict(permute=True, metadata={
        "attention.scale": 0.3, "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0})),
    "glm4": ("glm4", "glm4", dict(metadata={"rope.dimension_count": 8})),
    "exaone4": ("exaone4", "exaone4", dict(variant="full", names=POST)),
    "exaone4-hybrid": ("exaone4", "exaone4", dict(changes=dict(num_hidden_layers=64, sliding_window=4, rope_theta=10000.0), names=POST,
                                                 metadata=WINDOW, more=llama3_divisors)),
    "cohere": ("cohere", "command-r", dict(metadata={"logit_scale": 0.5})),
    "cohere2": ("cohere2", "cohere2", dict(changes=dict(sliding_window=4), metadata={**WINDOW, "logit_scale": 0.25})),
    "stablelm": ("stablelm", "stablelm", dict(metadata={"rope.dimension_count": 4, "use_parallel_residual": False})),
    "starcoder2": ("starcoder2", "starcoder2", dict(changes=dict(sliding_window=None), bound=2e-3)),
    "phi2": ("phi", "phi2", dict(metadata={"rope.dimension_count": 8}, bound=2e-3)),
    "mixtral": ("mixtral", "llama", dict(permute=True, metadata={**experts(5, 2, 64), "rope.freq_base": 1e6})),
    "qwen3_moe": ("qwen3_moe", "qwen3moe", dict(changes=dict(moe_intermediate_size=32), metadata=experts(6, 3, 32))),
    "olmoe": ("olmoe", "olmoe", dict(changes=dict(num_key_value_heads=4), metadata=experts(6, 3, 64))),
    "gpt_oss": ("gpt_oss", "gpt-oss", dict(
        changes=dict(sliding_window=4, swiglu_limit=7.0, rope_scaling=YARN), names=POST, more=split_stacks,
        metadata={**experts(4, 2, 64), **WINDOW, **yarn(4.0, 16), "rope.freq_base": 1000.0})),
    "glm4_moe": ("glm4_moe", "glm4moe", dict(variant="norms", names=POST, metadata={
        **experts(6, 2, 5, shared_count=1, weights_scale=2.5, **SIGMOID), "leading_dense_block_count": 1, "rope.dimension_count": 4})),
    "minimax_m2": ("minimax_m2", "minimax-m2", dict(changes=dict(rotary_dim=8), metadata={
        **experts(5, 2, 64, gating_func=2), "rope.dimension_count": 8, "rope.freq_base": 5e6})),
    "deepseek_v3": ("deepseek_v3", "deepseek2", dict(metadata={
        **LATENT, **experts(8, 3, 5, shared_count=1, weights_scale=2.5, group_count=4, group_used_count=2, **SIGMOID),
        "rope.freq_base": 500.0, **yarn(4.0, 16, yarn_log_multiplier=0.1)})),
    "deepseek_v2": ("deepseek_v2", "deepseek2", dict(changes=dict(q_lora_rank=9), metadata={
        **LATENT, **experts(6, 2, 5, shared_count=2, weights_scale=1.0, weights_norm=False, gating_func=1),
        **yarn(40.0, 16, yarn_log_multiplier=0.0707)})),
}


def write_case(path, kind, architecture, variant=None, changes=None, metadata=None, names=None, gain_offset=0, permute=False, more=None,
               bound=None):
    """Writes the GGUF file. Returns the ids [1, S] and the witness' probabilities [S, V]."""
    sizes = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=64, head_dim=16)
    if not hub_folder.has_own_head_dim(families.FAMILIES[kind]):
        del sizes["head_dim"]
    model = families.FAMILIES[kind](hub_folder.fields_of(kind, "tiny", variant, {**sizes, **(changes or {})}))
    # What an f32 file holds.
    weights = {name: hub_folder.random_tensor(model, name, shape, 0, None).float().double() for name, shape in model.shapes().items()}
    tensors = ggml_tensors(weights, model.c, {**NAMES, **(names or {})}, gain_offset, permute)
    if more:
        more(tensors, model.c)
    c = model.c
    fields = {
        "context_length": c.max_position_embeddings, "embedding_length": c.hidden_size, "block_count": c.num_hidden_layers,
        "feed_forward_length": c.intermediate_size, "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": c.num_key_value_heads, "attention.key_length": c.head_dim, "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": float(c.get("rms_norm_eps", 1e-5)), "attention.layer_norm_epsilon": 1e-5,
        "rope.dimension_count": c.head_dim, "rope.freq_base": float(c.get("rope_theta") or 10000.0), "vocab_size": VOCABULARY,
        **(metadata or {})}
    ordinary = VOCABULARY - len(SPECIAL)
    write_gguf(path, {
        "general.architecture": architecture, **{f"{architecture}.{key}": value for key, value in fields.items()},
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": SPECIAL + [f"t{number}" for number in range(ordinary)],
        "tokenizer.ggml.scores": [0.0] * VOCABULARY, "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * ordinary,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0}, tensors)
    ids = torch.randint(len(SPECIAL), VOCABULARY, (1, 14), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return ids, torch.softmax(model.logits(weights, ids), -1)[0]


def main():
    parser = argparse.ArgumentParser(description="the witnesses beside llama.cpp")
    parser.add_argument("peer", type=pathlib.Path, help="the folder into which npm installed node-llama-cpp")
    parser.add_argument("names", nargs="*")
    a = parser.parse_args()
    torch.set_num_threads(1)
    chosen = a.names or list(CASES)
    above = []
    with tempfile.TemporaryDirectory() as temporary:
        written = {}
        for name in chosen:
            kind, architecture, case = CASES[name]
            path = pathlib.Path(temporary) / f"{name}.gguf"
            written[name] = (path, *write_case(path, kind, architecture, **case), case.get("bound", 2e-5))
        jobs = pathlib.Path(temporary) / "jobs.json"
        jobs.write_text(json.dumps([{"model": str(path), "ids": ids[0].tolist()} for path, ids, _, _ in written.values()]))
        subprocess.run(["node", pathlib.Path(__file__).parent / "llama_logits.mjs", a.peer, jobs], check=True, timeout=600)
        for name, (path, _, expected, bound) in written.items():
            rows = json.loads(pathlib.Path(f"{path}.json").read_text())
            assert len(rows) == len(expected) and all(len(row) == VOCABULARY for row in rows), name
            worst = max(abs(probability - expected[at, token].item()) for at, row in enumerate(rows) for token, probability in row)
            print(f"{name:16} {worst:.1e}{'' if worst <= bound else f' above {bound:.0e}'}")
            above += [name] if worst > bound else []
    sys.exit(bool(above))


if __name__ == "__main__":
    main()
