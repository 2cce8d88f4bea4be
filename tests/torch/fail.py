# Rank 1 finds a reason to end the job while the others wait for it: all get its words.
import torch
import torch.distributed as dist
import tsprun_torch

try:
    tsprun_torch.fail("nothing to end")
except RuntimeError as error:
    assert "has joined no job" in str(error), error
dist.init_process_group("tsprun")
dist.barrier()
try:
    if dist.get_rank() == 1:
        tsprun_torch.fail("the loss isn't finite")
    dist.all_reduce(torch.ones(1))
except RuntimeError as error:
    assert "the loss isn't finite" in str(error) and "failed" in str(error), error
    print("ranks were told why", flush=True)
    raise
