#!/usr/bin/env python3
"""Breaks jobs on purpose, again and again, and counts what became of it.

  bench/fault_storm.py --jobs 40 --json storm.json        # a storm: random faults over training and collectives, shm and tcp
  bench/fault_storm.py --jobs 200 --kinds sigkill         # as many SIGKILLs of a random rank at random moments
  bench/fault_storm.py --minutes 10 --json soak.json      # a soak: random collectives on slow, late links, every result checked

A storm starts a job, strikes it once (SIGKILL or SIGSTOP from outside at a random moment, or a --fault), and asks of its end: was the
fault found, how long after it struck, was the culprit named, and is anything left (processes, sockets, /dev/shm files)? It fails
(exit 1) if one was missed, misnamed, late or left something: late is --within seconds after the strike, or, where nothing but a passed
deadline can tell (stopped ranks, lost messages), after that. The same --seed makes the same jobs and faults; moments of signals are drawn
too, but what a job does at that moment is the scheduler's choice.
"""
import argparse
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import harness

MARK = "TSP_FAULT_STORM"
TRANSPORTS = {"shm": [], "tcp": ["--nodes", "2", "--inter", "tcp"]}
#: kind of fault -> kinds of failure that name it
NAMED = {"sigkill": {"killed"}, "sigstop": {"stalled"}, "kill": {"killed"}, "stall": {"stalled"}, "oom": {"out_of_memory"},
         "corrupt": {"corrupt"}, "drop": {"mismatch", "deadlock", "stalled"}, "disconnect": {"disconnected"}}

#: found by a deadline of --timeout
BY_DEADLINE = {"sigstop", "stall", "drop"}
#: struck at training steps
IN_STEPS = ["kill", "stall", "oom", "disconnect"]


def marked(mark):
    """Processes whose environment bears the mark of a job."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"{MARK}={mark}".encode() in file.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            pass
    return found


def outside():
    """What lives outside of processes and bears a name as tsprun gives them: objects in /dev/shm, and abstract sockets with their
    inodes. Of this machine: those of other jobs, too."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        lines = [line.split(None, 7) for line in file]
    sockets = {(line[7].strip(), line[6]) for line in lines if len(line) == 8 and line[7].startswith("@tsp-")}
    return {(f"/dev/shm/{name}", None) for name in os.listdir("/dev/shm") if name.startswith("tsp-")} | sockets


