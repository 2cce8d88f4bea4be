"""Attacks by networks: two network namespaces joined by a slow or interrupted link."""
import contextlib
import os
import shutil
import subprocess
import time

from harness import NotHere, attack, need

NAMES = (f"tsprun-{os.getpid()}-a", f"tsprun-{os.getpid()}-b")
ADDRESSES = ("10.213.7.1", "10.213.7.2")


def ip(*words):
    """Runs ip(8); raises NotHere if it can't."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        raise NotHere("network namespaces need root and ip(8), package iproute2")
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotHere(f"ip {' '.join(words)}: {done.stderr.strip()}")


def on_node(node, *words):
    """The words of a command in one of the two namespaces."""
    return ["ip", "netns", "exec", NAMES[node], *map(str, words)]


@contextlib.contextmanager
def two_namespaces():
    """Two namespaces joined by a pair of virtual links, both up; taken away at the end."""
    for name in NAMES:
        ip("netns", "add", name)
    try:
        ip("link", "add", "tsa", "netns", NAMES[0], "type", "veth", "peer", "name", "tsb", "netns", NAMES[1])
        for name, link, address in zip(NAMES, ("tsa", "tsb"), ADDRESSES):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", link, "up")
        yield
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def slow_links(rate):
    """A bottleneck at both ends with a queue of two seconds."""
    for name, link in zip(NAMES, ("tsa", "tsb")):
        words = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", link, "root", "tbf", "rate", rate, "burst", "8kb", "latency", "2000ms"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotHere(f"tc: {done.stderr.strip()}")


def start_nodes(bench, *words, timeout=10):
    """A tsprun in each namespace, one job."""
    (bench.folder / "secret").write_text("0123456789abcdef0123456789abcdef\n")
    (bench.folder / "secret").chmod(0o600)
    runs = []
    for node in range(2):
        report = bench.folder / f"node{node}.json"
        command = on_node(node, bench.tsprun, "-n", 2, "--nnodes", 2, "--node-rank", node, "--rendezvous", f"{ADDRESSES[0]}:29400",
                          "--secret-file", bench.folder / "secret", "--timeout", timeout, "--json", report, *words)
        runs.append(bench.spawn(command, report))
    return runs


@attack
def endings_on_a_slow_link(bench):
    """Over 1 Mbit/s with two seconds of queue both nodes end with one verdict and one exit code."""
    with two_namespaces():
        slow_links("1mbit")
        for words in (bench.train("--steps", 3), ["--fault", "kill:rank=1,step=2", *bench.train("--steps", 4)]):
            ends = [run.end(300) for run in start_nodes(bench, *words, timeout=30)]
            need(ends[0].code == ends[1].code, f"unlike ends: {ends[0]}; {ends[1]}")
            verdicts = [(end.failure().get("kind"), end.failure().get("rank")) for end in ends]
            need(verdicts[0] == verdicts[1], f"unlike verdicts: {ends[0]}; {ends[1]}")


@attack
def an_outage_shorter_than_the_deadline(bench):
    """A link that is down for nine seconds of a deadline of ten doesn't end the job."""
    with two_namespaces():
        runs = start_nodes(bench, "--fault", "delay:from=0,to=1,ms=5", *bench.train("--steps", 200), timeout=10)
        time.sleep(5)
        ip("-n", NAMES[0], "link", "set", "tsa", "down")
        time.sleep(9)
        ip("-n", NAMES[0], "link", "set", "tsa", "up")
        ends = [run.end(240) for run in runs]
        need(all(end.code == 0 for end in ends), f"{ends[0]}; {ends[1]}")


@attack
def a_link_that_is_cut(bench):
    """A link that stays down ends both nodes within the deadline and a few seconds, with words."""
    with two_namespaces():
        runs = start_nodes(bench, "--fault", "delay:from=0,to=1,ms=5", *bench.train("--steps", 100000), timeout=5)
        time.sleep(5)
        began = time.monotonic()
        ip("-n", NAMES[0], "link", "set", "tsa", "down")
        ends = [run.end(60) for run in runs]
        took = time.monotonic() - began
        need(all(end.code == 1 and end.failure() for end in ends) and took < 15, f"after {took:.1f} s: {ends[0]}; {ends[1]}")
