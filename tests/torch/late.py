# Waits that end because a rank hasn't come name it, and the job goes on: monitored_barrier, and the timeout of a work object.
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import tsprun_torch

from expect import refused

dist.init_process_group("tsprun")
rank, size = dist.get_rank(), dist.get_world_size()
short = timedelta(milliseconds=300)

tsprun_torch.monitored_barrier(timeout=timedelta(seconds=20))
if rank == 0:
    refused("Rank 1 failed to pass monitoredBarrier in 300 ms", lambda: tsprun_torch.monitored_barrier(timeout=short))
elif rank != 1:
    refused("rank 0: Rank 1 failed", lambda: tsprun_torch.monitored_barrier(timeout=short))
dist.barrier()
if rank == 0:
    everyone = "Ranks " + ", ".join(str(r) for r in range(1, size)) + " failed"
    refused(everyone, lambda: tsprun_torch.monitored_barrier(timeout=short, wait_all_ranks=True))
dist.barrier()
tsprun_torch.monitored_barrier(timeout=timedelta(seconds=20))
pair = dist.new_group([0, 1])
tsprun_torch.monitored_barrier(pair, timedelta(seconds=20))

# Rank 1 comes to the sum, and sends its message, after the others have lost patience.
value = torch.ones(1)
if rank == 1:
    time.sleep(6)
    dist.all_reduce(value)
    dist.send(value, 0)
else:
    work = dist.all_reduce(value, async_op=True)
    refused("waits for rank 1 of the job", lambda: work.wait(short))
    if rank == 0:
        got = torch.empty(1)
        message = dist.irecv(got)
        work.wait()
        message.wait()
        assert got.item() == size and message._source_rank() == 1
    work.wait()
assert value.item() == size
