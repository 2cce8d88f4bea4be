# Models that take memory from torch's allocator in other ways than tensors do, with their tensors in the heap.
import torch
import torch.distributed as dist
import tsprun_torch

dist.init_process_group("tsprun")
tsprun_torch.use_heap(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
                            torch.nn.Conv2d(8, 16, 3), torch.nn.Flatten(), torch.nn.Linear(16 * 36, 10))
model = torch.nn.parallel.DistributedDataParallel(model)
for _ in range(3):
    model(torch.randn(8, 3, 16, 16)).square().mean().backward()
x = torch.randn(64, 64)
assert torch.equal(x.to_mkldnn().to_dense(), x)
quantized = torch.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(64, 64)), {torch.nn.Linear}, dtype=torch.qint8)
assert quantized(x).shape == (64, 64)
assert torch.fft.fft(x).shape == (64, 64)
total = sum(parameter.grad.sum() for parameter in model.parameters()).clone()
low, high = total.clone(), total.clone()
dist.all_reduce(low, dist.ReduceOp.MIN)
dist.all_reduce(high, dist.ReduceOp.MAX)
assert low == high and torch.isfinite(low)
