#!/usr/bin/env python3
"""Runs programs beside it on ranks, and checks how their jobs end: check.py CASE TSPRUN PACKAGE_DIR."""

import ast
import atexit
import contextlib
import inspect
import json
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import typing



def block_of_ports():
    """The first of sixteen ports, since lives.py takes the next ones, too, that no other test takes as long as this process lives: an
    abstract socket of the block's name reserves it."""
    global reserved
    reserved = socket.socket(socket.AF_UNIX)
    for i in range(150):
        first = 7000 + 16 * ((os.getpid() + i) % 150)
        with contextlib.suppress(OSError):
            reserved.bind(f"\0ports-of-a-test-{first}")
            return first
    sys.exit("all blocks of ports are taken")


case, tsprun, package = sys.argv[1:]
here = os.path.dirname(os.path.abspath(__file__))
tempfile.tempdir = tempfile.mkdtemp()  # torchrun leaves folders behind
atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)
# Without GPUs: where there is one, PyTorch's PowerSGD hook waits for it, whatever device the tensors are on.
environment = dict(os.environ, PYTHONPATH=package, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", TMPDIR=tempfile.tempdir)
deadline = time.monotonic() + 360  # of all that is forked: before ctest's, which would leave ranks behind that nobody watches
port = block_of_ports()
if case in ("alone", "torchrun"):  # their processes are forked from this one, which imports torch for all of them
    os.environ.update(environment)
    sys.path.insert(0, package)
    import torch.distributed.run
    import tsprun_torch


def run(program, ranks, *options, arguments=()):
    command = [tsprun, "-n", str(ranks), *options, "run", "--", sys.executable, os.path.join(here, program), *arguments]
    begin = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    print(" ".join(command), f"\n{done.stdout}{done.stderr}exit code {done.returncode}, {time.monotonic() - begin:.1f} s")
    return done


def good(done, *programs):
    """Checks that the job was good, and that in_turn.py has said so of each of the programs."""
    missing = [program for program in programs if f"{program} is good" not in done.stdout]
    assert done.returncode == 0 and not missing, f"exit code {done.returncode}; the first of these wasn't good: {missing}"
    assert programs or "ok" in done.stdout or "step 50" in done.stdout


def in_turn(ranks, *programs, options=()):
    """Runs the programs one after the other in one job, since importing torch is most of a job's work."""
    done = run("in_turn.py", ranks, *options, arguments=programs)
    good(done, *programs)
    return done


def forked(program, *arguments, **variables):
    """Starts the program in a fork of this process; returns its process id and the file of its output."""
    output = tempfile.TemporaryFile("w+")
    sys.stdout.flush()
    if process := os.fork():
        return process, output
    os.setsid()
    atexit.unregister(shutil.rmtree)
    os.environ.update(variables)
    for stream in 1, 2:
        os.dup2(output.fileno(), stream)
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
    sys.exit()


def ends(processes):
    """Waits until all that forked() has started end by themselves; returns what became of them. Nothing that they started stays behind."""
    codes = {}
    try:
        while len(codes) < len(processes) and time.monotonic() < deadline:
            for process, _ in processes:
                if process not in codes:
                    ended, status = os.waitpid(process, os.WNOHANG)
                    if ended:
                        codes[process] = os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
    finally:
        for process, _ in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
    done = []
    for process, output in processes:
        output.seek(0)
        done.append(subprocess.CompletedProcess(process, codes.get(process), output.read(), ""))
        print(f"process {len(done) - 1}:\n{done[-1].stdout}exit code {done[-1].returncode}")
    hanging = [number for number, each in enumerate(done) if each.returncode is None]
    assert not hanging, f"processes {hanging} didn't end by themselves"
    return done


def torchrun(*command, nodes=(2,)):
    """Runs the program on as many ranks of each node, by one torchrun for each; this machine stands for all nodes."""
    return ends([forked(torch.distributed.run.__file__, "--monitor_interval", "0.1", "--nnodes", str(len(nodes)), "--node_rank", str(node),
                        "--nproc_per_node", str(ranks), "-r", "9:1", "-t", "9:1", "--master_addr", "127.0.0.1", "--master_port", str(port),
                        os.path.join(here, command[0]), *command[1:], TSP_NODE=str(node), TSP_TIMEOUT="120") for node, ranks in enumerate(nodes)])


def alone(program, ranks=3, fails=True):
    """Runs the program on ranks that nobody watches, and returns their outputs. They must end by themselves, and all fail or none."""
    done = ends([forked(os.path.join(here, program), RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                        TSP_TIMEOUT="120") for rank in range(ranks)])
    assert all((each.returncode != 0) == fails for each in done), program
    return [each.stdout for each in done]


if case == "one_rank":
    in_turn(1, "collectives.py", "sums.py")
elif case == "three_ranks":
    in_turn(3, "results.py", "callbacks.py", "sums.py", "views.py", "shapes.py", "ddp.py", "late.py", "lives.py")
elif case == "four_ranks":
    in_turn(4, "collectives.py", "split.py", "sharded.py", "../../examples/torch_context_parallel.py")
elif case == "over_tcp":
    in_turn(3, "collectives.py", options=["--intra", "tcp"])
elif case == "heap":
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        done = in_turn(2, "heap.py", "collectives.py", "ddp.py", "cnn.py", "left.py", options=["--mem-per-rank", "88M", "--trace", file.name])
        assert "no events" not in done.stderr
        events = json.load(file)["traceEvents"]
    for rank in range(2):
        names = {event["name"] for event in events if event["ph"] == "X" and event["pid"] == rank}
        assert {"all_reduce", "broadcast"} <= names, names
    arrows = [sorted(event["id"] for event in events if event["ph"] == end) for end in "sf"]
    assert arrows[0] == arrows[1] and len(arrows[0]) > 0
elif case == "compute":
    in_turn(2, "compute.py", options=["--timeout", "2"])
elif case == "mismatch":
    done = run("mismatch.py", 2)
    assert done.returncode != 0 and "mismatch" in done.stderr and "all_reduce" in done.stderr
elif case == "fail":
    done = run("fail.py", 2)
    assert done.returncode != 0 and done.stdout.count("ranks were told why") == 2
    assert "the program of rank 1 ended the job" in done.stderr and "why: the loss isn't finite" in done.stderr
elif case == "killed":
    for program, ranks in ("killed.py", 2), ("killed_sender.py", 3):
        done = run(program, ranks)
        assert done.returncode != 0 and "rank 1" in done.stderr and "signal 9" in done.stderr
    assert "ranks were told of rank 1" in done.stdout, "by the error that each waiting rank gets"
elif case == "alone":
    outputs = alone("killed.py")
    assert all("rank 1 is gone" in outputs[rank] for rank in (0, 2))
    outputs = alone("raised.py")
    assert all("the program of rank 1 ended the job: uncaught ValueError: the data of this rank are empty" in outputs[rank] for rank in (0, 2))
    outputs = alone("unawaited.py", 2)
    assert "isn't over within 3 s of its call: it waits for rank 1" in outputs[0]
    outputs = alone("lives.py", fails=False)
    assert all("ok" in output for output in outputs) and any("unlike roots found" in output for output in outputs)
elif case == "upstream":
    with tempfile.TemporaryDirectory() as folder:
        tests = [sys.executable, os.path.join(here, "upstream.py"), "--passed", os.path.join(folder, "passed")]
        for name in [], ["--as-gloo"]:
            done = subprocess.run([*tests, *name], env=environment, capture_output=True, text=True)
            print(done.stdout[-2000:], done.stderr[-20000:])
            assert done.returncode == 0
elif case == "torchrun":
    good(torchrun("in_turn.py", "collectives.py")[0], "collectives.py")
    good(torchrun("in_turn.py", "collectives.py", "ddp.py", nodes=(2, 2))[0], "collectives.py", "ddp.py")
    # The first node's torchrun ends rank 0 as soon as it sees what happened to rank 1, and says so itself.
    first, second = torchrun("killed.py", nodes=(2, 1))
    assert first.returncode != 0 and ("rank 1 is gone" in first.stdout or "Signal 9 (SIGKILL) received" in first.stdout)
    assert second.returncode != 0 and "rank 1 is gone" in second.stdout
elif case == "spawned":
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, os.path.join(here, "spawned.py"), folder], env=environment, capture_output=True, text=True, timeout=300)
    print(f"{done.stdout}{done.stderr}exit code {done.returncode}")
    good(done)
