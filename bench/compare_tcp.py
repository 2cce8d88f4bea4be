#!/usr/bin/env python3
"""Compares the tcp transport with iperf3 (one stream of 1 MiB messages on loopback) and its all_reduce of 16 MiB on 4 ranks with
Open MPI over tcp and with Gloo, on this machine. The same with TLS (--tls on), which none of the others has: what it costs.

Launches alternate, so that all see the same states of the machine; a figure is the median of its launches. A peer that isn't
installed is skipped, and said so:
    apt-get install iperf3 openmpi-bin libopenmpi-dev libgloo-dev
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import compare_mpi
from harness import MIB, ROOT, log, median, options, print_bars, run, write_figures

PORT = 5209


def our_stream(build, seconds, tls="off"):
    text = run([build / "launcher" / "tsprun", "-n", "2", "--intra", "tcp", "--tls", tls, "--no-prefix", "run", "--",
                build / "bench" / "stream_bench", str(MIB), str(seconds)])
    for line in (text or "").splitlines():
        if line.startswith("stream tcp"):
            return float(line.split()[3])
    return None


def iperf3_stream(seconds):
    """What the receiver counted."""
    server = subprocess.Popen(["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", str(PORT)], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        text = run(["iperf3", "-c", "127.0.0.1", "-p", str(PORT), "-t", str(seconds), "-l", "1M", "-J"])
        return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 8e9 if text else None
    finally:
        server.terminate()
        server.wait()


def build_gloo_bench(folder):
    """Compiles gloo_bench; None if Gloo isn't installed."""
    if not pathlib.Path("/usr/include/gloo/allreduce.h").exists() or shutil.which("g++") is None:
        return None
    program = folder / "gloo_bench"
    source = ROOT / "bench" / "gloo_bench.cpp"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        log("building gloo_bench ...")
        sources = [str(source)] + [str(ROOT / each) for each in compare_mpi.SOURCES if each != "bench/mpi_bench.cpp"]
        subprocess.run(["g++", "-std=c++20", "-O3", "-I", str(ROOT)] + sources + ["-o", str(program), "-lgloo", "-lpthread"],
                       check=True)
    return program


def all_reduce_peers(build, folder, ranks, pace):
    """Name -> command that writes its rows to `out`."""
    cores = len(os.sched_getaffinity(0))
    out = folder / "out.json"
    rows = ["all_reduce", "--sizes", "16M", "--no-check", "--min-time", str(pace), "--max-time", str(2 * pace), "--json", str(out)]
    tsprun = [str(build / "launcher" / "tsprun"), "-n", str(ranks), "--intra", "tcp"]
    peers = {"ours": tsprun + ["bench"] + rows, "ours with TLS": tsprun + ["--tls", "on", "bench"] + rows}
    skipped = []
    mpi = None
    if shutil.which("mpirun.openmpi"):
        mpi = compare_mpi.build_mpi_bench("mpicxx.openmpi", build / "bench")
    if mpi is None:
        skipped.append("openmpi")
    else:
        peers["openmpi"] = compare_mpi.openmpi_command(ranks, cores) + ["--mca", "btl", "tcp,self", "--mca", "pml", "ob1", str(mpi)] + rows
    gloo = build_gloo_bench(build / "bench")
    if gloo is None:
        skipped.append("gloo")
    else:
        peers["gloo"] = [str(gloo), "-n", str(ranks)] + rows
    return peers, skipped, out


def main():
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="launches of each program")
    parser.add_argument("--seconds", type=int, default=2, help="length of a stream, and of a row of all_reduce")
    arguments = parser.parse_args()
    build = arguments.build
    lines = []

    streams = {"ours": [], "ours with TLS": [], "iperf3": []}
    if shutil.which("iperf3") is None:
        del streams["iperf3"]
        log("iperf3 is skipped: it isn't installed")
    for _ in range(arguments.repeats):
        streams["ours"].append(our_stream(build, arguments.seconds))
        streams["ours with TLS"].append(our_stream(build, arguments.seconds, "on"))
        if "iperf3" in streams:
            streams["iperf3"].append(iperf3_stream(arguments.seconds))
    ours, theirs = median(streams["ours"]), median(streams.get("iperf3", []))
    print("stream of 1 MiB messages, GB/s: " + ", ".join(f"{name} {median(values):.2f}" for name, values in streams.items() if median(values) is not None))
    if ours and theirs:
        lines.append(("tcp stream: >= 0.9 of iperf3", ours / theirs >= 0.9, f"{ours / theirs:.2f}"))

    times = {}
    with tempfile.TemporaryDirectory(prefix="tsp-compare-") as name:
        peers, skipped, out = all_reduce_peers(build, pathlib.Path(name), 4, arguments.seconds / 2)
        for each in skipped:
            log(f"{each} is skipped: it isn't installed")
        for _ in range(arguments.repeats):
            for peer, command in peers.items():
                out.unlink(missing_ok=True)
                if run(command) is not None and out.exists():
                    times.setdefault(peer, []).append(json.loads(out.read_text())["bench"][0]["seconds_p50"])
    medians = {peer: median(values) for peer, values in times.items()}
    print("all_reduce of 16 MiB on 4 ranks over tcp, ms: " +
          ", ".join(f"{peer} {seconds * 1e3:.1f}" for peer, seconds in medians.items()))
    for peer, seconds in medians.items():
        if not peer.startswith("ours") and "ours" in medians:
            ratio = seconds / medians["ours"]
            lines.append((f"tcp all_reduce of 16 MiB on 4 ranks: faster than {peer}", ratio > 1, f"{ratio:.2f} times as fast"))
    bars = [{"bar": bar, "reached": reached, "measured": text} for bar, reached, text in lines]
    print_bars(bars)
    write_figures(arguments.json, {"streams_gbps": streams, "all_reduce_seconds": times, "bars": bars})
    return 0


if __name__ == "__main__":
    sys.exit(main())
