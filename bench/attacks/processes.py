"""Attacks by signals, limits, core dumps, shared folders, and outputs that nobody reads."""
import fcntl
import hashlib
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import time

from harness import Broken, NotHere, attack, kill, need

LONG = ("--steps", 1000000)


def free_port():
    """A port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def trained_for(run, seconds):
    """Lets a training run for a while."""
    time.sleep(seconds)
    need(run.process.poll() is None, f"it ended early: {run.process.poll()}")


@attack()
def two_runs_in_one_folder(bench):
    """A second run into a save folder that a run is using is refused by name; the first goes on."""
    first = bench.start("-n", 2, "--fault", "delay:from=0,to=1,ms=2,prob=0.5",
                        *bench.train("--seed", 1, "--steps", 400, "--save", "mix", "--save-every", 10))
    deadline = time.monotonic() + 30
    while not list(bench.folder.glob("mix/step-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    second = bench.tsprun_ends("-n", 2, *bench.train("--seed", 2, "--steps", 20, "--save", "mix", "--save-every", 20))
    need(first.process.poll() is None, f"the first run ended: {first.process.poll()}")
    first.signal(signal.SIGTERM)
    first.end()
    need(second.code == 2 and "mix" in second.err, f"the second run wasn't refused: {second}")


@attack(short=False)
def a_limit_on_data(bench):
    """A limit on memory that lets no rank compute ends with a verdict or a refusal within the deadline and a few seconds."""
    ended = bench.tsprun_ends("-n", 2, "--timeout", 3, *bench.train("--steps", 20),
                              before=lambda: resource.setrlimit(resource.RLIMIT_DATA, (60000 << 10, 60000 << 10)), seconds=30)
    need(ended.code in (1, 2) and ended.seconds < 25, str(ended))


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
