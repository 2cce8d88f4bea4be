"""Makes the backend "tsprun" known to torch.distributed, without loading what it consists of: that is done when a program asks for it.

PyTorch 2.5 and later call register() in `import torch`: pip notes it as an entry point of the group "torch.backends". So such programs say
init_process_group("tsprun") without an import. Importing tsprun_torch calls it, too.
"""

import functools
import importlib
import sys

_registered = False


def _make_group(options, more):
    return importlib.import_module("tsprun_torch")._make_group(options, more)


def _replace(distributed, name):
    """Puts a function in the place of one of torch's that calls tsprun_torch's once that is loaded, and torch's before."""
    theirs = getattr(distributed.distributed_c10d, name)

    @functools.wraps(theirs)
    def replaced(*arguments, **named):
        ours = getattr(sys.modules.get("tsprun_torch"), "_in_place_of", {}).get(name)
        return ours(theirs, *arguments, **named) if ours else theirs(*arguments, **named)

    _put(distributed, name, replaced)


def _replace_init(distributed):
    """Lets init_process_group load tsprun_torch for its backend: that reads what the starter of ranks has said, which torch then needs."""
    theirs = distributed.distributed_c10d.init_process_group

    @functools.wraps(theirs)
    def replaced(*arguments, **named):
        if "tsprun" in str(arguments[0] if arguments else named.get("backend")).lower():
            importlib.import_module("tsprun_torch")
        return theirs(*arguments, **named)

    _put(distributed, "init_process_group", replaced)


def _put(distributed, name, function):
    setattr(distributed.distributed_c10d, name, function)
    setattr(distributed, name, function)


def register():
    """Registers the backend, once in a process; does nothing where PyTorch was built without torch.distributed."""
    global _registered
    import torch
    import torch.distributed as distributed

    if _registered or not distributed.is_available():
        return
    _registered = True
    for_devices = {} if torch.__version__.startswith("1.") else {"devices": ["cpu"]}
    distributed.Backend.register_backend("tsprun", _make_group, extended_api=True, **for_devices)
    _replace_init(distributed)
    for name in "monitored_barrier", "destroy_process_group", "split_group":
        if hasattr(distributed.distributed_c10d, name):
            _replace(distributed, name)
