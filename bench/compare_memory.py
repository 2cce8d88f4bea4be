#!/usr/bin/env python3
"""Holds the arenas' peaks against what the kernel counts: trains a model, samples the proportional set size (PSS) of the ranks every
50 ms, and compares its largest sum, less that of a tiny model (code and libraries), with the sum of the peaks in the report.

    bench/compare_memory.py                            # the built-in config small on tsp=2: about 1 GB a rank
    bench/compare_memory.py --layout tp=2 --config micro --seq 512
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

import harness
from harness import MIB

PERIOD_S = 0.05
LIMIT_S = 600


def train(options, config, folder):
    """The largest sum of the ranks' PSS and the sum of their arenas' peaks, in bytes."""
    report = folder / "report.json"
    job = subprocess.Popen([options.build / "launcher" / "tsprun", "--layout", options.layout, "--json", report, "-q", "train",
                            "--config", config, "--data", options.data, "--seq", str(options.seq), "--steps", str(options.steps),
                            "--recompute", options.recompute],
                           stdout=subprocess.DEVNULL)
    largest, end = 0, time.monotonic() + LIMIT_S
    while job.poll() is None:
        if time.monotonic() > end:
            job.kill()
            sys.exit(f"compare_memory.py: {config} didn't end within {LIMIT_S} s")
        largest = max(largest, sum(harness.pss(rank) for rank in harness.children(job.pid)))
        time.sleep(PERIOD_S)
    if job.returncode != 0:
        sys.exit(f"compare_memory.py: tsprun ended with {job.returncode}")
    ranks = json.loads(report.read_text())["per_rank"]
    return largest, sum(rank["memory_peak_bytes"]["total"] for rank in ranks)


def main():
    parser = harness.options(__doc__)
    parser.add_argument("--layout", default="tsp=2")
    parser.add_argument("--config", default="small")
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--recompute", default="none")
    parser.add_argument("--data", default="/usr/share/common-licenses/GPL-3")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tiny_pss, tiny_arenas = train(options, "nano", pathlib.Path(folder))
        model_pss, model_arenas = train(options, options.config, pathlib.Path(folder))
    baseline = tiny_pss - tiny_arenas
    ratio = (model_pss - baseline) / model_arenas
    print(f"{options.config}, {options.layout}, S = {options.seq}")
    print(f"arenas' peaks, sum over ranks   {model_arenas / MIB:9.1f} MiB")
    print(f"PSS, largest sum over ranks     {model_pss / MIB:9.1f} MiB")
    print(f"of it code and libraries        {baseline / MIB:9.1f} MiB (PSS less arenas of nano)")
    print(f"PSS less that / arenas          {ratio:9.3f}   bar: 0.9 to 1.1")
    harness.write_figures(options.json, {"config": options.config, "layout": options.layout, "seq": options.seq,
                                         "arena_bytes": model_arenas, "pss_bytes": model_pss, "baseline_bytes": baseline,
                                         "ratio": ratio})
    return 0 if 0.9 <= ratio <= 1.1 else 1


if __name__ == "__main__":
    sys.exit(main())
