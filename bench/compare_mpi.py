#!/usr/bin/env python3
"""Compares tsprun's transport and collectives with Debian's MPIs and with bare loops, on this machine.

One point is an operation at a size on a number of ranks. Each program measures all points of some ranks and operations in one
launch; launches alternate (ours, Open MPI, MPICH, floor, ours, ...) so that all see the same states of the machine. A point's figure
is the median of its launches' medians. Ratios are best peer / ours: above 1 we are faster.

A virtual machine's cores may be moved apart at any time: a flag between two of them then takes five times as long, and small messages
with it. The flag is timed before and after each launch, and a launch between slow flags is repeated; see Flag.

Needs only Python's standard library. A peer that isn't installed is skipped, and said so:
    apt-get install openmpi-bin libopenmpi-dev mpich libmpich-dev
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import idle
from harness import MIB, ROOT, log, options, print_bars, run, write_figures

COLLECTIVES = ["broadcast", "all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
KIB = 1 << 10
LARGEST = 64 * MIB
SMALL_MESSAGE = 8
SOURCES = ["bench/mpi_bench.cpp", "launcher/bench/case.cpp", "launcher/bench/measure.cpp", "launcher/bench/pattern.cpp",
           "launcher/bench/table.cpp", "core/tensor/dtype.cpp"]
LAUNCH_LIMIT_S = 180


def size_text(size):
    for unit, suffix in ((MIB, "M"), (KIB, "K")):
        if size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)


def time_text(seconds):
    micros = seconds * 1e6
    return f"{micros:.2f}" if micros < 1000 else f"{micros:.0f}"


def parse_sizes(text):
    factors = {"K": KIB, "M": MIB, "G": KIB * MIB}
    sizes = []
    for part in text.split(","):
        factor = factors.get(part[-1:].upper(), 1)
        sizes.append(int(part.rstrip("KMGkmg")) * factor)
    return sizes


def build_mpi_bench(compiler, folder):
    """Compiles mpi_bench; returns the program, or None if this MPI or its headers aren't installed."""
    if shutil.which(compiler) is None:
        return None
    if subprocess.run([compiler, "-x", "c++", "-fsyntax-only", "-include", "mpi.h", os.devnull], stderr=subprocess.DEVNULL).returncode:
        return None
    program = folder / f"mpi_bench.{compiler}"
    folders = ("bench", "launcher/bench", "core/tensor")
    newest = max(path.stat().st_mtime for name in folders for path in (ROOT / name).iterdir() if path.suffix in (".h", ".cpp"))
    if not program.exists() or program.stat().st_mtime < newest:
        log(f"building mpi_bench with {compiler} ...")
        command = [compiler, "-std=c++20", "-O3", "-I", str(ROOT), "-I", str(ROOT / "include")] + [str(ROOT / source) for source in SOURCES]
        subprocess.run(command + ["-o", str(program)], check=True)
    return program


def openmpi_command(ranks, cores):
    command = ["mpirun.openmpi", "-n", str(ranks)]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if ranks > cores:
        # Open MPI then sets mpi_yield_when_idle by itself: without it waiting ranks would spin away the time of working ones.
        command += ["--oversubscribe", "--bind-to", "none"]
    else:
        command += ["--bind-to", "core"]
    return command


def mpich_command(ranks, cores):
    command = ["mpiexec.mpich", "-n", str(ranks)]
    return command + (["-bind-to", "core"] if ranks <= cores else [])


def measuring_arguments(operations, sizes, output, pace):
    return [",".join(operations), "--sizes", ",".join(map(str, sizes)), "--json", str(output), "--no-check",
            "--min-time", str(pace[0]), "--max-time", str(pace[1])]


