# Groups that split_group makes, and operations that are waited for together. Started on four ranks.
import datetime
import time

import torch
import torch.distributed as dist
import tsprun_torch

from expect import refused

dist.init_process_group("tsprun")
rank, size = dist.get_rank(), dist.get_world_size()
split_group = getattr(dist, "split_group", tsprun_torch.split_group)  # torch's own, from 2.4 on


group = split_group(split_ranks=[[0, 2], [3, 1]])
t = torch.full((4,), float(10**rank))
dist.all_reduce(t, group=group)
assert t[0] == (101 if rank % 2 == 0 else 1010), t
assert dist.get_rank(group) == rank // 2 and dist.get_world_size(group) == 2
some = split_group(None, [[1, 3]], timeout=datetime.timedelta(seconds=60))
assert (some is not None) == (rank in (1, 3))
if some is not None:
    dist.broadcast(t, 3, group=some)
for wrong in None, [], [[0, 1], []]:
    refused("at least one list", lambda: split_group(split_ranks=wrong))
refused("ranks 0 to 3, of which each can be in one list; wrong in split_ranks: [1]", lambda: split_group(split_ranks=[[0, 1], [1, 2]]))
refused("wrong in split_ranks: [-1, 4]", lambda: split_group(split_ranks=[[4, -1]]))
if torch.__version__.startswith("1."):
    refused("all ranks of the job make a group", lambda: split_group(group, [[0]]))
else:
    halves = split_group(group, [[0], [1]])
    t = torch.full((4,), 1.0 + rank)
    dist.all_reduce(t, group=halves)
    assert dist.get_world_size(halves) == 1 and t[0] == 1 + rank

# One work object for several operations: its end is theirs, its result theirs in order, its future's as well.
world = dist.group.WORLD
world = world._get_backend(torch.device("cpu")) if hasattr(world, "_get_backend") else world


def begin():
    dist.group.WORLD._start_coalescing(*([] if torch.__version__.startswith("1.") else [torch.device("cpu")]))


begin()
a, b = torch.ones(1 << 16), torch.full((3,), float(rank))
first = dist.all_reduce(a, async_op=True)
dist.broadcast(b, 2, async_op=True)
both = world.coalesced()
future = both.get_future()
both.wait()
assert both.is_completed() and both.is_success() and first.is_completed()
assert a.eq(size).all() and b.eq(2).all()
for results in both.result(), future.wait():
    assert [list(r.shape) for r in results] == [[1 << 16], [3]] and results[0] is not None and torch.equal(results[1], b)
refused("without startCoalescing()", world.coalesced)
begin()
assert world.coalesced().wait()  # of nothing
begin()
dist.all_reduce(torch.eye(3).to_sparse())
assert len(world.coalesced().result()) == 1, "what a sparse sum sends beside itself is nobody's result"
begin()
t = torch.zeros(2)
if rank == 0:
    dist.irecv(t, 1)
    late = world.coalesced()
    assert not late.is_completed()
    refused("Timed out", lambda: late.wait(datetime.timedelta(milliseconds=200)))
    dist.barrier()
    late.wait()
    assert t.eq(7).all()
else:
    world.coalesced()
    dist.barrier()
    if rank == 1:
        dist.send(t + 7, 0)
if not torch.__version__.startswith("1."):
    a, b = torch.ones(5), torch.full((3,), float(rank))
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.all_reduce(a)
        dist.all_reduce(b)
    manager.wait()
    assert a.eq(size).all() and b.eq(size * (size - 1) / 2).all()
