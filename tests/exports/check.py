"""Reads what `tsprun simulate --export` writes, with other programs' eyes.

    check.py goal TSPRUN      every send has its receive, bytes are those of the report's links, and the graph takes as long as the
                              played step where links take no time
    check.py chakra TSPRUN    by Chakra's own schema (et_def.proto): nodes, bytes and durations are those of the report
    check.py smpi TSPRUN      SimGrid's SMPI replays a step on links of its own, and takes as long

Without protobuf-compiler and python3-protobuf, or libsimgrid-dev, a case is skipped (exit code 77) and says so.
"""

import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

FAILED = []
MODEL = "--config micro --dtype bf16 --batch 4 --seq 512".split()
LAYOUTS = ("tsp=4", "tp=4", "sp=4", "zero3=4", "tp=2,sp=2", "dp=2,tsp=8", "dp=4,zero3=4")
GPUS_OF_A_NODE = 8
# Messages up to here leave before their receiver asks for them.
PLAIN = 8192


def expect(holds, what):
    if not holds:
        FAILED.append(what)
        print("FAILED:", what)


def near(one, other, what, error):
    expect(abs(one - other) <= error * abs(other), f"{what}: {one} and {other}")


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def simulate(tsprun, folder, layout, *more, machine="mi300x", algorithms=""):
    """Returns the report's row."""
    words = [tsprun, "simulate", "--quiet", "--fold", "off", "--machine", str(machine), "--layout", layout, *MODEL]
    subprocess.run([*words, "--json", str(folder / "s.json"), *more], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "TSP_ALGORITHMS": algorithms})
    return json.loads((folder / "s.json").read_text())["simulate"][0]


def machine_file(folder, within, across):
    """Writes a machine like mi300x whose links have these bytes/s and seconds."""
    path = folder / "machine.json"
    nics = {"nics_per_node": 8, "bytes_per_s": across[0], "latency_s": across[1], "rail_crossing": 1}
    path.write_text(json.dumps({
        "version": 2, "name": "test", "memory_bytes": 2e11, "memory_bytes_per_s": 5e12, "launch_s": 1e-6,
        "flops_per_s": {"bf16": 1e15, "f32": 1e14}, "gemm_efficiency": 0.5, "attention_efficiency": 0.3, "gpus_per_node": 8,
        "within_node": {"fabric": "links", "bytes_per_s": within[0], "latency_s": within[1]}, "across_nodes": nics}))
    return path


# --- GOAL --------------------------------------------------------------------------------------------------------------------

QUEUES = 5  # the four streams, and that of messages with a tag
Task = collections.namedtuple("Task", "kind amount peer tag cpu needs")


def read_goal(path):
    """Returns the tasks of each rank, by LogGOPSim's grammar; needs are places in the rank's list."""
    calc = re.compile(r"(\w+): calc (\d+)(?: cpu (\d+))?$")
    message = re.compile(r"(\w+): (send|recv) (\d+)b (?:to|from) (\d+) tag (\d+)(?: cpu (\d+))?$")
    requires = re.compile(r"(\w+) requires (\w+)$")
    ranks, tasks, labels = [], None, None
    lines = iter(path.read_text().splitlines())
    count = int(re.fullmatch(r"num_ranks (\d+)", next(lines)).group(1))
    for line in lines:
        if not line:
            continue
        if found := re.fullmatch(r"rank (\d+) {", line):
            expect(int(found.group(1)) == len(ranks), f"ranks in order: {line}")
            tasks, labels = [], {}
        elif line == "}":
            ranks.append(tasks)
        elif found := calc.match(line):
            labels[found.group(1)] = len(tasks)
            tasks.append(Task("calc", int(found.group(2)), None, None, int(found.group(3) or 0), []))
        elif found := message.match(line):
            labels[found.group(1)] = len(tasks)
            tasks.append(Task(found.group(2), int(found.group(3)), int(found.group(4)), int(found.group(5)),
                              int(found.group(6) or 0), []))
        else:
            one, other = requires.match(line).groups()
            tasks[labels[one]].needs.append(labels[other])
    expect(len(ranks) == count, f"{path}: {len(ranks)} of {count} ranks")
    return ranks


