#!/usr/bin/env python3
"""The verbs transport against perftest on the same two laboratory machines: messages of 64 KiB to 1 MiB and 8-byte round trips, as
ratios.

    bench/compare_verbs.py [--rounds 5] [--before build/before] [--json FILE]

Each round alternates ours, that of another build if one is given, ib_write_bw, ib_write_lat and ib_send_lat in one boot; the ratios are
of the medians. Absolute figures mean nothing: the machines are emulated. Needs the packages of tools/packages.txt for rdma; a peer that
isn't installed is left out.
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

SIZES = [1 << 16, 1 << 18, 1 << 20]
PEERS = {
    "ib_write_bw": "ib_write_bw -d rxe0 -x 1 -s {bytes} -n {messages}",
    "ib_write_lat": "ib_write_lat -d rxe0 -x 1 -s 8 -n {trips}",
    "ib_send_lat": "ib_send_lat -d rxe0 -x 1 -s 8 -n {trips}",
}


def script(benches, options, peers):
    lines = ["wait_for() { while [ ! -e $SHARE/$1 ]; do sleep 0.1; done; }"]
    for turn in range(options.rounds):
        for name, bench in sorted(benches.items(), reverse=turn % 2 == 1):
            lines.append(f"echo == {name}; {shlex.quote(str(bench))} {name}{turn} {options.messages} {options.trips} || exit 1")
        for name in peers:
            for size in SIZES if name.endswith("_bw") else [8]:
                messages = options.messages * SIZES[-1] // size
                command = PEERS[name].format(bytes=size, messages=messages, trips=options.trips)
                mark = f"{name}.{size}.{turn}"
                lines.append(f"echo == {name}")
                lines.append(f"if [ $NODE = 0 ]; then ( sleep 0.5; touch $SHARE/{mark} ) & {command}; wait")
                lines.append(f"else wait_for {mark}; sleep 0.5; {command} 10.77.0.1; fi || exit 1")
    return "\n".join(lines)


def read(text):
    """Figures by program and message size: MB/s, microseconds for 8 bytes."""
    figures, part = {}, ""
    for line in text.splitlines():
        words = line.split()
        if line.startswith("== "):
            part = words[1]
        elif part in ("ours", "before") and words and words[0] in ("bw", "lat"):
            figures.setdefault(part, {}).setdefault(int(words[1]), []).append(float(words[2]))
        elif part.startswith("ib_") and re.match(r"\s*\d+\s+\d+\s+\d", line):
            value = float(words[3 if part.endswith("_bw") else 4])  # the average; "typical", the median
            figures.setdefault(part, {}).setdefault(int(words[0]), []).append(value)
    return figures


def name_of(size):
    return f"{size} B" if size < 1024 else f"{size >> 10} KiB"


def main():
    parser = harness.options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=pathlib.Path, help="another build, whose verbs_bench runs in turns")
    parser.add_argument("--messages", type=int, default=16, help="of 1 MiB, in one measurement; as many bytes in smaller ones")
    parser.add_argument("--trips", type=int, default=200, help="round trips of 8 bytes, in one measurement")
    parser.add_argument("--timeout", type=int, default=240, help="seconds for the whole run")
    options = parser.parse_args()
    benches = {"ours": (options.build / "bench/verbs_bench").resolve()}
    if options.before is not None:
        benches["before"] = (options.before / "bench/verbs_bench").resolve()
    # The laboratory's machines run the programs of this one.
    peers = [name for name in PEERS if shutil.which(name) is not None]
    missing = [name for name in PEERS if name not in peers]
    if missing:
        harness.log(f"compare_verbs.py: {', '.join(missing)}: not installed (apt-get install perftest); left out")
    with tempfile.TemporaryDirectory() as share:
        lab = [harness.ROOT / "tools/rdma_lab/lab.py", "--timeout", str(options.timeout), "--share", share, "--", script(benches, options, peers)]
        result = subprocess.run(lab, stdout=subprocess.DEVNULL, check=False)
        if result.returncode != 0:
            harness.log(f"compare_verbs.py: the laboratory ended with {result.returncode}")
            for left in sorted(pathlib.Path(share).glob("*.network")) + [pathlib.Path(share, "result.json")]:
                if left.exists():
                    harness.log(f"-- {left.name}: {left.read_text(encoding='utf-8')}")
            return result.returncode
        figures = read(pathlib.Path(share, "node0.out").read_text(encoding="utf-8"))
    medians = {name: {size: statistics.median(values) for size, values in sizes.items()} for name, sizes in figures.items()}
    rows = [(size, "MB/s", "ib_write_bw", ">=", 0.95) for size in SIZES]
    rows += [(8, "us one way", "ib_write_lat", "<=", 1.3), (8, "us one way", "ib_send_lat", "<=", 1.3)]
    if options.before is not None:
        rows += [(size, "MB/s", "before", ">=", 1.0) for size in SIZES] + [(8, "us one way", "before", "<=", 1.0)]
    table = []
    for size, unit, peer, sign, bar in rows:
        ours, theirs = medians["ours"][size], medians.get(peer, {}).get(size)
        row = {"bytes": size, "unit": unit, "peer": peer, "ours": ours, "theirs": theirs, "ratio": None, "met": None}
        what = f"{name_of(size):>9} {unit:10} ours {ours:9.2f}  {peer:13}"
        if theirs is None:
            print(f"{what} not measured")
        else:
            row["ratio"] = ours / theirs
            row["met"] = row["ratio"] >= bar if sign == ">=" else row["ratio"] <= bar
            print(f"{what} {theirs:9.2f}  ratio {row['ratio']:5.2f}  bar {sign} {bar}  {'met' if row['met'] else 'MISSED'}")
        table.append(row)
    harness.write_figures(options.json, {"table": table, "figures": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
