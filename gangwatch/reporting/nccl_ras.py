"""Communicators of this job that are incomplete or out of step, according to NCCL's RAS. Standard library only.

NCCL's RAS threads listen on localhost, port 28028 (NCCL_RAS_ADDR), in the network namespace of the job. Any of them
collects the state of all processes of the job. The JSON format exists since NCCL 2.28.7; earlier versions are not read,
because their text does not show whether the answer is about this job: the jobs of a node may share the port.

Source: NCCL's user guide, "RAS", and src/ras/client.cc and client_support.cc of NCCL, June 2026. The tests of this
project use a server that speaks this protocol; they have not queried a real NCCL.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Tuple  # noqa: UP035 (Python 3.8)

PORT = 28028
"""NCCL_RAS_CLIENT_PORT of NCCL."""

QUERY_SECONDS = 2.0
"""Maximum time in seconds of a query. NCCL waits one second of it for its processes (COLLECT_SECONDS); the agent waits
three seconds for the answer about a blocked rank."""

COLLECT_SECONDS = 1
"""Time in whole seconds for which NCCL waits for its processes. A process that does not answer is reported missing."""

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Maximum length of an answer in bytes. A rank of a communicator takes about 700: an answer of a job with more than
20,000 of them is not read."""

MAX_COMMUNICATORS, MAX_NAMED_RANKS, MAX_CHARACTERS = 3, 8, 500
"""Maximum number of communicators in the text, of ranks of each, and of characters of the text."""


def asks(environment: Mapping[str, str]) -> bool:
    """Return whether this process queries RAS: only rank 0 and the last rank do, because a query asks all processes of
    the job."""
    if environment.get("NCCL_RAS_ENABLE") == "0" or "torch" not in sys.modules:
        return False
    rank, size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    return rank.isdecimal() and size.isdecimal() and int(rank) in (0, int(size) - 1)


def ask(environment: Mapping[str, str]) -> Callable[[], str]:
    """Start a query in a thread. Return a function that returns the result of `troubles`, after QUERY_SECONDS at most.

    The function returns '' if this process does not query RAS, or if there is no answer in time.
    """
    if not asks(environment):
        return str
    found: List[str] = []  # noqa: UP006
    thread = threading.Thread(target=lambda: found.append(troubles(environment)), name="gangwatch-ras", daemon=True)
    thread.start()

    def words() -> str:
        thread.join(QUERY_SECONDS)
        return found[0] if found else ""

    return words


def address(environment: Mapping[str, str]) -> Tuple[str, int]:  # noqa: UP006
    """Return host and port of RAS. Raise ValueError if NCCL_RAS_ADDR has another form than HOST:PORT."""
    host, _, port = environment.get("NCCL_RAS_ADDR", f"localhost:{PORT}").rpartition(":")
    return host.strip("[]") or "localhost", int(port)


def troubles(environment: Mapping[str, str]) -> str:
    """Return the incomplete communicators and those whose ranks have issued different collectives, in words.

    '' if there are none, if RAS is not there or is another job's, and for every error.
    """
    try:
        return in_words(query(*address(environment)), os.getpid())[:MAX_CHARACTERS]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""


def query(host: str, port: int) -> Any:
    """Return NCCL's answer to STATUS, decoded. Raise OSError if RAS does not answer, ValueError if it is not JSON."""
    deadline = time.monotonic() + QUERY_SECONDS
    with socket.create_connection((host, port), QUERY_SECONDS) as connection:
        for line, wanted in (
            ("CLIENT PROTOCOL 2", b"SERVER PROTOCOL "),
            (f"TIMEOUT {COLLECT_SECONDS}", b"OK"),
            ("SET FORMAT json", b"OK"),
        ):
            connection.sendall(f"{line}\n".encode())
            answer = _receive(connection, deadline, True)
            if not answer.upper().startswith(wanted):
                raise ValueError(f"{line}: {answer[:80]!r}")
        connection.sendall(b"STATUS\n")
        return json.loads(_receive(connection, deadline, False))


def _receive(connection: socket.socket, deadline: float, one_line: bool) -> bytes:
    """Return the bytes up to the first line end, or up to the end of the connection."""
    parts: List[bytes] = []  # noqa: UP006
    left = MAX_ANSWER_BYTES
    while True:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        part = connection.recv(65536)
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise ValueError("a longer answer than MAX_ANSWER_BYTES")
        if not part or (one_line and part.endswith(b"\n")):
            return b"".join(parts)


def in_words(answer: Mapping[str, Any], pid: int) -> str:
    """Return the communicators of an answer that have missing ranks or ranks out of step, the largest first.

    pid: this process. If no communicator has it, the answer is about another job and the result is ''. Ranks are those
    of the communicator. Raise KeyError, TypeError or ValueError if the answer has another format.
    """
    communicators = answer["communicators"]
    if not any(one["pid"] == pid for each in communicators for one in (*each["ranks"], *each["missing_ranks"])):
        return ""
    found = []
    for each in sorted(communicators, key=lambda one: -int(one["size"])):
        parts = [*_missing(each), *_behind(each["ranks"])]
        if parts:
            found.append(f"communicator {str(each['hash'])[:20]} of {int(each['size'])} ranks: {', '.join(parts)}")
    more = [f"{len(found) - MAX_COMMUNICATORS} more"] if len(found) > MAX_COMMUNICATORS else []
    return "; ".join([*found[:MAX_COMMUNICATORS], *more])


def _missing(communicator: Mapping[str, Any]) -> List[str]:  # noqa: UP006
    missing = communicator["missing_ranks"]
    dead = [int(one["rank"]) for one in missing if one["status"]["considered_dead"]]
    silent = [int(one["rank"]) for one in missing if not one["status"]["considered_dead"]]
    found = []
    if dead:
        found.append(f"{_named(dead)} counted as dead")
    if silent:
        found.append(f"{_named(silent)} not responding")
    return found


def _behind(ranks: List[Mapping[str, Any]]) -> List[str]:  # noqa: UP006
    """Return the operations that some ranks have issued less often than others: they may not have arrived."""
    counts: Dict[str, List[Tuple[int, int]]] = {}  # noqa: UP006
    for one in ranks:
        for operation, count in one["collective_counts"].items():
            counts.setdefault(str(operation)[:20], []).append((int(count), int(one["rank"])))
    found = []
    for operation, issued in counts.items():
        most = max(issued)[0]
        late = [(count, rank) for count, rank in issued if count < most]
        if late:
            least = min(late)[0]
            found.append(f"{_named([rank for _, rank in late])} issued {operation} {least} times, others {most} times")
    return found


def _named(ranks: List[int]) -> str:  # noqa: UP006
    shown = ",".join(str(rank) for rank in sorted(ranks)[:MAX_NAMED_RANKS])
    more = f" and {len(ranks) - MAX_NAMED_RANKS} others" if len(ranks) > MAX_NAMED_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"
