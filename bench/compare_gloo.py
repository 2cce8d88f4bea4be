#!/usr/bin/env python3
"""PyTorch programs on tsprun and on gloo, in turns: all_reduce, and DistributedDataParallel of a small transformer.

  bench/compare_gloo.py --json gloo.json        # all_reduce, 1 KiB to 64 MiB on 2, 4 and 8 ranks
  bench/compare_gloo.py --ddp                   # training on 4 ranks

Each process has both backends; every round times ours and gloo's one after the other, and the medians of all rounds are compared.
Training has a third run in turns, whose gradients stay where they are while the ranks wait for each other once a step: no backend that
adds gradients can be faster.
Prints microseconds (or tokens per second), the ratio, and over all points the geometric mean and the smallest ratio.
"""

import argparse
import json
import os
import statistics
import sys
import time

import harness

LIMIT_S = 600
#: bars: the smallest ratio, the geometric mean of all_reduce's, and that of training
NEVER_SLOWER, MEAN, TRAINING = 0.95, 3, 1.2


def arguments():
    parser = harness.options(__doc__)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--sizes", default="1K,64K,1M,16M,64M")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ddp", action="store_true", help="train instead, 4 ranks")
    parser.add_argument("--python", default="/usr/bin/python3", help="the Python whose PyTorch the backend was built for")
    parser.add_argument("--heap", action="store_true", help="all tensors lie in ranks' heaps (use_heap)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def bytes_of(text):
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]


def backends(options):
    import torch.distributed as dist
    import tsprun_torch

    dist.init_process_group("tsprun")
    if options.heap:
        tsprun_torch.use_heap()
    return {"tsprun": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}


def all_reduces(options):
    import torch
    import torch.distributed as dist

    groups = backends(options)
    for text in options.sizes.split(","):
        size = bytes_of(text)
        tensor = torch.zeros(size // 4)
        times = {name: [] for name in groups}
        for round_number in range(options.rounds + 1):
            for name, group in groups.items():
                repeats = max(1, min(100, (4 << 20) // size))
                dist.barrier(group)
                begin = time.perf_counter()
                for _ in range(repeats):
                    dist.all_reduce(tensor, group=group)
                if round_number > 0:
                    times[name].append((time.perf_counter() - begin) / repeats * 1e6)
        if dist.get_rank() == 0:
            report = {name: statistics.median(each) for name, each in times.items()}
            print("result " + json.dumps({"size": text, **report}), flush=True)


def training(options):
    import torch
    import torch.distributed as dist

    groups = backends(options)
    rank, batch, length, vocabulary = dist.get_rank(), 2, 128, 512

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(vocabulary, 256)
            layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
            self.blocks = torch.nn.TransformerEncoder(layer, 2)
            self.head = torch.nn.Linear(256, vocabulary)

        def forward(self, ids):
            return self.head(self.blocks(self.embedding(ids)))

    def only_wait(group, bucket):
        if bucket.is_last():
            dist.barrier(group)
        moved = torch.futures.Future()
        moved.set_result(bucket.buffer().div_(dist.get_world_size()))
        return moved

    torch.set_num_threads(1)
    runs = {}
    groups["wait"] = groups["tsprun"]
    for name, group in groups.items():
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(Model(), process_group=group)
        if name == "wait":
            model.register_comm_hook(group, only_wait)
        runs[name] = model, torch.optim.AdamW(model.parameters(), lr=1e-3), []
    torch.manual_seed(1 + rank)
    data = torch.randint(vocabulary, (8, batch, length + 1))
    losses = {name: [] for name in groups}
    for round_number in range(options.rounds + 1):
        for name, (model, optimizer, speeds) in runs.items():
            dist.barrier(groups[name])
            begin = time.perf_counter()
            for ids in data[:4]:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
                loss.backward()
                optimizer.step()
                losses[name].append(loss.item())
            if round_number > 0:
                speeds.append(4 * batch * length * dist.get_world_size() / (time.perf_counter() - begin))
    if rank == 0:
        report = {name: statistics.median(run[2]) for name, run in runs.items()}
        apart = max(abs(a - b) / abs(b) for a, b in zip(losses["tsprun"], losses["gloo"]))
        print("result " + json.dumps({"size": f"DDP, losses {apart:.0e} apart", **report}), flush=True)


def measure(options, ranks):
    """Starts a job that measures, and returns its results; ends the script if it fails."""
    command = [options.build / "launcher/tsprun", "-n", str(ranks), "run", "--", options.python, os.path.abspath(__file__), "--worker",
               "--sizes", options.sizes, "--rounds", str(options.rounds)] + ["--ddp"] * options.ddp + ["--heap"] * options.heap
    printed = harness.run(command, LIMIT_S)
    if printed is None:
        sys.exit(1)
    return [json.loads(line.partition("result ")[2]) for line in printed.splitlines() if "result " in line]


def main():
    options = arguments()
    if options.worker:
        (training if options.ddp else all_reduces)(options)
        return 0
    package = options.build.resolve() / "bindings/torch/package"
    os.environ.update(PYTHONPATH=str(package), OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR")
    unit = "tokens/s" if options.ddp else "us"
    rows = []
    print(f"{'ranks':>5} {'':>26} {'tsprun ' + unit:>15} {'gloo ' + unit:>15} {'ratio':>6}")
    for ranks in [4] if options.ddp else map(int, options.ranks.split(",")):
        for result in measure(options, ranks):
            ours, gloo = result["tsprun"], result["gloo"]
            rows.append({"ranks": ranks, **result, "ratio": ours / gloo if options.ddp else gloo / ours})
            print(f"{ranks:>5} {result['size']:>26} {ours:>15.1f} {gloo:>15.1f} {rows[-1]['ratio']:>6.2f}", flush=True)
            if options.ddp:
                print(f"{ranks:>5} {'waits alone':>26} {result['wait']:>15.1f} {gloo:>15.1f} {result['wait'] / gloo:>6.2f}")
    ratios = [row["ratio"] for row in rows]
    mean = statistics.geometric_mean(ratios)
    wanted = TRAINING if options.ddp else MEAN
    bars = [{"bar": f"geometric mean at least {wanted}", "reached": mean >= wanted, "measured": f"{mean:.2f}"}]
    if not options.ddp:
        bars.append({"bar": f"never below {NEVER_SLOWER}", "reached": min(ratios) >= NEVER_SLOWER, "measured": f"{min(ratios):.2f}"})
    harness.print_bars(bars)
    harness.write_figures(options.json, {"rows": rows, "bars": bars})
    return 0 if all(bar["reached"] for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
