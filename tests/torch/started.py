# Started by mpirun, or as a rank of tsprun: all that a program says is "tsprun".
import os
import subprocess
import sys

import torch
import torch.distributed as dist
import tsprun_torch

dist.init_process_group("tsprun")
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.full((3,), float(rank))
dist.all_reduce(x)
assert size == 2 and x.eq(1).all()
dist.monitored_barrier()  # torch's own, which takes no backend but gloo

# What a rank of tsprun starts in its turn may have a job of its own, though it inherits the rank's variables. (lives.py has one that inherits
# PyTorch's alone.)
if rank == 0 and "TSP_NODE_FD" in os.environ:
    child = "import torch, torch.distributed as d, tsprun_torch; d.init_process_group('tsprun', store=d.HashStore(), rank=0, world_size=1)"
    subprocess.run([sys.executable, "-c", child + "; d.all_reduce(torch.ones(2)); d.destroy_process_group()"], check=True)
dist.barrier()
if rank == 0:
    print("ok", flush=True)