def run_goal(ranks):
    """Returns when the last task is over if messages take no time."""
    over = [[None] * len(tasks) for tasks in ranks]
    began = [[None] * len(tasks) for tasks in ranks]  # of those that can begin
    unmet = [[len(task.needs) for task in tasks] for tasks in ranks]
    needed_by = [[[] for _ in tasks] for tasks in ranks]
    place = {(r, t.kind, t.peer, t.tag): i for r, tasks in enumerate(ranks) for i, t in enumerate(tasks) if t.kind != "calc"}
    ready = []
    for rank, tasks in enumerate(ranks):
        for i, task in enumerate(tasks):
            for need in task.needs:
                needed_by[rank][need].append(i)
            if not task.needs:
                ready.append((rank, i))

    def end(rank, i, when):
        over[rank][i] = when
        for follower in needed_by[rank][i]:
            unmet[rank][follower] -= 1
            if unmet[rank][follower] == 0:
                ready.append((rank, follower))

    while ready:
        rank, i = ready.pop()
        task = ranks[rank][i]
        began[rank][i] = max((over[rank][need] for need in task.needs), default=0)
        if task.kind == "calc":
            end(rank, i, began[rank][i] + task.amount)
            continue
        if task.kind == "send" and task.amount <= PLAIN:
            end(rank, i, began[rank][i])
        other = place[(task.peer, "recv" if task.kind == "send" else "send", rank, task.tag)]
        if began[task.peer][other] is None:
            continue
        both = max(began[rank][i], began[task.peer][other])
        for of, number in ((rank, i), (task.peer, other)):
            if over[of][number] is None:
                end(of, number, both)
    left = sum(times.count(None) for times in over)
    expect(left == 0, f"no task of {left} can begin")
    return None if left else max(max(times) for times in over) * 1e-9


def goal(tsprun, folder):
    file = folder / "step.goal"
    for layout in LAYOUTS:
        row = simulate(tsprun, folder, layout, "--export", f"goal:{file}")
        ranks = read_goal(file)
        expect(len(ranks) == row["gpus"], f"{layout}: {len(ranks)} ranks")
        sends, receives, lanes = {}, {}, collections.defaultdict(list)
        links = collections.Counter()
        for rank, tasks in enumerate(ranks):
            for i, task in enumerate(tasks):
                expect(all(need < i for need in task.needs), f"{layout}: rank {rank} needs what comes later")
                if task.kind == "calc":
                    continue
                way = (rank, task.peer) if task.kind == "send" else (task.peer, rank)
                both = sends if task.kind == "send" else receives
                expect((way, task.tag) not in both, f"{layout}: {way} has tag {task.tag} twice")
                both[way, task.tag] = task.amount
                lanes[task.kind, way, task.tag % QUEUES].append(task.tag)
                if task.kind == "recv" or task.amount == 1:  # an empty message is written as one of 1 byte
                    continue
                within = way[0] // GPUS_OF_A_NODE == way[1] // GPUS_OF_A_NODE
                for link in (("link within the node", way),) if within else (("NIC out", rank), ("NIC in", task.peer)):
                    links[link] += task.amount
        expect(sends == receives, f"{layout}: sends and receives are the same messages")
        expect(len(sends) == row["messages"], f"{layout}: {len(sends)} messages, not {row['messages']}")
        for (kind, way, stream), tags in lanes.items():
            expect(tags == sorted(tags), f"{layout}: {kind} {way} on stream {stream} in order")
        for link in row["links"]:
            most = max(count for (kind, _), count in links.items() if kind == link["kind"])
            expect(most == link["bytes"], f"{layout}, {link['kind']}: {most} bytes, not {link['bytes']}")
        expect({kind for kind, _ in links} == {link["kind"] for link in row["links"]}, f"{layout}: kinds of links")
        computed = max(sum(task.amount for task in tasks if task.cpu == 0) for tasks in ranks)
        near(computed * 1e-9, row["compute_seconds"], f"{layout}: seconds of kernels", 1e-4)
        # Where links take no time, only what needs what decides.
        ideal = machine_file(folder, (1e30, 0), (1e30, 0))
        row = simulate(tsprun, folder, layout, "--export", f"goal:{file}", machine=ideal)
        near(run_goal(read_goal(file)), row["seconds"], f"{layout}: the graph's seconds", 1e-3)


