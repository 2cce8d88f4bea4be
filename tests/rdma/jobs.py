#!/usr/bin/env python3
"""Whole jobs in the RDMA laboratory: two machines with two ranks each, a tsprun on either, held against four ranks on this machine.

    tests/rdma/jobs.py --tsprun PROGRAM SCENARIO

Losses are compared as hexadecimal floats: all bits of the doubles. Exit code: 0; 1 with a line that says what doesn't hold; 3 if the
laboratory can't run here.
"""

import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FIGURES = ("loss", "grad_norm")

# What both machines run first: `job NAME OPTION…` is one tsprun of a job, `meet NAME` waits for the other machine, `at_fault NAME`
# notes in the background when the fault struck, so that a job's end can be counted from there.
PROLOGUE = """
export TSP_KERNELS=avx2 TSP_SECRET="of this laboratory"
port=29400
uptime_ms() { awk '{print int($1 * 1000)}' /proc/uptime; }
# longer SECONDS: these, or as long as the slowest machine took to boot, if that was longer: then the host is busy, and all takes its
# time. All machines say the same, or their jobs would be refused.
echo $(($(uptime_ms) / 1000)) >"$SHARE/booting.$NODE"; mv "$SHARE/booting.$NODE" "$SHARE/booted.$NODE"
booted=0
for other in $(seq 0 $((NODES - 1))); do
  until [ -e "$SHARE/booted.$other" ]; do sleep 0.1; done
  if [ "$(cat "$SHARE/booted.$other")" -gt "$booted" ]; then booted=$(cat "$SHARE/booted.$other"); fi
done
longer() { if [ "$booted" -gt "$1" ]; then echo "$booted"; else echo "$1"; fi; }
# give_deadline: lets the jobs from here on end soon after their fault.
give_deadline() {
  deadline=$(longer 15)
  if [ "$deadline" -gt 45 ]; then deadline=45; fi
  echo "$deadline" >"$SHARE/deadline"
}
meet() {
  touch "$SHARE/$1.meet$NODE"
  until [ -e "$SHARE/$1.meet$((1 - NODE))" ]; do sleep 0.1; done
}
job() {
  name=$1; shift; port=$((port + 1))
  meet "$name.begin"  # one machine may have booted long before the other
  begin=$(uptime_ms)
  case " $* " in *" --inter tcp "* | *" --rdma "*) ;; *) set -- ${rdma:+--rdma "$rdma"} "$@" ;; esac
  "$TSPRUN" --layout "${layout:-tsp=4}" --mem-per-rank 16M --timeout "${deadline:-$(longer 60)}" --nnodes 2 --node-rank "$NODE" --rendezvous 10.77.0.1:$port --json "$SHARE/$name.$NODE.json" "$@" \
    >"$SHARE/$name.$NODE.out" 2>"$SHARE/$name.$NODE.err"
  code=$?; end=$(uptime_ms)
  [ -e "$SHARE/$name.$NODE.fault" ] && echo $((end - $(cat "$SHARE/$name.$NODE.fault"))) >"$SHARE/$name.$NODE.after"
  echo $code >"$SHARE/$name.$NODE.code"
  echo "$name: exit code $code after $((end - begin)) ms"
}
at_fault() {
  # renamed when it is whole: a machine may be stopped between making a file and writing it
  ( until [ -e "$SHARE/$1.strike" ]; do sleep 0.1; done
    uptime_ms >"$SHARE/$1.$NODE.noted"; mv "$SHARE/$1.$NODE.noted" "$SHARE/$1.$NODE.fault" ) &
}
# after_step NAME STEP COMMAND…: once node 0 has printed that step, the fault strikes.
after_step() {
  name=$1; step=$2; shift 2
  ( until grep -qE "^step +([0-9]{2,}|[$step-9])/" "$SHARE/$name.0.out" 2>/dev/null; do sleep 0.1; done
    touch "$SHARE/$name.strike"; "$@" ) &
}
weather() { echo "$*" >>"$SHARE/control"; }
"""


class Wrong(Exception):
    """Something doesn't hold."""


def require(condition, what):
    if not condition:
        raise Wrong(what)


