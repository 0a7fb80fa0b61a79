"""Limits of a daemon's process: open files and heaps."""

from __future__ import annotations

import resource

_M_ARENA_MAX = -8
"""Number of the option M_ARENA_MAX of mallopt(3), from malloc.h."""


def allow_descriptors(most: int) -> None:
    """Raise the limit of open files to `most`, or to the hard limit. The usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def use_one_arena() -> None:
    """Make glibc use one heap for all threads (mallopt(3)): one per thread would add a megabyte of fragments.

    Call it before threads start. Other C libraries have no such heaps; there it does nothing.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