# --- Chakra ------------------------------------------------------------------------------------------------------------------


def schema(folder):
    """Returns Chakra's messages, compiled from its schema."""
    if shutil.which("protoc") is None:
        skip("no protoc; install protobuf-compiler")
    subprocess.run(["protoc", f"--proto_path={pathlib.Path(__file__).parent}", f"--python_out={folder}", "et_def.proto"], check=True)
    sys.path.insert(0, str(folder))
    try:
        import et_def_pb2
    except ModuleNotFoundError as error:
        skip(f"{error}; install python3-protobuf")
    return et_def_pb2


def read_chakra(et, path):
    """Returns the metadata and the nodes of a file."""
    data = path.read_bytes()
    messages, at = [], 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        message = et.Node() if messages else et.GlobalMetadata()
        expect(message.ParseFromString(data[at:at + size]) == size, f"{path}: a message of {size} bytes")
        expect(not message.UnknownFields(), f"{path}: only fields of the schema")
        messages.append(message)
        at += size
    return messages[0], messages[1:]


def attributes(node):
    return {attr.name: getattr(attr, attr.WhichOneof("value")) for attr in node.attr}


def chakra(tsprun, folder):
    et = schema(folder)
    # What ASTRA-sim's feeder reads of each attribute.
    types = {"is_cpu_op": "bool_val", "num_ops": "int64_val", "tensor_size": "uint64_val", "comm_type": "int64_val",
             "comm_size": "int64_val", "comm_src": "int32_val", "comm_dst": "int32_val", "comm_tag": "int32_val",
             "pg_name": "string_val"}
    for layout in LAYOUTS:
        out, trace = folder / "chakra", folder / "t.json"
        row = simulate(tsprun, folder, layout, "--export", f"chakra:{out}", "--trace", str(trace))
        groups = json.loads((out / "groups.json").read_text())
        expect(len(list(out.glob("step.*.et"))) == row["gpus"], f"{layout}: a file for each rank")
        begun = [collections.Counter() for _ in range(row["gpus"])]  # names of kernels and operations in the trace
        for event in json.loads(trace.read_text())["traceEvents"]:
            if event["ph"] == "X" and event["name"] != "wait":
                # A trace names a product's weight, too.
                begun[event["pid"]]["gemm" if event["name"].startswith("gemm ") else event["name"]] += 1
        received = collections.Counter()
        seconds, flops = [], 0
        calls = collections.defaultdict(list)  # of a group, by rank
        messages = collections.Counter()
        for rank in range(row["gpus"]):
            metadata, nodes = read_chakra(et, out / f"step.{rank}.et")
            expect(metadata.version != "", f"{layout}: a version")
            names = collections.Counter()
            micros, seen, follows = 0, set(), {}
            for node in nodes:
                for attr in node.attr:
                    expect(types.get(attr.name, attr.WhichOneof("value")) == attr.WhichOneof("value"), f"{attr.name}'s type")
                values = attributes(node)
                expect(values["is_cpu_op"] is False, f"{layout}: {node.name} is an operation of a GPU")
                expect(node.id not in seen, f"{layout}: node {node.id} once")
                expect(set(node.data_deps) <= seen, f"{layout}: rank {rank}, node {node.id} depends on what comes later")
                seen.add(node.id)
                names[node.name] += 1
                if node.type == et.COMP_NODE:
                    micros += node.duration_micros
                    flops += values["num_ops"]
                    if "compute" in follows:
                        expect(follows["compute"] in node.data_deps, f"{layout}: kernels one after another")
                    follows["compute"] = node.id
                    continue
                if values["stream"] in follows and node.type == et.COMM_COLL_NODE:
                    expect(follows[values["stream"]] in node.data_deps, f"{layout}: operations of a stream one after another")
                follows[values["stream"]] = node.id
                size = values["comm_size"]
                if node.type == et.COMM_COLL_NODE:
                    members = groups[values["pg_name"]]
                    expect(rank in members, f"{layout}: rank {rank} is in group {values['pg_name']}")
                    expect(et.CollectiveCommType.Name(values["comm_type"]) == node.name.upper(), f"{node.name}'s type")
                    calls[values["pg_name"], rank].append((node.name, values["stream"], values["purpose"]))
                    others = len(members) - 1
                    # What all members receive together: each gets what all others bring, or its part of it.
                    part = {"ALL_GATHER": others, "REDUCE_SCATTER": others / len(members), "ALL_TO_ALL": others / len(members),
                            "ALL_REDUCE": 2 * others / len(members), "BROADCAST": others / len(members),
                            "REDUCE": others / len(members)}
                    received[values["purpose"]] += part.get(node.name.upper(), 0) * size
                else:
                    end = "comm_src" if node.type == et.COMM_RECV_NODE else "comm_dst"
                    expect(node.type in (et.COMM_SEND_NODE, et.COMM_RECV_NODE), f"{layout}: type {node.type}")
                    expect(values["comm_src" if end == "comm_dst" else "comm_dst"] == rank and values[end] != rank, "ends")
                    sign = 1 if end == "comm_dst" else -1
                    messages[values["comm_src"], values["comm_dst"], values["comm_tag"], size] += sign
                    received[values["purpose"]] += size if end == "comm_src" else 0
            seconds.append(micros * 1e-6)
            # Operations of one rank have an event and no node; a send_recv is two nodes and one event.
            for name in set(names) - {"send", "recv"}:
                there = begun[rank][name]
                same = names[name] <= there if name.upper() in et.CollectiveCommType.keys() else names[name] == there
                expect(same, f"{layout}: rank {rank} has {names[name]} of {name}, not {there}")
        near(max(seconds), row["compute_seconds"], f"{layout}: seconds of kernels", 2e-6 / row["compute_seconds"])
        expect(flops > 0, f"{layout}: FLOPs")
        expect(not +messages and not -messages, f"{layout}: every send has its receive")
        for group, members in groups.items():
            expect(all(calls[group, member] == calls[group, members[0]] for member in members), f"{layout}: group {group} agrees")
        for purpose, count in row["traffic_bytes"].items():
            if purpose not in ("other", "none"):  # small sums, whose form depends on where ranks are
                expect(abs(received[purpose] - count) < 1, f"{layout}: {received[purpose]} bytes for {purpose}, not {count}")