class Laboratory:
    """One boot: the results folder, the script of the machines, and what they left."""

    def __init__(self, options, folder):
        self.options = options
        self.share = pathlib.Path(folder)
        self.data = self.share / "text.txt"
        words = random.Random(7)
        self.data.write_text("".join(f"line {i} of {words.randrange(97)} says {words.getrandbits(40)}\n" for i in range(100)))

    def train(self, steps, size):
        """Options of the training that all scenarios do; the data's path is the same for machines and host."""
        return f"train --config nano --data {self.data} --batch {size[0]} --seq {size[1]} --steps {steps}"

    def run(self, script, *lab_options, timeout=150):
        export = f"export TSPRUN={self.options.tsprun} rdma={self.options.rdma}\n"
        # The machines see the host's folder read-only at its own path, and writable at $SHARE.
        lab = [ROOT / "tools/rdma_lab/lab.py", "--timeout", str(timeout), "--share", self.share, *lab_options, "--"]
        result = subprocess.run([*lab, export + PROLOGUE + script], check=False)
        if result.returncode == 3:
            sys.exit(3)
        return result.returncode

    def report(self, name, node=0):
        path = self.share / f"{name}.{node}.json"
        require(path.exists() and path.stat().st_size > 0, f"{name}: no report of node {node}\n{self.words(name)}")
        return json.loads(path.read_text(encoding="utf-8"))

    def text(self, name, node, ending):
        path = self.share / f"{name}.{node}.{ending}"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def words(self, name):
        return "\n".join(f"-- {name} node {node}\n{self.text(name, node, 'out')}{self.text(name, node, 'err')}" for node in (0, 1))

    def code(self, name, node):
        text = self.text(name, node, "code")
        require(text != "", f"{name}: node {node} didn't end\n{self.words(name)}")
        return int(text)

    def deadline(self):
        """The seconds that give_deadline gave the jobs."""
        return int((self.share / "deadline").read_text(encoding="utf-8"))

    def curve(self, name):
        require(self.code(name, 0) == 0 and self.code(name, 1) == 0, f"{name} failed\n{self.words(name)}")
        return curve_of(self.report(name))

    def on_host(self, arguments):
        """The curve of four ranks on this machine, one node."""
        return curve_of(self.report_on_host(arguments))

    def report_on_host(self, arguments):
        path = self.share / "host.json"
        command = [self.options.tsprun, "--layout", "tsp=4", "--json", path, *arguments.split()]
        environment = dict(os.environ, TSP_KERNELS="avx2")
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        return json.loads(path.read_text(encoding="utf-8"))


def curve_of(report):
    require(report["kernels"] == "avx2", f"kernels are {report['kernels']}")
    return [tuple(float(step[figure]).hex() for figure in FIGURES) for step in report["steps"]]


def same(name, curve, other_name, other):
    require(len(curve) == len(other), f"{name} has {len(curve)} steps, {other_name} {len(other)}")
    for step, (a, b) in enumerate(zip(curve, other), 1):
        require(a == b, f"step {step}: {name} has {a}, {other_name} {b}")


def ranks_of(text):
    """The numbers of ranges: "0-3,8"."""
    ends = [part.split("-") for part in text.split(",")]
    return [rank for end in ends for rank in range(int(end[0]), int(end[-1]) + 1)]


def ways_of(report):
    """What each pair of ranks uses: (from, to, element of the report's table)."""
    return [(a, b, way) for way in report["transports"] for a in ranks_of(way["from_ranks"]) for b in ranks_of(way["to_ranks"])
            if a != b]


def kinds(report):
    return {(a, b): way["kind"] for a, b, way in ways_of(report)}


def places_of(fault):
    """How often a fault struck, and at which operations, as far as the report lists them."""
    return fault["times"], sorted((place["rank"], place["op"], place["seq"]) for place in fault["where"])


def node_of(rank):
    return rank // 2


def check_ways(report, inter):
    """Neighbours share memory, all others use `inter`; the table, the bytes and the reasons agree."""
    ways = kinds(report)
    require(len(ways) == 12, f"{len(ways)} ways")
    for (a, b), kind in ways.items():
        wanted = "shm" if node_of(a) == node_of(b) else inter
        require(kind == wanted, f"ranks {a} and {b} talk over {kind}, not {wanted}")
    for way in report["transports"]:
        if way["kind"] == "verbs":
            require("rxe0 port 1" in way["why"] and "RoCE v2" in way["why"], f"why: {way['why']}")


def bytes_over(report, kind, direction):
    return [rank["transport_bytes"][kind][direction] for rank in report["per_rank"]]


def check_bytes(over_verbs, over_tcp):
    for report, inter, other in ((over_verbs, "verbs", "tcp"), (over_tcp, "tcp", "verbs")):
        for kind in ("shm", inter):
            sent, received = bytes_over(report, kind, "sent"), bytes_over(report, kind, "received")
            require(min(sent) > 0 and sum(sent) == sum(received), f"{kind}: {sent} bytes sent, {received} received")
        require(sum(bytes_over(report, other, "sent")) == 0, f"bytes over {other}")
    for direction in ("sent", "received"):
        require(bytes_over(over_verbs, "verbs", direction) == bytes_over(over_tcp, "tcp", direction), "verbs and tcp carry different bytes")
        require(bytes_over(over_verbs, "shm", direction) == bytes_over(over_tcp, "shm", direction), "shm carries different bytes")


