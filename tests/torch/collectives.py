# Every call of torch.distributed on the backend "tsprun", each result against arithmetic on what all ranks would have sent.
import time

import torch
import torch.distributed as dist
import tsprun_torch

from expect import refused

dist.init_process_group("tsprun")
rank, size = dist.get_rank(), dist.get_world_size()
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64]


def given(of, count=7, dtype=torch.float32):
    """What rank `of` sends: small integers, exact in every type."""
    return ((torch.arange(count) + 3 * of) % 5 + 1).to(dtype)


def equal(got, want):
    assert got.dtype == want.dtype and torch.equal(got, want), (got, want)


def total(dtype, count=7):
    return sum(given(r, count, torch.int64) for r in range(size)).to(dtype)


for dtype in TYPES:
    for count in (0, 1, 7, 5000):
        t = given(rank, count, dtype)
        dist.all_reduce(t)
        equal(t, total(dtype, count))
        t = given(rank, count, dtype)
        dist.broadcast(t, size - 1)
        equal(t, given(size - 1, count, dtype))
        parts = [torch.empty(count, dtype=dtype) for _ in range(size)]
        dist.all_gather(parts, given(rank, count, dtype))
        for r in range(size):
            equal(parts[r], given(r, count, dtype))
for op, fold in ((dist.ReduceOp.MAX, torch.maximum), (dist.ReduceOp.MIN, torch.minimum), (dist.ReduceOp.PRODUCT, torch.mul)):
    t = given(rank)
    dist.all_reduce(t, op)
    want = given(0)
    for r in range(1, size):
        want = fold(want, given(r))
    equal(t, want)
t = given(rank)
dist.all_reduce(t, dist.ReduceOp.AVG)
assert torch.allclose(t, total(torch.float32) / size)
t = torch.tensor([rank == 1, False, True])
dist.all_reduce(t, dist.ReduceOp.BOR)
equal(t, torch.tensor([size > 1, False, True]))

# A strided tensor is reduced as if it were contiguous, in its place; complex and 16 bit numbers are moved.
t = torch.zeros(6, 4)[:, 1:3]
t.copy_(given(rank, 12).view(6, 2))
dist.all_reduce(t)
equal(t, total(torch.float32, 12).view(6, 2))
t = torch.full((3,), rank + 1, dtype=torch.int16)
dist.broadcast(t, 0)
equal(t, torch.full((3,), 1, dtype=torch.int16))

t = given(rank)
dist.reduce(t, 0)
equal(t, total(torch.float32) if rank == 0 else given(rank))
uneven = [torch.empty(r + 1) for r in range(size)]
dist.all_gather(uneven, given(rank, rank + 1))
for r in range(size):
    equal(uneven[r], given(r, r + 1))
# A list of tensors that waits behind another operation and takes several steps.
before = dist.all_reduce(torch.ones(1 << 20), async_op=True)
lists = [[torch.empty(400000), torch.empty(3)] for _ in range(size)]
dist.all_gather_coalesced(lists, [given(rank, 400000), given(rank, 3)])
before.wait()
for r in range(size):
    equal(lists[r][0], given(r, 400000))
    equal(lists[r][1], given(r, 3))
whole = torch.empty(7 * size)
dist.all_gather_into_tensor(whole, given(rank)) if hasattr(dist, "all_gather_into_tensor") else dist._all_gather_base(whole, given(rank))
equal(whole, torch.cat([given(r) for r in range(size)]))
part = torch.empty(7)
dist.reduce_scatter(part, [given(rank) + r for r in range(size)])
equal(part, total(torch.float32) + size * rank)
part = torch.empty(3)
dist._reduce_scatter_base(part, given(rank, 3 * size))
equal(part, total(torch.float32, 3 * size)[3 * rank : 3 * rank + 3])
gathered = [torch.empty(7) for _ in range(size)] if rank == 0 else None
dist.gather(given(rank), gathered, 0)
for r in range(size if rank == 0 else 0):
    equal(gathered[r], given(r))
dist.scatter(part, [given(r, 3) for r in range(size)] if rank == 0 else None, 0)
equal(part, given(rank, 3))
got = [torch.empty(rank + 1) for _ in range(size)]
dist.all_to_all(got, [given(rank, r + 1) for r in range(size)])
for r in range(size):
    equal(got[r], given(r, rank + 1))
got = torch.empty(2 * size)
dist.all_to_all_single(got, given(rank, 2 * size))
equal(got, torch.cat([given(r, 2 * size)[2 * rank : 2 * rank + 2] for r in range(size)]))
if size > 1:
    rows, splits = torch.empty(size), [-1, size + 1] + [0] * (size - 2)  # as many as there are in all
    refused("send_counts", lambda: dist.all_to_all_single(torch.empty(size), rows, None, splits))
    refused("recv_counts", lambda: dist.all_to_all_single(rows, torch.empty(size), splits, None))
dist.barrier()

# Messages: in a ring all send first; both directions at once; strided; large ones.
if size > 1:
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (1, 1 << 20):
        got = torch.empty(count)
        works = [dist.isend(given(rank, count), right, tag=5), dist.irecv(got, left, tag=5)]
        for work in works:
            work.wait()
        equal(got, given(left, count))
    if rank < 2:
        got = torch.empty(4, 2).t()
        works = [dist.isend(given(rank, 8).view(2, 4), 1 - rank), dist.irecv(got, 1 - rank)]
        for work in works:
            work.wait()
        equal(got, given(1 - rank, 8).view(2, 4))

