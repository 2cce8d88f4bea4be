#!/usr/bin/env python3
"""What tools/rdma_lab/lab.py promises: exit codes, outputs and weather of three machines, its time limit, and that nothing is left.

Exit code: 0; 1 with a line that says what doesn't hold; 3 if the laboratory can't run here.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

LAB = pathlib.Path(__file__).resolve().parent.parent.parent / "tools/rdma_lab/lab.py"
DELAY_MS = 300
PATIENCE_S = 60  # for a process to start or to be gone

# Node 0 changes the weather and looks whether it comes; node 1's heart beats all the while; both ends have time, for this machine may
# be busy. Node 0 writes what it saw to $SHARE/seen.
SCRIPT = f"""
echo "node $NODE of $NODES speaks"; echo "node $NODE complains" >&2
touch "$SHARE/here$NODE"
until [ -e "$SHARE/here0" ] && [ -e "$SHARE/here1" ] && [ -e "$SHARE/here2" ]; do sleep 0.1; done
if [ $NODE = 1 ]; then
  beats=0
  until [ -e "$SHARE/over" ]; do beats=$((beats + 1)); echo $beats >"$SHARE/beats.new"; mv "$SHARE/beats.new" "$SHARE/beats"; sleep 0.1; done
  exit 7
fi
if [ $NODE = 2 ]; then
  until [ -e "$SHARE/over" ]; do sleep 0.2; done
  exit 0
fi
weather() {{ echo "$*" >>"$SHARE/control"; }}
ping2() {{ busybox ping -c 1 -W 5 10.77.0.3; }}
seen() {{ echo "$*" >>"$SHARE/seen"; }}
round_trip() {{ ping2 | sed -n 's/^round-trip.* = \\([0-9]*\\).*/\\1/p'; }}
beats() {{ cat "$SHARE/beats"; }}
is_beating() {{ before=$(beats); sleep 3; [ "$before" != "$(beats)" ]; }}
# soon WHAT COMMAND…: true within twenty tries
soon() {{
  what=$1 tries=0; shift
  until "$@"; do tries=$((tries + 1)); [ $tries -lt 20 ] || return; sleep 0.2; done
  seen $what
}}
is_quick() {{ ms=$(round_trip); [ -n "$ms" ] && [ $ms -lt {DELAY_MS} ]; }}
is_slow() {{ ms=$(round_trip); [ -n "$ms" ] && [ $ms -ge {2 * DELAY_MS} ]; }}
is_deaf() {{ ! ping2 >/dev/null; }}
ping2 >/dev/null
soon quick is_quick
weather delay {DELAY_MS}; soon slow is_slow
weather delay 0; soon quick-again is_quick
weather loss 1; soon deaf is_deaf
weather loss 0; soon quick-once-more is_quick
weather cut 2:0; soon nic-deaf is_deaf
weather join 2:0; soon nic-quick is_quick
weather cap 2:0 0.00025; soon capped is_slow
weather cap 2:0 0; soon uncapped is_quick
soon beating is_beating
weather pause 1
is_still() {{ ! is_beating; }}
soon still is_still
weather resume 1; soon beating-again is_beating
weather nonsense 5
weather cut 2:1
touch "$SHARE/over"
"""
SEEN = ["quick", "slow", "quick-again", "deaf", "quick-once-more", "nic-deaf", "nic-quick", "capped", "uncapped", "beating", "still", "beating-again"]


class Wrong(Exception):
    """Something doesn't hold."""


def require(condition, what):
    if not condition:
        raise Wrong(what)