def check_doctor(lab, node):
    """What `tsprun doctor` says of a machine with one RDMA port."""
    path = lab.share / f"doctor.{node}.json"
    require(path.exists() and path.stat().st_size > 0, f"doctor failed on node {node}: {lab.text('doctor', node, 'err')}")
    rdma = json.loads(path.read_text(encoding="utf-8"))["doctor"]
    ways = {way["between"]: way["kind"] for way in rdma["ways"]}
    rdma = rdma["rdma"]
    require(len(rdma["ports"]) == 1 and rdma["self_test"]["possible"] is True, f"doctor: {rdma}")
    require(ways == {"same node": "shm", "other nodes": "verbs"}, f"doctor: {ways}")
    port = rdma["ports"][0]
    print(f"doctor on node {node}: {port}; {rdma['self_test']}")
    text = lab.text("doctor", node, "out")
    for word in ("rxe0", "RoCE v2", "MTU"):
        require(word in text, f"doctor doesn't say {word}\n{text}")


def check_bench(lab, name, transport):
    """Every row of a bench across machines is right and went over `transport`."""
    for node in (0, 1):
        require(lab.code(name, node) == 0, f"{name}: node {node} failed\n{lab.words(name)}")
    rows = lab.report(name)["bench"]
    require(len(rows) > 0 and all(row["wrong"] == 0 for row in rows), f"{name}: {rows}")
    # Ranks 0 and 1, who play pingpong, are on one machine.
    require({row["transport"] for row in rows if row["op"] != "pingpong"} <= {f"shm+{transport}", transport}, f"{name}: {rows}")
    print(f"{name}: {len(rows)} rows of {sorted({row['op'] for row in rows})} are right")


def training(lab, steps, size, timeout):
    """The same bits on one node over shm, on two machines over verbs, and over tcp; what can't be had is refused by name. Before it
    doctor says what the machines have, after it bench is right on them."""
    script = f"""
"$TSPRUN" --json "$SHARE/doctor.$NODE.json" doctor >"$SHARE/doctor.$NODE.out" 2>"$SHARE/doctor.$NODE.err"
job missing --inter verbs $([ $NODE = 1 ] && echo --rdma rxe7) {lab.train(1, size)}
job verbs --inter verbs {lab.train(steps, size)}
job tcp --inter tcp {lab.train(steps, size)}
job bench --inter verbs bench all --sizes 64,64K --iters 2
"""
    require(lab.run(script, timeout=timeout) == 0, "the laboratory failed")
    for node in (0, 1):
        check_doctor(lab, node)
    check_bench(lab, "bench", "verbs")
    host = lab.on_host(lab.train(steps, size))
    same("verbs", lab.curve("verbs"), "one node", host)
    same("tcp", lab.curve("tcp"), "one node", host)
    over_verbs, over_tcp = lab.report("verbs"), lab.report("tcp")
    check_ways(over_verbs, "verbs")
    check_ways(over_tcp, "tcp")
    require(kinds(lab.report("verbs", 1)) == kinds(over_verbs), "node 1 reports other ways")
    check_bytes(over_verbs, over_tcp)
    require(re.search(r"info: verbs for 4 pairs of ranks: nodes 0 and 1; RDMA", lab.text("verbs", 0, "err")) is not None,
            f"the log doesn't say why\n{lab.words('verbs')}")
    require("payload by transport" in lab.text("verbs", 0, "out"), "the audit doesn't say which bytes went where")
    for node in (0, 1):
        refusal = lab.text("missing", node, "err")
        require(lab.code("missing", node) == 2, f"node {node} wasn't refused\n{refusal}")
        require("node 1: --rdma rxe7: no such device; here are: rxe0:1" in refusal, f"node {node} was told: {refusal}")


def run_with_losses(lab, script, timeout):
    """The script while one frame in a hundred is lost, and that some were."""
    begin = time.monotonic()
    require(lab.run(script, "--loss", "0.01", timeout=timeout) == 0, "the laboratory failed")
    ethernet = json.loads((lab.share / "result.json").read_text(encoding="utf-8"))["ethernet"][0]
    require(ethernet["lost"] > 0, f"no frame was lost: {ethernet}")
    print(f"{ethernet['lost']} of {ethernet['frames']} frames lost, {time.monotonic() - begin:.0f} s with booting")


def lost_messages(lab, _steps, _size, timeout):
    """Messages of all sizes arrive though frames are lost."""
    run_with_losses(lab, f'RDMA_SETTINGS="$rdma" {lab.options.peer} flight sizes', timeout)


def lost_frames(lab, steps, size, timeout):
    """Frames that are lost change nothing of a training but the time."""
    run_with_losses(lab, f"job verbs --inter verbs {lab.train(steps, size)}", timeout)
    same("verbs with losses", lab.curve("verbs"), "one node", lab.on_host(lab.train(steps, size)))


