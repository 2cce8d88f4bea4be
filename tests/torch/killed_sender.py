# Rank 1 dies while rank 0 waits for a message of any rank, and rank 2 for one of rank 0.
import os
import signal
import time

import torch
import torch.distributed as dist
import tsprun_torch

dist.init_process_group("tsprun")
dist.barrier()
if dist.get_rank() == 1:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.recv(torch.empty(1), None if dist.get_rank() == 0 else 0)
except RuntimeError as error:
    assert "rank 1" in str(error) and "killed" in str(error), error
    print("ranks were told of rank 1", flush=True)
    raise
