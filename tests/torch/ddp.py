# DistributedDataParallel on the backend "tsprun": gradients after a step equal those of one process on the whole batch, and the
# bits are the same in a second run.
import torch
import torch.distributed as dist
import tsprun_torch

dist.init_process_group("tsprun")
rank, size = dist.get_rank(), dist.get_world_size()


def run(parallel):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).double()
    inputs, wanted = torch.randn(4 * size, 32).double(), torch.randn(4 * size, 8).double()
    mine = slice(4 * rank, 4 * rank + 4) if parallel else slice(None)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01) if parallel else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = (wrapped(inputs[mine]) - wanted[mine]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), torch.cat([p.detach().flatten() for p in model.parameters()])


losses, weights = run(parallel=True)
again, weights_again = run(parallel=True)
assert torch.equal(losses, again) and torch.equal(weights, weights_again)
dist.all_reduce(losses)
alone, weights_alone = run(parallel=False)
torch.testing.assert_close(losses / size, alone, rtol=1e-11, atol=0)
torch.testing.assert_close(weights, weights_alone, rtol=1e-10, atol=1e-12)