def verified(lab, steps, size, timeout):
    """--verify changes no bit over verbs, finds a payload that was damaged on its way from one machine to the other, and faults strike the
    operations that they strike over shm."""
    damage = "corrupt:from=1,to=2,nth=7"
    delays = "delay:from=2,to=0,ms=1,prob=0.2,seed=7"
    script = f"""
job verified --verify --inter verbs {lab.train(steps, size)}
job damaged --verify --inter verbs --fault {damage} {lab.train(steps, size)}
job unseen --inter verbs --fault {damage} --fault {delays} {lab.train(steps, size)}
"""
    require(lab.run(script, timeout=timeout) == 0, "the laboratory failed")
    same("verbs, verified", lab.curve("verified"), "one node", lab.on_host(lab.train(steps, size)))
    for node in (0, 1):
        require(lab.code("damaged", node) != 0, f"node {node} didn't notice the damage")
        failure = lab.report("damaged", node)["failure"]
        require(failure["kind"] == "corrupt" and failure["rank"] == 1 and failure["op"] and failure["seq"] > 0, f"damaged: {failure}")
        require(lab.code("unseen", node) == 0, f"without --verify node {node} ended\n{lab.words('unseen')}")
    struck = lab.report("unseen")["faults"]
    require(len(struck) == 2 and struck[0]["times"] == 1 and struck[0]["detected"] is False, f"unseen: {struck}")
    require("injected, not detected" in lab.text("unseen", 0, "err"), f"nobody warns\n{lab.words('unseen')}")
    on_shm = lab.report_on_host(f"--fault {damage} --fault {delays} {lab.train(steps, size)}")["faults"]
    require([places_of(fault) for fault in struck] == [places_of(fault) for fault in on_shm] and on_shm[1]["times"] > 1,
            f"verbs: {struck}\nshm: {on_shm}")


# Part of a deadline in which a job's end must have come, since a verdict takes a moment, too.
LATE = 1.2


def check_failure(lab, name, node, culprit_node):
    """The survivors on `node` ended in time, with a verdict that names a rank of `culprit_node`, or the way between the machines."""
    verdict = lab.text(name, node, "err")
    require(lab.code(name, node) != 0, f"{name}: node {node} didn't notice")
    after = int(lab.text(name, node, "after")) / 1000
    print(f"{name}: node {node} ended {after:.1f} s after the fault (deadline {lab.deadline()} s)\n{verdict}")
    require(after <= LATE * lab.deadline(), f"{name}: node {node} took {after} s")
    failure = lab.report(name, node)["failure"]
    require(failure is not None and failure["kind"] in ("disconnected", "stalled"), f"{name}: {failure}")
    if failure["rank"] is None and failure["node"] is None:
        # Nothing passes between the machines: neither can know on which side the fault is, and both name the way.
        cut = "the way between node 0 and node 1 is cut"
        require(failure["kind"] == "disconnected" and cut in failure["detail"] and cut in verdict, f"{name}: {failure}")
        return
    require(failure["node"] in culprit_node and failure["rank"] is not None and node_of(failure["rank"]) == failure["node"], f"{name}: {failure}")
    require(failure["op"] is None or failure["seq"] > 0, f"{name}: an operation without a number: {failure}")
    require(f"rank {failure['rank']}" in verdict and f"node {failure['node']}" in verdict, f"{name}: node {node} says {verdict}")


def faults(lab, _steps, size, timeout):
    """A machine cut off (of jobs over verbs and over tcp), one whose port goes down, one that is killed: the others end within the
    deadline and name it."""
    train = f"--inter verbs {lab.train(100000, size)}"
    script = f"""
give_deadline
at_fault cut
[ $NODE = 0 ] && after_step cut 2 weather cut 1
job cut {train}
meet cut
[ $NODE = 0 ] && weather join 1
sleep 1
at_fault cut_tcp
[ $NODE = 0 ] && after_step cut_tcp 2 weather cut 1
job cut_tcp --inter tcp {lab.train(100000, size)}
meet cut_tcp
[ $NODE = 0 ] && weather join 1
sleep 1
at_fault down
[ $NODE = 1 ] && after_step down 2 ip link set eth0 down
job down {train}
meet down
[ $NODE = 1 ] && ip link set eth0 up
sleep 1
at_fault killed
[ $NODE = 0 ] && after_step killed 2 weather kill 1
job killed {train}
"""
    require(lab.run(script, timeout=timeout) == 0, "the laboratory failed")
    for node in (0, 1):
        for name in ("cut", "cut_tcp"):
            check_failure(lab, name, node, (1 - node,))
    # Node 0's ranks lose only ways to node 1, whose word doesn't reach them any more. Node 1 sees that of its own port fail.
    check_failure(lab, "down", 0, (1,))
    check_failure(lab, "down", 1, (0, 1))
    require("rxe0 port 1 is down" in lab.text("down", 1, "err"), "the port that is down isn't named on its machine")
    check_failure(lab, "killed", 0, (1,))


def paused(lab, _steps, size, timeout):
    """A machine that stands still is named by the other one within the deadline. When it goes on its own ranks end, too, and hear why."""
    script = f"""
give_deadline
at_fault paused
[ $NODE = 0 ] && after_step paused 2 weather pause 1
job paused --inter verbs {lab.train(100000, size)}
[ $NODE = 1 ] || {{ : >"$SHARE/paused.resumed"; weather resume 1; }}
"""
    require(lab.run(script, timeout=timeout) == 0, "the laboratory failed")
    check_failure(lab, "paused", 0, (1,))
    verdict = lab.text("paused", 1, "err")
    # The clock in the machine that stood still says little; that of the files is this machine's.
    after = (lab.share / "paused.1.code").stat().st_mtime - (lab.share / "paused.resumed").stat().st_mtime
    print(f"paused: node 1 ended {after:.1f} s after it went on\n{verdict}")
    require(lab.code("paused", 1) != 0 and after <= LATE * lab.deadline(), f"node 1 took {after} s")
    require("this node's tsprun stood still for " in verdict, "it doesn't say that it stood still")
    # What node 0 has found comes over a connection that may be gone by now: then that is what it finds.
    failure = lab.report("paused", 1)["failure"]
    require(failure is not None and failure["kind"] in ("disconnected", "stalled"), f"node 1: {failure}")


