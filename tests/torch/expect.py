# Checks that programs on the backend share.


def refused(text, call):
    """Checks that a call fails with an error that has this text."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")


def in_heap(tensor):
    """Whether shared memory holds the tensor, as the kernel says."""
    for line in open("/proc/self/maps"):
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return "memfd:" in line or "/dev/shm/" in line
    raise AssertionError("no mapping has the tensor")
