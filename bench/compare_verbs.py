#!/usr/bin/env python3
"""The verbs transport against perftest on the same two laboratory machines: 1 MiB messages and 8-byte round trips, as ratios.

    bench/compare_verbs.py [--rounds 5] [--json FILE]

Each round alternates ours, ib_write_bw, ib_write_lat and ib_send_lat in one boot; the ratios are of the medians. Absolute figures mean
nothing: the machines are emulated. Needs the packages of tools/packages.txt for rdma; a peer that isn't installed is left out.
"""

import pathlib
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile

import harness

PEERS = {
    "ib_write_bw": "ib_write_bw -d rxe0 -x 1 -s 1048576 -n {messages}",
    "ib_write_lat": "ib_write_lat -d rxe0 -x 1 -s 8 -n {trips}",
    "ib_send_lat": "ib_send_lat -d rxe0 -x 1 -s 8 -n {trips}",
}


def script(bench, options, peers):
    lines = ["wait_for() { while [ ! -e $SHARE/$1 ]; do sleep 0.1; done; }"]
    for turn in range(options.rounds):
        lines.append(f"echo == ours; {shlex.quote(str(bench))} {turn} {options.messages} {options.trips} || exit 1")
        for name in peers:
            command = PEERS[name].format(messages=options.messages, trips=options.trips)
            mark = f"{name}.{turn}"
            lines.append(f"echo == {name}")
            lines.append(f"if [ $NODE = 0 ]; then ( sleep 0.5; touch $SHARE/{mark} ) & {command}; wait")
            lines.append(f"else wait_for {mark}; sleep 0.5; {command} 10.77.0.1; fi || exit 1")
    return "\n".join(lines)


def read(text):
    """Figures by name: MB/s for bw, microseconds for lat."""
    figures, part = {}, ""
    for line in text.splitlines():
        words = line.split()
        if line.startswith("== "):
            part = words[1]
        elif part == "ours" and words and words[0] in ("bw", "lat"):
            figures.setdefault("ours " + words[0], []).append(float(words[2]))
        elif part == "ib_write_bw" and re.match(r"\s*1048576\s", line):
            figures.setdefault(part, []).append(float(words[3]))  # average
        elif part.endswith("_lat") and re.match(r"\s*8\s", line):
            figures.setdefault(part, []).append(float(words[4]))  # typical: the median
    return figures


def main():
    parser = harness.options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=16, help="of 1 MiB, in one measurement")
    parser.add_argument("--trips", type=int, default=200, help="round trips of 8 bytes, in one measurement")
    parser.add_argument("--timeout", type=int, default=240, help="seconds for the whole run")
    options = parser.parse_args()
    bench = (options.build / "bench/verbs_bench").resolve()
    # The laboratory's machines run the programs of this one.
    peers = [name for name in PEERS if shutil.which(name) is not None]
    missing = [name for name in PEERS if name not in peers]
    if missing:
        harness.log(f"compare_verbs.py: {', '.join(missing)}: not installed (apt-get install perftest); left out")
    with tempfile.TemporaryDirectory() as share:
        lab = [harness.ROOT / "tools/rdma_lab/lab.py", "--timeout", str(options.timeout), "--share", share, "--", script(bench, options, peers)]
        result = subprocess.run(lab, stdout=subprocess.DEVNULL, check=False)
        if result.returncode != 0:
            harness.log(f"compare_verbs.py: the laboratory ended with {result.returncode}")
            for left in sorted(pathlib.Path(share).glob("*.network")) + [pathlib.Path(share, "result.json")]:
                if left.exists():
                    harness.log(f"-- {left.name}: {left.read_text(encoding='utf-8')}")
            return result.returncode
        figures = read(pathlib.Path(share, "node0.out").read_text(encoding="utf-8"))
    medians = {name: statistics.median(values) for name, values in figures.items()}
    rows = [
        ("1 MiB messages, MB/s", "ours bw", "ib_write_bw", ">=", 0.9),
        ("8 B one way, us", "ours lat", "ib_write_lat", "<=", 1.3),
        ("8 B one way, us", "ours lat", "ib_send_lat", "<=", 1.3),
    ]
    table = []
    for what, ours, peer, sign, bar in rows:
        if peer not in peers:
            print(f"{what:22} ours {medians[ours]:9.2f}  {peer:13} not installed")
            table.append({"what": what, "peer": peer, "ours": medians[ours], "theirs": None, "ratio": None, "met": None})
            continue
        ratio = medians[ours] / medians[peer]
        met = ratio >= bar if sign == ">=" else ratio <= bar
        table.append({"what": what, "peer": peer, "ours": medians[ours], "theirs": medians[peer], "ratio": ratio, "met": met})
        print(f"{what:22} ours {medians[ours]:9.2f}  {peer:13} {medians[peer]:9.2f}  ratio {ratio:5.2f}  bar {sign} {bar}  {'met' if met else 'MISSED'}")
    harness.write_figures(options.json, {"table": table, "figures": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
