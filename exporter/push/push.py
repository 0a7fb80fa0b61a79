"""Push to a receiver: a bounded queue between the producer of frames, which never blocks, and a sender thread.

If the receiver is unavailable, overloaded or restarting, the frame is sent again after pauses that double. Permanently
refused frames are dropped and counted. If the queue is full, the oldest frame is dropped and counted.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from agent.schema.errors import ConfigError
from agent.schema.frame import Frame, Layout
from exporter.prometheus.profiles import left_out_by
from exporter.prometheus.text_format import Sample

if TYPE_CHECKING:
    # Imported in functions: they take two megabytes, and most agents push nothing.
    import http.client
    import ssl

    from exporter.prometheus.exposition import Settings

log = logging.getLogger(__name__)

BACKOFF_LEAST_SECONDS = 1.0
BACKOFF_MOST_SECONDS = 60.0
"""Maximum pause between retries. The OTLP specification asks for exponential back-off with jitter; the pauses of
Prometheus' remote write are 30 ms to 5 s."""

SEND_SECONDS = 10.0
"""Timeout to connect, and for the response: the default of OpenTelemetry's exporters (OTEL_EXPORTER_OTLP_TIMEOUT)."""

STOP_SECONDS = 2.0

LATER = frozenset({408, 429, 502, 503, 504})
"""Status codes that cause a retry: OTLP's list, and 408. Remote write also retries all other 5xx."""

MOST_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class PushTarget:
    """Endpoint, interval and credentials of a push.

    ca_file: CA certificates for the receiver; None for the system's.
    """

    endpoint: str
    interval_seconds: float = 15.0
    headers_file: Path | None = None
    ca_file: Path | None = None
    queue_frames: int = 40


class Language(Protocol):
    """Protocol of a receiver: headers of requests, and meaning of responses."""

    name: str

    def headers(self) -> Mapping[str, str]:
        """Return the headers of every request."""

    def again(self, status: int) -> bool:
        """Return whether to retry after this status."""

    def complaint(self, answer: bytes) -> str:
        """Return a text about the items that a successful response reports as refused; '' if there are none."""


class Sink(Language, Protocol):
    """Protocol of a receiver of frames. To add one, add a file and a line in SINKS."""

    def encode(self, layout: Layout, frame: Frame, wanted: Callable[[str], bool]) -> bytes:
        """Return the body for one frame, compressed according to `headers`. wanted: whether a metric is published."""


class Source(Protocol):
    def newest(self) -> tuple[Layout, Frame] | None: ...

    def add_listener(self, listener: Callable[[Layout, Frame], None]) -> Callable[[], None]: ...


T = TypeVar("T")


