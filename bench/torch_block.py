#!/usr/bin/python3
"""One transformer block, forward and backward, in PyTorch on CPUs: the peer of our block's bar.

  bench/torch_block.py [--kv-heads 16,8] [--attention NAMES] [--malloc default,keep] [--rounds 5] [--json FILE]
  bench/torch_block.py --serve [--kv-heads 16] --attention chunked-512 --malloc keep     one round for each line on stdin

The block is Llama's, as tests/oracle/torch_cases.py has it, in f32 with gradients of the input and of all weights. PyTorch 1.13
(Debian's) has no fused attention for CPUs, so several ways to write it are tried, and the fastest counts:
  plain       softmax of all S x S scores of all heads, masked
  sdpa        torch.nn.functional._scaled_dot_product_attention, is_causal
  chunked-N   N queries at a time against the keys that they may see: half of plain's work
--malloc keep: glibc returns no memory to the kernel (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_), which saves the page faults
of every large temporary, and holds gigabytes. Each round runs every variant once, so that all see the same states of the machine.
Times are milliseconds of forward + backward.

What the environment says to OpenBLAS (OPENBLAS_*, GOTO_*) and to OpenMP (OMP_*) doesn't reach PyTorch. Each of OpenBLAS' core types
that may be the best is tried first with a product of matrices, in a process of its own, and PyTorch runs with the fastest.
"""
import argparse
import ctypes
import functools
import json
import os
import statistics
import subprocess
import sys
import time

KEEP = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(256 << 20)}
# OpenBLAS' core types for today's x86 processors; None: the one that it chooses by itself.
CORES = (None, "SkylakeX", "Cooperlake", "SapphireRapids", "Haswell", "Zen")


def parse():
    parser = argparse.ArgumentParser(description="one transformer block, forward and backward, in PyTorch")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--intermediate", type=int, default=2816)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", default="16,8", help="a list: each is measured")
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--attention", default="plain,sdpa,chunked-256,chunked-512,chunked-1024")
    parser.add_argument("--malloc", default="default")
    parser.add_argument("--json", help="write the result there too")
    parser.add_argument("--try-core", action="store_true", help="time a product of matrices, and say which core computed it")
    parser.add_argument("--serve", action="store_true", help="one variant; a round for each line on stdin, its time on stdout")
    return parser.parse_args()


def make_step(options, kv_heads, way):
    """A function that does one forward and backward."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    b, s, h, f = options.batch, options.seq, options.hidden, options.intermediate
    n_h, d = options.heads, options.head_dim

    def weight(*shape):
        return torch.randn(shape).mul_(shape[-1] ** -0.5).requires_grad_()

    norm1, norm2 = torch.ones(h, requires_grad=True), torch.ones(h, requires_grad=True)
    w_q, w_k, w_v, w_o = weight(n_h * d, h), weight(kv_heads * d, h), weight(kv_heads * d, h), weight(h, n_h * d)
    w_gate, w_up, w_down = weight(f, h), weight(f, h), weight(h, f)
    x, dy = torch.randn(b, s, h, requires_grad=True), torch.randn(b, s, h)
    leaves = [norm1, norm2, w_q, w_k, w_v, w_o, w_gate, w_up, w_down, x]

    frequencies = torch.outer(torch.arange(s).float(), 10000.0 ** (-torch.arange(0, d, 2).float() / d))
    angles = torch.cat((frequencies, frequencies), -1)
    cosines, sines = angles.cos(), angles.sin()
    hidden_keys = torch.full((s, s), float("-inf")).triu(1) if way == "plain" else None

    def rms_norm(t, gain):
        return gain * (t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + 1e-6))

    def rope(t):
        return t * cosines + torch.cat((-t[..., d // 2:], t[..., :d // 2]), -1) * sines

    def heads(t, n):
        return t.view(b, s, n, d).transpose(1, 2)

    def attention(q, k, v):
        if way == "plain":
            return torch.softmax(torch.matmul(q, k.transpose(2, 3)).mul_(d ** -0.5).add_(hidden_keys), -1) @ v
        if way == "sdpa":
            return F._scaled_dot_product_attention(q, k, v, is_causal=True)[0]
        chunk = int(way.split("-")[1])
        parts = []
        for first in range(0, s, chunk):
            end = min(first + chunk, s)
            scores = torch.matmul(q[:, :, first:end] * d ** -0.5, k[:, :, :end].transpose(2, 3))
            scores[..., first:end].add_(torch.full((end - first, end - first), float("-inf")).triu(1))
            parts.append(torch.softmax(scores, -1) @ v[:, :, :end])
        return torch.cat(parts, 2)

    def shared(t):
        return t[:, :, None].expand(b, kv_heads, n_h // kv_heads, s, d).reshape(b, n_h, s, d)

    def step():
        for leaf in leaves:
            leaf.grad = None
        t = rms_norm(x, norm1)
        q, k, v = rope(heads(F.linear(t, w_q), n_h)), rope(heads(F.linear(t, w_k), kv_heads)), heads(F.linear(t, w_v), kv_heads)
        o = attention(q, shared(k), shared(v)).transpose(1, 2).reshape(b, s, n_h * d)
        x2 = x + F.linear(o, w_o)
        t = rms_norm(x2, norm2)
        y = x2 + F.linear(F.silu(F.linear(t, w_gate)) * F.linear(t, w_up), w_down)
        y.backward(dy)

    return step


def serve(options):
    """Warms up, says so, then answers each line with the milliseconds of a round."""
    step = make_step(options, int(options.kv_heads), options.attention)
    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        step()
        print((time.perf_counter() - begin) * 1e3, flush=True)


def try_core(threads):
    """Prints the fastest of ten products of 1024 x 1024 matrices, in milliseconds, and the core that OpenBLAS has chosen."""
    import torch
    torch.set_num_threads(threads)
    a = torch.randn(1024, 1024)
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        a @ a
        times.append((time.perf_counter() - begin) * 1e3)
    with open("/proc/self/maps") as maps:
        libraries = {line.split()[-1] for line in maps if "openblas" in line}
    core = "no OpenBLAS"
    for library in libraries:
        name = ctypes.CDLL(library).openblas_get_corename
        name.restype = ctypes.c_char_p
        core = name().decode()
    print(json.dumps({"milliseconds": min(times), "core": core}))


def environment_of(threads, core):
    """This process's environment with nothing in it for OpenBLAS and OpenMP but threads and the core type."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENBLAS_", "GOTO_", "OMP_"))}
    return {**kept, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads),
            **({"OPENBLAS_CORETYPE": core} if core else {})}


