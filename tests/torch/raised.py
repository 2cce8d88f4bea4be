# Rank 1 ends by an exception of its own, outside of any operation.
import torch
import torch.distributed as dist
import tsprun_torch

dist.init_process_group("tsprun")
dist.barrier()
if dist.get_rank() == 1:
    raise ValueError("the data of this rank are empty")
dist.all_reduce(torch.ones(8))
