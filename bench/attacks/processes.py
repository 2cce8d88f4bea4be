"""Attacks by signals, limits, core dumps and outputs that nobody reads."""
import fcntl
import hashlib
import json
import math
import os
import pathlib
import re
import resource
import signal
import stat
import subprocess
import sys
import time

from harness import Broken, NotHere, attack, kill, need
from networks import free_port

LONG = ("--steps", 1000000)


def trained_for(run, seconds):
    """Lets a training run for a while."""
    time.sleep(seconds)
    need(run.process.poll() is None, f"it ended early: {run.process.poll()}")


@attack()
def a_limit_on_data(bench):
    """A limit on memory that lets no rank compute ends with a verdict or a refusal within the deadline and a few seconds."""
    ended = bench.tsprun_ends("-n", 2, "--timeout", 3, *bench.train("--steps", 20),
                              before=lambda: resource.setrlimit(resource.RLIMIT_DATA, (60000 << 10, 60000 << 10)), seconds=30)
    need(ended.code in (1, 2) and ended.seconds < 15, str(ended))


@attack()
def all_ranks_stopped(bench):
    """Ranks that are all stopped are called stalled when the deadline has passed."""
    run = bench.start("-n", 2, "--timeout", 2, *bench.train(*LONG))
    ranks = run.ranks(2)
    trained_for(run, 1)
    for pid in ranks:
        kill(pid, signal.SIGSTOP)
    ended = run.end(20)
    need(ended.code == 1 and ended.failure().get("kind") == "stalled", str(ended))


@attack()
def a_program_that_is_stopped(bench):
    """A program under `run` that is stopped is reported."""
    run = bench.start("--timeout", 2, "-n", 2, "run", "--", sys.executable, "-c", "import time; time.sleep(600)")
    guardians = run.ranks(2)
    time.sleep(1)
    programs = [int(child) for pid in guardians for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    need(programs, "no programs found below the guardians")
    for pid in programs:
        kill(pid, signal.SIGSTOP)
    ended = run.end(30)
    need(ended.code != 0 and "stop" in ended.err.lower() or ended.failure().get("kind") == "stalled", str(ended))


def crash_of_two_nodes(bench, name, victim):
    """Trains on two nodes with TLS, core dumps allowed, and ends a process of the second by SIGSEGV: the run of `node` 0, that of
    node 1, the seconds until node 0 had ended, and the core. `victim` picks the process from node 1's tsprun and its ranks."""
    text, marker = os.urandom(32).hex(), os.urandom(32).hex()
    folders = [bench.folder / f"{name}{node}" for node in range(2)]
    for folder in folders:
        folder.mkdir()
    (bench.folder / "secret").write_text(text + "\n")
    (bench.folder / "secret").chmod(0o600)
    # One node has the secret from its environment, where the marker is, too; the other from a file.
    port = free_port()
    runs = [bench.start("-n", 4, "--nnodes", 2, "--node-rank", node, "--rendezvous", f"127.0.0.1:{port}", "--tls", "on", "--timeout", 20,
                        *(["--secret-file", bench.folder / "secret"] if (node == 1) == (name == "rank") else []), *bench.train(*LONG),
                        cwd=folders[node], environment={"TSP_SECRET": text, "OF_THIS_ATTACK": marker},
                        before=lambda: resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)))
            for node in range(2)]
    ranks = runs[1].ranks(2)
    runs[0].ranks(2)
    trained_for(runs[1], 2)
    began = time.monotonic()
    kill(victim(runs[1].process.pid, ranks), signal.SIGSEGV)
    runs[0].end(30)
    took = time.monotonic() - began
    runs[1].end(30)
    cores = list(folders[1].glob("core*"))
    if not cores:
        raise NotHere("the kernel writes no core file into the folder of a process that crashes")
    dump = cores[0].read_bytes()
    need(len(cores) == 1 and cores[0].stat().st_blocks * 512 < 300 << 20, f"{name}: {[(core, core.stat().st_blocks * 512) for core in cores]}")
    need(marker.encode() in dump, f"{name}: the core of {len(dump)} bytes doesn't hold the environment: it proves nothing")
    hashed = hashlib.sha256(text.encode()).digest()
    for what, secret in (("text", text.encode()), ("hash", hashed)):
        for at in range(0, len(secret), 16):
            need(secret[at:at + 16] not in dump, f"{name}: the core holds bytes {at} to {at + 15} of the secret's {what}")
    return runs, took