def find_peers(arguments, folder, pace):
    """Name -> (ranks, operations, sizes, json file) -> command: ours first, then the MPIs that are installed, then the floor."""
    cores = len(os.sched_getaffinity(0))
    tsprun = arguments.build / "launcher" / "tsprun"
    floor = arguments.build / "bench" / "floor"
    for program in (tsprun, floor):
        if not program.exists():
            sys.exit(f"{program} isn't there: build first (cmake --preset release && cmake --build --preset release), "
                     "or name the build folder with --build")
    peers = {"ours": lambda ranks, ops, sizes, out:
             [str(tsprun), "-n", str(ranks), "bench", "--no-in-place"] + measuring_arguments(ops, sizes, out, pace)}
    skipped = []
    for name, compiler, launcher, start in (("openmpi", "mpicxx.openmpi", "mpirun.openmpi", openmpi_command),
                                            ("mpich", "mpicxx.mpich", "mpiexec.mpich", mpich_command)):
        program = build_mpi_bench(compiler, folder) if shutil.which(launcher) else None
        if program is None:
            skipped.append(name)
            log(f"{name} is skipped: {compiler}, mpi.h or {launcher} isn't installed")
            continue
        peers[name] = (lambda ranks, ops, sizes, out, program=program, start=start:
                       start(ranks, cores) + [str(program)] + measuring_arguments(ops, sizes, out, pace))
    peers["floor"] = lambda ranks, ops, sizes, out: [str(floor), "-n", str(ranks)] + measuring_arguments(ops, sizes, out, pace)
    return peers, skipped


def launch(command, ranks, operations, sizes, folder):
    """One launch; returns {(op, size): median seconds}. Sizes are named as asked for, not as rounded down."""
    output = folder / "launch.json"
    output.unlink(missing_ok=True)
    if run(command(ranks, operations, sizes, output), LAUNCH_LIMIT_S) is None or not output.exists():
        return {}
    figures = {}
    for row in json.loads(output.read_text())["bench"]:
        size = min((size for size in sizes if size >= row["bytes"]), default=row["bytes"])
        figures[row["op"], size] = row["seconds_p50"]
    return figures


class Flag:
    """How long a flag takes from one core to another, and which launches it says are comparable."""

    SLOW = 2.5  #: times the fastest flag
    TRIES = 4

    def __init__(self, command, folder):
        self.command, self.folder = command, folder
        self.fastest, self.after, self.slow = float("inf"), float("nan"), 0
        self.time()

    def time(self):
        if len(os.sched_getaffinity(0)) < 2:
            return float("nan")  # there is none
        seconds = launch(self.command, 2, ["pingpong"], [SMALL_MESSAGE], self.folder).get(("pingpong", SMALL_MESSAGE), float("nan"))
        self.fastest = min(self.fastest, seconds)
        self.after = seconds
        return seconds

    def between(self, start):
        """Calls `start` until the flag is fast before and after it, at most TRIES times; returns what it returned last."""
        for _ in range(self.TRIES):
            before = self.after
            figures = start()
            if not max(before, self.time()) > self.SLOW * self.fastest:  # also without a flag
                return figures
        self.slow += 1
        return figures


def measure(peers, jobs, repeats, folder, flag):
    """Alternates launches of all peers; returns {(ranks, op, size): {peer: [seconds of each launch]}}."""
    points = {}
    began = time.monotonic()
    for number, (ranks, operations, sizes) in enumerate(jobs, 1):
        for repeat in range(repeats):
            log(f"[{time.monotonic() - began:5.0f} s] {number}/{len(jobs)}: {ranks} ranks, {','.join(operations)}, "
                f"{size_text(sizes[0])}..{size_text(sizes[-1])}, round {repeat + 1} of {repeats}")
            # Each round starts with another peer, so that no one always follows the same.
            turn = repeat % len(peers)
            for name in [*peers][turn:] + [*peers][:turn]:
                figures = flag.between(lambda: launch(peers[name], ranks, operations, sizes, folder))
                for (operation, size), seconds in figures.items():
                    points.setdefault((ranks, operation, size), {}).setdefault(name, []).append(seconds)
    return points


