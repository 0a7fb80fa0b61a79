"""TCP ports for the programs that tests start, held so that nothing else on the machine can take them.

A port that was found free and let go of belongs to whoever binds it first: another test bed, another checkout's run,
an outgoing connection. These sockets stay bound until this process ends. They never listen and they set SO_REUSEADDR
after they were bound, so Linux gives the port to a server that sets SO_REUSEADDR before it binds (Go's, Slurm's and
Python's servers do, socket(7)) and to nobody else: bind(2) to port 0 and connect(2) pass it by.
"""

from __future__ import annotations

import socket

_ATTEMPTS = 1000

_held: list[socket.socket] = []


def _bound(port: int) -> socket.socket:
    """Bind all addresses, so that the port is free on each of them. Raises OSError where it is taken."""
    one = socket.socket()
    try:
        one.bind(("", port))
    except OSError:
        one.close()
        raise
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return one


def held_port() -> int:
    """Return a port that is held until this process ends."""
    (port,) = held_ports(1)
    return port


def held_ports(count: int) -> list[int]:
    """Return `count` different ports that are held until this process ends."""
    sockets = [_bound(0) for _ in range(count)]
    _held.extend(sockets)
    return [one.getsockname()[1] for one in sockets]


def held_neighbours(count: int) -> int:
    """Return the first of `count` ports in a row that are held until this process ends. Raises OSError."""
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
