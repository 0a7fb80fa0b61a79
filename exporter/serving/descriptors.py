"""Handling of a lack of file descriptors, and the share of them for connections."""

from __future__ import annotations

import errno
import resource

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of accept(2) and open(2): no descriptors in this process or machine, no memory for sockets."""

KEPT = 128
"""Descriptors that are never used for connections: journal, logs, own sockets, started ranks."""

LEAST = 16
"""Minimum number of connections, however few descriptors there are."""


def exhausted(error: BaseException) -> bool:
    """Return whether the error means a temporary lack of descriptors or socket memory."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def most_connections(wanted: int) -> int:
    """Return the possible number of connections, at most `wanted`: half of the descriptors beyond KEPT.

    The other half is for sockets that the process opens itself, such as those to agents.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max((soft - KEPT) // 2, LEAST))