def circle(lab, _steps, _size, timeout):
    """Two ranks that receive from each other over verbs: that they ask each other's adapters for life is no sign of any. And one that
    leaves after the other: it waits for no answer of an adapter that nobody holds any more, for which it would try again for a quarter of
    its deadline and more. And two whose forked children close what they inherited, which is the ranks' own."""
    script = f"layout=tsp=2 deadline=$(longer 20) job circle run -- {lab.options.actor} deadlock\n"
    script += f"layout=tsp=2 job late run -- {lab.options.actor} leave_late\n"
    script += f"layout=tsp=2 job forked run -- {lab.options.actor} close_in_child\n"
    require(lab.run(script, timeout=timeout) == 0, "the laboratory failed")
    for node in (0, 1):
        require(lab.code("circle", node) != 0, f"circle: node {node} ended in good order\n{lab.words('circle')}")
    report = lab.report("circle")
    failure = report["failure"]
    require(failure is not None and failure["kind"] == "deadlock", f"{failure}\n{lab.words('circle')}")
    print(f"circle: {failure['detail']}")
    require(all(kind == "verbs" for kind in kinds(report).values()), f"{report['transports']}\n{lab.words('circle')}")
    late = re.search(r"rank 1 left in (\d+) ms", lab.words("late"))
    require(late and int(late[1]) < 10000, f"rank 1, which leaves last:\n{lab.words('late')}")
    print(f"late: {late[0]}")
    require(len(re.findall(r"rank \d went on", lab.words("forked"))) == 2, f"a child's end broke its rank:\n{lab.words('forked')}")


def packets_sent(lab, when, node, rail):
    return int(lab.text(f"packets.{when}.rail{rail}", node, "count"))