def summarise(points, mpis):
    """One dictionary a point: medians, the best MPI, ratios."""
    rows = []
    for (ranks, operation, size), figures in points.items():
        medians = {peer: statistics.median(values) for peer, values in figures.items()}
        row = {"ranks": ranks, "op": operation, "bytes": size, "seconds": medians, "launches": figures,
               "ratio": None, "floor_speed": None}
        rivals = [medians[name] for name in mpis if name in medians]
        if "ours" in medians and rivals:
            row["ratio"] = min(rivals) / medians["ours"]
        if "ours" in medians and "floor" in medians:
            row["floor_speed"] = medians["floor"] / medians["ours"]
        rows.append(row)
    return rows


def print_table(rows, mpis, skipped):
    names = ["ours"] + mpis + ["floor"]
    print("# times in us: medians of launches' medians; ratio: best MPI / ours (above 1: we are faster);")
    print("# floor: speed as a share of the bare loops'")
    print(f"{'ranks':>5} {'op':<15} {'size':>5} " + " ".join(f"{name:>11}" for name in names) + f" {'ratio':>8} {'floor':>6}")
    for row in rows:
        times = " ".join(f"{time_text(row['seconds'][name]) if name in row['seconds'] else '-':>11}" for name in names)
        ratio = f"{row['ratio']:.2f}" if row["ratio"] is not None else "-"
        floor = f"{row['floor_speed']:.2f}" if row["floor_speed"] is not None else "-"
        mark = " <" if row["ratio"] is not None and row["ratio"] < 0.95 else ""
        print(f"{row['ranks']:>5} {row['op']:<15} {size_text(row['bytes']):>5} {times} {ratio:>8} {floor:>6}{mark}")
    for name in skipped:
        print(f"# {name} was skipped: it isn't installed")


def verdicts(rows, mpis, cores):
    """The bars of transport and collectives; each with what was measured."""
    lines = []

    def add(bar, reached, text):
        lines.append({"bar": bar, "reached": reached, "measured": text})

    compared = [row for row in rows if row["op"] in COLLECTIVES and row["ratio"] is not None]
    if compared:
        slower = [row for row in compared if row["ratio"] < 0.95]
        worst = min(compared, key=lambda row: row["ratio"])
        where = f"{worst['op']} {size_text(worst['bytes'])} at {worst['ranks']} ranks"
        add("collectives: never slower than the better MPI (ratio >= 0.95)", not slower,
            f"{len(slower)} of {len(compared)} points slower; lowest {worst['ratio']:.2f}, {where}")
        mean = statistics.geometric_mean([row["ratio"] for row in compared])
        add("collectives: geometric mean of ratios >= 3", mean >= 3, f"{mean:.2f} over {len(compared)} points")
        for ranks in sorted({row["ranks"] for row in compared}):
            part = statistics.geometric_mean([row["ratio"] for row in compared if row["ranks"] == ranks])
            add(f"  geometric mean at {ranks} ranks", None, f"{part:.2f}")
    large = [row for row in rows if row["op"] in COLLECTIVES and row["bytes"] == LARGEST and row["floor_speed"] is not None]
    if large:
        low = min(large, key=lambda row: row["floor_speed"])
        add("64 MiB collectives: >= 0.8 of the bare loops' speed", low["floor_speed"] >= 0.8,
            f"lowest {low['floor_speed']:.2f}, {low['op']} at {low['ranks']} ranks")
    for row in rows:
        if row["op"] != "pingpong" or "ours" not in row["seconds"]:
            continue
        ours = row["seconds"]["ours"]
        if row["bytes"] == SMALL_MESSAGE and row["ranks"] == 2 and cores >= 2:
            ratio = f", {1 / row['ratio']:.2f} of the better MPI" if row["ratio"] else ""
            add("ping-pong 8 B, 2 ranks: <= 0.20 us and <= 0.6 of the better MPI",
                ours <= 0.20e-6 and (row["ratio"] is None or 1 / row["ratio"] <= 0.6), f"{ours * 1e6:.2f} us{ratio}")
        elif row["bytes"] == SMALL_MESSAGE and row["ranks"] > cores and row["ratio"] is not None:
            add(f"ping-pong 8 B, {row['ranks']} ranks on {cores} cores: faster than both MPIs", row["ratio"] > 1,
                f"{ours * 1e6:.2f} us, the better MPI takes {row['ratio']:.2f} times that")
        elif row["bytes"] == LARGEST and row["ranks"] == 2 and row["floor_speed"] is not None:
            add("ping-pong 64 MiB: >= 0.9 of memcpy", row["floor_speed"] >= 0.9, f"{row['floor_speed']:.2f}")
    return lines


