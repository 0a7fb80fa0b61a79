"""Messages between a stand-in and its rank: one JSON document per line, over a unix stream socket.

The stand-in sends a request with copies of descriptors (SCM_RIGHTS, unix(7)), and the rank responds when the program
has ended.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MOST_DESCRIPTORS = 8
"""Descriptors in a request. MPICH needs one, to its process manager."""

LONGEST = 8 << 20
"""Bytes of a message at most. Arguments and environment of a process have at most a quarter of the stack limit, which
is 2 MiB by default (execve(2))."""


class MessageError(Exception):
    """Error: the other side closed the connection, or sent something that is not a message."""


@dataclass(frozen=True)
class Request:
    """What a rank shall run."""

    command: list[str]
    variables: dict[str, str]
    """MPI's variables of this process."""
    descriptors: list[str]
    """Variables with the number of a descriptor that the program inherits, in the order of the descriptors."""


def socket_path(folder: Path, rank: int) -> Path:
    """Return the path of the socket of a rank."""
    return folder / f"rank-{rank}.sock"


@contextlib.contextmanager
def short_path(folder: Path, rank: int) -> Iterator[str]:
    """Give another path of a rank's socket, for bind(2) and connect(2): theirs have 107 bytes at most (unix(7))."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{socket_path(folder, rank).name}"
    finally:
        os.close(descriptor)


def send_request(connection: socket.socket, request: Request) -> None:
    """Send a request with copies of the descriptors that its variables name. Raises OSError."""
    content = json.dumps(asdict(request)).encode() + b"\n"
    handles = array.array("i", [int(request.variables[name]) for name in request.descriptors])
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)] if request.descriptors else []
    sent = connection.sendmsg([content], ancillary)
    connection.sendall(content[sent:])


def receive_request(connection: socket.socket) -> tuple[Request, list[int]]:
    """Return a request and the received descriptors, which the caller closes. Raises OSError, MessageError."""
    content, received, _, _ = socket.recv_fds(connection, 65536, MOST_DESCRIPTORS)
    try:
        document = json.loads(_rest_of_line(connection, content))
        request = Request(**document)
        if len(request.descriptors) != len(received) or not request.command:
            raise MessageError("the request is incomplete")
    except (ValueError, TypeError, MessageError) as error:
        for descriptor in received:
            os.close(descriptor)
        raise MessageError(str(error)) from None
    return request, received


def send_exit_code(connection: socket.socket, code: int) -> None:
    """Send how the program ended. code: exit code, or the negative number of a signal. Raises OSError."""
    connection.sendall(json.dumps({"exit_code": code}).encode() + b"\n")


def receive_exit_code(connection: socket.socket) -> int:
    """Wait for the end of the program, and return its exit code. Raises OSError, MessageError."""
    try:
        return int(json.loads(_rest_of_line(connection, b""))["exit_code"])
    except (ValueError, TypeError, KeyError) as error:
        raise MessageError(f"not an exit code: {error}") from None


def peer_user(connection: socket.socket) -> int:
    """Return the user id of the process at the other end (SO_PEERCRED, unix(7))."""
    credentials = array.array("i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return credentials[1]


def _rest_of_line(connection: socket.socket, begun: bytes) -> bytes:
    """Return the line that starts with `begun`. Raises OSError, MessageError."""
    parts, size = [begun], len(begun)
    while not parts[-1].endswith(b"\n"):
        part = connection.recv(65536)
        size += len(part)
        if not part or size > LONGEST:
            raise MessageError("the connection was closed" if not part else "the message is too long")
        parts.append(part)
    return b"".join(parts)


def absent(folder: Path, ranks: Sequence[int]) -> list[int]:
    """Return those of the ranks that have no socket in the folder yet."""
    return [rank for rank in ranks if not socket_path(folder, rank).exists()]