# A tag chooses among messages, however they were posted; a receive from any source takes whatever comes first.
if size > 1:
    for count in (3, 1 << 18):
        if rank == 0:
            sends = [dist.isend(given(tag, count), 1, tag=tag) for tag in (1, 2, 3)]
            for send in sends:
                send.wait()
        elif rank == 1:
            got = {tag: torch.empty(count) for tag in (3, 1, 2)}
            dist.recv(got[3], 0, tag=3)
            for work in [dist.irecv(got[tag], 0, tag=tag) for tag in (1, 2)]:
                work.wait()
            for tag in got:
                equal(got[tag], given(tag, count))
    if rank == 0:
        seen = set()
        for _ in range(1, size):
            got = torch.empty(5)
            source = dist.recv(got, tag=9)
            equal(got, given(source, 5))
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        dist.send(given(rank, 5), 0, tag=9)

# Asynchronous operations are over without a wait; their futures have the result.
t = given(rank, 1 << 18)
work = dist.all_reduce(t, async_op=True)
future = work.get_future().then(lambda f: f.value()[0] * 2)
equal(future.wait(), 2 * total(torch.float32, 1 << 18))
while not work.is_completed():
    time.sleep(0.001)
assert work.is_success()

# Groups: any subset in any order.
halves = [dist.new_group(list(range(0, size, 2))), dist.new_group(list(range(1, size, 2)))] if size > 1 else []
for first, group in enumerate(halves):
    if rank % 2 == first:
        t = given(rank)
        dist.all_reduce(t, group=group)
        equal(t, sum(given(r) for r in range(first, size, 2)))

# Groups of different shapes, of the same ranks, and the first group: ranks may call their collectives in different orders.
if size > 1:
    again = [dist.new_group(list(range(size))) for _ in range(3)]
    for count in (5, 100_000):
        sums = [given(rank, count + i) for i in range(3)]
        order = [(i + rank) % 3 for i in range(3)]
        works = {i: dist.all_reduce(sums[i], group=again[i], async_op=True) for i in order}
        for i in order[::-1]:  # what others called first
            works[i].wait()
        for i in range(3):
            equal(sums[i], sum(given(r, count + i) for r in range(size)))
if size > 2:
    shapes = [dist.new_group(list(range(size - 1))), dist.new_group([0] + list(range(2, size)) + [1]), dist.group.WORLD]
    mine = [(i, group) for i, group in enumerate(shapes) if i != 0 or rank != size - 1]
    sums = {i: given(rank, 10 + i) for i, _ in mine}
    for work in [dist.all_reduce(sums[i], group=group, async_op=True) for i, group in (mine if rank % 2 else mine[::-1])]:
        work.wait()
    for i, _ in mine:
        equal(sums[i], sum(given(r, 10 + i) for r in range(size if i else size - 1)))

refused("dense tensors", lambda: dist.broadcast(torch.sparse_coo_tensor([[0]], [1.0], (2,)), 0))
refused("can't be reduced by", lambda: dist.all_reduce(given(rank, 3, torch.float32), dist.ReduceOp.BXOR))
refused("a tensor for each of", lambda: dist.all_gather([torch.empty(7)] * (size + 1), given(rank)))
if size > 1:
    for tag in (-1, -2, -3):  # -1 and -2 have a meaning in a communicator
        refused(f"0 or more, not {tag}", lambda: dist.send(given(rank), (rank + 1) % size, tag=tag))
        refused(f"0 or more, not {tag}", lambda: dist.irecv(given(rank), (rank + 1) % size, tag=tag))
        refused(f"0 or more, not {tag}", lambda: dist.recv(given(rank), tag=tag))
if size == 1:
    refused("no other that could send", lambda: dist.recv(torch.empty(1)))

# What torch's own wrappers build on.
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": r} for r in range(size)]

# Small messages leave before the last rank, which is in a barrier, receives them.
if size > 1:
    several = [torch.full((2048,), float(i)) for i in range(32)]
    if rank == 0:
        for i, t in enumerate(several):
            dist.send(t, size - 1, tag=i)
    dist.barrier()
    if rank == size - 1:
        for i in reversed(range(32)):
            t = torch.empty(2048)
            dist.recv(t, 0, tag=i)
            equal(t, several[i])
    # So does a large one that is sent without a wait.
    large = given(rank, 1 << 18, torch.float32)
    work = dist.isend(large, size - 1) if rank == 0 else None
    dist.barrier()
    if rank == 0:
        work.wait()
    if rank == size - 1:
        dist.recv(large, 0)
        equal(large, given(0, 1 << 18, torch.float32))

# A child that was forked is told, and doesn't disturb the rank.
import os

child = os.fork()
if child == 0:
    try:
        dist.all_reduce(torch.ones(1))
        os._exit(1)
    except RuntimeError as error:
        os._exit(0 if "forked" in str(error) else 2)
assert os.waitpid(child, 0)[1] == 0
