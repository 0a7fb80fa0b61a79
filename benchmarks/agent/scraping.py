"""Client that scrapes once a second like Prometheus: one persistent connection, gzip accepted."""

from __future__ import annotations

import gzip
import http.client
import re
import threading
import time
from dataclasses import dataclass, field

_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(\{.*\})? (\S+)")

NOT_COUNTED = ("_info", "_created", "_bucket")
"""Name suffixes of series that do not count, because they have no new data: info, creation times, histograms."""

COMPATIBILITY = ("DCGM_", "node_", "rdma_")
"""Name prefixes of series that repeat a value under a second name, for compatibility with other exporters."""


def distinct_series(text: str, *, own: bool = False) -> int:
    """Return the number of series that have a value. own: leave out the series in NOT_COUNTED and COMPATIBILITY."""
    series: set[str] = set()
    for line in text.splitlines():
        if line.startswith("#") or (found := _SAMPLE.match(line)) is None or found[3] == "NaN":
            continue
        name = found[1]
        if own and (name.endswith(NOT_COUNTED) or name.startswith(COMPATIBILITY)):
            continue
        series.add(name + (found[2] or ""))
    return len(series)


def get(port: int, timeout_seconds: float = 10.0, *, host: str = "127.0.0.1") -> str:
    """Return the text of one response of /metrics. Raises OSError if the exporter does not respond with 200."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_seconds)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise OSError(f"/metrics answered {response.status}: {body[:200]!r}")
        return body.decode()
    finally:
        connection.close()


@dataclass
class Scraper:
    """A thread that scrapes one exporter at a fixed schedule until it is stopped.

    milliseconds: duration of each scrape, from the request to the last byte. sizes: bytes received by each scrape.
    phase: time of a scrape within the second, 0 to 1. Exporters of one run have different phases. failures: error
    messages.
    """

    port: int
    phase: float = 0.0
    every_seconds: float = 1.0
    milliseconds: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    newest: bytes = b""
    compressed: bool = False

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(15)

    def text(self) -> str:
        """Return the uncompressed response of the newest scrape."""
        return (gzip.decompress(self.newest) if self.compressed else self.newest).decode()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        due = time.monotonic() + self.phase * self.every_seconds
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += self.every_seconds
            begun = time.perf_counter()
            try:
                connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                connection.close()
                continue
            if response.status != 200:
                self.failures.append(f"status {response.status}")
                continue
            self.milliseconds.append((time.perf_counter() - begun) * 1e3)
            self.sizes.append(len(body))
            self.newest, self.compressed = body, response.headers.get("Content-Encoding") == "gzip"
        connection.close()
