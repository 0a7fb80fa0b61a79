"""Running out of descriptors is a passing trouble: what it is, and how many a server leaves to everybody else."""

from __future__ import annotations

import errno
import resource

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""accept(2), open(2): of this process, of this machine, and memory for sockets."""

KEPT = 128
"""Descriptors that a server never takes for connections: journal, logs, sockets of its own, ranks that are started."""

LEAST = 16
"""Connections that a server takes however few descriptors there are."""


def exhausted(error: BaseException) -> bool:
    """Whether the error says that there are no descriptors, or no memory for a socket, just now."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def most_connections(wanted: int) -> int:
    """How many of the connections that are wanted this process can have: half of what is left beside KEPT.

    The other half is for sockets that it opens itself, to the agents for one.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max((soft - KEPT) // 2, LEAST))