def open_sockets(pid):
    """Inodes of a process's sockets."""
    found = set()
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            found.update(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{number}")))
    except OSError:
        pass
    return found


class Job:
    """One tsprun, to its end."""

    def __init__(self, tsprun, arguments, folder):
        self.mark = f"{os.getpid()}.{time.monotonic_ns()}"
        self.report_path = os.path.join(folder, "report.json")
        if os.path.exists(self.report_path):
            os.remove(self.report_path)
        environment = dict(os.environ, **{MARK: self.mark})
        self.errors = tempfile.TemporaryFile(mode="w+", dir=folder)
        self.command = [tsprun, "--json", self.report_path, *arguments]
        self.begin = time.monotonic()
        self.process = subprocess.Popen(self.command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=self.errors)

    def finish(self, seconds):
        """The exit code, None if it had to be killed; then the report."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = None
        self.end = time.monotonic()
        self.errors.seek(0)
        self.log = self.errors.read()
        try:
            with open(self.report_path, encoding="utf-8") as file:
                return code, json.load(file)
        except (OSError, ValueError):
            return code, {}

    def left_behind(self, before):
        """Processes and names that outlive the job; processes are given half a second to be reaped."""
        for _ in range(50):
            if not marked(self.mark):
                break
            time.sleep(0.01)
        processes = marked(self.mark)
        names = self.names_left(before)
        for pid in marked(self.mark):
            os.kill(pid, signal.SIGKILL)
        return [f"process {pid}" for pid in processes] + names

    def names_left(self, before):
        """New names of this job's. Others' jobs come and go meanwhile: a name counts that stays for half a second, and whose owner bears
        the job's mark. An object in /dev/shm needs no owner: its name says who made it, and that must be nobody else who lives."""
        names = outside() - before
        if not names:
            return []
        time.sleep(0.5)
        mine = marked(self.mark)
        inodes = {inode for pid in mine for inode in open_sockets(pid)}
        left = []
        for name, inode in sorted(names & outside(), key=str):
            if inode is None:
                maker = int((re.match(r"/dev/shm/tsp-(\d+)-", name) or [0, 0])[1])
                if maker in mine or not os.path.exists(f"/proc/{maker}"):
                    left.append(name)
            elif inode in inodes:
                left.append(name)
        return left


def workload(draw, arguments, data):
    """Arguments of a job that runs for seconds unless something befalls it, and whether it has training steps."""
    if draw.random() < 0.5:
        layout = draw.choice(["tsp", "tp", "sp", "zero3"])
        return ["--layout", f"{layout}={arguments.ranks}", "train", "--config", "nano", "--data", data, "--seq", "64", "--steps",
                "100000"], True
    # Those in which every pair exchanges payloads, so that a fault of any pair is due.
    operation = draw.choice(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
    size = draw.choice(["1K", "64K", "1M"])
    return ["-n", str(arguments.ranks), "bench", operation, "--sizes", size, "--no-check", "--min-time", "600", "--max-time", "600"], False


def culprits(culprit, text, places):
    """Whom a failure may name. Of a message that was damaged or lost: either of the two between whom it was, which are those of the
    fault unless the algorithm relays; then the report says whose message was struck."""
    if culprit is not None:
        return {culprit}
    struck = {rank for place in places for rank in (place.get("rank"), place.get("peer")) if rank is not None}
    return struck or {int(rank) for rank in re.findall(r"(?:from|to)=(\d+)", text)}


def draw_fault(draw, ranks, steps, allowed=()):
    """A kind, and its text for --fault or None where a signal strikes from outside; the rank to blame (None: either of a pair)."""
    kinds = ["sigkill", "sigkill", "sigkill", "sigstop", "corrupt", "drop"] + (IN_STEPS if steps else [])
    kind = draw.choice([kind for kind in kinds if not allowed or kind in allowed])
    rank = draw.randrange(ranks)
    other = (rank + draw.randrange(1, ranks)) % ranks
    step = draw.randrange(1, 20)
    nth = draw.randrange(1, 200)
    if kind in ("sigkill", "sigstop"):
        return kind, None, rank
    if kind == "stall":
        return kind, f"stall:rank={rank},step={step},seconds=600", rank
    if kind in ("kill", "oom"):
        return kind, f"{kind}:rank={rank},step={step}", rank
    if kind == "disconnect":
        return kind, f"disconnect:from={rank},to={other},step={step}", rank
    return kind, f"{kind}:from={rank},to={other},nth={nth}", None


def strike_from_outside(job, kind, rank, after, ranks):
    """Signals a rank once it is there and `after` seconds have passed; the moment."""
    begin = time.monotonic()
    while time.monotonic() - begin < 30 and job.process.poll() is None:
        pids = harness.children(job.process.pid)
        if len(pids) == ranks and time.monotonic() - begin >= after:
            os.kill(pids[rank], signal.SIGKILL if kind == "sigkill" else signal.SIGSTOP)
            return time.monotonic()
        time.sleep(0.001)
    return None


def one_job(draw, arguments, transport, data, folder):
    work, steps = workload(draw, arguments, data)
    while not steps and arguments.kinds and set(arguments.kinds) <= set(IN_STEPS):
        work, steps = workload(draw, arguments, data)
    kind, text, culprit = draw_fault(draw, arguments.ranks, steps, arguments.kinds)
    options = TRANSPORTS[transport] + ["--timeout", str(arguments.timeout)]
    if kind in ("corrupt", "drop"):
        options.append("--verify")
    if text:
        options += ["--fault", text]
    after = draw.uniform(0, 1.5)
    before = outside()
    job = Job(arguments.tsprun, options + work, folder)
    struck_at = None if text else strike_from_outside(job, kind, culprit, after, arguments.ranks)
    code, report = job.finish(60)
    failure = report.get("failure") or {}
    if text:
        fault = (report.get("faults") or [{}])[0]
        injected = bool(fault.get("struck"))
        place = (fault.get("where") or [{}])[0]
        seconds = failure.get("seconds", 0) - place.get("seconds", 0) if injected else None
    else:
        injected = struck_at is not None
        seconds = job.end - struck_at if injected else None
    detected = injected and failure.get("kind") in NAMED[kind]
    places = [place for fault in report.get("faults") or [] for place in fault.get("where") or []]
    # A lost message is found by its receiver; which of the two is to blame can't be told from its absence.
    named = detected and failure.get("rank") in culprits(culprit, text, places)
    late = seconds is not None and seconds > arguments.within + (arguments.timeout if kind in BY_DEADLINE else 0)
    row = {"transport": transport, "kind": kind, "fault": text, "work": work, "injected": injected, "detected": detected,
           "named": named, "seconds": seconds, "late": late, "left": job.left_behind(before), "code": code, "failure": failure}
    if not detected or not named or late or row["left"] or code in (0, None):
        row["command"] = job.command
        row["log"] = job.log[-3000:]
    return row


def table(rows):
    print(f"{'transport':<10} {'kind':<11} {'jobs':>5} {'injected':>9} {'detected':>9} {'named':>6} {'median':>8} {'worst':>8} {'left':>5}")
    groups = sorted({(row["transport"], row["kind"]) for row in rows})
    for transport, kind in groups + [("all", "all")]:
        group = [row for row in rows if transport == "all" or (row["transport"], row["kind"]) == (transport, kind)]
        times = [row["seconds"] for row in group if row["detected"] and row["seconds"] is not None]
        median = f"{statistics.median(times):7.3f}s" if times else "-"
        worst = f"{max(times):7.3f}s" if times else "-"
        print(f"{transport:<10} {kind:<11} {len(group):>5} {sum(row['injected'] for row in group):>9} "
              f"{sum(row['detected'] for row in group):>9} {sum(row['named'] for row in group):>6} {median:>8} {worst:>8} "
              f"{sum(len(row['left']) for row in group):>5}", flush=True)


def storm(arguments, folder):
    draw = random.Random(arguments.seed)
    data = os.path.join(folder, "text.txt")
    with open(data, "w", encoding="ascii") as file:
        file.writelines(f"line {i} of a text that is long enough\n" for i in range(2000))
    rows = []
    end = time.monotonic() + arguments.seconds if arguments.seconds else None
    while len(rows) < arguments.jobs and (end is None or time.monotonic() < end):
        transport = arguments.transports[len(rows) % len(arguments.transports)]
        rows.append(one_job(draw, arguments, transport, data, folder))
        row = rows[-1]
        if arguments.verbose or "log" in row:
            print(json.dumps({key: row[key] for key in row if key != "log"}), file=sys.stderr)
        if "log" in row:
            print(row["log"], file=sys.stderr, flush=True)
    table(rows)
    bad = [row for row in rows
           if row["code"] == 2 or (row["injected"] and (not row["named"] or row["late"] or row["code"] in (0, None))) or row["left"]]
    if sum(row["injected"] for row in rows) < len(rows) / 2:
        print("less than half of the faults struck: this says little", file=sys.stderr)
        bad = bad or rows
    return {"mode": "storm", "seed": arguments.seed, "rows": rows, "bad": len(bad)}


def soak(arguments, folder):
    """Random collectives, every result checked, on links that are late and slow; until the time is over."""
    draw = random.Random(arguments.seed)
    end = time.monotonic() + 60 * arguments.minutes
    runs, rows, late, bad = 0, 0, 0, []
    while time.monotonic() < end:
        transport = arguments.transports[runs % len(arguments.transports)]
        ranks = draw.choice([2, 3, 4])
        operations = ",".join(draw.sample(["broadcast", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "reduce"], 2))
        sizes = ",".join(str(draw.randrange(1, 1 << draw.randrange(8, 20))) for _ in range(2))
        faults = []
        for _ in range(draw.randrange(1, 4)):
            source = draw.randrange(ranks)
            target = (source + draw.randrange(1, ranks)) % ranks
            seed = draw.randrange(1 << 30)
            faults += ["--fault", draw.choice([
                f"delay:from={source},to={target},ms={draw.uniform(0.1, 20):.2f},prob={draw.uniform(0.01, 0.5):.2f},seed={seed}",
                f"slow:from={source},to={target},gbps={draw.uniform(0.02, 1):.3f}"])]
        options = ["-n", str(ranks), *TRANSPORTS[transport], *faults]
        before = outside()
        job = Job(arguments.tsprun, options + ["bench", operations, "--sizes", sizes, "--min-time", "0.1",
                                               "--max-time", "0.3"], folder)
        code, report = job.finish(120)
        checked = report.get("bench", [])
        wrong = [row for row in checked if row.get("wrong") != 0]
        left = job.left_behind(before)
        runs += 1
        rows += len(checked)
        late += sum(fault.get("times", 0) for fault in report.get("faults", []))
        if code != 0 or wrong or left or not checked:
            bad.append({"command": job.command, "code": code, "wrong": wrong, "left": left, "log": job.log[-3000:]})
            print(json.dumps(bad[-1]), file=sys.stderr, flush=True)
    print(f"{runs} jobs, {rows} rows of checked collectives, {late} messages made late: {len(bad)} bad")
    return {"mode": "soak", "seed": arguments.seed, "jobs": runs, "rows": rows, "late_messages": late, "bad": len(bad), "failed": bad}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--tsprun", default=os.path.join(here, "../build/release/launcher/tsprun"))
    parser.add_argument("--jobs", type=int, default=20, help="of a storm")
    parser.add_argument("--seconds", type=float, help="no further job of a storm begins after so many")
    parser.add_argument("--minutes", type=float, help="soak for so long instead")
    parser.add_argument("--ranks", type=int, default=4, help="of a storm's jobs")
    parser.add_argument("--timeout", type=float, default=2, help="deadline of waits of a storm's jobs, in seconds")
    parser.add_argument("--within", type=float, default=1, help="seconds from a strike, or from the deadline, to the job's end")
    parser.add_argument("--transports", type=lambda text: text.split(","), default=["shm", "tcp"])
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=[], help="faults to draw from; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=pathlib.Path, help="where to write all there is to know")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    for transport in arguments.transports:
        if transport not in TRANSPORTS:
            parser.error(f"--transports {transport}: there are {', '.join(TRANSPORTS)}")
    for kind in arguments.kinds:
        if kind not in NAMED:
            parser.error(f"--kinds {kind}: there are {', '.join(NAMED)}")
    with tempfile.TemporaryDirectory() as folder:
        result = soak(arguments, folder) if arguments.minutes else storm(arguments, folder)
    harness.write_figures(arguments.json, result)
    return 1 if result["bad"] else 0


if __name__ == "__main__":
    sys.exit(main())
