# Rank 1 dies in its backward pass.
import os
import signal

import torch
import torch.distributed as dist
import tsprun_torch

dist.init_process_group("tsprun")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
model(torch.ones(1, 8)).sum().backward()
loss = model(torch.ones(1, 8)).sum()
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
loss.backward()
