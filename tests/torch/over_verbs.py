# Two ranks on two machines of the RDMA laboratory, which only torch's store brought together.
import torch
import torch.distributed as dist
import tsprun_torch  # noqa: F401

dist.init_process_group("tsprun")
count = 100_000
numbers = torch.arange(count, dtype=torch.float64)
total = numbers * (dist.get_rank() + 1)
dist.all_reduce(total)
assert torch.equal(total, numbers * 3)
print("ok")
