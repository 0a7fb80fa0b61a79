"""Simulated clients of the page and of the API, and a Prometheus scrape, with the times of their requests."""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

READERS = 20
READER_SECONDS = 5.0
"""Time between two requests of one reader, as of an open page or a script."""

PATHS = ("/", "/api/overview", "/api/jobs?active=1", "/api/nodes", "/api/verdicts")
SCRAPE_SECONDS = 15.0
TIMEOUT_SECONDS = 60.0


class Readers:
    """Threads that send requests until they are stopped.

    responses: (path, start, end) of each response, monotonic ns.
    """

    def __init__(self, url: str, token: str, readers: int = READERS) -> None:
        self._address = urlsplit(url).netloc
        self._headers = {"Authorization": f"Bearer {token}"}
        self._stop = threading.Event()
        self.responses: list[tuple[str, int, int]] = []
        self.failed: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._read, args=(number,), daemon=True) for number in range(readers)
        ] + [threading.Thread(target=self._scrape, daemon=True)]

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_SECONDS)

    def _read(self, number: int) -> None:
        wait_seconds = READER_SECONDS * number / READERS
        for path in itertools.islice(itertools.cycle(PATHS), number % len(PATHS), None):
            if self._stop.wait(wait_seconds):
                return
            self._request(path)
            wait_seconds = READER_SECONDS

    def _scrape(self) -> None:
        while not self._stop.wait(SCRAPE_SECONDS):
            self._request("/metrics")

    def _request(self, path: str) -> None:
        begun_ns = time.monotonic_ns()
        try:
            get(self._address, path, self._headers)
        except (OSError, http.client.HTTPException) as error:
            self.failed[f"{path}: {error}"] += 1
        else:
            self.responses.append((path, begun_ns, time.monotonic_ns()))


def get(address: str, path: str, headers: dict[str, str]) -> bytes:
    """Return the body of a response. Raises OSError for any status but 200."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise OSError(f"status {response.status}")
        return body
    finally:
        connection.close()
