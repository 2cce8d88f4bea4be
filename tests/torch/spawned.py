# Ranks that torch.multiprocessing starts: nobody takes away what others need, and the parent learns of the rank that raised an exception,
# not of those that it made fail.
import os
import sys
import time

import torch
import torch.distributed as dist
import tsprun_torch


def begin(rank, size, store):
    dist.init_process_group("tsprun", init_method=f"file://{store}", rank=rank, world_size=size)


def one_broadcast(rank, size, store, destroys):
    begin(rank, size, store)
    if rank == 1:
        time.sleep(0.2)
    x = torch.full((4,), float(rank))
    work = dist.broadcast(x, 0, async_op=True)  # for which nobody waits
    if destroys:
        dist.destroy_process_group()
        assert x.eq(0).all()


def one_raises(rank, size, store, destroys):
    if destroys:
        one_broadcast(rank, size, store, destroys)
    begin(rank, size, store + "_raises")
    try:
        dist.barrier()
        if rank == 1:
            raise ValueError("the data of this rank are empty")
        dist.all_reduce(torch.ones(8))
    finally:
        if destroys:
            dist.destroy_process_group()


if __name__ == "__main__":
    for method, size in ("spawn", 2), ("fork", 3):
        for destroys in True, False:
            job = size, f"{sys.argv[1]}/{method}{destroys}", destroys
            if method == "fork" or not destroys:
                torch.multiprocessing.start_processes(one_broadcast, job, size, start_method=method)
            try:
                torch.multiprocessing.start_processes(one_raises, job, size, start_method=method)
                raise SystemExit("the exception was lost")
            except torch.multiprocessing.ProcessRaisedException as error:
                assert "ValueError: the data of this rank are empty" in str(error), error
    print("ok", flush=True)
