#!/usr/bin/python3
"""A llama of 207 million parameters reads a prompt and decodes: tsprun on 1, 2 and 8 ranks, and llama.cpp, in f32 and bf16, in turns.

The weights are random, the same for all, and exact in bf16. Figures are medians over the rounds; bytes a second are the weights that a token
reads, times its speed, beside a read-only stream of bench/floor. Needs only Python's standard library. The peer is llama.cpp's CPU backend in
npm's node-llama-cpp: `npm install --prefix build/llama node-llama-cpp`. It is skipped, and said so, if it isn't there.
"""

import functools
import json
import pathlib
import random
import struct
import tempfile

import harness
import llama_cpp

VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 32000, 1024, 12, 16, 8, 64, 2816
POSITIONS, THETA, EPSILON = 2048, 10000.0, 1e-5
BLOCK = 1000003  # a prime, so that no two rows of a matrix are equal
SUBJECTS = {"1 rank x 2 threads": (1, 2), "2 ranks x 1 thread": (2, 1), "8 ranks x 1 thread": (8, 1)}


def matrices():
    """Name, GGUF's name, rows and columns of every matrix, in the order of the model; the embedding first."""
    yield "model.embed_tokens", "token_embd", VOCABULARY, HIDDEN
    for layer in range(LAYERS):
        for name, short, rows, columns in (
                ("self_attn.q_proj", "attn_q", HEADS * HEAD_DIM, HIDDEN), ("self_attn.k_proj", "attn_k", KV_HEADS * HEAD_DIM, HIDDEN),
                ("self_attn.v_proj", "attn_v", KV_HEADS * HEAD_DIM, HIDDEN), ("self_attn.o_proj", "attn_output", HIDDEN, HEADS * HEAD_DIM),
                ("mlp.gate_proj", "ffn_gate", INTERMEDIATE, HIDDEN), ("mlp.up_proj", "ffn_up", INTERMEDIATE, HIDDEN),
                ("mlp.down_proj", "ffn_down", HIDDEN, INTERMEDIATE)):
            yield f"model.layers.{layer}.{name}", f"blk.{layer}.{short}", rows, columns
    yield "lm_head", "output", VOCABULARY, HIDDEN


def norms():
    """The same of the gains of norms, all 1."""
    for layer in range(LAYERS):
        yield f"model.layers.{layer}.input_layernorm", f"blk.{layer}.attn_norm"
        yield f"model.layers.{layer}.post_attention_layernorm", f"blk.{layer}.ffn_norm"
    yield "model.norm", "output_norm"


class Values:
    """Values of matrices: stretches of one block of normal numbers, in f32 whose lower halves are 0."""

    def __init__(self):
        generator = random.Random(1)
        data = bytearray(struct.pack(f"<{BLOCK}f", *(generator.gauss(0, 0.02) for _ in range(BLOCK))))
        data[0::4] = data[1::4] = bytes(BLOCK)
        self.block = bytes(data)

    def matrix(self, number, rows, columns):
        """The bytes of matrix `number`, in f32."""
        first = number * 70001 % BLOCK * 4
        size = rows * columns * 4
        return (self.block[first:] + self.block * (size // len(self.block) + 1))[:size]


def bf16(f32):
    """The upper halves of f32 values."""
    data = bytearray(len(f32) // 2)
    data[0::2], data[1::2] = f32[2::4], f32[3::4]
    return bytes(data)


def write_safetensors(folder, values):
    """A model as the hub has it: config.json, and weights in f32."""
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "max_position_embeddings": POSITIONS, "rope_theta": THETA, "rms_norm_eps": EPSILON, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "float32"}))
    header, at = {}, 0
    for name, _, rows, columns in matrices():
        header[f"{name}.weight"] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [at, at + rows * columns * 4]}
        at += rows * columns * 4
    for name, _ in norms():
        header[f"{name}.weight"] = {"dtype": "F32", "shape": [HIDDEN], "data_offsets": [at, at + HIDDEN * 4]}
        at += HIDDEN * 4
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for number, (_, _, rows, columns) in enumerate(matrices()):
            file.write(values.matrix(number, rows, columns))
        for _ in norms():
            file.write(struct.pack("<f", 1) * HIDDEN)


