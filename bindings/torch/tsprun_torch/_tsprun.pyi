"""Types of the extension module; bindings/torch/module.cpp is what they describe."""

from datetime import timedelta
from typing import List, NoReturn, Optional

from torch.distributed import ProcessGroup, Store, Work

class ProcessGroupTsprun(ProcessGroup):
    def coalesced(self) -> Work: ...

def make_group(
    store: Store,
    rank: int,
    size: int,
    members: List[int],
    stream: Optional[int],
    timeout: timedelta,
    world_rank: int,
    world_size: int,
    name: str = ...,
) -> ProcessGroupTsprun: ...
def uses(stream: int) -> bool: ...
def use_heap(smallest: int = ...) -> None: ...
def fail(text: str) -> NoReturn: ...
def leave(only_if_failed: bool = ...) -> None: ...
def abort(text: str) -> None: ...
