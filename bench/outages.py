#!/usr/bin/env python3
"""Cuts the network between two nodes of a training for a while, at a random moment. Two network namespaces, joined by a link, stand
for two machines. While the outage lasts packets vanish without a word, or with --down the link is down, which its nodes see. Needs
root and iproute2; nothing outside the namespaces changes.

An outage shorter than --timeout must be survived, with the losses of an undisturbed training. With --fails it is longer, and must
end the job on both nodes within a few seconds of the deadline: exit code 1, and one verdict that blames no rank, since neither node
can know on which side the fault is. --lost names whose packets are lost: of both nodes, or of one.

With --slow nothing is cut, but the link carries so little that a queue of two seconds forms: a training that ends well and one of
which a rank is killed must end on both nodes with one exit code and one verdict.

    bench/outages.py --build build/release --timeout 10 --outage 9 --times 5
    bench/outages.py --timeout 10 --outage 9 --older-kernel      # as if TCP_RTO_MAX_MS (Linux 6.15) didn't exist
    bench/outages.py --timeout 5 --outage 20 --lost 0 --fails    # only what node 0 sends
    bench/outages.py --timeout 30 --slow 1mbit

Exit code 0: as it must be; 1: not; 77: this machine can't make namespaces.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
#: steps of a training that must fail
ENDLESS = 1000000
#: seconds beyond the deadline that both nodes may take to end
MOST_LATE = 5


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Network:
    """Nodes 10.77.0.1 and 10.77.0.2, joined by a link."""

    ADDRESSES = ("10.77.0.1", "10.77.0.2")

    def __init__(self, arguments):
        self.names = [f"tsp{os.getpid()}{which}" for which in ("a", "b")]
        self.down, self.slow = arguments.down, arguments.slow

    def __enter__(self):
        for name in self.names:
            try:
                made = ip("netns", "add", name, check=False)
                reason = made.stdout.strip() if made.returncode != 0 else ""
            except FileNotFoundError:
                reason = "there is no ip(8): install iproute2"
            if reason:
                self.__exit__()
                print(f"no network namespaces here: {reason}")
                sys.exit(77)
        try:
            self.join()
        except subprocess.CalledProcessError as error:
            self.__exit__()
            print(f"no network between namespaces here: {error.cmd} failed: {(error.stdout or '').strip()}")
            sys.exit(77)
        return self

    def join(self):
        """Connects the namespaces by a veth pair."""
        ip("link", "add", "eth0", "netns", self.names[0], "type", "veth", "peer", "name", "eth0", "netns", self.names[1])
        for name, address in zip(self.names, self.ADDRESSES):
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            if self.slow:
                bottleneck = ["root", "tbf", "rate", self.slow, "burst", "8kb", "latency", "2000ms"]
                ip("netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", *bottleneck)

    def __exit__(self, *_):
        for name in self.names:
            try:
                ip("netns", "del", name, check=False)
            except FileNotFoundError:
                return

    def cut(self, senders):
        """Loses what these nodes send each other: it goes to an Ethernet address that nobody has, unless the link is down."""
        for node in senders:
            if self.down:
                ip("-n", self.names[node], "link", "set", "eth0", "down")
            else:
                self.neighbour("replace", node, "lladdr", "02:00:00:00:00:99", "nud", "permanent")

    def mend(self, senders):
        for node in senders:
            if self.down:
                ip("-n", self.names[node], "link", "set", "eth0", "up")
            else:
                self.neighbour("del", node)

    def neighbour(self, verb, node, *address):
        """Changes what this node knows of the other's Ethernet address."""
        ip("-n", self.names[node], "neigh", verb, self.ADDRESSES[1 - node], *address, "dev", "eth0")


class Training:
    """One job on both nodes."""

    def __init__(self, network, folder, arguments, steps, options=()):
        secret = folder / "secret"
        if not secret.exists():
            secret.write_text(os.urandom(32).hex())
            secret.chmod(0o600)
        self.reports = [folder / f"report{node}.json" for node in (0, 1)]
        older = [ROOT / "bench" / "older_kernel.py"] if arguments.older_kernel else []
        self.nodes = []
        for node, report in enumerate(self.reports):
            report.unlink(missing_ok=True)
            command = ["ip", "netns", "exec", network.names[node], *older, arguments.build / "launcher" / "tsprun", "-n", 2,
                       "--nnodes", 2, "--node-rank", node, "--rendezvous", f"{network.ADDRESSES[0]}:29400", "--secret-file", secret, "--inter", "tcp",
                       "--timeout", arguments.timeout, "--tls", arguments.tls, "--json", report, *options,
                       "train", "--config", "nano", "--data", ROOT / "README.md", "--batch", 2, "--seq", 32, "--steps", steps]
            self.nodes.append(subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))

    def runs(self):
        return all(node.poll() is None for node in self.nodes)

    def end(self, seconds):
        """Waits for both nodes; returns their exit codes, output and reports."""
        deadline = time.monotonic() + seconds
        codes, texts = [], []
        for node in self.nodes:
            try:
                texts.append(node.communicate(timeout=max(0.1, deadline - time.monotonic()))[0])
            except subprocess.TimeoutExpired:
                node.kill()
                texts.append(node.communicate()[0] + "\n(hung)")
            codes.append(node.returncode)
        reports = [json.loads(each.read_text()) if each.exists() and each.stat().st_size else {} for each in self.reports]
        return codes, texts, reports


