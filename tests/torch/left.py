# Tensors in the heap of a job that the rank has left.
import torch
import torch.distributed as dist
import tsprun_torch

from expect import in_heap, refused

dist.init_process_group("tsprun")
tsprun_torch.use_heap()
large = torch.ones(1 << 20)
assert in_heap(large)
dist.all_reduce(large)
dist.barrier()
size = dist.get_world_size()
tsprun_torch._tsprun.leave()
assert bool((large == size).all())
later = torch.ones(1 << 20)
assert not in_heap(later)
refused("left its job", lambda: dist.all_reduce(later))
del large
dist.destroy_process_group()