# --- SimGrid's SMPI ------------------------------------------------------------------------------------------------------------

WITHIN = (48e9, 3e-6)
ACROSS = (42e9, 6e-6)


def platform(ranks):
    """Returns SimGrid's description of these ranks: a link between every two of a node, and a NIC for each."""
    lines = ["<?xml version='1.0'?>", '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">', '<platform version="4.1">',
             '<zone id="all" routing="Full">']
    lines += [f'<host id="h{rank}" speed="1Gf"/>' for rank in range(ranks)]
    pairs = [(one, other) for one in range(ranks) for other in range(ranks) if one != other]
    ways = {pair: [f"l{pair[0]}-{pair[1]}"] if pair[0] // GPUS_OF_A_NODE == pair[1] // GPUS_OF_A_NODE else
            [f"out{pair[0]}", f"in{pair[1]}"] for pair in pairs}
    for link in sorted({link for way in ways.values() for link in way}):
        rate, latency = WITHIN if link[0] == "l" else ACROSS
        lines.append(f'<link id="{link}" bandwidth="{rate}Bps" latency="{0 if link[0] == "i" else latency}s"/>')
    for (one, other), way in ways.items():
        links = "".join(f'<link_ctn id="{link}"/>' for link in way)
        lines.append(f'<route src="h{one}" dst="h{other}" symmetrical="NO">{links}</route>')
    return "\n".join([*lines, "</zone>", "</platform>", ""])


