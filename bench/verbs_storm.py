#!/usr/bin/env python3
"""fault_storm.py's faults over RDMA: a training on two machines of the laboratory, two ranks each, is struck once, again and again.

  bench/verbs_storm.py --jobs 12 --json storm.json       # some twenty seconds a job, in one boot

Strikes are SIGKILL and SIGSTOP of a rank at a random moment (while ranks still meet and connect, too), or a --fault. Of each job's end on
each machine it asks: was the fault found, how long after it struck, was the culprit named, is a process or a shared-memory object left?
It fails (exit 1) if one was missed, misnamed, late or left something; 3 says that the laboratory can't run here.
"""
import argparse
import json
import pathlib
import random
import sys
import tempfile

import harness
from fault_storm import NAMED, culprits, draw_fault, table

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/rdma"))
from jobs import Laboratory, node_of  # noqa: E402 (the path comes first)

# `struck NAME NODE RANK SIGNAL SECONDS OPTION…`: a job whose local RANK on NODE gets SIGNAL some time after it is there; no signal
# where SIGNAL is none. The moment is noted by each machine's own clock: the shared folder tells the other, within 0.1 s.
PROLOGUE = """
left() {
  for p in /proc/[0-9]*; do case $(cat "$p/comm" 2>/dev/null) in tsprun|tsp-guardian) echo "process ${p#/proc/}";; esac; done
  ls /dev/shm
}
strike() {
  until set -- "$1" "$2" "$3" "$4" $(cat "/proc/$1/task/$1/children" 2>/dev/null) && [ $# -ge 6 ]; do
    [ -e "/proc/$1" ] || return; sleep 0.05
  done
  rank=$2 signal=$3; sleep "$4"; touch "$SHARE/$name.strike"; uptime_ms >"$SHARE/$name.$NODE.fault"
  shift $((4 + rank)); kill -$signal "$1"
}
struck() {
  name=$1 where=$2 rank=$3 signal=$4 seconds=$5; shift 5; port=$((port + 1))
  [ $signal != none ] && [ $where != $NODE ] && at_fault $name
  "$TSPRUN" --layout tsp=4 --mem-per-rank 16M --timeout $deadline --nnodes 2 --node-rank "$NODE" --rendezvous 10.77.0.1:$port \
    --inter verbs --json "$SHARE/$name.$NODE.json" "$@" >"$SHARE/$name.$NODE.out" 2>"$SHARE/$name.$NODE.err" &
  pid=$!
  [ $signal != none ] && [ $where = $NODE ] && strike $pid $rank $signal $seconds &
  wait $pid; code=$?; end=$(uptime_ms)
  [ -e "$SHARE/$name.$NODE.fault" ] && echo $((end - $(cat "$SHARE/$name.$NODE.fault"))) >"$SHARE/$name.$NODE.after"
  touch "$SHARE/$name.strike"  # ends the watch for it
  sleep 0.5; left >"$SHARE/$name.$NODE.left"
  echo $code >"$SHARE/$name.$NODE.code"; echo "$name on node $NODE: exit code $code"; meet $name
}
"""


def draw_job(draw, lab, number):
    """A job: what strikes it, whom to blame, and its line of the machines' script."""
    kind, text, culprit = draw_fault(draw, 4, True)
    options = ["--verify"] if kind in ("corrupt", "drop") else []
    options += ["--fault", text] if text else []
    signal = {"sigkill": "KILL", "sigstop": "STOP"}.get(kind, "none")
    blamed = culprit if culprit is not None else 0
    name = f"job{number}"
    line = (f"struck {name} {node_of(blamed)} {blamed % 2} {signal} {draw.uniform(0, 6):.2f} {' '.join(options)} "
            f"{lab.train(100000, (1, 16))}")
    return {"name": name, "transport": "verbs", "kind": kind, "fault": text, "culprit": culprit, "line": line}


def judge(lab, job, deadline):
    """What both machines said of a job's end."""
    reports = [lab.report(job["name"], node) for node in (0, 1)]
    failures = [report.get("failure") or {} for report in reports]
    struck = [fault for report in reports for fault in report.get("faults") or [] if fault.get("struck")]
    places = [place for fault in struck for place in fault.get("where") or []]
    if job["fault"]:
        job["injected"] = bool(struck)
        # Each machine's report has its own zero: a fault's and a failure's moment are compared within one. Both list the fault, but
        # one whose copy of the other's board came late may not.
        spans = [failure["seconds"] - place["seconds"] for report, failure in zip(reports, failures)
                 for fault in (report.get("faults") or [])[:1] for place in (fault.get("where") or [])[:1]
                 if "seconds" in failure and "seconds" in place]
        job["seconds"] = max(spans, default=None)
    else:
        after = [lab.text(job["name"], node, "after") for node in (0, 1)]
        job["injected"] = any(after)
        job["seconds"] = max((int(text) / 1000 for text in after if text), default=None)
    job["detected"] = job["injected"] and all(failure.get("kind") in NAMED[job["kind"]] for failure in failures)
    job["named"] = job["detected"] and all(
        failure.get("rank") in culprits(job["culprit"], job["fault"], places) for failure in failures)
    job["left"] = [line for node in (0, 1) for line in lab.text(job["name"], node, "left").split("\n") if line]
    job["late"] = job["seconds"] is not None and job["seconds"] > deadline + 3
    job["codes"] = [lab.code(job["name"], node) for node in (0, 1)]
    job["failures"] = failures
    job["bad"] = bool(job["injected"] and (not job["named"] or 0 in job["codes"] or job["late"]) or job["left"])
    if job["bad"]:
        print(json.dumps(job), lab.words(job["name"]), sep="\n", file=sys.stderr, flush=True)
    return job


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tsprun", type=pathlib.Path, default=ROOT / "build/release/launcher/tsprun")
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--timeout", type=int, default=15, help="deadline of waits, in seconds: arithmetic is slow in there")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="tsp-verbs-storm.") as folder:
        lab = Laboratory(options, folder)
        jobs = [draw_job(draw, lab, number) for number in range(options.jobs)]
        script = "\n".join([PROLOGUE, f"deadline={options.timeout}", *(job["line"] for job in jobs)])
        code = lab.run(script, timeout=60 + options.jobs * (options.timeout + 30))
        if code != 0:
            print(f"the laboratory failed with {code}", file=sys.stderr)
            return 1
        rows = [judge(lab, job, options.timeout) for job in jobs]
    table(rows)
    harness.write_figures(options.json, {"mode": "verbs storm", "seed": options.seed, "rows": rows})
    return 1 if any(row["bad"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
