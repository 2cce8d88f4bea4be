# Several process groups of all ranks, one after the other, in processes that no tsprun started, or whose first job alone is tsprun's.
# Each ends as soon as a rank is done, and the last one without a word: nobody takes away what others still need.
import os
import subprocess
import sys
import time
from datetime import timedelta

hook = sys.excepthook
import torch
import torch.distributed as dist
import tsprun_torch
from tsprun_torch import _tsprun

from expect import refused

assert sys.excepthook is hook, "nobody has used the backend yet"
rank, size, port = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["MASTER_PORT"])
if port >= 20000:  # tsprun chose it, and others may have the next ones: this is a block as check.py takes it
    port = 7000 + 16 * (port % 150)
lives = 0


def begin(ranks=size):
    global lives
    lives += 1
    dist.init_process_group("tsprun", init_method=f"tcp://127.0.0.1:{port + lives}", rank=rank, world_size=ranks)


def mine():
    return torch.full((4,), float(rank + 1))


begin()
x = mine()
dist.broadcast(x, 0)
dist.destroy_process_group()
assert x.eq(1).all()

begin()
x = mine()
dist.all_reduce(x, async_op=True)  # for which nobody waits
if rank == 1:
    time.sleep(0.3)
dist.destroy_process_group()
assert x.eq(size * (size + 1) / 2).all()

begin()
dist.barrier()  # nobody is in init_process_group any more, which needs the store of rank 0, when that leaves the failed job
refused("mismatch", lambda: dist.all_reduce(torch.ones(4 + rank)))
dist.destroy_process_group()

# A group that is made again on the store of an earlier one: what the first left there doesn't count in the second. (torch 1.13's own
# init_process_group hangs on such a store, so the groups are made without it.)
lives += 1
store = dist.TCPStore("127.0.0.1", port + lives, size, rank == 0)
for _ in range(2):
    group = _tsprun.make_group(store, rank, size, [], 0, timedelta(seconds=20), rank, size)
    group.monitored_barrier(timedelta(seconds=20), False)
    # Now rank 1 misses one. A key that it left in the group before would stand for it.
    if rank != 1:
        refused("ank 1 failed to pass", lambda: group.monitored_barrier(timedelta(milliseconds=300), False))
    group.barrier().wait()
    group.monitored_barrier(timedelta(seconds=20), False)
    group.barrier().wait()
    del group
_tsprun.leave()

# Everybody is content with this one.
begin()
dist.broadcast(mine(), rank)
try:
    dist.destroy_process_group()
    print("left", flush=True)
except RuntimeError as error:
    assert "hasn't received" in str(error), error
    print("unlike roots found", flush=True)

# After failures, and with fewer ranks.
if rank < size - 1:
    begin(size - 1)
    x = mine()
    dist.all_reduce(x)
    assert x.eq(sum(range(1, size))).all()
    tsprun_torch.shutdown()
    dist.destroy_process_group()
    if rank == 0:
        alone = "import torch, torch.distributed as d, tsprun_torch; d.init_process_group('tsprun', store=d.HashStore(), rank=0, world_size=1)"
        subprocess.run([sys.executable, "-c", alone + "; d.all_reduce(torch.ones(2)); d.destroy_process_group()"], check=True)
    begin(size - 1)
    x = mine()
    dist.broadcast(x, 0)
    assert x.eq(1).all()
print("ok", flush=True)
