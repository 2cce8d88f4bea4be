"""Ring attention in PyTorch: every rank holds a part of the sequence, and keys and values travel around a ring of send and recv.

    tsprun -n 4 run -- /usr/bin/python3 examples/torch_context_parallel.py

While a part of keys and values is used, the next one arrives. The result is compared with attention over the whole sequence.
"""

import math

import torch
import torch.distributed as dist
import tsprun_torch  # registers the backend

dist.init_process_group("tsprun")
rank, size = dist.get_rank(), dist.get_world_size()
heads, part, width = 4, 64, 32  # of each rank: [heads, part, width] queries, keys and values


def ring_attention(queries, keys, values):
    """softmax(Q Kᵀ / √d) V over the keys and values of all ranks, causal, with a running maximum and sum of each row."""
    most = torch.full((heads, part, 1), -math.inf)
    total = torch.zeros(heads, part, 1)
    result = torch.zeros_like(queries)
    travelling = torch.stack([keys, values])
    for turn in range(size):
        owner = (rank - turn) % size
        if turn + 1 < size:
            arriving = torch.empty_like(travelling)
            works = [dist.isend(travelling, (rank + 1) % size), dist.irecv(arriving, (rank - 1) % size)]
        if owner <= rank:
            scores = queries @ travelling[0].transpose(1, 2) / math.sqrt(width)
            if owner == rank:
                scores = scores.masked_fill(torch.ones(part, part).triu(1).bool(), -math.inf)
            higher = torch.maximum(most, scores.amax(2, keepdim=True))
            weights = (scores - higher).exp()
            shrink = (most - higher).exp()
            total = total * shrink + weights.sum(2, keepdim=True)
            result = result * shrink + weights @ travelling[1]
            most = higher
        if turn + 1 < size:
            for work in works:
                work.wait()
            travelling = arriving
    return result / total


torch.manual_seed(0)
whole = torch.randn(3, heads, size * part, width)  # the same on every rank, to compare
mine = slice(rank * part, (rank + 1) * part)
got = ring_attention(*(each[:, mine].contiguous() for each in whole))

scores = whole[0] @ whole[1].transpose(1, 2) / math.sqrt(width)
scores = scores.masked_fill(torch.ones(size * part, size * part).triu(1).bool(), -math.inf)
error = (got - (scores.softmax(2) @ whole[2])[:, mine]).abs().max()
dist.all_reduce(error, dist.ReduceOp.MAX)
assert error < 1e-5, error
if rank == 0:
    print(f"{size} ranks, {size * part} tokens: largest difference {error.item():.0e}, ok")
dist.destroy_process_group()