def losses(report):
    return [step["loss"] for step in report.get("steps", [])]


def verdicts_of(reports):
    return [{key: (report.get("failure") or {}).get(key) for key in ("kind", "rank", "node", "detail")} for report in reports]


def ends_alike(network, folder, arguments, code, options):
    """Trains over a slow link. Returns whether both nodes end with this exit code and one verdict."""
    training = Training(network, folder, arguments, 4, options)
    try:
        codes, texts, reports = training.end(120)
    finally:
        for node in training.nodes:
            node.kill()
    verdicts = verdicts_of(reports)
    alike = codes == [code, code] and verdicts[0] == verdicts[1]
    print(f"{' '.join(options) or 'no fault'}: exit codes {codes}, verdicts {verdicts}: {'as it must be' if alike else 'WRONG'}", flush=True)
    if not alike or arguments.verbose:
        print(*texts, sep="\n")
    return alike


def trial(network, folder, arguments, expected, after):
    """Cuts one training after so many seconds. Returns what is wrong; empty: nothing."""
    training = Training(network, folder, arguments, len(expected) or ENDLESS)
    try:
        return judge(training, network, folder, arguments, expected, after)
    finally:
        for node in training.nodes:  # after an error of this program
            node.kill()


def judge(training, network, folder, arguments, expected, after):
    """Cuts a running training, and compares what becomes of it."""
    time.sleep(after)
    if not training.runs() and after > 0.1:  # the machine was busier when it trained without an outage
        training.end(60)
        return trial(network, folder, arguments, expected, after / 2)
    running = training.runs()
    senders = [int(node) for node in arguments.lost]
    network.cut(senders)
    began = time.monotonic()
    while time.monotonic() - began < arguments.outage and any(node.poll() is None for node in training.nodes):
        time.sleep(0.02)
    lasted = time.monotonic() - began
    network.mend(senders)
    codes, texts, reports = training.end(arguments.timeout + MOST_LATE if arguments.fails else 120)
    took = time.monotonic() - began
    wrong = "" if running else "the training had ended before the cut"
    verdicts = verdicts_of(reports)
    if arguments.fails:
        if codes != [1, 1]:
            wrong = f"exit codes {codes}"
        elif lasted > arguments.timeout + MOST_LATE:
            wrong = f"the nodes ended {lasted:.1f} s after the cut"
        elif verdicts[0] != verdicts[1] or verdicts[0]["kind"] != "disconnected" or verdicts[0]["rank"] is not None:
            wrong = f"the verdicts are {verdicts}"
    elif codes != [0, 0]:
        wrong = f"exit codes {codes}"
    elif losses(reports[0]) != expected:
        wrong = "other losses than without an outage"
    print(f"after {after:.1f} s cut for {lasted:.1f} s, ended {took:.1f} s after the cut: {wrong or 'as it must be'}", flush=True)
    if wrong or arguments.verbose:
        for node, text in enumerate(texts):
            print(f"--- node {node}: exit code {codes[node]}\n{text.strip()}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release", help="CMake's build folder")
    parser.add_argument("--timeout", type=float, default=10, help="the job's --timeout, seconds")
    parser.add_argument("--outage", type=float, default=9, help="how long packets are lost, seconds")
    parser.add_argument("--lost", choices=("01", "0", "1"), default="01", help="the nodes whose packets are lost (default: both)")
    parser.add_argument("--down", action="store_true", help="the link is down at these nodes rather than silent")
    parser.add_argument("--slow", metavar="RATE", help="cut nothing, but limit the link to this rate of tc(8)")
    parser.add_argument("--fails", action="store_true", help="the job must fail on both nodes")
    parser.add_argument("--tls", default="auto", help="the job's --tls")
    parser.add_argument("--older-kernel", action="store_true", help="as if Linux were older than 6.15: see older_kernel.py")
    parser.add_argument("--times", type=int, default=1, help="outages, each of a training of its own")
    parser.add_argument("--steps", type=int, default=300, help="steps of a training that must survive")
    parser.add_argument("--seed", type=int, default=None, help="of the moments")
    parser.add_argument("--verbose", action="store_true", help="print what the nodes said, too")
    arguments = parser.parse_args()
    if arguments.older_kernel and subprocess.run([ROOT / "bench" / "older_kernel.py", "true"], check=False).returncode != 0:
        return 77
    draw = random.Random(arguments.seed)
    with Network(arguments) as network, tempfile.TemporaryDirectory(prefix="tsp-outages-") as name:
        folder = pathlib.Path(name)
        if arguments.slow:
            cases = [(0, []), (1, ["--fault", "kill:rank=1,step=2"])]
            return 0 if all([ends_alike(network, folder, arguments, code, options) for code, options in cases]) else 1
        expected, whole = [], 5
        if not arguments.fails:
            began = time.monotonic()
            codes, texts, reports = Training(network, folder, arguments, arguments.steps).end(120)
            whole = time.monotonic() - began
            expected = losses(reports[0])
            if codes != [0, 0] or len(expected) != arguments.steps:
                print(f"without an outage: exit codes {codes}, {len(expected)} losses\n{texts[0]}\n{texts[1]}")
                return 1
        return 1 if any([trial(network, folder, arguments, expected, whole * draw.uniform(0.4, 0.8)) for _ in range(arguments.times)]) else 0


if __name__ == "__main__":
    sys.exit(main())
