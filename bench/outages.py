#!/usr/bin/env python3
"""Cuts the network between two nodes of a job for a while. Two network namespaces stand for two machines, a third for the router
between them, which swallows packets without a word while the outage lasts. Needs root and iproute2; nothing outside the namespaces
changes.

An outage shorter than --timeout must be survived; a longer one must end the job on both nodes, with exit code 1 and a cause. With
--one-way only what node 0 sends is lost.

    bench/outages.py --build build/release --timeout 10 --outage 9
    bench/outages.py --timeout 5 --outage 20 --one-way --fails

Exit code 0: as it must be; 1: not; 77: this machine can't make namespaces, or its Linux is older than 6.15, where TCP's own doubling
of the time before it sends again may sleep past the deadline.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Network:
    """Nodes 10.77.0.2 and 10.77.1.2, a router between them."""

    def __init__(self):
        self.names = [f"tsp{os.getpid()}{which}" for which in ("a", "b", "r")]

    def __enter__(self):
        router = self.names[2]
        for name in self.names:
            made = ip("netns", "add", name, check=False)
            if made.returncode != 0:
                self.__exit__()
                print(f"no network namespaces here: {made.stdout.strip()}")
                sys.exit(77)
            ip("-n", name, "link", "set", "lo", "up")
        for node, name in enumerate(self.names[:2]):
            ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"to{node}", "netns", router)
            ip("-n", name, "addr", "add", f"10.77.{node}.2/24", "dev", "eth0")
            ip("-n", router, "addr", "add", f"10.77.{node}.1/24", "dev", f"to{node}")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", router, "link", "set", f"to{node}", "up")
            ip("-n", name, "route", "add", "default", "via", f"10.77.{node}.1")
        ip("netns", "exec", router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        return self

    def __exit__(self, *_):
        for name in self.names:
            ip("netns", "del", name, check=False)

    def cut(self, to_nodes):
        for node in to_nodes:
            ip("-n", self.names[2], "route", "add", "blackhole", f"10.77.{node}.2/32")

    def mend(self, to_nodes):
        for node in to_nodes:
            ip("-n", self.names[2], "route", "del", "blackhole", f"10.77.{node}.2/32")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release", help="CMake's build folder")
    parser.add_argument("--timeout", type=float, default=10, help="the job's --timeout, seconds")
    parser.add_argument("--outage", type=float, default=9, help="how long nothing passes, seconds")
    parser.add_argument("--one-way", action="store_true", help="only what node 0 sends is lost")
    parser.add_argument("--fails", action="store_true", help="the job must fail on both nodes")
    parser.add_argument("--tls", default="auto", help="the job's --tls")
    arguments = parser.parse_args()
    kernel = tuple(int(each) for each in os.uname().release.split("-")[0].split(".")[:2])
    if kernel < (6, 15) and not arguments.fails:
        print(f"Linux {os.uname().release} can't bound TCP's retransmission")
        return 77
    work = arguments.outage + 1.5
    if arguments.fails:
        work = arguments.outage + 2 * arguments.timeout
    with Network() as network, tempfile.TemporaryDirectory(prefix="tsp-outages-") as folder:
        secret = pathlib.Path(folder) / "secret"
        secret.write_text(os.urandom(32).hex())
        secret.chmod(0o600)
        nodes = []
        for node in (0, 1):
            nodes.append(subprocess.Popen(
                ["ip", "netns", "exec", network.names[node], str(arguments.build / "launcher" / "tsprun"), "-n", "2", "--nnodes", "2",
                 "--node-rank", str(node), "--rendezvous", "10.77.0.2:29400", "--secret-file", str(secret), "--inter", "tcp",
                 "--timeout", str(arguments.timeout), "--tls", arguments.tls, "bench", "all_reduce", "--sizes", "64K",
                 "--min-time", str(work), "--max-time", str(work)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        time.sleep(1)
        to_nodes = (1,) if arguments.one_way else (0, 1)
        network.cut(to_nodes)
        began = time.monotonic()
        while time.monotonic() - began < arguments.outage and any(node.poll() is None for node in nodes):
            time.sleep(0.02)
        network.mend(to_nodes)
        codes = []
        for index, node in enumerate(nodes):
            try:
                text = node.communicate(timeout=work + 3 * arguments.timeout)[0]
            except subprocess.TimeoutExpired:
                node.kill()
                text = node.communicate()[0] + "\n(hung)"
            codes.append(node.returncode)
            print(f"--- node {index}: exit code {node.returncode}, {time.monotonic() - began:.1f} s after the cut\n{text.strip()}")
    right = codes == [1, 1] if arguments.fails else codes == [0, 0]
    print("as it must be" if right else "NOT as it must be")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
