#!/usr/bin/python3
"""One transformer block forward and backward: PyTorch, one rank with two threads (products by tsprun's kernels, and by OpenBLAS), TSP on 2
and on 8 ranks; and what TSP's schedule hides.

All subjects alternate, so that they see the same states of the machine; figures are medians over the rounds. The overlap part makes the
links so slow that communication would take half of the compute time, by delays that cost no CPU, with the schedule as it is and with every
posted operation waited for at once.

Needs only Python's standard library; PyTorch (Debian's python3-torch) is skipped, and said so, if it isn't there.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import types

import harness
import torch_block

SHAPE = ["--hidden", "1024", "--heads", "16", "--head-dim", "64", "--intermediate", "2816"]


def run_block(build, ranks, threads, extra, environment=None):
    """One launch of block_bench; returns its JSON."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "block.json"
        program = [str(build / "bench/block_bench"), "--threads", str(threads), "--json", str(report), *extra]
        if ranks > 1:
            program = [str(build / "launcher/tsprun"), "-q", "--no-prefix", "-n", str(ranks), "run", "--", *program]
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **(environment or {})})
        return json.loads(report.read_text())


def torch_subjects(seq, kv_heads):
    """PyTorch's block, attention written in the ways that were fastest; none if PyTorch isn't there."""
    try:
        subprocess.run([sys.executable, "-c", "import torch"], check=True, capture_output=True)
    except subprocess.CalledProcessError:
        print("PyTorch skipped: install Debian's python3-torch, and run this with /usr/bin/python3", file=sys.stderr)
        return []
    options = types.SimpleNamespace(hidden=1024, intermediate=2816, heads=16, head_dim=64, batch=1, seq=seq, threads=2)
    return [torch_block.Subject(options, kv_heads, way, "keep") for way in ("sdpa", "chunked-512")]


def compare_speed(build, rounds, seq, kv_heads):
    extra = SHAPE + ["--kv-heads", str(kv_heads), "--seq", str(seq), "--rounds", "1"]
    subjects = {"1 rank x 2 threads": (1, 2, "tsprun"), "the same by OpenBLAS": (1, 2, "openblas"),
                "TSP 2 ranks x 1 thread": (2, 1, "tsprun"), "TSP 8 ranks x 1 thread": (8, 1, "tsprun")}
    times = {name: [] for name in subjects}
    torch = torch_subjects(seq, kv_heads)
    for _ in range(rounds):
        for name, (ranks, threads, library) in subjects.items():
            times[name].append(run_block(build, ranks, threads, extra, {"TSP_GEMM": library})["milliseconds"])
        for subject in torch:
            subject.round()
    result = {name: statistics.median(values) for name, values in times.items()}
    if torch:
        result[f"PyTorch ({torch[0].core})"] = min(statistics.median(subject.times) for subject in torch)
    for subject in torch:
        subject.end()
    return result


def compare_overlap(build, layers, seq):
    """Exposed communication as a share of the time that communication takes at that link speed."""
    extra = SHAPE + ["--kv-heads", "16", "--seq", str(seq), "--rounds", "3", "--layers", str(layers)]
    free = run_block(build, 2, 1, extra)
    budget_s = free["compute_ms"] / 2 * 1e-3
    gbps = free["received_bytes"] / budget_s * 1e-9
    slow = {"TSP_LINK_GBPS": f"{gbps:.6f}"}
    hidden = run_block(build, 2, 1, extra, slow)
    blocking = run_block(build, 2, 1, extra, {**slow, "TSP_BLOCKING": "1"})
    share = {name: run["exposed_ms"] * 1e-3 / budget_s for name, run in (("schedule", hidden), ("synchronous", blocking))}
    return {"layers": layers, "seq": seq, "gbps": gbps, "communication_ms": budget_s * 1e3, "exposed_share": share}


def main():
    parser = harness.options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--kv-heads", type=int, default=16)
    arguments = parser.parse_args()

    speed = compare_speed(arguments.build, arguments.rounds, arguments.seq, arguments.kv_heads)
    base = speed["1 rank x 2 threads"]
    bars = {"TSP 2 ranks x 1 thread": 0.90, "TSP 8 ranks x 1 thread": 0.75}
    print(f"{'':26}{'ms':>10}{'ratio':>8}{'bar':>8}")
    for name, ms in speed.items():
        is_peer = name.startswith("PyTorch")
        ratio = ms / base if is_peer else base / ms
        print(f"{name:26}{ms:10.1f}{ratio:8.2f}{1.3 if is_peer else bars.get(name, ''):>8}")
    overlap = compare_overlap(arguments.build, 8, 1024)
    print(f"overlap, 2 ranks, {overlap['layers']} blocks, S {overlap['seq']}: links of {overlap['gbps']:.2f} GB/s, "
          f"{overlap['communication_ms']:.0f} ms of communication")
    print(f"  exposed: {overlap['exposed_share']['schedule']:.0%} (bar 15%), "
          f"synchronous {overlap['exposed_share']['synchronous']:.0%} (bar 80%)")
    harness.write_figures(arguments.json, {"speed_ms": speed, "overlap": overlap})


if __name__ == "__main__":
    main()