def replayed(rank, tasks):
    """Returns a rank's tasks as SMPI's actions, in their order: what a task needs is waited for before it begins."""
    lines = [f"{rank} init"]
    waited = set()

    def wait(i):
        if i in waited:
            return
        waited.add(i)
        task = tasks[i]
        if task.kind == "calc":
            for need in task.needs:
                wait(need)
        else:
            ends = (rank, task.peer) if task.kind == "send" else (task.peer, rank)
            lines.append(f"{rank} wait {ends[0]} {ends[1]} {task.tag}")

    for i, task in enumerate(tasks):
        for need in task.needs:
            wait(need)
        if task.kind != "calc":
            lines.append(f"{rank} i{task.kind} {task.peer} {task.tag} {task.amount} 6")  # of bytes
        elif task.cpu == 0:
            waited.add(i)
            lines.append(f"{rank} compute {task.amount}")  # a host does one a nanosecond
    for i in range(len(tasks)):
        wait(i)
    return "\n".join([*lines, f"{rank} finalize", ""])


def smpi(tsprun, folder):
    """SMPI shares links fairly and knows nothing of quanta or of how this project's player works."""
    if shutil.which("smpirun") is None:
        skip("no smpirun; install libsimgrid-dev")
    file = folder / "step.goal"
    machine = machine_file(folder, WITHIN, ACROSS)
    rings = "all_reduce=ring,all_gather=ring,reduce_scatter=ring"
    for layout, algorithms in (("tsp=4", ""), ("tp=4", ""), ("tp=4", rings), ("zero3=4", rings), ("dp=2,tsp=8", "")):
        # An SMPI process does one thing at a time, so the step is one in which nothing overlaps.
        row = simulate(tsprun, folder, layout, "--blocking", "--export", f"goal:{file}", machine=machine, algorithms=algorithms)
        ranks = read_goal(file)
        (folder / "platform.xml").write_text(platform(len(ranks)))
        (folder / "hosts").write_text("".join(f"h{rank}\n" for rank in range(len(ranks))))
        for rank, tasks in enumerate(ranks):
            (folder / f"trace{rank}").write_text(replayed(rank, tasks))
        (folder / "traces").write_text("".join(f"{folder}/trace{rank}\n" for rank in range(len(ranks))))
        settings = ["network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0", "network/latency-factor:1",
                    "network/bandwidth-factor:1", "network/weight-S:0", "smpi/os:0:0:0", "smpi/or:0:0:0", "smpi/ois:0:0:0",
                    f"smpi/send-is-detached-thresh:{PLAIN + 1}", f"smpi/async-small-thresh:{PLAIN + 1}", "smpi/host-speed:1Gf"]
        words = ["smpirun", "-np", str(len(ranks)), "-platform", folder / "platform.xml", "-hostfile", folder / "hosts", "-replay",
                 folder / "traces", *(f"--cfg={setting}" for setting in settings)]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        found = re.search(r"Simulation time ([0-9.]+)", done.stdout + done.stderr)
        if done.returncode != 0 or found is None:
            expect(False, f"smpirun ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
            return
        print(f"{layout} {algorithms}: played {row['seconds']:.6f} s, SMPI {found.group(1)} s")
        near(float(found.group(1)), row["seconds"], f"{layout}: SMPI's seconds", 1e-3)


def main():
    case, tsprun = sys.argv[1:]
    cases = {"goal": goal, "chakra": chakra, "smpi": smpi}
    with tempfile.TemporaryDirectory() as folder:
        cases[case](tsprun, pathlib.Path(folder))
    sys.exit(1 if FAILED else 0)


if __name__ == "__main__":
    main()
