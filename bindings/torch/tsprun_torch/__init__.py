"""The torch.distributed backend "tsprun": PyTorch programs on tsprun's collectives.

    import torch.distributed as dist, tsprun_torch
    dist.init_process_group("tsprun")

The rest of the program stays as it was with gloo. Start it by `tsprun -n 4 run -- python3 train.py`, or by torchrun. Where pip has installed
the package, programs of PyTorch 2.5 and later need no import.
"""

import atexit
import datetime
import inspect
import multiprocessing.util
import os
import sys
from typing import Any, List, Optional

import torch
import torch.distributed as dist

import tsprun_torch_entry

from . import _tsprun, starters
from ._tsprun import ProcessGroupTsprun, fail, use_heap

__all__ = ["ProcessGroupTsprun", "abort", "fail", "monitored_barrier", "shutdown", "split_group", "use_heap"]


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
    _attend_to_the_end()
    stream = _stream(options.store, members, options.group_rank)
    return _tsprun.make_group(options.store, options.group_rank, options.group_size, members, stream, options.timeout, world_rank,
                              world_size, name)


def monitored_barrier(group: Optional[dist.ProcessGroup] = None, timeout: Optional[datetime.timedelta] = None,
                      wait_all_ranks: bool = False) -> None:
    """Does what torch.distributed.monitored_barrier does, which refuses all backends but gloo: waits until all ranks of the group
    have called it. After `timeout` (a timedelta; none: the group's) rank 0 raises an error that names the first rank that hasn't, with
    `wait_all_ranks` all of them, and so do the others."""
    if dist.distributed_c10d._rank_not_in_group(group):
        return
    pg = group if group is not None else dist.distributed_c10d._get_default_group()
    limit = {} if timeout is None else {"timeout": timeout}
    pg.monitored_barrier(wait_all_ranks=wait_all_ranks, **limit)


def split_group(parent_pg: Optional[dist.ProcessGroup] = None, split_ranks: Optional[List[List[int]]] = None,
                timeout: Optional[datetime.timedelta] = None, pg_options: Any = None,
                group_desc: Optional[str] = None) -> Optional[dist.ProcessGroup]:
    """Makes a group of each list of `split_ranks`, which has ranks of the group `parent_pg` (none: of all ranks), as torch.distributed's
    split_group does, which PyTorch has from 2.4 on, for GPUs alone. All ranks of the parent call it, with the same lists. Returns the group
    in which this rank is, or None if no list has it. Raises ValueError for lists that can't be: empty ones, and ranks that the parent doesn't
    have or that are in two lists; also for a parent of fewer than all ranks with a PyTorch before 2.1, in which all ranks make a group."""
    parent = parent_pg if parent_pg is not None else dist.distributed_c10d._get_default_group()
    size = dist.get_world_size(parent)
    named = [rank for ranks in split_ranks or [] for rank in ranks]
    if not split_ranks or not all(split_ranks):
        raise ValueError(f"split_group: split_ranks needs at least one list of ranks, and each list a rank, got {split_ranks}")
    if wrong := sorted({rank for rank in named if not 0 <= rank < size or named.count(rank) > 1}):
        raise ValueError(f"split_group: the parent group has ranks 0 to {size - 1}, of which each can be in one list; wrong in split_ranks: {wrong}")
    of_all = size == dist.get_world_size()
    options = {"backend": "tsprun", "timeout": timeout, "pg_options": pg_options, "group_desc": group_desc}
    known = inspect.signature(dist.new_group).parameters
    options = {name: value for name, value in options.items() if value is not None and name in known}
    by_members_alone = "use_local_synchronization" in known
    if by_members_alone:
        options["use_local_synchronization"] = True
    elif not of_all:
        raise ValueError(f"split_group: in PyTorch {torch.__version__} all ranks of the job make a group; call new_group() on all of them")
    mine = None
    for ranks in split_ranks:
        member = dist.get_rank(parent) in ranks
        if member or not by_members_alone:
            made = dist.new_group([rank if of_all else dist.get_global_rank(parent, rank) for rank in sorted(ranks)], **options)
            mine = made if member else mine
    return mine


def shutdown() -> None:
    """Leaves the job: completes what is pending, and waits until all other ranks leave, too, or are gone; at most for TSP_TIMEOUT (under
    tsprun: --timeout), after which a warning names those that are missing. destroy_process_group() and the end of the process do the
    same. Raises RuntimeError if another rank has sent something that this one never received: a broadcast with another root, for
    instance. Afterwards init_process_group() may join a new job, also of another size."""
    _tsprun.leave()


def abort(text: str = "aborted") -> None:
    """Ends the job at once: all other ranks get an error with this text, which names this rank. Waits for nobody, and raises nothing."""
    _tsprun.abort(text)


def _is_ours(group):
    pg = group if group is not None else getattr(dist.GroupMember, "WORLD", None)
    try:
        return pg is not None and str(dist.get_backend(pg)).lower() == "tsprun"
    except (RuntimeError, ValueError):
        return False


def _monitored_barrier(theirs, group=None, timeout=None, wait_all_ranks=False):
    call = monitored_barrier if _is_ours(group) else theirs
    return call(group, timeout, wait_all_ranks)


def _destroy_process_group(theirs, group=None):
    of_all = group is None or group is getattr(dist.GroupMember, "WORLD", None)
    try:
        if of_all:  # before the store goes, which other ranks may need
            # While an exception is on its way, the others shall learn of that one, not that this rank has left.
            _tsprun.leave(only_if_failed=sys.exc_info()[1] is not None)
    finally:
        theirs(group)


def _split_group(theirs, parent_pg=None, *arguments, **named):
    call = split_group if _is_ours(parent_pg) else theirs
    return call(parent_pg, *arguments, **named)


#: What tsprun_torch_entry puts in the place of torch's functions; each is given torch's first.
_in_place_of = {"monitored_barrier": _monitored_barrier, "destroy_process_group": _destroy_process_group, "split_group": _split_group}

_uncaught = None
_show = None


def _note_uncaught(kind, error, trace):
    """Notes the exception that ends the program."""
    global _uncaught
    _uncaught = error
    _show(kind, error, trace)


def _leave():
    """Leaves the job at the process's end; after an uncaught exception, ends it with the exception's words."""
    # A program may have put a hook of its own in the place of _note_uncaught.
    error = _uncaught if sys.excepthook is _note_uncaught else _uncaught or getattr(sys, "last_value", None)
    try:
        if error is not None and not hasattr(sys, "ps1"):
            fail(f"uncaught {type(error).__name__}: {error}")
    except Exception:
        pass  # the job has failed of something else, or there is none, or the exception has no words
    try:
        _tsprun.leave()
    except RuntimeError as mismatch:
        # Nothing else gives the process an exit code now.
        print(f"{type(mismatch).__name__}: {mismatch}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _leave_child():
    """Leaves the job at the end of a process of multiprocessing (torch.multiprocessing.spawn), unless an exception ends it: its parent
    shall see that end before those of the ranks that wait for it."""
    error = sys.exc_info()[1]
    if error is None or isinstance(error, SystemExit) and not error.code:
        _leave()
    else:
        atexit.unregister(_leave)


def _attend_to_the_end():
    """Sees to it that the process leaves its job at its end. Only a process that joins one needs that."""
    global _show
    if _show is None:
        _show = sys.excepthook
        sys.excepthook = _note_uncaught
        atexit.register(_leave)
        if multiprocessing.parent_process() is not None:
            multiprocessing.util.Finalize(None, _leave_child, exitpriority=100)


tsprun_torch_entry.register()
os.environ.update(starters.variables(os.environ))
