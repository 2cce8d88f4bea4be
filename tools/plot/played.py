#!/usr/bin/python3
"""The paper's Figs. 10 to 12 in virtual time: TSP beside TP+SP on 16 and 1024 MI300X GPUs, and what its headline ratio assumes; from how
many tokens on TSP is faster than TP on a node, with links of several speeds; and what four GPUs do in TSP's MLP (Fig. 4).

Matched TP+SP is read as degrees T = Σ = D: TSP folds both onto one axis of D GPUs. tp lies within a node. The model has two layers, which is
about what the paper's absolute tokens/s imply; the ratios hardly depend on it. All else is in the machine file.

Prints the rows and statements, and writes played.json into the folder. Needs only Python's standard library.
"""

import argparse
import json
import pathlib
import subprocess
import sys

MODEL = {"model_type": "llama", "hidden_act": "silu", "hidden_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 32,
         "num_key_value_heads": 32, "head_dim": 128, "intermediate_size": 16384, "vocab_size": 32000, "max_position_embeddings": 131072}
HEADLINE = {"degree": 8, "seq": 131072, "ratio": 2.61}  # Fig. 11
#: layouts of 16 GPUs beside each other: name, ours, the other, S, batches, whether forward alone
PAIRS = (("Fig. 12's D = 8, where all 16 GPUs can be matched with it", "dp=2,tsp=8", "sp=2,tp=8", 16384, (2, 4, 8), False),
         ("section VII's example, forward", "dp=2,tsp=2,tp=4", "sp=2,tp=8", 131072, (2,), True),
         ("section VII's example, forward and backward", "dp=2,tsp=2,tp=4", "sp=2,tp=8", 131072, (2,), False))
SLOWEST_NIC, FASTEST_NIC = 5e9, 100e9  # bytes/s between which the headline's speed is searched
FEWEST_TOKENS, MOST_TOKENS = 256, 131072  # between which TSP's crossover with TP is searched
SPEEDS = (0.25, 0.5, 1, 2, 4, 8)  # of links, times the machine's
MLP = ("gemm W_1", "gemm W_3", "swiglu", "gemm W_2")  # kernels of one turn