elif case == "manual":
    # The first commands of the manual, as they are printed there, where its reader would say them: with this build as build/release.
    root = os.path.join(here, "../..")
    with open(os.path.join(root, "docs/how-to/pytorch.md")) as page:
        blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read(), re.MULTILINE | re.DOTALL)
    commands = next(text for language, text in blocks if not language)
    assert "tsprun -n 4 run" in commands
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.realpath(os.path.join(root, "examples")), os.path.join(folder, "examples"))
        os.makedirs(os.path.join(folder, "build"))
        os.symlink(os.path.realpath(os.path.join(package, "../../..")), os.path.join(folder, "build/release"))
        bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PATH")}
        bare["PATH"] = "/usr/bin:/bin"
        done = subprocess.run(["sh", "-ec", commands], cwd=folder, env=bare, capture_output=True, text=True, timeout=300)
    print(f"{commands}{done.stdout}{done.stderr}exit code {done.returncode}")
    good(done)
elif case == "wheel":
    # Made by the script, installed by pip into an environment of its own, and used there without an import and without PYTHONPATH.
    build = os.path.realpath(os.path.join(package, "../../.."))
    with tempfile.TemporaryDirectory() as folder:
        def output(*words):
            done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=folder)
            print(" ".join(words), f"\n{done.stdout}{done.stderr}exit code {done.returncode}")
            assert done.returncode == 0
            return done.stdout

        wheel = output(os.path.join(here, "../../tools/wheel.sh"), build, os.path.join(folder, "made")).strip()
        output(sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", os.path.join(folder, "venv"))
        python = os.path.join(folder, "venv/bin/python")
        output(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", wheel)  # with what it requires: torch
        about = output(python, "-c", "import importlib.metadata as m; print(m.version('tsprun-torch'), *m.requires('tsprun-torch'))")
        assert re.fullmatch(r"[\d.]+\+torch(\d+\.\d+) torch ?\(?==\1\.\*\)?\n", about), about
        files = output(python, "-c", "import importlib.metadata as m; print(*m.files('tsprun-torch'))")
        assert all(f"tsprun_torch/{name}" in files.split() for name in ("_tsprun.so", "_tsprun.pyi", "py.typed", "__init__.py"))
        del environment["PYTHONPATH"]
        done = subprocess.run([tsprun, "-n", "2", "run", "--", python, os.path.join(here, "no_import.py")], env=environment, capture_output=True,
                              text=True, timeout=300, cwd=folder)
        print(f"{done.stdout}{done.stderr}exit code {done.returncode}")
        good(done)
        assert os.path.join(folder, "venv") in done.stdout, "it was another copy of the package"
elif case == "types":
    sys.path.insert(0, package)
    import tsprun_torch
    from tsprun_torch import _tsprun

    # Python's part says its types itself.
    for name in tsprun_torch.__all__:
        function = getattr(tsprun_torch, name)
        if inspect.isfunction(function):
            parameters = inspect.signature(function).parameters
            assert set(typing.get_type_hints(function)) == {*parameters, "return"}, name
    # The extension's are in a stub, which must have each function with the parameters that pybind11 knows.
    with open(os.path.join(package, "tsprun_torch/_tsprun.pyi")) as stub:
        described = {node.name: node for node in ast.parse(stub.read()).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    public = {name: value for name, value in vars(_tsprun).items() if not name.startswith("__")}
    assert described.keys() == public.keys(), (sorted(described), sorted(public))
    methods = {name: value for name, value in vars(_tsprun.ProcessGroupTsprun).items() if not name.startswith("__")}
    of_class = {node.name: node for node in described["ProcessGroupTsprun"].body}
    assert of_class.keys() == methods.keys(), (sorted(of_class), sorted(methods))
    for name, function in {**public, **methods}.items():
        node = {**described, **of_class}[name]
        if isinstance(node, ast.FunctionDef):
            signature = function.__doc__.splitlines()[0]
            pairs = [(argument.arg, argument in node.args.args[len(node.args.args) - len(node.args.defaults):]) for argument in node.args.args]
            known = [(argument.split(":")[0].strip(), "=" in argument) for argument in re.findall(r"\w+: [^,()]*(?:\[[^()]*?\][^,()]*)?", signature)]
            assert pairs == known, (name, pairs, known, signature)
            assert node.returns is not None and all(argument.annotation or argument.arg == "self" for argument in node.args.args), name
    print("ok")
elif case == "started":
    sys.path.insert(0, os.path.join(here, "../../bindings/torch/tsprun_torch"))
    import starters

    of_srun = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0",
               "SLURM_STEP_NODELIST": "gpu[07-08],login"}
    found = starters.variables(of_srun)
    assert {name: value for name, value in found.items() if name != "MASTER_PORT"} == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "gpu07"}
    assert 20000 <= int(found["MASTER_PORT"]) < 32000
    assert found["MASTER_PORT"] == starters.variables(dict(of_srun, SLURM_PROCID="0", SLURM_LOCALID="0"))["MASTER_PORT"]
    assert found["MASTER_PORT"] != starters.variables(dict(of_srun, SLURM_STEP_ID="1"))["MASTER_PORT"]
    assert starters.variables(dict(of_srun, MASTER_ADDR="10.0.0.1")).get("MASTER_ADDR") is None, "what is set stays"
    for others in {"RANK": "0"}, {"TSP_NODE_FD": "5"}:
        assert starters.variables(dict(of_srun, **others)) == {}
    assert starters.variables({"SLURM_PROCID": "0", "SLURM_JOB_ID": "17"}) == {}, "a batch script isn't a rank"
    good(run("started.py", 2))
    for starter in "mpirun.openmpi", "mpirun.mpich":
        if not shutil.which(starter):
            print(f"{starter} isn't installed")
            continue
        started = [starter, "-n", "2", *(["--allow-run-as-root", "--oversubscribe"] if starter == "mpirun.openmpi" else [])]
        done = subprocess.run([*started, sys.executable, os.path.join(here, "started.py")], env=environment, capture_output=True, text=True,
                              timeout=60)
        print(f"{starter}: {done.stdout}{done.stderr}exit code {done.returncode}")
        good(done)
else:
    sys.exit(f"no case {case}")
