# Results that are copied to where they belong after the operation: parameters, tensors of inference mode, and ones that can't be
# written, whichever thread finds the end.
import time

import torch
import torch.distributed as dist
import tsprun_torch

dist.init_process_group("tsprun")
rank, size = dist.get_rank(), dist.get_world_size()


def over(work):
    """Leaves the end of an operation to the progress thread."""
    is_over = work.done if isinstance(work, torch._C.Future) else work.is_completed
    while not is_over():
        time.sleep(0.001)
    work.wait()


def equal(got, want):
    assert torch.equal(got.detach(), want), (got, want)


def parameter(*shape):
    return torch.nn.Parameter(torch.full(shape, rank + 1.0))


total = size * (size + 1) / 2
for wait in (lambda work: work.wait(), over):
    # A leaf that requires grad and isn't contiguous.
    weight = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last).weight
    assert weight.requires_grad and weight.is_leaf and not weight.is_contiguous()
    with torch.no_grad():
        weight.fill_(rank + 1)
    wait(dist.broadcast(weight, size - 1, async_op=True))
    equal(weight, torch.full((4, 3, 3, 3), float(size)))
    assert weight.requires_grad and weight.is_leaf

    parameters = [parameter(2, 3), parameter(5)]
    wait(dist.all_reduce_coalesced(parameters, async_op=True))
    for p in parameters:
        equal(p, torch.full_like(p, total).detach())
        assert p.is_leaf

    outs = [parameter(3) for _ in range(size)]
    wait(dist.all_gather(outs, torch.full((3,), float(rank)), async_op=True))
    for r in range(size):
        equal(outs[r], torch.full((3,), float(r)))
    with torch.no_grad():
        outs = [parameter(3) for _ in range(size)]
        wait(dist.all_gather(outs, torch.full((3,), float(rank)), async_op=True))
        for r in range(size):
            equal(outs[r], torch.full((3,), float(r)))

    with torch.inference_mode():
        outs = [torch.empty(3) for _ in range(size)]
        wait(dist.all_gather(outs, torch.full((3,), float(rank)), async_op=True))
        for r in range(size):
            assert outs[r].is_inference()
            equal(outs[r], torch.full((3,), float(r)))

# A strided input is copied first, also where no result comes back.
strided = torch.full((1 << 16, 2), rank + 1.0)[:, 0]
wait(dist.reduce(strided, 0, async_op=True))
equal(strided, torch.full((1 << 16,), total if rank == 0 else rank + 1.0))

# What can't be written is an error, not a success without a result.
if rank == 0:
    dist.send(torch.arange(4.0), 1)
elif rank == 1:
    expanded = torch.zeros(1).expand(4)
    try:
        dist.recv(expanded, 0)
    except RuntimeError as error:
        assert "single memory location" in str(error), error
    else:
        raise AssertionError("four elements were written into the place of one")
