# What a profile says of a call: its name and the shapes of the tensors that the caller gave, whatever travels.
import torch
import torch.distributed as dist
import tsprun_torch

dist.init_process_group("tsprun")
rank, size = dist.get_rank(), dist.get_world_size()
a, b = torch.ones(3, 4), torch.ones(5)
many = [torch.ones(2, r + 1) for r in range(size)]
right, left = (rank + 1) % size, (rank - 1) % size


def messages():
    works = [dist.isend(b, right), dist.irecv(b.clone(), left)]
    for work in works:
        work.wait()


def shapes(tensors):
    return [list(t.shape) for t in tensors]


CALLS = [
    ("all_reduce", lambda: dist.all_reduce(a), shapes([a])),
    ("all_reduce", lambda: dist.all_reduce(a.t()), shapes([a.t()])),
    ("all_reduce", lambda: dist.all_reduce_coalesced([a, b]), shapes([a, b])),
    ("all_reduce", lambda: dist.all_reduce(a.to_sparse()), [[2, 12], [12]]),
    ("broadcast", lambda: dist.broadcast(b, 0), shapes([b])),
    ("reduce", lambda: dist.reduce(a[:, 1:3], 0), [[3, 2]]),
    ("all_gather", lambda: dist.all_gather([torch.empty(5) for _ in range(size)], b), shapes([b])),
    ("all_gather", lambda: dist.all_gather_coalesced([[torch.empty(3, 4), torch.empty(5)] for _ in range(size)], [a, b]), shapes([a, b])),
    ("gather", lambda: dist.gather(b, [torch.empty(5) for _ in range(size)] if rank == 0 else None), shapes([b])),
    ("scatter", lambda: dist.scatter(torch.empty(3, 4), [a] * size if rank == 0 else None), shapes([a] * size) if rank == 0 else []),
    ("reduce_scatter", lambda: dist.reduce_scatter(torch.empty(2, rank + 1), many), shapes(many)),
    ("all_to_all", lambda: dist.all_to_all([torch.empty(2, rank + 1) for _ in range(size)], many), shapes(many)),
    ("send", messages, shapes([b])),
    ("recv", messages, shapes([b])),
]
for name, call, want in CALLS:
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        call()
    events = [event for event in profile.function_events if event.name == "tsprun:" + name]
    assert len(events) == 1, (name, [event.name for event in profile.function_events])
    assert events[0].input_shapes == want, (name, events[0].input_shapes, want)
    assert events[0].is_async
with torch.profiler.profile(record_shapes=True) as profile:
    dist.all_to_all([torch.empty(2, rank + 1) for _ in range(size)], many)
rows = [row for row in profile.key_averages(group_by_input_shape=True) if row.key == "tsprun:all_to_all"]
assert [row.input_shapes for row in rows] == [shapes(many)], rows
