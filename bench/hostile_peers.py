#!/usr/bin/env python3
"""What strangers at the door cost a job: the same all_reduce by two tspruns that meet at a rendezvous, in turns with

  quiet   nobody else
  beside  a flood of connections at a port that has nothing to do with the job
  store   the same flood at the job's store

The flood: --rate connections a second that say random bytes, a greeting with a wrong proof, or nothing, and --slow connections that say
a byte now and then. The bar: store takes at most 5% longer than beside. Fails (exit 1) if a job does.
"""
import argparse
import json
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

GREETING = struct.pack("<QIIiiQ", 0x316F6C6C65687374, 1, 1, 1, 0, 0)


def flood(port, rate, slow):
    """Connects for ever; ends with the process that started it."""
    draw = random.Random(0)
    crawling = []
    due = time.monotonic()
    count = 0
    parent = os.getppid()
    while os.getppid() == parent:
        due += 1 / rate
        time.sleep(max(0, due - time.monotonic()))
        count += 1
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as stranger:
                if count % 3 == 0:
                    stranger.sendall(draw.randbytes(draw.randrange(1, 300)))
                elif count % 3 == 1:
                    stranger.sendall(GREETING + draw.randbytes(64))
            if count % 50 == 0:
                alive = []
                for other in crawling:
                    try:
                        other.sendall(b"t")
                        alive.append(other)
                    except OSError:
                        other.close()
                crawling = alive
                while len(crawling) < slow:
                    crawling.append(socket.create_connection(("127.0.0.1", port), timeout=1))
        except OSError:
            pass


def listen_and_close(port):
    """A port that has nothing to do with the job: takes connections and ends them."""
    with socket.create_server(("127.0.0.1", port), backlog=1024) as listener:
        parent = os.getppid()
        listener.settimeout(1)
        while os.getppid() == parent:
            try:
                listener.accept()[0].close()
            except OSError:
                pass


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def run(arguments, kind, folder):
    """Seconds of one operation (median), and how many lines of refusals the log has."""
    port, other = free_port(), free_port()
    mine = [sys.executable, os.path.abspath(__file__)]
    helpers = []
    if kind != "quiet":
        if kind == "beside":
            helpers.append(subprocess.Popen([*mine, "--listen", str(other)]))
        helpers.append(subprocess.Popen([*mine, "--flood", str(port if kind == "store" else other), "--rate", str(arguments.rate),
                                         "--slow", str(arguments.slow)]))
    report = os.path.join(folder, "report.json")
    words = ["-n", "2", "--timeout", "20", "--nnodes", "2", "--rendezvous", f"127.0.0.1:{port}", "--inter", "tcp"]
    bench = ["bench", "all_reduce", "--sizes", "64K", "--no-check", "--min-time", str(arguments.seconds), "--max-time",
             str(arguments.seconds)]
    environment = dict(os.environ, TSP_SECRET="of this bench")
    logs = [tempfile.TemporaryFile(mode="w+", dir=folder) for _ in range(2)]
    try:
        nodes = [subprocess.Popen([arguments.tsprun, *words, "--node-rank", str(node), *(["--json", report] if node == 0 else []), *bench],
                                  env=environment, stdout=subprocess.DEVNULL, stderr=logs[node]) for node in range(2)]
        codes = [node.wait(arguments.seconds + 60) for node in nodes]
    finally:
        for helper in helpers:
            helper.kill()
            helper.wait()
    logs[0].seek(0)
    log = logs[0].read()
    if codes != [0, 0]:
        logs[1].seek(0)
        sys.exit(f"{kind}: the job failed, codes {codes}\n{log}\n{logs[1].read()}")
    with open(report, encoding="utf-8") as file:
        return json.load(file)["bench"][0]["seconds_p50"], sum("refused" in line for line in log.splitlines())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--tsprun", default=os.path.join(here, "../build/release/launcher/tsprun"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2, help="of measuring in each job")
    parser.add_argument("--rate", type=float, default=500, help="connections a second")
    parser.add_argument("--slow", type=int, default=70, help="connections that are kept half-open")
    parser.add_argument("--json")
    parser.add_argument("--flood", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--listen", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.flood:
        flood(arguments.flood, arguments.rate, arguments.slow)
        return
    if arguments.listen:
        listen_and_close(arguments.listen)
        return
    times = {"quiet": [], "beside": [], "store": []}
    refusals = 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            for kind, seen in times.items():
                seconds, lines = run(arguments, kind, folder)
                seen.append(seconds)
                refusals += lines
    medians = {kind: statistics.median(seen) for kind, seen in times.items()}
    for kind, median in medians.items():
        print(f"{kind:<7} {median * 1e6:9.1f} us  {median / medians['beside']:5.2f} of beside")
    print(f"{refusals} lines of refusals in the logs")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"seconds": times, "medians": medians, "store_over_beside": medians["store"] / medians["beside"],
                       "refusal_lines": refusals}, file, indent=1)


if __name__ == "__main__":
    main()
