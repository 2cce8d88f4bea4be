#!/usr/bin/env python3
"""Holds virtual time against this machine: measures training steps with `compare`, times their kernels, copies and messages with
`calibrate`, plays the same steps with `simulate --against`, and prints measured, played and error of every point.

    bench/against.py                                   # seven schemes of 2 ranks at two lengths, and three link speeds
    bench/against.py --ranks 8 --links                 # ranks outnumber cores; no slower links
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import harness

LIMIT_S = 900
DIFFERS = 1.1
# Bars: the median of the errors, and each.
MEDIAN, EACH = 0.10, 0.15
CROWDED = 0.20


def tsprun(options, words, report):
    """Runs tsprun, and returns its report."""
    command = [options.build / "launcher" / "tsprun", "-q", "--json", report, *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"against.py: {' '.join(map(str, command))}\n{done.stderr}")
    return json.loads(report.read_text())


def measure(options, folder):
    """One report of all points, measured by several calls of `compare`."""
    n = options.ranks
    plain = f"tsp={n};tp={n};sp={n};zero3={n}"
    longest = options.seqs.split(",")[-1]
    calls = [["--layouts", plain, "--seqs", options.seqs], ["--layouts", f"tp={n}", "--tp", "sequence", "--seqs", options.seqs],
             ["--layouts", f"sp={n}", "--sp", "ring", "--seqs", options.seqs],
             ["--layouts", f"sp={n}", "--sp", "ulysses", "--seqs", options.seqs]]
    calls += [["--layouts", f"tsp={n};tp={n}", "--link-gbps", speed, "--seqs", longest] for speed in options.links]
    whole = None
    for words in calls:
        report = tsprun(options, ["compare", *words, "--config", options.config, "--data", options.data, "--batch", options.batch,
                                  "--steps", options.steps, "--threads", 1], folder / "part.json")
        if whole is None:
            whole = report
        else:
            whole["compare"] += report["compare"]
    return whole


def name(row):
    link = f", {row['link_gbps']:g} GB/s" if "link_gbps" in row else ""
    return f"{row['layout']}, S = {row['seq']}{link}"


def kept_order(points):
    """Of the pairs of equal sizes whose measured times differ by 10 %, how many there are, and how many are played in order."""
    pairs = [(one, other) for one in points for other in points
             if one["size"] == other["size"] and one["measured"] * DIFFERS <= other["measured"]]
    return len(pairs), sum(one["played"] < other["played"] for one, other in pairs)


def main():
    parser = harness.options(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--config", default="micro")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seqs", default="256,512")
    parser.add_argument("--steps", type=int, default=5, help="measured steps of a point")
    parser.add_argument("--rounds", type=int, default=3, help="how often all is measured, timed and played, in turns; medians count")
    parser.add_argument("--links", type=float, nargs="*", default=[2, 0.5, 0.1], help="speeds of links in GB/s, by delayed messages")
    parser.add_argument("--data", default="/usr/share/common-licenses/GPL-3")
    options = parser.parse_args()
    crowded = options.ranks > len(os.sched_getaffinity(0))
    rounds = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for number in range(options.rounds):
            harness.log(f"round {number + 1} of {options.rounds}")
            measured, host = folder / "measured.json", folder / "host.json"
            measured.write_text(json.dumps(measure(options, folder)))
            tsprun(options, ["calibrate", "--like", measured], host)
            rounds.append(tsprun(options, ["simulate", "--machine", host, "--against", measured], folder / "s.json")["simulate"])
    points = []
    for rows in zip(*rounds):
        seconds = {kind: statistics.median(row[key] for row in rows)
                   for kind, key in (("measured", "measured_seconds"), ("played", "seconds"), ("compute", "compute_seconds"))}
        points.append({"point": name(rows[0]), "size": (rows[0]["seq"], rows[0].get("link_gbps")), **seconds,
                       "error": seconds["played"] / seconds["measured"] - 1})
    print(f"{options.config}, {options.ranks} ranks, median of {options.rounds} rounds")
    print(f"{'point':<32} {'measured ms':>12} {'played ms':>10} {'kernels ms':>11} {'error':>8}")
    for point in points:
        print(f"{point['point']:<32} {1e3 * point['measured']:12.2f} {1e3 * point['played']:10.2f} {1e3 * point['compute']:11.2f} "
              f"{100 * point['error']:+7.1f}%")
    errors = [abs(point["error"]) for point in points]
    median, largest = statistics.median(errors), max(errors)
    pairs, kept = kept_order(points)
    bars = [{"bar": "median error at most 20 %, aimed at", "reached": median <= CROWDED, "measured": f"{100 * median:.1f} %"}]
    if not crowded:
        bars = [{"bar": "median error at most 10 %", "reached": median <= MEDIAN, "measured": f"{100 * median:.1f} %"},
                {"bar": "each at most 15 %", "reached": largest <= EACH, "measured": f"largest {100 * largest:.1f} %"}]
    bars.append({"bar": "layouts whose times differ by 10 % are in order", "reached": kept == pairs, "measured": f"{kept} of {pairs} pairs"})
    harness.print_bars(bars)
    harness.write_figures(options.json, {"ranks": options.ranks, "points": points, "median_error": median, "largest_error": largest,
                                         "pairs": pairs, "kept": kept})
    return 0 if all(bar["reached"] for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
