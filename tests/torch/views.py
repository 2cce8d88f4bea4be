# Conjugate and negative views: what travels is what the program sees, not what lies in memory. Some of torch's own functions refuse such
# views, so some operations are called on the group.
import torch
import torch.distributed as dist
import tsprun_torch

dist.init_process_group("tsprun")
rank, size, group = dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_group()
z = torch.tensor([1 + 2j, 3 - 4j]) * (rank + 1)
for seen in (z.conj(), z.conj().imag):  # a conjugate view, a negative one
    assert seen.is_conj() or seen.is_neg()
    of = [seen.resolve_conj().resolve_neg() / (rank + 1) * (r + 1) for r in range(size)]

    def check(got, wanted=of):
        assert all(torch.equal(part, want) for part, want in zip(got, wanted, strict=True)), (got, wanted)

    def empty():
        return [torch.empty_like(part) for part in of]

    parts = empty()
    dist.gather(seen, parts if rank == 0 else None)
    check(parts if rank == 0 else of)
    group.allgather([parts := empty()], [seen]).wait()
    check(parts)
    group.alltoall(parts := empty(), [seen] * size).wait()
    check(parts)
    scattered = dist.ScatterOptions()
    scattered.rootRank = 1
    group.scatter([got := torch.empty_like(of[0])], [[seen] * size] if rank == 1 else [], scattered).wait()
    check([got], [of[1]])
    copy = seen.clone() if rank == 1 else torch.empty_like(of[0])
    dist.broadcast(seen if rank == 1 else copy, 1)
    check([copy], [of[1]])
    if rank == 0:
        dist.send(seen, 1)
    elif rank == 1:
        dist.recv(got, 0)
        check([got], [of[0]])
    group._allgather_base(whole := torch.empty(2 * size, dtype=of[0].dtype), seen).wait()
    check([whole], [torch.cat(of)])
    if not seen.is_complex():
        total = seen.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        check([total], [sum(of)])
        group._reduce_scatter_base(mine := torch.empty(2), torch.cat([seen] * size)._neg_view()).wait()
        check([mine], [-sum(of)])
