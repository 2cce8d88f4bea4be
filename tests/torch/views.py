# Conjugate and negative views: what travels is what the program sees, not what lies in memory.
import torch
import torch.distributed as dist
import tsprun_torch

dist.init_process_group("tsprun")
rank, size = dist.get_rank(), dist.get_world_size()
z = torch.tensor([1 + 2j, 3 - 4j]) * (rank + 1)
for seen in (z.conj(), z.conj().imag):  # a conjugate view, a negative one
    assert seen.is_conj() or seen.is_neg()
    of = [seen.resolve_conj().resolve_neg() / (rank + 1) * (r + 1) for r in range(size)]
    parts = [torch.empty_like(of[0]) for _ in range(size)] if rank == 0 else None
    dist.gather(seen, parts)
    assert rank != 0 or all(torch.equal(part, want) for part, want in zip(parts, of)), parts
    all_parts = [torch.empty_like(of[0]) for _ in range(size)]
    dist.all_gather(all_parts, seen)
    assert all(torch.equal(part, want) for part, want in zip(all_parts, of)), all_parts
    dist.all_to_all(all_parts, [seen] * size)
    assert all(torch.equal(part, want) for part, want in zip(all_parts, of)), all_parts
    got = torch.empty_like(of[0])
    dist.scatter(got, [seen] * size if rank == 0 else None)
    assert torch.equal(got, of[0]), got
    if rank == 0:
        dist.send(seen, 1)
    elif rank == 1:
        dist.recv(got, 0)
        assert torch.equal(got, of[0]), got
    whole = torch.empty(2 * size, dtype=of[0].dtype)
    dist._all_gather_base(whole, seen) if torch.__version__.startswith("1.") else dist.all_gather_into_tensor(whole, seen)
    assert torch.equal(whole, torch.cat(of)), whole
if rank == 0:
    print("ok", flush=True)
