# A program that says "tsprun" and imports nothing of it, as PyTorch 2.5 and later allow where pip installed the backend. For older ones
# this does what their `import torch` would. Started on two ranks; prints "ok" on rank 0 when all is done.
import importlib.metadata
import sys

import torch
import torch.distributed as dist
from torch.distributed import destroy_process_group, init_process_group

if not hasattr(torch, "_import_device_backends"):
    for entry in importlib.metadata.entry_points(group="torch.backends"):
        entry.load()()
    from torch.distributed import destroy_process_group, init_process_group
assert "tsprun_torch" not in sys.modules, "only programs that say tsprun load it"
init_process_group("tsprun")
t = torch.ones(3)
dist.all_reduce(t)
assert t.eq(2).all() and dist.get_backend() == "tsprun"
rank = dist.get_rank()
dist.monitored_barrier()
destroy_process_group()
import tsprun_torch

try:
    tsprun_torch.fail("there is no job any more")
except RuntimeError as error:
    assert "joined no job" in str(error), error
else:
    raise AssertionError("destroy_process_group didn't leave the job")
if rank == 0:
    print("ok", tsprun_torch.__file__, flush=True)
