# Tensors in the rank's heap (use_heap()): where they lie, many threads, a forked process, a heap without room, and after the rank
# has left its job. Started on several ranks; prints "ok" on rank 0 when all is done.
import os
import sys
import threading

import torch
import torch.distributed as dist
import tsprun_torch


def in_heap(tensor):
    """Whether shared memory holds the tensor, as the kernel says."""
    for line in open("/proc/self/maps"):
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return "memfd:" in line or "/dev/shm/" in line
    raise AssertionError("no mapping has the tensor")


try:
    tsprun_torch.use_heap()
except RuntimeError as error:
    assert "after init_process_group" in str(error), error
else:
    raise AssertionError("not refused before joining")
dist.init_process_group("tsprun")
rank, size = dist.get_rank(), dist.get_world_size()
before = torch.ones(1 << 20)
tsprun_torch.use_heap()
small, large = torch.ones(8), torch.ones(1 << 20)
assert not in_heap(before) and not in_heap(small)
assert in_heap(large)
if "--no-room" in sys.argv:  # half of the job's budget is for two such tensors
    more = [torch.ones(1 << 20) for _ in range(5)]
    assert in_heap(more[0]) and not in_heap(more[1]) and bool((more[1] == more[0]).all())
    whole = torch.empty(size << 20)  # lies elsewhere, so the collective takes the other half for its copy
    dist.all_gather_into_tensor(whole, before) if hasattr(dist, "all_gather_into_tensor") else dist._all_gather_base(whole, before)
    assert not in_heap(whole) and bool((whole == 1).all())
    dist.all_reduce(more[0])
    assert bool((more[0] == size).all())
    more[0] = torch.ones(1 << 20)
    assert not in_heap(more[0])  # the new one is made before the old one goes
    more[0] = torch.ones(1 << 20)
    assert in_heap(more[0])
    del more
for tensor in (before, small, large):
    dist.all_reduce(tensor)
    assert bool((tensor == size).all())

wrong = []


def churn(seed):
    for i in range(200):
        tensor = torch.full((20000 + 100 * (i % 7),), float(seed))
        if not bool((tensor == seed).all()):
            wrong.append(seed)


threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(4)]
for thread in threads:
    thread.start()
for i in range(100):  # collectives beside the threads' tensors
    tensor = torch.full((30000,), float(i))
    dist.all_reduce(tensor)
    assert bool((tensor == i * size).all())
for thread in threads:
    thread.join()
assert not wrong

child = os.fork()
if child == 0:
    own = torch.ones(1 << 20)
    del tensor, large
    os._exit(0 if not in_heap(own) and bool((own == 1).all()) else 1)
assert os.waitpid(child, 0)[1] == 0
large.fill_(1)
dist.all_reduce(large)
assert bool((large == size).all())

dist.barrier()
if rank == 0:
    print("ok", flush=True)
tsprun_torch._tsprun.leave()
assert bool((large == size).all())
later = torch.ones(1 << 20)
assert not in_heap(later)
try:
    dist.all_reduce(later)
except RuntimeError as error:
    assert "left its job" in str(error), error
else:
    raise AssertionError("a rank that has left can't communicate")
del large