def rails(lab, _steps, _size, timeout):
    """With two NICs a machine local rank i talks over the i-th: what it sends moves that device's counter and not the other's. A gather
    along the rails loads both alike."""
    kib = 512
    script = f"""
packets() {{
  for rail in 0 1; do cat /sys/class/infiniband/rxe$rail/ports/1/hw_counters/sent_pkts >"$SHARE/packets.$1.rail$rail.$NODE.count"; done
}}
packets start
job rail0 run -- {lab.options.actor} rail 0 {kib}
packets rail0
job rail1 run -- {lab.options.actor} rail 1 {kib}
packets rail1
export TSP_ALGORITHMS=all_gather=hierarchical
job gather bench all_gather --sizes {kib}K --iters 2
packets gather
"""
    require(lab.run(script, "--nics", "2", timeout=timeout) == 0, "the laboratory failed")
    least = kib * 1024 // 4096  # the path MTU
    for rail, before in ((0, "start"), (1, "rail0")):
        name = f"rail{rail}"
        report = lab.report(name)
        for a, b, way in ways_of(report):
            if node_of(a) == node_of(b):
                wanted = "shm"
            else:
                wanted = "verbs" if a % 2 == b % 2 else "tcp"  # the rails of the laboratory are two networks
            require(way["kind"] == wanted, f"{name}: {way}")
            require(wanted != "verbs" or f"rxe{a % 2} port 1" in way["why"], f"{name}: {way}")
        for node in (0, 1):
            require(lab.code(name, node) == 0, f"{name} failed\n{lab.words(name)}")
            sent = [packets_sent(lab, name, node, r) - packets_sent(lab, before, node, r) for r in (0, 1)]
            print(f"local rank {rail} of node {node} sent {kib} KiB: {sent[0]} packets left by rail 0, {sent[1]} by rail 1")
            require(sent[rail] >= least and sent[1 - rail] < least // 4, f"{name}: packets {sent}")
    check_bench(lab, "gather", "verbs+tcp")  # ways that exist: local ranks of unlike number talk over tcp
    for node in (0, 1):
        sent = [packets_sent(lab, "gather", node, r) - packets_sent(lab, "rail1", node, r) for r in (0, 1)]
        print(f"gathers of {kib} KiB along the rails: node {node} sent {sent} packets")
        require(min(sent) >= least // 4 and max(sent) < 2 * min(sent), f"gather: packets {sent}")


def nics(lab, _steps, size, timeout):
    """A rank alone on its machine moves payloads over both NICs, and the job has the bits of one machine; doctor says which ports it has."""
    train = lab.train(2, size)
    script = f"""
"$TSPRUN" --json "$SHARE/doctor.$NODE.json" doctor >"$SHARE/doctor.$NODE.out" 2>"$SHARE/doctor.$NODE.err"
packets() {{
  for rail in 0 1; do cat /sys/class/infiniband/rxe$rail/ports/1/hw_counters/sent_pkts >"$SHARE/packets.$1.rail$rail.$NODE.count"; done
}}
export layout=tsp=2
packets start
job digest --inter verbs run -- {lab.options.actor} digest
packets digest
job train --inter verbs {train}
packets train
job bench --inter verbs bench all_reduce --sizes 2M --iters 2
packets bench
"""
    require(lab.run(script, "--nics", "2", timeout=timeout) == 0, "the laboratory failed")
    on_host = [lab.options.tsprun, "--layout", "tsp=2"]
    one = subprocess.run([*on_host, "--no-prefix", "--log-level", "warn", "run", "--", lab.options.actor, "digest"], stdout=subprocess.PIPE,
                         text=True, check=True)
    digests = sorted(re.findall("digest [0-9a-f]{16}", lab.text("digest", 0, "out") + lab.text("digest", 1, "out")))
    require(len(digests) == 2 and digests == sorted(re.findall("digest [0-9a-f]{16}", one.stdout)), f"{digests}\none machine: {one.stdout}")
    path = lab.share / "host.json"
    subprocess.run([*on_host, "--json", path, *train.split()], env=dict(os.environ, TSP_KERNELS="avx2"), stdout=subprocess.DEVNULL, check=True)
    same("two NICs", lab.curve("train"), "one machine", curve_of(json.loads(path.read_text(encoding="utf-8"))))
    for node in (0, 1):
        rdma = json.loads((lab.share / f"doctor.{node}.json").read_text(encoding="utf-8"))["doctor"]["rdma"]
        require(rdma["rank_alone"] == ["rxe0:1", "rxe1:1"], f"doctor: {rdma}")
        require("a rank alone here uses rxe0:1, rxe1:1" in lab.text("doctor", node, "out"), lab.text("doctor", node, "out"))
        for name, before, share in (("digest", "start", 0.05), ("bench", "train", 0.4)):
            sent = [packets_sent(lab, name, node, r) - packets_sent(lab, before, node, r) for r in (0, 1)]
            print(f"{name}: node {node} sent {sent} packets")
            require(sent[1] >= share * sum(sent), f"{name}: packets {sent}")
    check_bench(lab, "bench", "verbs")
    for _, _, way in ways_of(lab.report("digest")):
        require(way["kind"] == "verbs" and ", with rxe1:1 to rxe1:1" in way["why"], f"{way}")


def lost_nic(lab, _steps, size, timeout):
    """A NIC of two that goes down in mid-run, or whose frames are lost, leaves the other: the job ends well, with the bits of one machine,
    and the log names it. It is the second NIC of the machines, as the first carries the job's TCP: but in the second job the first of
    the ranks' own. Where both go down, or the machine is killed, the jobs end within the deadline."""
    train = lab.train(16, size)  # long enough after the second step on any machine
    script = f"""
export layout=tsp=2
[ $NODE = 1 ] && after_step down 2 ip link set eth1 down
job down --inter verbs {train}
meet down
[ $NODE = 1 ] && {{ ip link set eth1 up; sleep 2; }}
[ $NODE = 1 ] && after_step main 2 ip link set eth1 down
job main --inter verbs --rdma rxe1,rxe0 {train}
meet main
[ $NODE = 1 ] && {{ ip link set eth1 up; sleep 2; }}
[ $NODE = 0 ] && after_step silent 2 weather cut 1:1
job silent --inter verbs --rdma rxe1,rxe0,retries=2,timeout=17 {train}
meet silent
[ $NODE = 0 ] && weather join 1:1
sleep 1
give_deadline
at_fault both
[ $NODE = 1 ] && after_step both 2 sh -c 'ip link set eth0 down; ip link set eth1 down'
job both --inter verbs {lab.train(100000, size)}
meet both
[ $NODE = 1 ] && {{ ip link set eth0 up; ip link set eth1 up; }}
sleep 2
at_fault killed
[ $NODE = 0 ] && after_step killed 2 weather kill 1
job killed --inter verbs {lab.train(100000, size)}
"""
    require(lab.run(script, "--nics", "2", timeout=timeout) == 0, "the laboratory failed")
    path = lab.share / "host.json"
    subprocess.run([lab.options.tsprun, "--layout", "tsp=2", "--json", path, *train.split()], env=dict(os.environ, TSP_KERNELS="avx2"),
                   stdout=subprocess.DEVNULL, check=True)
    host = curve_of(json.loads(path.read_text(encoding="utf-8")))
    for name in ("down", "main", "silent"):
        same(name, lab.curve(name), "one machine", host)
        for node in (0, 1):
            said = lab.text(name, node, "err")
            require("a way by RDMA is lost, rxe1:1" in said and "the job goes on by rxe0:1" in said, f"{name}: node {node} says {said}")
    require("rxe1 port 1 is down" in lab.text("down", 1, "err"), f"the cause isn't named: {lab.text('down', 1, 'err')}")
    check_failure(lab, "both", 0, (1,))
    check_failure(lab, "both", 1, (0, 1))
    check_failure(lab, "killed", 0, (1,))


def many_peers(lab, _steps, _size, timeout):
    """Eight ranks on four machines, each with six peers behind its adapter: collectives give the bits that they give on one machine."""
    script = f"""
"$TSPRUN" -n 8 --mem-per-rank 32M --timeout "$(longer 60)" --nnodes "$NODES" --node-rank "$NODE" --rendezvous 10.77.0.1:29400 --inter verbs \\
  ${{rdma:+--rdma "$rdma"}} --no-prefix --log-level warn run -- {lab.options.actor} digest >"$SHARE/many.$NODE.out" 2>"$SHARE/many.$NODE.err"
echo $? >"$SHARE/many.$NODE.code"
"""
    require(lab.run(script, "-n", "4", timeout=timeout) == 0, "the laboratory failed")
    lines = []
    for node in range(4):
        require(lab.code("many", node) == 0, f"node {node} failed\n{lab.text('many', node, 'err')}")
        lines += lab.text("many", node, "out").splitlines()
    one = subprocess.run([lab.options.tsprun, "-n", "8", "--no-prefix", "--log-level", "warn", "run", "--", lab.options.actor, "digest"],
                         stdout=subprocess.PIPE, text=True, check=True)
    require(len(lines) == 8 and sorted(lines) == sorted(one.stdout.splitlines()), f"{lines}\none machine: {one.stdout}")


def joined(lab, _steps, _size, timeout):
    """Ranks that no tsprun started use verbs, too: of a C++ program, whose results have the bits of one machine and whose dead are named to
    all, and of a PyTorch program, if --torch is given."""
    python, package = lab.options.torch or (None, None)
    torch = f"""
export PYTHONPATH={package} MASTER_ADDR=10.77.0.1 MASTER_PORT=29555
packets() {{ cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }}
before=$(packets)
WORLD_SIZE=2 RANK=$NODE {python} {ROOT}/tests/torch/over_verbs.py >"$SHARE/torch.$NODE.out" 2>"$SHARE/torch.$NODE.err"
echo $? >"$SHARE/torch.$NODE.code"
echo $(($(packets) - before)) >"$SHARE/torch.$NODE.count"
"""
    script = f"""
export TSP_MEM_PER_RANK=16777216 TSP_TIMEOUT=$(longer 60)
[ -n "$rdma" ] && export TSP_RDMA="$rdma"
ranks() {{
  name=$1; shift
  mkdir -p "$SHARE/store.$name"
  for local in 0 1; do
    ( WORLD_SIZE=4 RANK=$((2 * NODE + local)) ACTOR_STORE="$SHARE/store.$name" {lab.options.actor} "$@" >>"$SHARE/$name.$NODE.out" \
        2>>"$SHARE/$name.$NODE.err" || echo ended badly >>"$SHARE/$name.$NODE.err" ) &
  done
  wait
  meet "$name"
}}
ranks way rail 0 64
ranks digest digest
ranks death fail kill 3
{torch if python else ""}
"""
    require(lab.run(script, "--memory", "1024", timeout=timeout) == 0, "the laboratory failed")
    one = subprocess.run([lab.options.tsprun, "-n", "4", "--no-prefix", "--log-level", "warn", "run", "--", lab.options.actor, "digest"],
                         stdout=subprocess.PIPE, text=True, check=True)
    digests = lab.text("digest", 0, "out").splitlines() + lab.text("digest", 1, "out").splitlines()
    require(len(digests) == 4 and sorted(digests) == sorted(one.stdout.splitlines()), f"{lab.words('digest')}\none machine: {one.stdout}")
    for node in (0, 1):
        require("verbs sent 65536" in lab.text("way", node, "out"), f"not over verbs\n{lab.words('way')}")
        require("rank 3 is gone" in lab.text("death", node, "err"), f"the death isn't named\n{lab.words('death')}")
        if python:
            require(lab.code("torch", node) == 0 and lab.text("torch", node, "out") == "ok\n", f"torch failed\n{lab.words('torch')}")
            packets = int(lab.text("torch", node, "count"))
            require(packets >= 400_000 // 4096, f"torch: only {packets} packets left node {node} over verbs")


def unlike(lab, _steps, _size, timeout):
    """Adapters that fail where TCP would have worked cost no job but where verbs is demanded: queue pairs that can't be made and probes that
    fail on one machine leave those pairs to TCP, on both. Where memory for messages ends later, the job does, too, with that reason. Completions of different queue pairs may come in any order."""
    digest = f"run -- {lab.options.actor} digest"
    script = f"""
only() {{ if [ $NODE = 1 ]; then export RDMA_SHIM="$1"; else export RDMA_SHIM=""; fi; }}
export LD_PRELOAD={lab.options.shim} layout=tsp=4
only "create_qp@2=12"; job unmade {digest}
only "fail@1=12"; job unproved {digest}
only "fail@1=12"; job demanded --inter verbs {digest}
only "reg_mr@3=12"; job ringless --inter verbs {digest}
only "create_qp@4=12"; job ungrown --inter verbs --rdma whole=0 {digest}
export RDMA_SHIM="reverse"; job reverse --inter verbs {digest}
unset LD_PRELOAD
mkdir -p "$SHARE/store.inter"
export TSP_MEM_PER_RANK=16777216 TSP_TIMEOUT=$(longer 60)
[ $NODE = 0 ] && export TSP_INTER=tcp
WORLD_SIZE=2 RANK=$NODE ACTOR_STORE="$SHARE/store.inter" {lab.options.actor} rail 0 64 >"$SHARE/inter.$NODE.out" 2>"$SHARE/inter.$NODE.err"
meet inter
"""
    require(lab.run(script, timeout=timeout) == 0, "the laboratory failed")
    one = subprocess.run([lab.options.tsprun, "-n", "4", "--no-prefix", "--log-level", "warn", "run", "--", lab.options.actor, "digest"],
                         stdout=subprocess.PIPE, text=True, check=True)
    wanted = sorted(re.findall("digest [0-9a-f]{16}", one.stdout))
    for name, inter, reason in (("unmade", "tcp", "no queue pair on rxe0 port 1"), ("unproved", "tcp", "IBV_WC_RETRY_EXC_ERR"),
                                ("reverse", "verbs", "RDMA: rxe0 port 1")):
        for node in (0, 1):
            require(lab.code(name, node) == 0, f"{name}: node {node} failed\n{lab.words(name)}")
        digests = sorted(re.findall("digest [0-9a-f]{16}", lab.text(name, 0, "out") + lab.text(name, 1, "out")))
        require(len(digests) == 4 and digests == wanted, f"{name}: {digests}, on one machine {wanted}")
        for a, b, way in ways_of(lab.report(name)):
            if node_of(a) != node_of(b):
                require(way["kind"] == inter and reason in way["why"], f"{name}: {way}")
                print(f"{name}: ranks {a} and {b}: {way['why']}")
    require(lab.code("demanded", 0) != 0 and lab.code("demanded", 1) != 0, f"--inter verbs went on\n{lab.words('demanded')}")
    require(lab.code("ringless", 0) != 0 and lab.code("ringless", 1) != 0, f"a job without rings went on\n{lab.words('ringless')}")
    require(" MiB of message buffers can't be registered" in lab.words("ringless"), f"its limit isn't named\n{lab.words('ringless')}")
    require(lab.code("ungrown", 0) != 0 and lab.code("ungrown", 1) != 0, f"a job without whole queue pairs went on\n{lab.words('ungrown')}")
    require("no queue pair on rxe0 port 1" in lab.words("ungrown"), f"what it lacks isn't named\n{lab.words('ungrown')}")
    require("IBV_WC_RETRY_EXC_ERR" in lab.words("demanded"), f"it isn't told why\n{lab.words('demanded')}")
    for node in (0, 1):
        require("tcp sent 65536" in lab.text("inter", node, "out"), f"rank 0's TSP_INTER isn't obeyed\n{lab.words('inter')}")


SCENARIOS = {"unlike": unlike, "training": training, "verified": verified, "lost_messages": lost_messages, "lost_frames": lost_frames, "faults": faults,
             "paused": paused, "circle": circle, "many_peers": many_peers, "rails": rails, "nics": nics, "lost_nic": lost_nic, "joined": joined}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tsprun", type=pathlib.Path, required=True)
    parser.add_argument("--actor", type=pathlib.Path, help="tests/programs/actor, for rails, many_peers and joined")
    parser.add_argument("--peer", type=pathlib.Path, help="verbs_peer, for lost_messages")
    parser.add_argument("--torch", nargs=2, metavar=("PYTHON", "FOLDER"), help="for joined: PyTorch's Python, and where tsprun_torch is")
    parser.add_argument("--shim", type=pathlib.Path, help="verbs_shim, for unlike")
    parser.add_argument("--rdma", default="", help="settings of --rdma for all jobs that don't say otherwise")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=16)
    parser.add_argument("--timeout", type=int, default=150, help="of the laboratory, in seconds")
    parser.add_argument("--share", type=pathlib.Path, help="keeps what the machines left in this empty folder")
    parser.add_argument("scenario", choices=SCENARIOS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tsp-rdma-jobs.") as temporary:
        folder = options.share or temporary
        try:
            SCENARIOS[options.scenario](Laboratory(options, folder), options.steps, (options.batch, options.seq), options.timeout)
        except Wrong as wrong:
            print(f"{options.scenario}: FAILED: {wrong}")
            for left in sorted(pathlib.Path(folder).glob("*.network")) + [pathlib.Path(folder) / "result.json"]:
                if left.exists():
                    print(f"-- {left.name}: {left.read_text(encoding='utf-8')}")
            return 1
    print(f"{options.scenario}: good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