class Outbox(Generic[T]):
    """Queue and sender of items to one target, in order, until ``stop``.

    language: protocol of the receiver. encode: returns the body for one item. most: maximum queue length; in a full
    queue the oldest item is dropped. section, key: configuration key of the endpoint.
    """

    def __init__(
        self,
        language: Language,
        target: PushTarget,
        encode: Callable[[T], bytes],
        most: int,
        section: str = "",
        key: str = "endpoint",
    ) -> None:
        """Read the files and check the endpoint. Raises ConfigError if one can't be used."""
        self._language, self._target, self._encode, self._most = language, target, encode, most
        self._sender = Sender(target, language.headers(), section or language.name, key)
        self._queue: deque[T] = deque()
        self._wake = threading.Condition()
        self._stopping = threading.Event()
        self._until = 0.0
        self._thread = threading.Thread(target=self._run, name=f"push {language.name}", daemon=True)
        self.sent = self.failures = self.dropped_full = self.refused = 0
        self._complaint = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting items. Send the queued items within STOP_SECONDS until an attempt fails; the rest is lost."""
        self._until = time.monotonic() + STOP_SECONDS
        self._stopping.set()
        with self._wake:
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)

    def measures(self) -> Iterator[Sample]:
        """Yield the outbox's own series."""
        sink = ("sink", self._language.name)
        yield "gangwatch_push_sent_total", (sink,), self.sent
        yield "gangwatch_push_failures_total", (sink,), self.failures
        yield "gangwatch_push_dropped_total", (("reason", "queue full"), sink), self.dropped_full
        yield "gangwatch_push_dropped_total", (("reason", "refused"), sink), self.refused
        yield "gangwatch_push_queue_frames", (sink,), len(self._queue)

    def put(self, item: T) -> None:
        """Queue an item. Never blocks."""
        with self._wake:
            if len(self._queue) >= self._most:
                self._queue.popleft()
                self.dropped_full += 1
                if self.dropped_full == 1 or self.dropped_full % 100 == 0:
                    log.warning("push %s: the queue is full; %d frames dropped", self._language.name, self.dropped_full)
            self._queue.append(item)
            self._wake.notify()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_seconds = BACKOFF_LEAST_SECONDS
        while not self._stopping.is_set() or time.monotonic() < self._until:
            with self._wake:
                self._wake.wait_for(lambda: self._queue or self._stopping.is_set())
                if not self._queue:
                    break
                item = self._queue[0]
            try:
                wait_seconds = self._push(item)
            except Exception:
                # A bug in encoding one item: do not retry it; the next may work.
                log.exception(
                    "push %s: can't encode a frame, which is dropped; this is a bug, please report it",
                    self._language.name,
                )
                self.refused += 1
                wait_seconds = None
            if wait_seconds is None:
                pause_seconds = BACKOFF_LEAST_SECONDS
                with self._wake:
                    # A full queue may have dropped it meanwhile.
                    if self._queue and self._queue[0] is item:
                        self._queue.popleft()
                continue
            if self._stopping.wait(max(wait_seconds, pause_seconds * random.uniform(0.5, 1.0))):
                break
            pause_seconds = min(BACKOFF_MOST_SECONDS, 2 * pause_seconds)
        self._sender.close()

    def _push(self, item: T) -> float | None:
        """Send one item. Return None if it is finished, else the minimum number of seconds before a retry."""
        body = self._encode(item)
        try:
            status, answer, retry_after_seconds = self._sender.send(body)
        except (OSError, ValueError) as error:
            self._fail(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            return 0.0
        if 200 <= status < 300:
            self.sent += 1
            complaint = self._language.complaint(answer)
            if complaint:
                self._say(f"partly refused: {complaint}")
            elif self._complaint:
                log.info("push %s: the receiver accepts frames", self._language.name)
                self._complaint = ""
            return None
        self._fail(f"status {status}: {answer[:200].decode('utf-8', 'replace').strip()}")
        if self._language.again(status):
            return retry_after_seconds
        self.refused += 1
        return None

    def _fail(self, reason: str) -> None:
        self.failures += 1
        self._say(reason)

    def _say(self, reason: str) -> None:
        # Log a repeated reason only once; the counters have the number.
        if reason != self._complaint:
            log.warning("push %s to %s: %s", self._language.name, self._target.endpoint, reason)
            self._complaint = reason


class Pusher(Outbox[tuple[Layout, Frame]]):
    """Push of one source's frames to one target, until ``stop``."""

    def __init__(self, sink: Sink, target: PushTarget, source: Source, settings: Settings) -> None:
        """Read the files and check the endpoint. Raises ConfigError if one can't be used."""
        super().__init__(sink, target, lambda item: sink.encode(*item, self._wanted), target.queue_frames)
        self._sink, self._source, self._settings = sink, source, settings
        self._remove: Callable[[], None] | None = None
        self._due_ns: int | None = None

    def is_like(self, others: Iterable[Pusher]) -> bool:
        """Return whether one of the others has the same sink, target and settings."""
        mine = (self._sink.name, self._target, self._settings)
        return any(mine == (other._sink.name, other._target, other._settings) for other in others)

    def start(self) -> None:
        self._remove = self._source.add_listener(self.offer)
        super().start()

    def stop(self) -> None:
        """Stop accepting frames; ``Outbox.stop`` sends the queued ones."""
        remove, self._remove = self._remove, None
        if remove is not None:
            remove()
        super().stop()

    def offer(self, layout: Layout, frame: Frame) -> None:
        """Queue a frame if one is due. Called by the node; never blocks."""
        if self._due_ns is None:
            self._due_ns = frame.monotonic_ns
        if frame.monotonic_ns < self._due_ns:
            return
        interval_ns = round(self._target.interval_seconds * 1e9)
        # By the frames' clock, on a schedule without drift; frames missed in a pause are not made up for.
        self._due_ns += interval_ns * (1 + (frame.monotonic_ns - self._due_ns) // interval_ns)
        self.put((layout, frame))

    def _wanted(self, name: str) -> bool:
        settings = self._settings
        return left_out_by(name, settings.profile, settings.allow, settings.deny) is None


# --- sending ---------------------------------------------------------------------------------------------------------


class Sender:
    """One persistent connection to an endpoint, for POST requests."""

    def __init__(self, target: PushTarget, headers: Mapping[str, str], what: str, key: str = "endpoint") -> None:
        """Read the files and check the endpoint. Raises ConfigError if one can't be used."""
        address = urlsplit(target.endpoint)
        try:
            port = address.port
        except ValueError:
            port = -1
        if address.scheme not in ("http", "https") or not address.hostname or port == -1:
            raise ConfigError(f"{what}.{key}: {target.endpoint!r} is not an http or https URL")
        if address.username is not None:
            raise ConfigError(f"{what}.{key}: a password in a URL would appear in logs: use {what}.headers_file")
        self._address, self._port = address, port
        self._path = (address.path or "/") + (f"?{address.query}" if address.query else "")
        self._headers = {**headers, **_read_headers(target.headers_file, f"{what}.headers_file")}
        self._context = _context(target.ca_file, f"{what}.ca_file") if address.scheme == "https" else None
        self._connection: http.client.HTTPConnection | None = None

    def send(self, body: bytes) -> tuple[int, bytes, float]:
        """Return status, body, and the seconds of Retry-After (0 if absent). Raises OSError."""
        import http.client

        fresh = self._connection is None
        if self._connection is None:
            self._connection = self._connect()
        try:
            self._connection.request("POST", self._path, body, dict(self._headers))
            answer = self._connection.getresponse()
            content = answer.read(MOST_ANSWER_BYTES)
            if answer.read(1) or answer.will_close:
                self.close()
        except (http.client.HTTPException, OSError) as error:
            self.close()
            if not fresh:
                # If the receiver has closed the connection meanwhile, this is the first error.
                return self.send(body)
            raise OSError(f"{type(error).__name__}: {error}") from None
        after = answer.headers.get("Retry-After", "")
        return answer.status, content, min(float(after), BACKOFF_MOST_SECONDS) if after.isdigit() else 0.0

    def _connect(self) -> http.client.HTTPConnection:
        import http.client

        host = self._address.hostname or ""
        if self._context is not None:
            return http.client.HTTPSConnection(host, self._port, timeout=SEND_SECONDS, context=self._context)
        return http.client.HTTPConnection(host, self._port, timeout=SEND_SECONDS)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _context(ca_file: Path | None, what: str) -> ssl.SSLContext:
    import ssl

    try:
        return ssl.create_default_context(cafile=str(ca_file) if ca_file is not None else None)
    except OSError as error:
        raise ConfigError(f"{what}: {ca_file}: {error.strerror or error}") from None


def _read_headers(file: Path | None, what: str) -> dict[str, str]:
    """Return the lines "Name: value" of a file; empty lines and lines with '#' are skipped. Raises ConfigError."""
    if file is None:
        return {}
    try:
        lines: Sequence[str] = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what}: {file}: {getattr(error, 'strerror', None) or error}") from None
    headers: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not value.strip().isprintable() or not name.strip().isascii():
            raise ConfigError(f"{what}: {file}, line {number}: expected 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers
