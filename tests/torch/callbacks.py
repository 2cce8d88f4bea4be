# Callbacks of futures that communicate and wait themselves: blocking collectives, waits for other futures, and PowerSGD's hook of
# DistributedDataParallel.
import torch
import torch.distributed as dist
import tsprun_torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

dist.init_process_group("tsprun")
rank, size = dist.get_rank(), dist.get_world_size()
total = size * (size + 1) / 2


def mine(count=5):
    return torch.full((count,), rank + 1.0)


def equal(got, want):
    assert torch.equal(got, torch.full_like(got, want)), (got, want)


# A blocking collective in a callback; the wait for the outer one returns when the callback has.
for count in (5, 1 << 18):
    for _ in range(10):
        x, y = mine(count), mine(count)
        work = dist.all_reduce(x, async_op=True)
        child = work.get_future().then(lambda future: dist.all_reduce(y))
        work.wait()
        equal(x, total)
        equal(y, total)
        child.wait()

# Callbacks that wait for futures: for those of their own collectives, several deep, and for one that ends after them.
x, y, z = mine(), mine(), mine()


def second(future):
    return dist.all_reduce(y, async_op=True).get_future().then(third).wait()


def third(future):
    return dist.all_reduce(z, async_op=True).get_future().wait()[0]


equal(dist.all_reduce(x, async_op=True).get_future().then(second).wait(), total)
equal(y, total)
x, y = mine(), mine()
works = [dist.all_reduce(t, async_op=True) for t in (x, y)]
last = works[1].get_future()
equal(works[0].get_future().then(lambda future: last.wait()[0]).wait(), total)

# One of them waits for the work that it belongs to.
work = dist.all_reduce(mine(1 << 18), async_op=True)
work.get_future().then(lambda future: work.wait()).wait()

# Brief callbacks run one after the other in the order of the operations; here they are there before any operation is over.
late = rank == size - 1
for other in range(size - 1) if late else ():
    dist.recv(torch.zeros(1), other)
order = []
works = [dist.all_reduce(mine(), async_op=True) for _ in range(50)]
children = [work.get_future().then(lambda future, i=i: order.append(i)) for i, work in enumerate(works)]
if not late:
    dist.send(torch.zeros(1), size - 1)
for child in children:
    child.wait()
assert (sorted(order) if late else order) == list(range(50)), order

# PowerSGD waits for all_reduces in callbacks.
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
wrapped = torch.nn.parallel.DistributedDataParallel(model)
state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
inputs = torch.randn(16, 64)
wanted = inputs[:, :8]
losses = []
for _ in range(20):
    optimizer.zero_grad()
    loss = (wrapped(inputs) - wanted).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[2] < losses[0], losses
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
first = weights.clone()
dist.broadcast(first, 0)
assert torch.equal(weights, first)
