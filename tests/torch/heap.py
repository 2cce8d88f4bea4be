# Tensors in the rank's heap (use_heap()): where they lie, many threads, a forked process, and a heap without room: half of the
# job's budget (--mem-per-rank) is for two large tensors.
import os
import threading

import torch
import torch.distributed as dist
import tsprun_torch

from expect import in_heap

dist.init_process_group("tsprun")
rank, size = dist.get_rank(), dist.get_world_size()
before = torch.ones(1 << 22)
tsprun_torch.use_heap()
small, large = torch.ones(8), torch.ones(1 << 22)
assert not in_heap(before) and not in_heap(small)
assert in_heap(large)
more = [torch.ones(1 << 22) for _ in range(5)]
assert in_heap(more[0]) and not in_heap(more[1]) and bool((more[1] == more[0]).all())
whole = torch.empty(size << 22)  # lies elsewhere, so the collective takes the other half for its copy
dist.all_gather_into_tensor(whole, before) if hasattr(dist, "all_gather_into_tensor") else dist._all_gather_base(whole, before)
assert not in_heap(whole) and bool((whole == 1).all())
dist.all_reduce(more[0])
assert bool((more[0] == size).all())
more[0] = torch.ones(1 << 22)
assert not in_heap(more[0])  # the new one is made before the old one goes
more[0] = torch.ones(1 << 22)
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
    own = torch.ones(1 << 22)
    del tensor, large
    os._exit(0 if not in_heap(own) and bool((own == 1).all()) else 1)
assert os.waitpid(child, 0)[1] == 0
large.fill_(1)
dist.all_reduce(large)
assert bool((large == size).all())

tsprun_torch.use_heap(1)  # for the programs that follow
