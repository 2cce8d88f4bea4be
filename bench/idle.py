#!/usr/bin/env python3
"""CPU that ranks use which only wait: rank 0 of `tsprun bench barrier` sleeps in its first barrier (--fault stall), the others wait there
for it. Exit code 1 if a waiting rank used 2% of a core or more.

  bench/idle.py -n 8
"""
import subprocess
import time

import harness

BAR = 0.02
SETTLE_S, MARGIN_S = 0.01, 0.2  # after the sleep begins, and before it ends


def cpu_seconds(pid):
    """What all threads of a process have used."""
    return time.clock_gettime(~pid << 3 | 2)  # its clock as clock_getcpuclockid(3) names it


def measure(tsprun, ranks, seconds):
    """Shares of a core by rank, of which 0 sleeps."""
    job = subprocess.Popen([tsprun, "-n", str(ranks), "--timeout", str(2 * seconds), "--fault",
                            f"stall:rank=0,op=barrier,seq=1,seconds={seconds}", "bench", "barrier", "--iters", "1", "--no-check"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if not any("injected" in line for line in job.stderr):
        raise SystemExit("idle.py: the ranks ended before they had met")
    time.sleep(SETTLE_S)
    pids = harness.children(job.pid)
    begin, before = time.monotonic(), [cpu_seconds(pid) for pid in pids]
    time.sleep(seconds - SETTLE_S - MARGIN_S)
    used = [cpu_seconds(pid) - at for pid, at in zip(pids, before)]
    waited = time.monotonic() - begin
    job.communicate()
    return [each / waited for each in used]


def main():
    parser = harness.options(__doc__)
    parser.add_argument("-n", "--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5, help="how long rank 0 sleeps")
    arguments = parser.parse_args()
    shares = measure(arguments.build / "launcher/tsprun", arguments.ranks, arguments.seconds)
    for rank, share in enumerate(shares):
        print(f"rank {rank}: {share * 100:.3f}% of a core")
    worst = max(shares[1:])
    bars = [{"bar": "a waiting rank uses less than 2% of a core", "reached": worst < BAR, "measured": f"{worst * 100:.3f}%"}]
    harness.print_bars(bars)
    harness.write_figures(arguments.json, {"shares": shares, "bars": bars})
    return 0 if worst < BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