def machines(folder):
    """Ids of the QEMU processes whose sockets lie in this folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"qemu" in words[0] and any(os.fsencode(folder) in word for word in words):
            found.append(int(pid))
    return found


def soon(condition, what):
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        require(time.monotonic() < ends, what)
        time.sleep(0.05)


class Runs:
    """Laboratories whose temporary files all lie in one folder."""

    def __init__(self, temporary):
        self.temporary = temporary
        self.environment = dict(os.environ, TMPDIR=str(temporary))

    def finish(self, *arguments):
        return subprocess.run([LAB, *arguments], env=self.environment, capture_output=True, text=True, check=False)

    def start(self, *arguments):
        """One whose machines boot."""
        lab = subprocess.Popen([LAB, *arguments], env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        soon(lambda: len(machines(self.temporary)) >= 2 or lab.poll() is not None, "no machine starts")
        require(lab.poll() is None, f"it ended with {lab.returncode} before its machines were there")
        return lab

    def left(self):
        return [f"process {pid}" for pid in machines(self.temporary)] + [str(path) for path in self.temporary.iterdir()]


def three_machines(runs, share):
    run = runs.finish("-n", "3", "--memory", "512", "--timeout", "240", "--share", share, "--", SCRIPT)
    if run.returncode == 3:
        print(run.stderr, end="")
        sys.exit(3)
    said = f"\n{run.stdout}{run.stderr}"
    require(run.returncode == 1, f"one command failed, and the exit code is {run.returncode}{said}")
    result = json.loads((share / "result.json").read_text(encoding="utf-8"))
    require(result["in_time"], "result.json says that it wasn't in time")
    codes = [node["exit_code"] for node in result["nodes"]]
    require(codes == [0, 7, 0], f"exit codes {codes} instead of 0, 7, 0{said}")
    for node in range(3):
        for stream, shown, words in (("out", run.stdout, f"node {node} of 3 speaks"), ("err", run.stderr, f"node {node} complains")):
            kept = (share / f"node{node}.{stream}").read_text(encoding="utf-8").splitlines()
            require(words in kept, f"node{node}.{stream} has {kept}")
            require(f"node{node}| {words}" in shown.splitlines(), f"not shown: {words}{said}")
        require(re.search(rf"^lab: node {node} exited with {codes[node]}$", run.stdout, re.MULTILINE), f"node {node}'s end isn't told{said}")
    seen = (share / "seen").read_text(encoding="utf-8").split()
    require(seen == SEEN, f"seen: {seen}, not {SEEN}{said}")
    for line in ("nonsense 5", "cut 2:1"):  # the machines have one NIC
        require(f"lab: can't obey '{line}'" in run.stderr, f"nonsense is obeyed{said}")
    ethernet = result["ethernet"][0]
    require(0 < ethernet["lost"] < ethernet["frames"], f"frames: {ethernet}")
    require(not (share / ".lab").exists(), "its own files are left in the results folder")
    require(runs.left() == [], f"left: {runs.left()}")
    print(f"three machines: up after {max(node['booted_s'] for node in result['nodes']):.0f} s, {ethernet}")


def signals(runs):
    lab = runs.start("--", "sleep 1000")
    lab.send_signal(signal.SIGTERM)
    require(lab.wait(PATIENCE_S) == 128 + signal.SIGTERM, f"SIGTERM ends it with {lab.returncode}")
    require(runs.left() == [], f"left after SIGTERM: {runs.left()}")
    lab = runs.start("--", "sleep 1000")
    lab.kill()
    lab.wait()
    soon(lambda: machines(runs.temporary) == [], "machines outlive a laboratory that was killed")
    # The folder is left; the next laboratory removes it.


def time_limit(runs, share):
    begin = time.monotonic()
    run = runs.finish("--timeout", "2", "--share", share, "--", "sleep 10000")
    said = f"\n{run.stdout}{run.stderr}"
    require(run.returncode == 124, f"the time limit ends it with {run.returncode}{said}")
    # What the machines wait for a core isn't counted.
    require(time.monotonic() - begin < 10 * PATIENCE_S, "the time limit struck late")
    result = json.loads((share / "result.json").read_text(encoding="utf-8"))
    require(not result["in_time"] and [node["exit_code"] for node in result["nodes"]] == [None, None], f"result: {result}")
    require("node 0 still running at the time limit" in run.stdout, f"which still run isn't told{said}")
    require(runs.left() == [], f"left after the time limit and an earlier SIGKILL: {runs.left()}")


def refusals(runs):
    """Where it can't run it says so, and what would help; what it can't do it refuses."""
    deep = runs.temporary / ("a" * 100)
    deep.mkdir()
    for arguments, changed, code, words in (
            (["--check"], {"PATH": "/nonexistent"}, 3, "can't run here: missing packages: apt-get install"),
            (["--", "true"], {"TMPDIR": str(deep)}, 3, "too long a path"),
            (["-n", "1", "--", "true"], {}, 2, "--machines: 2 to 8"),
            (["-n", "9", "--", "true"], {}, 2, "--machines: 2 to 8")):
        run = subprocess.run([sys.executable, LAB, *arguments], env={**runs.environment, **changed}, capture_output=True, text=True,
                             check=False)
        require(run.returncode == code and words in run.stderr, f"{arguments} {changed}: {run.returncode}, {run.stderr}")
    deep.rmdir()


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory(prefix="tsp-lab-test.") as folder:
        temporary, share = pathlib.Path(folder) / "tmp", pathlib.Path(folder) / "share"
        temporary.mkdir()
        runs = Runs(temporary)
        try:
            three_machines(runs, share)
            refusals(runs)
            signals(runs)
            time_limit(runs, share)
        except Wrong as wrong:
            print(f"laboratory: FAILED: {wrong}")
            return 1
        finally:
            for pid in machines(temporary):
                os.kill(pid, signal.SIGKILL)
    print("laboratory: good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