@attack()
def a_crash_with_core_dumps(bench):
    """A crash with core dumps allowed is named within a second, and the core holds neither the node's memory nor the secret."""
    if pathlib.Path("/proc/sys/kernel/core_pattern").read_text().startswith("|"):
        raise NotHere("cores go to a program on this machine")
    runs, took = crash_of_two_nodes(bench, "rank", lambda tsprun, ranks: ranks[1])
    for run in runs:
        need(run.failure().get("signal") == signal.SIGSEGV and run.failure().get("rank") == 3, str(run))
    need(took < 2, f"the verdict took {took:.1f} s: {runs[0]}")
    runs, _ = crash_of_two_nodes(bench, "tsprun", lambda tsprun, ranks: tsprun)
    need(runs[0].code == 1 and runs[0].failure().get("node") == 1, str(runs[0]))


def full_pipe():
    """A pipe that takes no byte more; its ends."""
    reading, writing = os.pipe()
    flags = fcntl.fcntl(writing, fcntl.F_GETFL)
    fcntl.fcntl(writing, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        pass
    fcntl.fcntl(writing, fcntl.F_SETFL, flags)
    return reading, writing


@attack()
def output_that_nobody_reads(bench):
    """The first SIGTERM ends tsprun when its stdout or stderr is a full pipe."""
    for stream in ("stdout", "stderr"):
        reading, writing = full_pipe()
        try:
            run = bench.start("-n", 2, *bench.train(*LONG), **{stream: writing})
            os.close(writing)
            run.ranks(2)
            trained_for(run, 1.5)
            run.signal(signal.SIGTERM)
            began = time.monotonic()
            try:
                run.process.wait(10)
            except subprocess.TimeoutExpired:
                run.process.kill()
                run.process.wait()
                raise Broken(f"with a full {stream} it lives on 10 s after SIGTERM") from None
            need(time.monotonic() - began < 6, f"with a full {stream} the end took {time.monotonic() - began:.1f} s")
        finally:
            os.close(reading)


@attack(short=False)
def a_thousand_ranks_end(bench):
    """A thousand ranks start and end within seconds when one is killed."""
    run = bench.start("-n", 1000, "run", "--", "sleep", "1000")
    ranks = run.ranks(1000, 120)
    time.sleep(1)
    began = time.monotonic()
    kill(ranks[500], signal.SIGKILL)
    ended = run.end(120)
    took = time.monotonic() - began
    need(ended.code != 0 and took < 10, f"the end took {took:.1f} s")


@attack()
def an_early_sigusr1(bench):
    """SIGUSR1 in the first milliseconds doesn't kill tsprun."""
    for delay in (0, 0.002, 0.005, 0.01, 0.02, 0.03):
        run = bench.start("-n", 2, *bench.train("--steps", 2))
        # Before main() nobody can promise anything: the loader is at work until the program's libraries are mapped and relocated.
        status = pathlib.Path(f"/proc/{run.process.pid}/status")
        while int(re.search(r"^SigIgn:\s*(\w+)", status.read_text(), re.MULTILINE).group(1), 16) >> (signal.SIGPIPE - 1) & 1 == 0:
            need(run.process.poll() is None, f"it ended at once: {run.process.poll()}")
        time.sleep(delay)
        run.signal(signal.SIGUSR1)
        need(run.end(30).code == 0, f"after {delay} s: {run}")


@attack()
def a_killed_tsprun_leaves_no_empty_report(bench):
    """kill -9 of tsprun leaves no empty --json file."""
    run = bench.start("-n", 2, "--json", bench.folder / "kept.json", *bench.train(*LONG))
    run.ranks(2)
    trained_for(run, 0.5)
    run.signal(signal.SIGKILL)
    run.end()
    report = bench.folder / "kept.json"
    need(not report.exists() or report.stat().st_size > 0, "an empty report lies there")


@attack()
def a_fifo_as_output(bench):
    """A FIFO as an output file is refused, or opened without waiting for a reader."""
    fifo = bench.folder / "fifo"
    os.mkfifo(fifo)
    for option in ("--json", "--trace"):
        ended = bench.start(option, fifo, "-n", 1, *bench.train("--steps", 2)).end(20)
        need(ended.seconds < 15 and ended.code in (1, 2), f"{option}: {ended}")


@attack()
def an_open_umask(bench):
    """With umask 000 the secret's folder and file are open to nobody else."""
    home = bench.folder / "home"
    home.mkdir()
    bench.tsprun_ends("-n", 1, "--nnodes", 1, "--node-rank", 0, "--rendezvous", "127.0.0.1:29555", *bench.train("--steps", 1),
                      environment={"HOME": str(home), "XDG_CONFIG_HOME": ""}, before=lambda: os.umask(0))
    for path in home.rglob("*"):
        need(stat.S_IMODE(path.stat().st_mode) & 0o022 == 0, f"{path.relative_to(home)} has mode {path.stat().st_mode:o}")
        if path.name == "secret":
            need(stat.S_IMODE(path.stat().st_mode) == 0o600, f"the secret has mode {path.stat().st_mode:o}")


@attack()
def a_scheduler_signals_ranks_first(bench):
    """SIGTERM to the ranks and then to tsprun, as Slurm does, is an interruption: no rank is blamed, nothing restarts."""
    for order in ("ranks first", "together", "tsprun first"):
        folder = f"saved-{order.replace(' ', '-')}"
        run = bench.start("-n", 2, *bench.train(*LONG, "--save", folder, "--save-every", 100, "--max-restarts", 2))
        ranks = run.ranks(2)
        trained_for(run, 1)
        targets = ranks + [run.process.pid] if order != "tsprun first" else [run.process.pid] + ranks
        for number, pid in enumerate(targets):
            if order == "ranks first" and number == len(targets) - 1:
                time.sleep(0.05)
            kill(pid, signal.SIGTERM)
        ended = run.end(30)
        need(ended.failure().get("kind") == "interrupted" and ended.code == 128 + signal.SIGTERM, f"{order}: {ended}")
        need(not ended.report.get("attempts"), f"{order}: it restarted: {ended}")


@attack()
def usr1_to_all(bench):
    """SIGUSR1 and SIGHUP to ranks don't end training."""
    run = bench.start("-n", 2, *bench.train("--steps", 3000))
    for pid in run.ranks(2):
        kill(pid, signal.SIGUSR1)
        kill(pid, signal.SIGHUP)
    run.signal(signal.SIGUSR1)
    need(run.end(120).code == 0, str(run))


@attack()
def a_python_exception(bench):
    """An exception that a program doesn't catch isn't told as a good end."""
    code = "import os\nif os.environ['RANK'] == '1': raise ValueError('bang')"
    ended = bench.tsprun_ends("-n", 2, "run", "--", sys.executable, "-c", code)
    need(ended.code == 1 and ended.failure().get("rank") == 1 and "good order" not in ended.err, str(ended))


@attack(short=False)
def short_jobs_under_load(bench):
    """No short job on a loaded machine is warned of slow links."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        for number in range(100):
            ended = bench.tsprun_ends("-n", 4, *bench.train("--steps", 2))
            need(ended.code == 0, f"job {number}: {ended}")
            need("slowly" not in ended.err and "slowly" not in ended.out, f"job {number}: {ended.err}{ended.out[-500:]}")
    finally:
        for burner in burners:
            burner.kill()


@attack()
def outputs_that_cant_be_written(bench):
    """A trace that can't be written ends a finished job with exit 1, its audit printed; one file for two outputs is refused."""
    ended = bench.tsprun_ends("-n", 2, "--trace", bench.folder / "missing" / "trace.json", *bench.train("--steps", 2))
    need(ended.code in (1, 2) and "trace.json" in ended.err, str(ended))
    same = bench.tsprun_ends("-n", 2, "--trace", bench.folder / "same.json", "--json", bench.folder / "same.json", *bench.train("--steps", 2))
    need(same.code == 2, f"the same file for two outputs: {same}")


@attack()
def a_report_on_stdout(bench):
    """`--json -` writes the report to stdout, alone where nothing else is printed there."""
    ended = bench.tsprun_ends("--json", "-", "plan", "--config", "nano", "--layout", "tsp=2")
    begin = ended.out.find("{")
    need(ended.code == 0 and begin >= 0, str(ended))
    try:
        report, _ = json.JSONDecoder().raw_decode(ended.out[begin:])
    except ValueError as error:
        raise Broken(f"no JSON on stdout: {error}: {ended.out[:300]}") from error
    need(report.get("command") == "plan" and not math.isnan(len(report)), str(report)[:200])


@attack()
def interrupted_training_saves(bench):
    """SIGTERM makes training with --save write a checkpoint and say how to go on; --resume goes on from it."""
    run = bench.start("-n", 2, *bench.train(*LONG, "--save", "runs", "--save-every", 1000000))
    run.ranks(2)
    trained_for(run, 2)
    run.signal(signal.SIGTERM)
    ended = run.end(30)
    need(ended.code == 128 + signal.SIGTERM and list((bench.folder / "runs").glob("step-*")), str(ended))
    need("--resume" in ended.err, f"it doesn't say how to go on: {ended.err[-500:]}")
    step = int(sorted((bench.folder / "runs").glob("step-*"))[-1].name.split("-")[1])
    more = bench.tsprun_ends("-n", 2, "train", "--resume", "runs", "--data", bench.text, "--steps", step + 2)
    need(more.code == 0 and more.report["steps"][0]["step"] == step + 1, str(more))
