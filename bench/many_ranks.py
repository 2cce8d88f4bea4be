#!/usr/bin/env python3
"""Starts jobs of many ranks on this machine and says what that costs: from tsprun's start to the first barrier, from the last barrier to
tsprun's end, from the death of a rank to tsprun's end, memory per rank, and the size of the report.

  bench/many_ranks.py --ranks 64,256,1000 --json many.json

The job is `tsprun bench barrier`. Its table's row comes once the barriers are done, so the start includes two of them, with the pass that
checks them. Memory is the proportional share (PSS) of tsprun and its ranks, while the ranks wait in barriers. It takes the programs from build/release;
nothing else may run meanwhile.
"""
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import harness

#: ranks -> seconds within which a job has started, has ended, and has ended after a rank was killed
BARS = {64: 1, 256: 3, 1000: 10}


def barriers(tsprun, ranks, timing, options=()):
    return subprocess.Popen([tsprun, "-n", str(ranks), *options, "bench", "barrier", "--no-check", *timing], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def one_job(tsprun, ranks, report):
    """Seconds of a job's start and end, and the bytes of its report; None if it failed."""
    begin = time.monotonic()
    job = barriers(tsprun, ranks, ["--iters", "1"], ["--json", report])
    started = None
    for line in job.stdout:
        if not line.startswith("#") and line.split()[:1] == ["0"]:
            started = time.monotonic()
    errors = job.stderr.read()
    if job.wait() != 0 or started is None:
        harness.log(f"  failed ({job.returncode}): {errors}")
        return None
    return {"start_s": started - begin, "end_s": time.monotonic() - started, "report_bytes": os.path.getsize(report)}


def memory_of_job(tsprun, ranks, seconds):
    """Bytes that tsprun and all its ranks hold after this many seconds of barriers; None if the job failed."""
    job = barriers(tsprun, ranks, ["--min-time", str(2 * seconds), "--max-time", str(4 * seconds)])
    time.sleep(seconds)
    held = sum(map(harness.pss, [job.pid, *harness.children(job.pid)]))
    _, errors = job.communicate()
    if job.returncode != 0:
        harness.log(f"  failed ({job.returncode}): {errors}")
        return None
    return held


def end_by_a_kill(tsprun, ranks):
    """Seconds from the death of one of many sleeping ranks to tsprun's end; None if not all ranks started."""
    job = subprocess.Popen([tsprun, "-n", str(ranks), "run", "--", "sleep", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(pids := harness.children(job.pid)) < ranks and time.monotonic() < deadline:
        time.sleep(0.01)
    begin = time.monotonic()
    os.kill(pids[len(pids) // 2] if len(pids) == ranks else job.pid, signal.SIGKILL)
    job.wait()
    return time.monotonic() - begin if len(pids) == ranks else None


def main():
    parser = harness.options(__doc__)
    parser.add_argument("--ranks", default="64,256,1000", help="numbers of ranks")
    parser.add_argument("--repeats", type=int, default=5, help="jobs whose times are taken, of each number of ranks")
    args = parser.parse_args()
    tsprun = str(args.build / "launcher/tsprun")
    rows, bars = [], []
    print(f"{'ranks':>6} {'start s':>8} {'end s':>8} {'killed s':>8} {'MiB/rank':>9} {'report B':>9}")
    with tempfile.TemporaryDirectory() as folder:
        report = str(pathlib.Path(folder) / "report.json")
        for ranks in map(int, args.ranks.split(",")):
            jobs = [job for _ in range(args.repeats) if (job := one_job(tsprun, ranks, report))]
            held = memory_of_job(tsprun, ranks, 1 + ranks / 100)
            killed = end_by_a_kill(tsprun, ranks)
            if len(jobs) < args.repeats or held is None or killed is None:
                bars.append({"bar": f"{ranks} ranks run", "reached": False, "measured": f"{len(jobs)} of {args.repeats} jobs"})
                continue
            row = {"ranks": ranks, **{key: harness.median([job[key] for job in jobs]) for key in jobs[0]},
                   "killed_s": killed, "bytes_per_rank": held / ranks, "jobs": jobs}
            rows.append(row)
            print(f"{ranks:>6} {row['start_s']:>8.2f} {row['end_s']:>8.2f} {killed:>8.2f} {row['bytes_per_rank'] / harness.MIB:>9.2f} "
                  f"{row['report_bytes']:>9.0f}")
            if ranks in BARS:
                slowest = max(killed, *(max(job["start_s"], job["end_s"]) for job in jobs))
                bars.append({"bar": f"{ranks} ranks start, end, and end after a death, within {BARS[ranks]} s", "reached": slowest < BARS[ranks],
                             "measured": f"{slowest:.2f} s at most"})
    harness.print_bars(bars)
    harness.write_figures(args.json, {"rows": rows, "bars": bars})
    return 0 if all(row["reached"] for row in bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
