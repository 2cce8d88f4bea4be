# A process group that is made again on the store of an earlier one: what the first left there doesn't count in the second. (torch 1.13's
# own init_process_group hangs on such a store, so the groups are made without it.)
import os
from datetime import timedelta

import torch.distributed as dist
from tsprun_torch import _tsprun

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0)
for life in range(2):
    group = _tsprun.make_group(store, rank, size, [], 0, timedelta(seconds=20), rank, size)
    group.monitored_barrier(timedelta(seconds=20), False)
    # Now rank 1 misses one. A key that it left in the life before would stand for it.
    if rank != 1:
        try:
            group.monitored_barrier(timedelta(milliseconds=300), False)
        except RuntimeError as error:
            assert "ank 1 failed to pass" in str(error), error
        else:
            raise AssertionError("rank 1 wasn't missed")
    group.barrier().wait()
    group.monitored_barrier(timedelta(seconds=20), False)
    group.barrier().wait()
    del group
if rank == 0:
    print("ok", flush=True)
_tsprun.leave()
