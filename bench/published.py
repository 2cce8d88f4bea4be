#!/usr/bin/env python3
"""Holds `tsprun simulate` against step times that others measured and published: plays every point of published.json, and prints
the published time, the played one and the error, and by framework and in all the median and the largest error. Points that can't
be played are listed with the reason.

    bench/published.py                                   # every point
    bench/published.py --only llm.c,megatron-22b         # points whose name begins with one of these
    bench/published.py --smallest --limit 0.5            # what the tests run; ends with code 1 if an error is larger
    bench/published.py --check                           # only looks at the table itself

The rules: all points of a machine use one machine file (layers/theory/machines), all points of a framework one set of switches, each
with its source, and no constant of either was fitted to a point of the table.

published.json has `models` (contents of a config.json), `frameworks` (switches of tsprun, and why), and `points`:

  id, framework, model, machine   names
  gpus                            number of GPUs in all
  layout                          degrees by axis. Besides tsprun's axes: `fsdp` (weights cut over replicas: --dp zero3), `pp` (pipeline)
  variants                        of axes, such as {"tp": "sequence"}
  seq, batch, micro_batches       tokens of a sequence; sequences of a step, in all; gradient accumulations
  recompute                       in tsprun's words, or "attention": scores alone, of a framework whose attention isn't fused
  seconds or tokens_per_s         what was measured: a step, or tokens a second of all GPUs together
  source                          repository and file
  issue                           true: one of the points that the bars are stated for
  note, doubt                     what is unlike; why the figure itself is doubtful, which leaves the point out of the errors
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

import harness

TABLE = pathlib.Path(__file__).resolve().parent / "published.json"
MACHINES = harness.ROOT / "layers/theory/machines"
LIMIT_S = 600
AXES = ("dp", "shard", "tp", "sp", "tsp", "zero3")
# Points of few messages, which play in a second or two; the tests run them.
SMALLEST_GPUS = 8


def measured_seconds(point):
    return point["seconds"] if "seconds" in point else point["batch"] * point["seq"] / point["tokens_per_s"]


def what_is_wrong(table):
    """Contradictions within the table, as lines."""
    wrong = []
    seen = set()
    for point in table["points"]:
        def bad(text, name=point["id"]):
            wrong.append(f"{name}: {text}")
        if point["id"] in seen:
            bad("there are two of this name")
        seen.add(point["id"])
        switches = table["frameworks"].get(point["framework"], {}).get("switches", [])
        if point["framework"] not in table["frameworks"]:
            bad(f"framework {point['framework']} isn't described")
        if point["model"] not in table["models"]:
            bad(f"model {point['model']} isn't described")
        if not (MACHINES / f"{point['machine']}.json").is_file():
            bad(f"no machine {point['machine']}")
        product = 1
        for degree in point["layout"].values():
            product *= degree
        if product != point["gpus"]:
            bad(f"layout {point['layout']} has {product} GPUs, and the point {point['gpus']}")
        replicas = point["layout"].get("dp", 1) * point["layout"].get("fsdp", 1)
        if point["batch"] % (replicas * point["micro_batches"]) != 0:
            bad(f"{point['batch']} sequences aren't the same for {replicas} replicas and {point['micro_batches']} micro-batches")
        if ("seconds" in point) == ("tokens_per_s" in point) or measured_seconds(point) <= 0:
            bad("neither seconds nor tokens_per_s, or both")
        if point["recompute"] == "attention" and "unfused" not in switches:
            bad("only unfused attention makes its scores again")
        if not re.match(r"[\w.-]+/[\w.-]+", point["source"]):
            bad("its source names no repository")
    return wrong


def why_not(point):
    """Why this version can't play the point; empty if it can."""
    reasons = []
    if "pp" in point["layout"]:
        reasons.append("a pipeline (pp)")
    return " and ".join(reasons)


def play(tsprun, table, point, folder):
    """The report's row of the point, played."""
    config = folder / f"{point['model']}.json"
    config.write_text(json.dumps(table["models"][point["model"]]))
    degrees, variants = dict(point["layout"]), dict(point.get("variants", {}))
    if "fsdp" in degrees:
        # Of dp alone all ranks share; beside it those of shard.
        degrees["shard" if "dp" in degrees else "dp"] = degrees.pop("fsdp")
        variants["dp"] = "zero3"
    degrees = {axis: degree for axis, degree in degrees.items() if degree > 1}
    layout = ",".join(f"{axis}={degrees[axis]}" for axis in AXES if axis in degrees) or "tsp=1"
    recompute, switches = point["recompute"], table["frameworks"][point["framework"]]["switches"]
    if recompute == "attention":
        recompute, switches = "none", [word.replace("unfused", "unfused-again") for word in switches]
    words = ["--machine", MACHINES / f"{point['machine']}.json", "--config", config, "--layout", layout, "--dtype", "bf16",
             "--seq", point["seq"], "--batch", point["batch"], "--recompute", recompute, *switches]
    for axis, variant in variants.items():
        words += [f"--{axis}", variant]
    if point["micro_batches"] > 1:
        words += ["--micro-batches", point["micro_batches"]]
    report = folder / "report.json"
    command = [str(word) for word in [tsprun, "-q", "--json", report, "simulate", *words]]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        sys.exit(f"published.py: {' '.join(command)}\n{done.stderr}")
    return json.loads(report.read_text())["simulate"][0]


