"""Functions that limit a daemon's process: its number of open files and its number of memory heaps."""

from __future__ import annotations

import resource

_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -3, -1
"""Codes of options of mallopt(3), from malloc.h: the maximum number of heaps, the size from which memory is mapped, and
the free memory at the end of the heap from which it is returned."""

_LARGE_BYTES = 1 << 20
"""Size from which ``return_large_blocks`` has memory mapped. Smaller blocks are many, and mapping each would cost
more than it saves."""


def allow_descriptors(most: int) -> None:
    """Raise the limit of open files to `most`, or to the hard limit. The usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def use_one_arena() -> None:
    """Make glibc use one heap for all threads (mallopt(3)).

    This saves a megabyte of an agent, and a tenth of a controller with thousands of nodes.

    Call it before threads start. With other C libraries it does nothing.
    """
    _mallopt(_M_ARENA_MAX, 1)


def return_large_blocks() -> None:
    """Make glibc return freed blocks of a megabyte or more to the kernel at once (mallopt(3)).

    By default, glibc keeps freed blocks of up to 32 MB in the heap once a program has freed one of that size, and small
    objects that are allocated between them prevent their return. With other C libraries it does nothing.
    """
    _mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    _mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)


def _mallopt(option: int, value: int) -> None:
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(option, value)
