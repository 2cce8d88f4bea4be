# Rank 1 finds a reason to end the job while the others wait for it: all get its words.
import torch
import torch.distributed as dist
import tsprun_torch

from expect import refused

refused("has joined no job", lambda: tsprun_torch.fail("nothing to end"))
refused("after init_process_group", tsprun_torch.use_heap)
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
