#!/usr/bin/env python3
"""Asks whether the warning of slow links can be trusted: many short jobs under load, of which none may be warned of, and some with a
link that is slow (--fault slow), each of which must be named.

  bench/slow_link_soak.py --jobs 500                      # what the bar asks for: no warning in 500 healthy jobs
  nice bench/slow_link_soak.py --jobs 40 --slow-jobs 4    # a short one

Load are processes that compute without end, two for every core, beside the jobs. Jobs are drawn by --seed from several commands,
numbers of ranks and transports. Ends with 1 if a healthy job was warned of, a slow link wasn't named, or a job failed.
"""
import argparse
import collections
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import harness

WORDS = "come slowly"


def burn():
    """A process that computes until it is killed, or its parent is gone."""
    parent = os.getpid()
    return subprocess.Popen([sys.executable, "-c", f"import os\nwhile os.getppid() == {parent}:\n  for _ in range(10**6): pass"])


def healthy(draw, text):
    """A short job on links that are all alike."""
    ranks = draw.choice([2, 3, 4, 8])
    intra = draw.choice(["shm", "shm", "tcp"])
    command = draw.choice([
        ["bench", "all_gather,all_reduce", "--sizes", "64K,1M", "--iters", "20", "--check=off"],
        ["bench", "all_to_all", "--sizes", "256K", "--iters", "30", "--check=off"],
        ["bench", "pingpong", "--sizes", "8,64K", "--iters", "30", "--check=off"],
        ["train", "--config", "nano", "--data", text, "--batch", "2", "--seq", "64", "--steps", "10"],
    ])
    if command[0] == "train" and ranks == 3:
        ranks = 4
    return ["-n", str(ranks), "--intra", intra, *command]


def slow(draw, _text):
    """The same with one link of 1 MB/s, and its name. An all_to_all uses every link, whatever the transport. On links of 10 MB/s
    messages take no longer than those that wait for a core on a machine that is as loaded as this."""
    a, b = draw.sample(range(4), 2)
    intra = draw.choice(["shm", "tcp"])
    bench = ["bench", "all_to_all", "--sizes", "256K", "--iters", "40", "--check=off"]
    return ["-n", "4", "--intra", intra, "--fault", f"slow:from={a},to={b},gbps=0.001", *bench], f"messages from rank {a} to rank {b} {WORDS}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tsprun", default="build/release/launcher/tsprun")
    parser.add_argument("--jobs", type=int, default=500, help="healthy ones")
    parser.add_argument("--slow-jobs", type=int, default=20)
    parser.add_argument("--burners", type=int, default=2 * (os.cpu_count() or 1), help="processes that load the machine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, help="what came of it, for machines")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    counts = collections.Counter()
    troubles = []
    begun = time.monotonic()
    burners = [burn() for _ in range(options.burners)]
    try:
        with tempfile.TemporaryDirectory(prefix="slow_link_soak.") as folder:
            text = os.path.join(folder, "text")
            with open(text, "w", encoding="ascii") as file:
                file.write("the quick brown fox jumps over the lazy dog. " * 500)

            def run(arguments):
                done = subprocess.run([options.tsprun, *arguments], capture_output=True, text=True, timeout=300, check=False)
                if done.returncode != 0:
                    counts["failed"] += 1
                    troubles.append({"job": arguments, "code": done.returncode, "said": done.stderr[-2000:]})
                return done

            for _ in range(options.jobs):
                arguments = healthy(draw, text)
                done = run(arguments)
                counts["healthy"] += 1
                if WORDS in done.stderr:
                    counts["false alarms"] += 1
                    troubles.append({"job": arguments, "said": done.stderr[-2000:]})
            for _ in range(options.slow_jobs):
                arguments, words = slow(draw, text)
                done = run(arguments)
                counts["slow"] += 1
                if words in done.stderr:
                    counts["named"] += 1
                else:
                    troubles.append({"job": arguments, "said": done.stderr[-2000:]})
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    result = {"healthy": counts["healthy"], "false_alarms": counts["false alarms"], "slow": counts["slow"], "named": counts["named"],
              "failed": counts["failed"], "seconds": round(time.monotonic() - begun, 1), "troubles": troubles}
    harness.write_figures(options.json, result)
    for trouble in troubles:
        print(" ".join(trouble["job"]), trouble["said"], sep="\n", file=sys.stderr)
    print(f"{result['healthy']} healthy jobs under {options.burners} burners: {result['false_alarms']} warned of; {result['slow']} with a slow "
          f"link: {result['named']} named; {result['failed']} failed; {result['seconds']} s")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
