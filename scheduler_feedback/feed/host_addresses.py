"""DNS look-ups of agents' hosts. They run on separate threads, because they may take seconds."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

THREADS = 4

POLL_SECONDS = 0.05
"""Interval at which results are polled while a lookup is running."""

Address = tuple[int, tuple[str, int]]
"""Address family and address, for creating and connecting a socket."""

Who = TypeVar("Who")


class HostAddresses(Generic[Who]):
    """Look-ups of host names. The requesting thread fetches the results."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._results: deque[tuple[Who, list[Address] | str]] = deque()
        self.asked = 0

    def ask(self, who: Who, host: str, port: int) -> None:
        """Start looking up a host."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="feed names")
        self.asked += 1
        self._threads.submit(self._look_up, who, host, port)

    def results(self) -> Iterator[tuple[Who, list[Address] | str]]:
        """Yield each finished look-up once: the requester, and the addresses or the error."""
        while self._results:
            self.asked -= 1
            yield self._results.popleft()

    def close(self) -> None:
        """Cancel all look-ups."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    def _look_up(self, who: Who, host: str, port: int) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            self._results.append((who, [(int(family), (str(at[0]), int(at[1]))) for family, _, _, _, at in found]))
        except (OSError, UnicodeError) as error:
            self._results.append((who, f"{host}: {error}"))


def literal(host: str, port: int) -> list[Address] | None:
    """Return the address of a host given as an IP address; None for a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return [(int(family), (host, port))]
    return None
