"""The torch.distributed backend "tsprun": PyTorch programs on tsprun's collectives.

    import torch.distributed as dist, tsprun_torch
    dist.init_process_group("tsprun")

The rest of the program stays as it was with gloo. Start it by `tsprun -n 4 run -- python3 train.py`, or by torchrun.
"""

import atexit
import sys

import torch
import torch.distributed as dist

from . import _tsprun
from ._tsprun import ProcessGroupTsprun, fail, use_heap


def _stream(own_store, members, rank):
    """Returns the number of the stream of a group's collectives, which need no order between groups: 0 of the group of all ranks; of
    others one for each shape, the distances between members, which the groups along one axis of a mesh have in common. None: the group
    has a channel of its own, because there are more shapes than streams, or a member is in another group on the stream."""
    if len(members) < 2:  # of one rank: nobody else takes part
        return 0
    store = dist.distributed_c10d._get_default_store()
    shape = "tsprun/shape" + "".join(f"/{b - a}" for a, b in zip(members, members[1:]))
    # The first member of the first group of a shape numbers it.
    if rank == 0 and store.add(shape + "/seen", 1) == 1:
        store.set(shape, str(store.add("tsprun/shapes", 1)))
    stream = int(store.get(shape))
    if stream > 3:
        return None
    # Each member says whether it is in a group on the stream, and the last one tells what follows. The store may have the keys of an
    # earlier group, which its members made as often as this one.
    key = f"tsprun/channel/{own_store.add(f'tsprun/made/{rank}', 1)}"
    said = own_store.add(key + "/said", 1 + (_tsprun.uses(stream) << 16))
    if said & 0xFFFF == len(members):
        own_store.set(key, str(said >> 16))
    return None if int(own_store.get(key)) > 0 else stream


def _make_group(options, _, name="tsprun"):
    members = list(options.global_ranks_in_group)
    if members:
        world_rank, world_size = dist.get_rank(), dist.get_world_size()
    else:
        world_rank, world_size = options.group_rank, options.group_size
    stream = _stream(options.store, members, options.group_rank)
    return _tsprun.make_group(options.store, options.group_rank, options.group_size, members, stream, options.timeout, world_rank,
                              world_size, name)


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """Does what torch.distributed.monitored_barrier does, which refuses all backends but gloo: waits until all ranks of the group
    have called it. After `timeout` (a timedelta; none: the group's) rank 0 raises an error that names the first rank that hasn't, with
    `wait_all_ranks` all of them, and so do the others."""
    if dist.distributed_c10d._rank_not_in_group(group):
        return
    pg = group if group is not None else dist.distributed_c10d._get_default_group()
    limit = {} if timeout is None else {"timeout": timeout}
    pg.monitored_barrier(wait_all_ranks=wait_all_ranks, **limit)


_uncaught = None


def _note_uncaught(kind, error, trace, show=sys.excepthook):
    """Notes the exception that ends the program."""
    global _uncaught
    _uncaught = error
    show(kind, error, trace)


def _leave():
    """Leaves the job at the process's end; after an uncaught exception, ends it with the exception's words."""
    # A program may have put a hook of its own in the place of _note_uncaught.
    error = _uncaught if sys.excepthook is _note_uncaught else _uncaught or getattr(sys, "last_value", None)
    try:
        if error is not None and not hasattr(sys, "ps1"):
            fail(f"uncaught {type(error).__name__}: {error}")
    except Exception:
        pass  # the job has failed of something else, or there is none, or the exception has no words
    _tsprun.leave()


if "TSPRUN" not in dist.Backend._plugins:
    for_devices = {} if torch.__version__.startswith("1.") else {"devices": ["cpu"]}
    dist.Backend.register_backend("tsprun", _make_group, extended_api=True, **for_devices)
    sys.excepthook = _note_uncaught
    atexit.register(_leave)
