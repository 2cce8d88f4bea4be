# Rank 1 is alive but never calls what rank 0 waits for, by a future, which has no timeout of its own.
import datetime
import time

import torch
import torch.distributed as dist
import tsprun_torch

dist.init_process_group("tsprun", timeout=datetime.timedelta(seconds=3))
dist.barrier()
if dist.get_rank() == 1:
    time.sleep(8)
    dist.barrier()
dist.all_reduce(torch.ones(8), async_op=True).get_future().wait()