def describe(point):
    layout = ",".join(f"{axis}={degree}" for axis, degree in point["layout"].items()) or "1 GPU"
    return f"{point['machine']} {layout}"


def print_errors(what, rows):
    errors = [row["error"] for row in rows]
    largest = max(rows, key=lambda row: abs(row["error"]))
    print(f"{what:<28} {len(rows):>2} points  median {100 * harness.median([abs(e) for e in errors]):5.1f} %  "
          f"largest {100 * largest['error']:+6.1f} % ({largest['id']})")


def main():
    parser = harness.options(__doc__)
    parser.add_argument("--tsprun", type=pathlib.Path, help="the program; default: that of --build")
    parser.add_argument("--only", help="names of points, or how they begin, between commas")
    parser.add_argument("--smallest", action="store_true", help=f"only points of at most {SMALLEST_GPUS} GPUs")
    parser.add_argument("--limit", type=float, help="the largest error that is allowed, such as 0.2")
    parser.add_argument("--check", action="store_true", help="only look for contradictions within the table")
    options = parser.parse_args()
    tsprun = options.tsprun or options.build / "launcher" / "tsprun"
    table = json.loads(TABLE.read_text())
    wrong = what_is_wrong(table)
    if wrong:
        sys.exit("published.json:\n" + "\n".join(wrong))
    if options.check:
        print(f"{len(table['points'])} points, {sum(not point.get('issue') for point in table['points'])} of them further ones")
        return
    chosen = [point for point in table["points"]
              if (not options.only or any(point["id"].startswith(name) for name in options.only.split(",")))
              and (not options.smallest or point["gpus"] <= SMALLEST_GPUS)]
    played, unplayed, impossible = [], [], []
    print(f"{'point':<24} {'where':<26} {'published':>10} {'played':>10} {'error':>8}  MFU")
    with tempfile.TemporaryDirectory() as temporary:
        for point in chosen:
            reason = why_not(point)
            if reason:
                unplayed.append({"id": point["id"], "why": reason})
                continue
            row = play(tsprun, table, point, pathlib.Path(temporary))
            seconds = measured_seconds(point)
            result = {"id": point["id"], "framework": point["framework"], "issue": point.get("issue", False), "published": seconds,
                      "played": row["seconds"], "error": row["seconds"] / seconds - 1, "mfu": row["mfu"],
                      "published_mfu": row["mfu"] * row["seconds"] / seconds, "exposed": row["exposed_seconds"]}
            if result["published_mfu"] > 1 and "doubt" not in point:
                point["doubt"] = "more FLOP/s than the machine has"
                impossible.append(point["id"])
            print(f"{point['id']:<24} {describe(point):<26} {1e3 * seconds:>7.0f} ms {1e3 * row['seconds']:>7.0f} ms "
                  f"{100 * result['error']:>+6.1f} %  {100 * result['published_mfu']:.0f} %", flush=True)
            if "doubt" in point:
                unplayed.append({"id": point["id"], "why": f"played, but left out of the errors: {point['doubt']}"})
            else:
                played.append(result)
    print()
    for framework in table["frameworks"]:
        rows = [row for row in played if row["framework"] == framework]
        if rows:
            print_errors(framework, rows)
    if played:
        named = [row for row in played if row["issue"]]
        if named:
            print_errors("the bars' points", named)
        print_errors("all", played)
    if unplayed:
        print(f"\n{len(unplayed)} points without an error:")
        for row in unplayed:
            print(f"  {row['id']:<28} {row['why']}")
    harness.write_figures(options.json, {"played": played, "unplayed": unplayed})
    if options.limit is not None:
        if not played:
            sys.exit("published.py: no point could be played")
        if impossible:
            sys.exit(f"published.py: more FLOP/s than the machine has, and the table doesn't say so: {', '.join(impossible)}")
        far = [row["id"] for row in played if abs(row["error"]) > options.limit]
        if far:
            sys.exit(f"published.py: further off than {100 * options.limit:.0f} %: {', '.join(far)}")


if __name__ == "__main__":
    main()