def parse_arguments():
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sizes, three rounds: below 4 minutes instead of 15")
    parser.add_argument("--ranks", default="2,4,8", help="default: %(default)s")
    parser.add_argument("--ops", default=",".join(["pingpong"] + COLLECTIVES), help="default: %(default)s")
    parser.add_argument("--sizes", help="default: 1K,4K,16K,64K,256K,1M,4M,16M,64M; with --quick 1K,64K,1M,64M")
    parser.add_argument("--repeats", type=int, help="launches of each program a point; default: 5, with --quick 3")
    return parser.parse_args()


def plan_jobs(ranks_list, operations, sizes):
    """What one launch measures: ping-pong, or all collectives at all sizes but the largest, which has launches of its own."""
    jobs = []
    for ranks in ranks_list:
        if "pingpong" in operations:
            jobs.append((ranks, ["pingpong"], [SMALL_MESSAGE] + ([LARGEST] if LARGEST in sizes and ranks == 2 else [])))
        for part in ([size for size in sizes if size < LARGEST], [size for size in sizes if size >= LARGEST]):
            collectives = [operation for operation in operations if operation != "pingpong"]
            if part and collectives:
                jobs.append((ranks, collectives, part))
    return jobs


def main():
    arguments = parse_arguments()
    quick = arguments.quick
    sizes = sorted(parse_sizes(arguments.sizes or ("1K,64K,1M,64M" if quick else "1K,4K,16K,64K,256K,1M,4M,16M,64M")))
    repeats = arguments.repeats or (3 if quick else 5)
    pace = (0.02, 0.2) if quick else (0.03, 0.3)
    ranks_list = [int(ranks) for ranks in arguments.ranks.split(",")]
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="tsp-compare-") as name:
        folder = pathlib.Path(name)
        programs = arguments.build / "bench"
        peers, skipped = find_peers(arguments, programs if programs.is_dir() else folder, pace)
        mpis = [name for name in peers if name not in ("ours", "floor")]
        flag = Flag(lambda ranks, ops, sizes, out:
                    [str(programs / "floor"), "-n", str(ranks)] + measuring_arguments(ops, sizes, out, (0.005, 0.02)), folder)
        points = measure(peers, plan_jobs(ranks_list, arguments.ops.split(","), sizes), repeats, folder, flag)
    rows = summarise(points, mpis)
    print_table(rows, mpis, skipped)
    fastest = flag.fastest if flag.fastest < float("inf") else None  # on one core there is none
    if fastest is not None:
        print(f"# the fastest flag between two cores took {fastest * 1e9:.0f} ns; {flag.slow} launches had only slow ones beside them")
    lines = verdicts(rows, mpis, cores)
    shares = idle.measure(arguments.build / "launcher/tsprun", 8, 5)
    worst = max(shares[1:])
    lines.append({"bar": "idle ranks: below 2% of a core each", "reached": worst < idle.BAR, "measured": f"worst {worst * 100:.2f}%"})
    print()
    print_bars(lines)
    write_figures(arguments.json, {"cores": cores, "flag_s": fastest, "slow_launches": flag.slow, "repeats": repeats,
                                   "skipped": skipped, "points": rows, "bars": lines, "idle": shares})
    return 0


if __name__ == "__main__":
    sys.exit(main())
