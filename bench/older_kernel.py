#!/usr/bin/env python3
"""Runs a command as if Linux were older than 6.15: setsockopt(TCP_RTO_MAX_MS) fails with ENOPROTOOPT in it and in all that it
starts. What does that is a seccomp filter.

    bench/older_kernel.py build/release/launcher/tsprun -n 2 bench all_reduce

Exit code 77: this machine can't do that; else the command's own.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW = 0x00050000, 0x7FFF0000
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF_LD | BPF_W | BPF_ABS; BPF_JMP | BPF_JEQ | BPF_K; BPF_RET | BPF_K
NUMBER_AT, LEVEL_AT, OPTION_AT = 0, 24, 32  # of struct seccomp_data: nr, and the low halves of args[1] and args[2]
SETSOCKOPT = {"x86_64": 54, "aarch64": 208}
IPPROTO_TCP, TCP_RTO_MAX_MS = 6, 44


def pretend():
    """Installs the filter in this process. Raises OSError."""
    if platform.machine() not in SETSOCKOPT:
        raise OSError(errno.ENOSYS, f"the number of setsockopt on {platform.machine()} isn't known here")
    steps = [
        (LOAD, 0, 0, NUMBER_AT),
        (JUMP_IF_EQUAL, 0, 5, SETSOCKOPT[platform.machine()]),
        (LOAD, 0, 0, LEVEL_AT),
        (JUMP_IF_EQUAL, 0, 3, IPPROTO_TCP),
        (LOAD, 0, 0, OPTION_AT),
        (JUMP_IF_EQUAL, 0, 1, TCP_RTO_MAX_MS),
        (RETURN, 0, 0, SECCOMP_RET_ERRNO | errno.ENOPROTOOPT),
        (RETURN, 0, 0, SECCOMP_RET_ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no seccomp filter: " + os.strerror(ctypes.get_errno()))


def main():
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        pretend()
    except OSError as reason:
        print(f"no older kernel here: {reason.strerror}", file=sys.stderr)
        return 77
    return os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