def interleaved(data, heads, columns):
    """Rows of q or k as GGUF has them: the halves of a head that RoPE pairs, in turns."""
    row = columns * 4
    out = []
    for head in range(heads):
        for i in range(HEAD_DIM // 2):
            for half in (0, HEAD_DIM // 2):
                first = (head * HEAD_DIM + half + i) * row
                out.append(data[first:first + row])
    return b"".join(out)


def write_gguf(path, values, dtype):
    """The same weights for llama.cpp, matrices in `dtype`."""
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    metadata = {
        "general.architecture": "llama", "llama.context_length": POSITIONS, "llama.embedding_length": HIDDEN, "llama.block_count": LAYERS,
        "llama.feed_forward_length": INTERMEDIATE, "llama.attention.head_count": HEADS, "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": EPSILON, "llama.rope.dimension_count": HEAD_DIM, "llama.rope.freq_base": THETA,
        "llama.vocab_size": VOCABULARY, "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": special + [f"t{i}" for i in range(len(special), VOCABULARY)],
        "tokenizer.ggml.scores": [0.0] * VOCABULARY,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (VOCABULARY - len(special)),
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0}
    kind = {"f32": llama_cpp.F32, "bf16": llama_cpp.BF16}[dtype]

    def data_of(number, name, rows, columns):
        data = values.matrix(number, rows, columns)
        if name.endswith(("attn_q", "attn_k")):
            data = interleaved(data, rows // HEAD_DIM, columns)
        return data if dtype == "f32" else bf16(data)

    tensors = [(f"{name}.weight", (columns, rows), kind, functools.partial(data_of, number, name, rows, columns))
               for number, (_, name, rows, columns) in enumerate(matrices())]
    tensors += [(f"{name}.weight", (HIDDEN,), llama_cpp.F32, lambda: struct.pack("<f", 1) * HIDDEN) for _, name in norms()]
    llama_cpp.write_gguf(path, metadata, tensors)


def weights_read(dtype):
    """The bytes of weights that a token reads: all but the embedding's other rows."""
    return sum(rows * columns for name, _, rows, columns in matrices() if name != "model.embed_tokens") * {"f32": 4, "bf16": 2}[dtype]


def run_tsprun(build, folder, prompt, tokens, dtype, ranks, threads):
    """One launch; returns prefill and decode in tokens/s, and the ids."""
    report = folder / "report.json"
    command = [build / "launcher/tsprun", "-q", "-n", str(ranks), "--threads", str(threads), "--json", report, "generate", "--model",
               folder, "--prompt", prompt, "--tokens", str(tokens), "--temperature", "0", "--dtype", dtype]
    if harness.run(command, limit_s=300) is None:
        raise SystemExit("tsprun failed")
    result = json.loads(report.read_text())["generate"]
    return result["prefill_tokens_per_s"], result["decode_tokens_per_s"], result["tokens"]


def run_llama(peer, model, ids, tokens, threads):
    """The same of llama.cpp."""
    result = llama_cpp.run("llama_decode.mjs", peer, model, threads, tokens, *ids)
    if result is None:
        return None
    return len(ids) / result["prefill_s"], (tokens - 1) / result["decode_s"], result["ids"]


def stream_gbps(build, rounds):
    """Bytes a second of a read-only stream by two threads."""
    return harness.median([float(harness.run([build / "bench/floor", "--read"])) for _ in range(rounds)])


def agreeing(ids, others):
    """How many of the first ids are the same."""
    return next((i for i, (one, other) in enumerate(zip(ids, others)) if one != other), min(len(ids), len(others)))


def compare(arguments, folder, values, ids, dtype):
    """Prints the table of one dtype and returns its figures and bars."""
    has_peer = llama_cpp.is_there(arguments.peer)
    prompt = folder / "prompt.bin"
    prompt.write_bytes(struct.pack(f"<{len(ids)}H", *ids))
    model = folder / f"{dtype}.gguf"
    if has_peer:
        write_gguf(model, values, dtype)
    names = list(SUBJECTS) + (["llama.cpp, 2 threads"] if has_peer else [])
    speeds = {name: ([], []) for name in names}
    texts, streams = {}, []
    for _ in range(arguments.rounds):
        for name in names:
            if name in SUBJECTS:
                result = run_tsprun(arguments.build, folder, prompt, arguments.tokens, dtype, *SUBJECTS[name])
            else:
                result = run_llama(arguments.peer, model, ids, arguments.tokens, 2)
            if result:
                speeds[name][0].append(result[0])
                speeds[name][1].append(result[1])
                texts[name] = result[2]
        streams.append(stream_gbps(arguments.build, 3))
    model.unlink(missing_ok=True)
    stream = harness.median(streams)
    prefill = {name: harness.median(one) for name, (one, _) in speeds.items()}
    decode = {name: harness.median(one) for name, (_, one) in speeds.items()}
    read = {name: weights_read(dtype) * speed * 1e-9 for name, speed in decode.items() if speed}
    print(f"{dtype}, read-only stream {stream:.1f} GB/s")
    print(f"{'':22}{'prefill/s':>11}{'decode/s':>10}{'GB/s':>7}{'same ids':>10}")
    one, two, eight = names[:3]
    for name in read:
        same = f"{agreeing(texts[name], texts[one])}/{arguments.tokens}"
        print(f"{name:22}{prefill[name]:11.1f}{decode[name]:10.1f}{read[name]:7.1f}{same:>10}")
    peer = decode.get("llama.cpp, 2 threads")

    def bar(what, value, least):
        return {"bar": f"{dtype}, {what} ≥ {least}", "reached": value >= least, "measured": f"{value:.2f}"}

    bars = [bar("weights' bytes a second, of the stream's", read[one] / stream, 0.85), bar("8 ranks, of 1 rank", decode[eight] / decode[one], 0.6)]
    if peer:
        bars += [bar("decode, 1 rank, of llama.cpp", decode[one] / peer, 1.0), bar("decode, 2 ranks, of llama.cpp", decode[two] / peer, 0.9),
                 bar("prefill, of llama.cpp", prefill[one] / prefill["llama.cpp, 2 threads"], 2.0)]
    harness.print_bars(bars)
    return {"prefill_tokens_per_s": prefill, "decode_tokens_per_s": decode, "stream_gbps": stream, "bars": bars, "rounds": speeds}


def main():
    parser = harness.options(__doc__)
    llama_cpp.add_option(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=65, help="tokens to add")
    parser.add_argument("--dtypes", default="f32,bf16")
    arguments = parser.parse_args()
    values = Values()
    generator = random.Random(2)
    ids = [generator.randrange(300, VOCABULARY) for _ in range(arguments.prompt)]
    with tempfile.TemporaryDirectory(dir=arguments.build) as name:
        folder = pathlib.Path(name)
        write_safetensors(folder, values)
        figures = {dtype: compare(arguments, folder, values, ids, dtype) for dtype in arguments.dtypes.split(",")}
    harness.write_figures(arguments.json, figures)


if __name__ == "__main__":
    main()
