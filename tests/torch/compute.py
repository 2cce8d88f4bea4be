# Rank 1 computes for longer than the deadline (given as --timeout) before it joins in: it lives, and nobody is declared stalled.
import time

import torch
import torch.distributed as dist
import tsprun_torch

dist.init_process_group("tsprun")
dist.barrier()
if dist.get_rank() == 1:
    time.sleep(5)
t = torch.ones(1)
dist.all_reduce(t)
assert t.item() == dist.get_world_size()
