#!/usr/bin/env python3
"""Jobs of two nodes on a slow link: do both report one verdict and one exit code?

  bench/slow_network.py --build build/release --rounds 3 --json slow.json

Makes two network namespaces joined by a link of --mbit Mbit/s (1) whose queue holds --queue seconds (2) of bytes and drops the rest
(tc's tbf), with a flood of datagrams in both directions that keeps the queue full. Runs jobs that end well, by a rank's exit code, and
by a signal to either tsprun. Needs root, iproute2 and a kernel with veth and tbf. Exit 1 if two nodes ever disagreed.
"""
import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import time

FLOOD = """
import socket, sys, time
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    out.sendto(bytes(1000), (sys.argv[1], 9))
    time.sleep(8000 / float(sys.argv[2]))
"""
ADDRESSES = ["10.201.77.1", "10.201.77.2"]
#: what every rank does; whom a SIGTERM is sent to after two seconds; the exit code
KINDS = {"well": ("sleep 3", None, 0), "exit": ("sleep 3; [ $RANK = 0 ] || exit 7", None, 7),
         "term0": ("sleep 60", 0, 128 + signal.SIGTERM), "term1": ("sleep 60", 1, 128 + signal.SIGTERM)}


class Network:
    def __init__(self, mbit, queue):
        self.names = [f"tspslow{os.getpid()}{end}" for end in "ab"]
        self.rate = mbit * 1e6
        for name in self.names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        links = [f"v{os.getpid()}{end}" for end in "ab"]
        subprocess.run(["ip", "link", "add", links[0], "type", "veth", "peer", "name", links[1]], check=True)
        for name, link, address in zip(self.names, links, ADDRESSES):
            subprocess.run(["ip", "link", "set", link, "netns", name], check=True)
            subprocess.run(["ip", "-n", name, "addr", "add", address + "/24", "dev", link], check=True)
            for each in ("lo", link):
                subprocess.run(["ip", "-n", name, "link", "set", each, "up"], check=True)
            subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", link, "root", "tbf", "rate", f"{mbit}mbit", "burst", "5kb",
                            "latency", f"{queue}s"], check=True)

    def start(self, node, command, **more):
        return subprocess.Popen(["ip", "netns", "exec", self.names[node], *command], **more)

    def flood(self, share):
        return [self.start(node, [sys.executable, "-c", FLOOD, ADDRESSES[1 - node], str(share * self.rate)]) for node in (0, 1)]

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def run(network, tsprun, kind, port, timeout):
    script, victim, expected = KINDS[kind]
    environment = dict(os.environ, TSP_SECRET=secrets.token_hex(16))
    nodes = []
    for node in (0, 1):
        command = [tsprun, "-n", "2", "--nnodes", "2", "--node-rank", str(node), "--rendezvous", f"{ADDRESSES[0]}:{port}", "--timeout",
                   str(timeout), "-q", "run", "--", "sh", "-c", script]
        nodes.append(network.start(node, command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True))
    if victim is not None:
        time.sleep(8)
        nodes[victim].send_signal(signal.SIGTERM)
    words = [node.communicate(timeout=10 * timeout)[1].strip() for node in nodes]
    codes = [node.returncode for node in nodes]
    # The first line is the verdict; what each saw of the others may differ.
    # "ip netns exec" replaces itself by the command, so that its code is tsprun's.
    return {"kind": kind, "codes": codes, "words": words, "right": codes == [expected] * 2 and words[0].split("\n")[0] == words[1].split("\n")[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--mbit", type=float, default=1)
    parser.add_argument("--queue", type=float, default=2)
    parser.add_argument("--flood", type=float, default=1.1, help="of the link's rate; 0: none")
    parser.add_argument("--timeout", type=float, default=30)
    parser.add_argument("--json")
    options = parser.parse_args()
    network = Network(options.mbit, options.queue)
    results = []
    try:
        for number in range(options.rounds):
            for kind in options.kinds.split(","):
                floods = network.flood(options.flood) if options.flood > 0 else []
                try:
                    result = run(network, f"{options.build}/launcher/tsprun", kind, 20000 + len(results), options.timeout)
                finally:
                    for flood in floods:
                        flood.kill()
                        flood.wait()
                results.append(result)
                print(f"{number} {kind:6} codes {result['codes']} {'right' if result['right'] else 'WRONG ' + str(result['words'])}",
                      flush=True)
    finally:
        network.remove()
    wrong = [result for result in results if not result["right"]]
    print(f"{len(results) - len(wrong)} of {len(results)} jobs ended alike on both nodes")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
