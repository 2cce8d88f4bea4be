# Rank 1 reduces one element more than the others: all are told, before data moves.
import torch
import torch.distributed as dist
import tsprun_torch

dist.init_process_group("tsprun")
dist.barrier()
mine = torch.ones(5 if dist.get_rank() == 1 else 4)
try:
    dist.all_reduce(mine)
except RuntimeError as error:
    assert "mismatch" in str(error), error
    assert torch.equal(mine, torch.ones_like(mine)), mine
    raise