def layouts(gpus, degree):
    """TSP of a degree, and the TP+SP that is matched with it."""
    with_replicas = lambda rest, axes: (f"dp={rest}," if rest > 1 else "") + axes
    return (with_replicas(gpus // degree, f"tsp={degree}"), with_replicas(gpus // degree**2, f"sp={degree},tp={degree}"))


class Player:
    def __init__(self, tsprun, folder):
        self.tsprun, self.folder = tsprun, folder
        (folder / "two-layers.json").write_text(json.dumps(MODEL))

    def rows(self, machine, layouts, seq, batch, *options):
        """What `simulate` says of layouts."""
        report = self.folder / "point.json"
        subprocess.run([self.tsprun, "simulate", "-q", "--machine", str(machine), "--layouts", ";".join(layouts), "--seq", str(seq), "--batch",
                        str(batch), "--config", str(self.folder / "two-layers.json"), "--dtype", "bf16", "--json", str(report), *options],
                       check=True, stdout=subprocess.DEVNULL)
        rows = json.loads(report.read_text())["simulate"]
        report.unlink()
        for row in rows:
            if row["why"]:
                sys.exit(f"played.py: {row['why']}")
        return rows

    def play(self, machine, gpus, degree, seq, batch, forward):
        """One point; returns it with both speeds and their ratio."""
        tsp, matched = self.rows(machine, layouts(gpus, degree), seq, batch, *(["--forward"] if forward else []))
        return {"gpus": gpus, "degree": degree, "seq": seq, "batch": batch, "forward": forward, "tsp_tokens_per_s": tsp["tokens_per_s"],
                "matched_tokens_per_s": matched["tokens_per_s"], "ratio": tsp["tokens_per_s"] / matched["tokens_per_s"],
                "tsp_binds": tsp["binds"], "matched_binds": matched["binds"]}

    def nic_speed(self, text):
        """The bytes/s of a NIC at which the headline's ratio appears, to 2 %; None if it isn't between the limits."""
        at = lambda speed: self.play(self.with_nic(text, speed), 1024, HEADLINE["degree"], HEADLINE["seq"], 1024 // HEADLINE["degree"], True)["ratio"]
        low, high = SLOWEST_NIC, FASTEST_NIC
        if not at(low) > HEADLINE["ratio"] > at(high):
            return None
        while high / low > 1.02:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if at(middle) > HEADLINE["ratio"] else (low, middle)
        return (low * high) ** 0.5

    def with_nic(self, text, speed):
        machine = json.loads(text)
        machine["across_nodes"]["bytes_per_s"] = speed
        return self.write(machine)

    def write(self, machine):
        file = self.folder / "other-machine.json"
        file.write_text(json.dumps(machine))
        return file

    def hidden(self, machine):
        """What it says of the headline's ratio if TP+SP hides less of its communication than here."""
        degree, seq = HEADLINE["degree"], HEADLINE["seq"]
        of = (machine, layouts(1024, degree), seq, 1024 // degree, "--forward")
        tsp, matched = (row["seconds"] for row in self.rows(*of))
        exposed = self.rows(*of, "--blocking")[1]["seconds"]
        part = (exposed - HEADLINE["ratio"] * tsp) / (exposed - matched)
        if 0 <= part <= 1:
            return f"or if TP+SP hides {part:.0%} of the communication that it hides here"
        return f"and not if TP+SP hides less of its communication: {exposed / tsp:.2f} if it hides none"

    def crossover(self, text, speed, forward):
        """The fewest tokens, to 2 %, with which TSP is as fast as TP on a node's GPUs whose links have `speed` times the machine's; None if
        there are none up to MOST_TOKENS."""
        machine = json.loads(text)
        gpus = machine["gpus_per_node"]
        machine["within_node"]["bytes_per_s"] *= speed
        file = self.write(machine)

        def is_ahead(tokens):
            tsp, tp = self.rows(file, (f"tsp={gpus}", f"tp={gpus}"), tokens, 1, *(["--forward"] if forward else []))
            return tsp["seconds"] <= tp["seconds"]

        low, high = FEWEST_TOKENS, MOST_TOKENS
        if is_ahead(low):
            return low
        if not is_ahead(high):
            return None
        while high > 1.02 * low + 2 * gpus:
            middle = round((low * high) ** 0.5 / (2 * gpus)) * 2 * gpus  # each rank has two equal parts
            low, high = (low, middle) if is_ahead(middle) else (middle, high)
        return high


def mlp(player, machine, degree=4, tokens=32768):
    """The kernels of the first layer's MLP in a forward pass under TSP, and the rotations of weights meanwhile: of each its rank, when it
    begins and ends in ms, and the rank whose shard of the weights it has."""
    trace = player.folder / "mlp-trace.json"
    player.rows(machine, (f"tsp={degree}",), tokens, 1, "--gpus", str(degree), "--forward", "--trace", str(trace))
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    trace.unlink()

    def of(rank, number, chosen):
        found = sorted((event for event in events if event["pid"] == rank and chosen(event)), key=lambda event: event["ts"])[:number]
        return [{"rank": rank, "begin_ms": event["ts"] * 1e-3, "end_ms": (event["ts"] + event["dur"]) * 1e-3, **event} for event in found]

    kernels, rotations = [], []
    for rank in range(degree):
        turns = of(rank, degree * len(MLP), lambda event: event["name"] in MLP)
        moved = of(rank, degree - 1, lambda event: event["name"] == "send_recv" and event["args"]["purpose"] == "weights")
        kernels += [{**kernel, "shard": (rank - number // len(MLP)) % degree} for number, kernel in enumerate(turns)]
        rotations += [{**rotation, "shard": (rotation["args"]["from"] - number) % degree} for number, rotation in enumerate(moved)]
    fields = ("rank", "shard", "name", "begin_ms", "end_ms")
    return {what: [{field: row[field] for field in fields} for row in rows] for what, rows in (("kernels", kernels), ("rotations", rotations))}


def points(quick):
    """(figure, GPUs, D, S, batch, forward); a batch is that of all replicas. Quick ones are shorter: they take a quarter of the time."""
    for seq in (4096, 32768) if quick else (16384, 32768, 65536, 131072):
        for degree in (2, 4):
            yield 10, 16, degree, seq, 16, True
    for seq in (8192,) if quick else (32768, 65536, 131072):
        for degree in (2, 4) if quick else (2, 4, 8):
            yield 11, 1024, degree, seq, 1024 // degree, True
    for sequences in (1,) if quick else (1, 2, 4):  # of a TSP replica
        for degree in (2, 4):
            yield 12, 16, degree, 4096 if quick else 16384, sequences * 16 // degree, False


def crossovers(player, text, speeds):
    """By pass and speed of links: what a GPU computes at its peak while it sends a byte over a link, and from how many tokens on TSP is as
    fast as TP."""
    machine = json.loads(text)
    for forward in (True, False):
        for speed in speeds:
            yield {"forward": forward, "link_bytes_per_s": speed * machine["within_node"]["bytes_per_s"],
                   "flops_per_byte": machine["flops_per_s"]["bf16"] / machine["within_node"]["bytes_per_s"] / speed,
                   "tokens": player.crossover(text, speed, forward)}


def pairs(player, machine):
    for name, ours, other, seq, batches, forward in PAIRS:
        rows = [player.rows(machine, (ours, other), seq, batch, *(["--forward"] if forward else [])) for batch in batches]
        ratios = ", ".join(f"{tsp['tokens_per_s'] / matched['tokens_per_s']:.2f}" for tsp, matched in rows)
        yield f"{name}: {ours} is {ratios} times as fast as {other} at {seq} tokens, batch {', '.join(map(str, batches))}"


def statements(rows):
    largest = [row for row in rows if row["figure"] == 11 and row["seq"] == max(each["seq"] for each in rows if each["figure"] == 11)]
    ratios = [row["ratio"] for row in sorted(largest, key=lambda row: row["degree"])]
    yield f"TSP is faster at {sum(row['ratio'] > 1 for row in rows)} of {len(rows)} points (the paper: at all)"
    yield f"its advantage grows with D at the longest sequence: {'yes' if ratios == sorted(ratios) else 'no'} ({', '.join(f'{each:.2f}' for each in ratios)}; the paper: yes)"
    for row in largest:
        if (row["degree"], row["seq"]) == (HEADLINE["degree"], HEADLINE["seq"]):
            yield f"at D = 8, 128K, 1024 GPUs it is {row['ratio']:.2f} times as fast (the paper: {HEADLINE['ratio']})"
    yield "Fig. 12's D = 8 isn't played: T = Σ = 8 needs 64 GPUs, and the figure has 16"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tsprun", help="the program")
    parser.add_argument("machine", type=pathlib.Path, help="the machine file of MI300X GPUs")
    parser.add_argument("folder", type=pathlib.Path, help="where played.json is written")
    parser.add_argument("--quick", action="store_true", help="a few points, without the search for the headline's NIC")
    arguments = parser.parse_args()
    player = Player(arguments.tsprun, arguments.folder)
    rows = []
    print(f"{'figure':>6}{'GPUs':>6}{'D':>3}{'S':>8}{'batch':>7}{'TSP tokens/s':>15}{'TP+SP':>13}{'ratio':>7}  TP+SP is bound by")
    for figure, *point in points(arguments.quick):
        row = {"figure": figure, **player.play(arguments.machine, *point)}
        rows.append(row)
        print(f"{figure:6}{row['gpus']:6}{row['degree']:3}{row['seq']:8}{row['batch']:7}{row['tsp_tokens_per_s']:15.0f}"
              f"{row['matched_tokens_per_s']:13.0f}{row['ratio']:7.2f}  {row['matched_binds']}", flush=True)
    said = list(statements(rows))
    text = arguments.machine.read_text()
    if not arguments.quick:
        said += pairs(player, arguments.machine)
        speed = player.nic_speed(text)
        said.append(f"the paper's {HEADLINE['ratio']} appears if a NIC has " + (f"{speed * 1e-9:.1f} GB/s" if speed else
                    f"none of {SLOWEST_NIC * 1e-9:.0f} to {FASTEST_NIC * 1e-9:.0f} GB/s") + ", all else being equal")
        said.append(player.hidden(arguments.machine))
    print(f"{'GB/s a link':>12}{'FLOPs a byte':>14}  TSP of a node is as fast as TP from")
    crossing = []
    for row in crossovers(player, text, SPEEDS[2:3] if arguments.quick else SPEEDS):
        crossing.append(row)
        print(f"{row['link_bytes_per_s'] * 1e-9:12.1f}{row['flops_per_byte']:14.0f}  " + (f"{row['tokens']} tokens" if row["tokens"] else
              f"more than {MOST_TOKENS} tokens") + (", forward" if row["forward"] else ", forward and backward"), flush=True)
    print(*said, sep="\n")
    (arguments.folder / "played.json").write_text(json.dumps({"rows": rows, "statements": said, "crossover": crossing,
                                                              "mlp": mlp(player, arguments.machine)}, indent=1))


if __name__ == "__main__":
    main()
