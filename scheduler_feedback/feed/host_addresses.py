"""Where agents' hosts are. A name is asked for on a thread of its own, which may take seconds."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

THREADS = 4

POLL_SECONDS = 0.05
"""How often to look whether a name has been told, while one is asked for."""

Address = tuple[int, tuple[str, int]]
"""Family and address, as a socket is made and connected with them."""

Who = TypeVar("Who")


class Names(Generic[Who]):
    """Looks names up for whoever asks; the answers are fetched by the thread that asked."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._told: deque[tuple[Who, list[Address] | str]] = deque()
        self.asked = 0

    def ask(self, who: Who, host: str, port: int) -> None:
        """Begin to look for a host."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="feed names")
        self.asked += 1
        self._threads.submit(self._look_up, who, host, port)

    def told(self) -> Iterator[tuple[Who, list[Address] | str]]:
        """Who asked, and the addresses or why there are none; of all that is known by now, once."""
        while self._told:
            self.asked -= 1
            yield self._told.popleft()

    def close(self) -> None:
        """Nobody waits for an answer any more."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    def _look_up(self, who: Who, host: str, port: int) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            self._told.append((who, [(int(family), (str(at[0]), int(at[1]))) for family, _, _, _, at in found]))
        except (OSError, UnicodeError) as error:
            self._told.append((who, f"{host}: {error}"))


def literal(host: str, port: int) -> list[Address] | None:
    """Where a host is that is written as a number; None for one that has to be looked up."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return [(int(family), (host, port))]
    return None
