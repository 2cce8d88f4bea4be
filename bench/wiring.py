#!/usr/bin/env python3
"""Measures how many ranks find each other by the job's store: a server and a client for each rank (wiring_bench), with the keys and requests
of ranks that look for RDMA and then for TCP (core/links.cpp), but without NICs and without connections among ranks.

  bench/wiring.py --json wiring.json

Ranks that double may make twice the requests and keys, no more. It takes the program from build/release; nothing else may run meanwhile.
"""
import json

import harness

#: Ranks, nodes; the last is the bar's.
JOBS = [(128, 16), (256, 32), (512, 64), (1024, 128)]
BAR_S = 2
#: Requests a rank: five words, four gathers and one look at its own; a wait of over a second adds one.
BAR_REQUESTS = 16
BAR_KEYS = 5


def main():
    parser = harness.options(__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each job")
    parser.add_argument("--plain", action="store_true", help="without TLS")
    parser.add_argument("--lost", action="store_true", help="RDMA looks up and carries nothing: ranks tell each other why")
    args = parser.parse_args()
    rows, bars = [], []
    print(f"{'ranks':>6} {'nodes':>6} {'connect s':>10} {'wire s':>8} {'requests':>9} {'keys':>7}")
    for ranks, nodes in JOBS:
        command = [str(args.build / "bench/wiring_bench"), str(ranks), str(nodes), *(["plain"] if args.plain else []), *(["lost"] if args.lost else [])]
        runs = [json.loads(output) for _ in range(args.repeats) if (output := harness.run(command, 120))]
        if len(runs) < args.repeats:
            bars.append({"bar": f"{ranks} ranks on {nodes} nodes find each other", "reached": False, "measured": f"{len(runs)} of {args.repeats} runs"})
            continue
        row = {key: harness.median([run[key] for run in runs]) for key in runs[0] if key not in ("tls", "lost")}
        rows.append({**row, "tls": runs[0]["tls"], "lost": args.lost, "runs": runs})
        print(f"{ranks:>6} {nodes:>6} {row['connect_s']:>10.2f} {row['wire_s']:>8.2f} {row['requests']:>9.0f} {row['keys']:>7.0f}")
        most = max(run["requests"] for run in runs)
        bars.append({"bar": f"{ranks} ranks: at most {BAR_REQUESTS} requests and {BAR_KEYS} keys each",
                     "reached": most <= BAR_REQUESTS * ranks and row["keys"] <= BAR_KEYS * ranks + 1,
                     "measured": f"{most / ranks:.1f} and {row['keys'] / ranks:.1f}"})
        if (ranks, nodes) == JOBS[-1]:
            slowest = max(run["wire_s"] for run in runs)
            bars.append({"bar": f"{ranks} ranks on {nodes} nodes within {BAR_S} s", "reached": slowest <= BAR_S,
                         "measured": f"{slowest:.2f} s at most, besides {row['connect_s']:.2f} s to connect and prove the secret"})
    harness.print_bars(bars)
    harness.write_figures(args.json, {"rows": rows, "bars": bars})
    return 0 if all(row["reached"] for row in bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
