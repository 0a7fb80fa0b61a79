"""Functions that limit a daemon's process: its open files, its memory heaps, and its pauses for garbage collection."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable

_M_ARENA_MAX = -8
"""Code of the option M_ARENA_MAX of mallopt(3), from malloc.h: the maximum number of heaps."""

ALL_OBJECTS_SECONDS = 3600.0
"""Seconds after which a full garbage collection examines all objects again."""

_FULL = 2
"""Generation of a full collection in the gc module."""


def allow_descriptors(most: int) -> None:
    """Raise the limit of open files to `most`, or to the hard limit. The usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def use_one_arena() -> None:
    """Make glibc use one heap for all threads (mallopt(3)).

    This saves a megabyte of an agent, and memory between blocks of a controller with thousands of nodes.

    Call it before threads start. With other C libraries it does nothing.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


class ShortCollections:
    """Full garbage collections that examine only objects made since the last one, and all objects once an hour.

    A controller of 12,500 nodes has 1.4 million objects that live as long as their node or job. Examining them stops
    all threads for a second. Objects that were examined are set aside (gc.freeze); reference counts still free them,
    so only cycles among them wait for the next hour.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all_s = clock()

    def start(self) -> None:
        gc.callbacks.append(self._called)

    def stop(self) -> None:
        """Return to Python's own rule."""
        gc.callbacks.remove(self._called)
        gc.unfreeze()

    def _called(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != _FULL:
            return
        if phase == "stop":
            gc.freeze()
        elif self._clock() - self._all_s >= ALL_OBJECTS_SECONDS:
            self._all_s = self._clock()
            gc.unfreeze()
