"""TCP ports for programs that tests start, reserved so that no other program on the machine can take them.

A port that was only found to be free can be bound by any other program: another test cluster, a run of another
checkout, an outgoing connection. Here a socket stays bound to each port until this process ends. It never listens, and
it sets SO_REUSEADDR after binding. Linux therefore gives the port only to a server that sets SO_REUSEADDR before it
binds, as the servers of Go, Slurm and Python do (socket(7)); bind(2) to port 0 and connect(2) never choose it.
"""

from __future__ import annotations

import socket

_ATTEMPTS = 1000

_held: list[socket.socket] = []


def _bound(port: int) -> socket.socket:
    """Return a socket that is bound to the port on all addresses. Raises OSError if the port is in use."""
    one = socket.socket()
    try:
        one.bind(("", port))
    except OSError:
        one.close()
        raise
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return one


def held_port() -> int:
    """Return a port that stays reserved until this process ends."""
    (port,) = held_ports(1)
    return port


def held_ports(count: int) -> list[int]:
    """Return `count` different ports that stay reserved until this process ends."""
    sockets = [_bound(0) for _ in range(count)]
    _held.extend(sockets)
    return [one.getsockname()[1] for one in sockets]


def held_neighbours(count: int) -> int:
    """Return the first of `count` consecutive ports, reserved until this process ends. Raises OSError if there are
    none."""
    error: OSError | None = None
    for _ in range(_ATTEMPTS):
        sockets = [_bound(0)]
        first: int = sockets[0].getsockname()[1]
        try:
            for port in range(first + 1, first + count):
                sockets.append(_bound(port))
        except (OSError, OverflowError) as refused:
            error = OSError(f"no {count} ports in a row are free: {refused}")
            for one in sockets:
                one.close()
            continue
        _held.extend(sockets)
        return first
    assert error is not None
    raise error