@functools.cache
def best_core(threads):
    """The core type that computes fastest, as OPENBLAS_CORETYPE takes it, and its name. Ties go to OpenBLAS' own choice."""
    tried = []
    for core in CORES:
        answer = subprocess.run([sys.executable, os.path.abspath(__file__), "--try-core", "--threads", str(threads)],
                                capture_output=True, text=True, env=environment_of(threads, core))
        if answer.returncode != 0:  # a core type that this processor can't run
            continue
        found = json.loads(answer.stdout)
        tried.append((found["milliseconds"] * (1 if core is None else 1.03), core, found["core"]))
    if not tried:
        sys.exit("torch_block.py: PyTorch multiplies matrices with none of OpenBLAS' core types")
    return min(tried, key=lambda each: each[0])[1:]


class Subject:
    """A variant in a process of its own: malloc's environment is read at its start."""

    def __init__(self, options, kv_heads, way, malloc):
        self.name = {"kv_heads": kv_heads, "attention": way, "malloc": malloc}
        self.times = []
        arguments = [sys.executable, os.path.abspath(__file__), "--serve", "--kv-heads", str(kv_heads), "--attention", way]
        for option in ("hidden", "intermediate", "heads", "head-dim", "batch", "seq", "threads"):
            arguments += [f"--{option}", str(getattr(options, option.replace("-", "_")))]
        core, self.core = best_core(options.threads)
        environment = {**environment_of(options.threads, core), **(KEEP if malloc == "keep" else {})}
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"torch_block.py: {self.name} ended with {self.process.wait()}")
        return line

    def round(self):
        print(file=self.process.stdin, flush=True)
        self.times.append(float(self.answer()))

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    options = parse()
    try:
        import torch
    except ImportError as error:
        sys.exit(f"torch_block.py: {error}: install Debian's package python3-torch")
    if options.try_core:
        try_core(options.threads)
        return
    if options.serve:
        serve(options)
        return
    report = {"torch": torch.__version__, "threads": options.threads, "batch": options.batch, "seq": options.seq,
              "hidden": options.hidden, "heads": options.heads, "head_dim": options.head_dim,
              "intermediate": options.intermediate, "dtype": "f32", "core": best_core(options.threads)[1], "rounds": options.rounds, "fastest": {}, "variants": []}
    for kv_heads in map(int, options.kv_heads.split(",")):
        subjects = []
        try:
            for way in options.attention.split(","):
                for malloc in options.malloc.split(","):
                    subjects.append(Subject(options, kv_heads, way, malloc))
            for _ in range(options.rounds):
                for subject in subjects:
                    subject.round()
        finally:
            for subject in subjects:
                subject.end()
        rows = [{**subject.name, "median_ms": round(statistics.median(subject.times), 1),
                 "min_ms": round(min(subject.times), 1), "max_ms": round(max(subject.times), 1)} for subject in subjects]
        report["variants"] += rows
        report["fastest"][str(kv_heads)] = min(rows, key=lambda row: row["median_ms"])
    text = json.dumps(report, indent=1)
    print(text)
    if options.json:
        with open(options.json, "w") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
