"""Attacks by crashes with core dumps, and on jobs of very many ranks."""
import hashlib
import os
import pathlib
import resource
import signal
import socket
import time

from harness import NotHere, attack, kill, need

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


@attack
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


@attack
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
