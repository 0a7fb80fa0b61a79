"""Limits for file descriptors: the number of connections that they allow, and detection of errors when none is left."""

from __future__ import annotations

import errno
import resource

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Error numbers of accept(2) and open(2) for a lack of descriptors (in this process or machine) or of socket memory."""

KEPT = 128
"""Number of file descriptors that are reserved for the journal, the logs, the process's own sockets and started ranks.
Connections never use them."""

LEAST = 16
"""The process accepts at least this number of connections, even if it may open fewer file descriptors."""


def exhausted(error: BaseException) -> bool:
    """Return whether the error means a temporary lack of descriptors or socket memory."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def most_connections(wanted: int) -> int:
    """Return the maximum number of connections: `wanted`, or half of the process's descriptors (less KEPT) if that is
    less.

    The other half is for sockets that the process opens itself, such as those to agents.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max((soft - KEPT) // 2, LEAST))
