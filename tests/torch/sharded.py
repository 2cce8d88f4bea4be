# Training whose state is sharded, by what PyTorch has for that, against the same training in each process alone: the optimizer's
# (ZeroRedundancyOptimizer), with PyTorch 2.x also the model's (fully_shard) and its matrices by columns and rows (tensor parallelism).
import torch
import torch.distributed as dist
import tsprun_torch
from torch.distributed.optim import ZeroRedundancyOptimizer

dist.init_process_group("tsprun")
rank, size = dist.get_rank(), dist.get_world_size()


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16)).double()


def data(step, of):
    torch.manual_seed(100 + 10 * step + of)
    return torch.randn(4, 16, dtype=torch.float64)


def losses(module, optimizer, own_data, steps=4):
    """Losses of the whole batch, whose sequences are spread over the ranks or (own_data None) all here."""
    out = []
    for step in range(steps):
        parts = [data(step, of) for of in (range(size) if own_data is None else [own_data])]
        optimizer.zero_grad()
        loss = module(torch.cat(parts)).pow(2).mean()
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        if own_data is not None:
            dist.all_reduce(loss)
            loss /= size
        out.append(loss.item())
    return torch.tensor(out, dtype=torch.float64)


alone = model()
want = losses(alone, torch.optim.Adam(alone.parameters(), lr=1e-2), None)

replica = torch.nn.parallel.DistributedDataParallel(model())
optimizer = ZeroRedundancyOptimizer(replica.parameters(), torch.optim.Adam, lr=1e-2)
torch.testing.assert_close(losses(replica, optimizer, rank), want, rtol=1e-12, atol=0)

if not torch.__version__.startswith("1."):
    import torch.distributed._functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def given(source, part, count=6):
        """What rank `source` has for rank `part`: small integers, exact in f32."""
        return torch.arange(float(count)) + 10 * part + 100 * source

    group = dist.group.WORLD
    for count in (6, 300000):  # the larger one takes several steps, and all wait behind another operation
        before = dist.all_reduce(torch.ones(1 << 20), async_op=True)
        mine, more = given(rank, 0, count).view(2, -1), given(rank, 7, 3)
        both = functional.all_gather_into_tensor_coalesced([mine, more], group)
        assert torch.equal(both[0], torch.cat([given(r, 0, count).view(2, -1) for r in range(size)]))
        assert torch.equal(both[1], torch.cat([given(r, 7, 3) for r in range(size)]))
        assert torch.equal(functional.all_gather_tensor(more, 0, group), both[1])
        whole = torch.cat([given(rank, part, count) for part in range(size)])
        above = torch.stack([whole, whole + 1])[1]  # within another tensor
        total = sum(given(r, rank, count) for r in range(size))
        assert torch.equal(functional.reduce_scatter_tensor(whole, "sum", 0, group), total)
        twice = functional.reduce_scatter_tensor_coalesced([whole, above], "sum", [0, 0], group)
        assert torch.equal(twice[0], total) and torch.equal(twice[1], total + size)
        mean = functional.reduce_scatter_tensor_coalesced([whole, above], "avg", [0, 0], group)
        assert torch.equal(mean[0], total / size)
        before.wait()

    mesh = init_device_mesh("cpu", (size,))
    sharded = model()
    for layer in sharded:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    torch.testing.assert_close(losses(sharded, torch.optim.Adam(sharded.parameters(), lr=1e-2), rank), want, rtol=1e-12, atol=0)

    split = parallelize_module(model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.testing.assert_close(losses(split, torch.optim.Adam(split.parameters(), lr=1e-2), None), want, rtol=1e-12, atol=0)
