"""Functions that limit a daemon's process: its number of open files and its number of memory heaps."""

from __future__ import annotations

import resource

_M_ARENA_MAX = -8
"""Code of the option M_ARENA_MAX of mallopt(3), from malloc.h: the maximum number of heaps."""


def allow_descriptors(most: int) -> None:
    """Raise the limit of open files to `most`, or to the hard limit. The usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def use_one_arena() -> None:
    """Make glibc use one heap for all threads (mallopt(3)). This saves a megabyte of memory.

    Call it before threads start. With other C libraries it does nothing.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
