# Sums of complex numbers and of sparse tensors, against sums of dense real ones that every rank makes by itself.
import torch
import torch.distributed as dist
import tsprun_torch

from expect import refused

dist.init_process_group("tsprun")
rank, size = dist.get_rank(), dist.get_world_size()


def equal(got, want):
    assert got.dtype == want.dtype and torch.equal(torch.view_as_real(got) if got.is_complex() else got,
                                                   torch.view_as_real(want) if want.is_complex() else want), (got, want)


# Complex: small integers, exact. The group's own calls, too, since torch.distributed hands over some complex tensors as real ones.
def given(of, count, dtype):
    parts = (torch.arange(2 * count).view(count, 2) + 3 * of) % 7 - 3
    return torch.view_as_complex(parts.to(torch.float64)).to(dtype)


def total(count, dtype):
    return sum(given(r, count, torch.complex128) for r in range(size)).to(dtype)


group = dist.group.WORLD
for dtype in (torch.complex64, torch.complex128):
    for count in (0, 1, 5, 4000):
        z = given(rank, count, dtype)
        dist.all_reduce(z)
        equal(z, total(count, dtype))
        z = given(rank, count, dtype)
        group.allreduce([z]).wait()
        equal(z, total(count, dtype))
        z = given(rank, count, dtype)
        dist.reduce(z, 0)
        equal(z, total(count, dtype) if rank == 0 else given(rank, count, dtype))
        z = torch.empty(count, dtype=dtype)
        dist.reduce_scatter(z, [given(rank, count, dtype) * (r + 1) for r in range(size)])
        equal(z, total(count, dtype) * (rank + 1))
        z = torch.empty(count, dtype=dtype)
        dist._reduce_scatter_base(z, torch.cat([given(rank, count, dtype) * (r + 1) for r in range(size)]))
        equal(z, total(count, dtype) * (rank + 1))
        z = torch.empty(count, dtype=dtype)
        dist.reduce_scatter(z, [given(rank, count, dtype).conj()] * size)
        equal(z, total(count, dtype).conj().resolve_conj())
    z = size * given(rank, 5, dtype)
    dist.reduce(z, 0, dist.ReduceOp.AVG)
    equal(z, total(5, dtype) if rank == 0 else size * given(rank, 5, dtype))
    for op in (dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
        refused("SUM and AVG alone", lambda: dist.reduce(given(rank, 3, dtype), 0, op))
        refused("complex", lambda: dist.all_reduce(given(rank, 3, dtype), op))
    # What is moved stays as it is.
    z = given(rank, 3, dtype)
    dist.broadcast(z, size - 1)
    equal(z, given(size - 1, 3, dtype))
    parts = [torch.empty(r + 1, dtype=dtype) for r in range(size)]
    group.allgather([parts], [given(rank, rank + 1, dtype)]).wait()
    for r in range(size):
        equal(parts[r], given(r, r + 1, dtype))


# Sparse: rank r has r·k elements, some places twice, and rank 0 none.
def sparse(of, dtype, shape, sparse_dim):
    count = 3 * of
    indices = torch.stack([(torch.arange(count) * (7 + d) + of) % shape[d] for d in range(sparse_dim)])
    values = (torch.arange(count * max(1, torch.Size(shape[sparse_dim:]).numel())) % 5 + 1 + of).to(dtype)
    return torch.sparse_coo_tensor(indices, values.view(count, *shape[sparse_dim:]), shape)


def dense_sum(dtype, shape, sparse_dim):
    return sum(sparse(r, torch.float64, shape, sparse_dim).to_dense() for r in range(size)).to(dtype)


TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.complex64]
for dtype in TYPES:
    for shape, sparse_dim in (((50,), 1), ((6, 9), 2), ((40, 3), 1)):
        s = sparse(rank, dtype, shape, sparse_dim)
        dist.group.WORLD.allreduce([s]).wait()
        assert s.is_sparse and s.is_coalesced() and s.dtype == dtype and s.sparse_dim() == sparse_dim
        # What to_dense() can't (float16, bfloat16) its values can.
        got = torch.sparse_coo_tensor(s.indices(), s.values().to(torch.complex128), shape).to_dense()
        assert torch.equal(got, dense_sum(torch.complex128, shape, sparse_dim)), (dtype, got)
s = sparse(rank, torch.float32, (50,), 1)
work = dist.all_reduce(s, async_op=True)
assert torch.equal(work.get_future().wait()[0].to_dense(), dense_sum(torch.float32, (50,), 1))
s = sparse(rank, torch.float32, (50,), 1)
dist.all_reduce(s, dist.ReduceOp.AVG)
assert torch.allclose(s.to_dense(), dense_sum(torch.float32, (50,), 1) / size)
empty = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0), (4,))
dist.all_reduce(empty)
assert empty._nnz() == 0
refused("SUM and AVG alone", lambda: dist.all_reduce(sparse(rank, torch.float32, (50,), 1), dist.ReduceOp.MAX))
refused("dense tensors", lambda: dist.broadcast(sparse(rank, torch.float32, (50,), 1), 0))
refused("dense tensors", lambda: dist.all_reduce(torch.ones(3, 3).to_sparse_csr()))
if size > 1:
    # Sizes that differ are told to every rank, and the group goes on.
    refused("Sparse dimensions do not match", lambda: dist.all_reduce(sparse(rank, torch.float32, (50 + (rank == 1),), 1)))
    refused("Sparse dimensions do not match", lambda: dist.all_reduce(sparse(rank, torch.float32 if rank else torch.float64, (50,), 1)))
    refused("Sparse dimensions do not match",
            lambda: dist.all_reduce(sparse(rank, torch.float32, (50,), 1), dist.ReduceOp.AVG if rank else dist.ReduceOp.SUM))

# Gradients of an embedding are sparse: a step of all ranks is a step of one on all data.
def model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Embedding(30, 4, sparse=True), torch.nn.Linear(4, 1))


def loss_of(net, of):
    return sum(net(torch.arange(6) * (r + 2) % 30).square().mean() for r in of) / len(of)


alone, shared = model(), torch.nn.parallel.DistributedDataParallel(model())
loss_of(alone, range(size)).backward()
loss_of(shared, [rank]).backward()
gradient = shared.module[0].weight.grad
assert gradient.is_sparse
assert torch.allclose(gradient.to_dense(), alone[0].weight.grad.to_dense(), atol=1e-6)
assert torch.allclose(shared.module[1].weight.grad, alone[1].weight.grad, atol=1e-6)
