"""Trains a small network with PyTorch's DistributedDataParallel on tsprun's collectives.

    tsprun -n 4 run -- /usr/bin/python3 examples/torch_ddp.py

With gloo it would be the same program with "gloo" instead of "tsprun".
"""

import torch
import torch.distributed as dist
import tsprun_torch  # registers the backend

dist.init_process_group("tsprun")
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

torch.manual_seed(1 + rank)  # every rank has data of its own
for step in range(1, 51):
    x = torch.randn(64, 16)
    loss = (model(x) - x.sum(dim=1, keepdim=True).sin()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss = loss.detach()
    dist.all_reduce(loss, dist.ReduceOp.AVG)
    if rank == 0 and step % 10 == 0:
        print(f"step {step}  loss {loss.item():.4f}")

dist.destroy_process_group()
