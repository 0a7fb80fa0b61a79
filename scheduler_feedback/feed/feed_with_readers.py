"""The feed of a large site: reader processes serve the sockets, and this process decodes the messages.

Without reader processes, the thread of ``Feed`` reads all streams itself. Reader processes (reader_process.py) take the
system calls, TLS and HTTP out of the process whose threads share Python's lock.
"""

from __future__ import annotations

import logging
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agent.schema.errors import ConfigError, FrameError, VersionError
from agent.schema.sample import AnySample
from scheduler_feedback.feed.credentials import Credentials
from scheduler_feedback.feed.feed import CREDENTIALS_SECONDS, DISCOVERY_SECONDS, FRAMES_AT_ONCE, Feed
from scheduler_feedback.feed.leased_orders import NEVER_SENT
from scheduler_feedback.feed.reader_channel import (
    EVENT,
    LAYOUT,
    NAMES_A_PACKET,
    RING_BYTES,
    Accept,
    Busy,
    Closed,
    ControllerEnd,
    EndOfChannelError,
    Failed,
    Interval,
    Logged,
    Opened,
    Order,
    Rate,
    Reached,
    ReaderEvent,
    Refuse,
    Start,
    StreamChanged,
    Watch,
    decode_event,
)
from scheduler_feedback.feed.stream_decoder import StreamDecoder
from scheduler_feedback.feed.stream_state import Stream

READERS_ABOVE = 2_000
"""Number of announced agents above which reader processes serve the streams. With fewer, one thread holds them in less
than a fifth of a core, and a second process would cost more memory than it saves time."""

PAUSE_SECONDS, PAUSE_MOST_SECONDS, PROVEN_SECONDS = 0.2, 30.0, 30.0
"""Pauses before a reader process that ended is started again: 0.2, 0.4, ... 30 s. They begin again with the shortest
after a process has run for PROVEN_SECONDS."""

MOST_FAILED_STARTS = 5
"""Number of reader processes in sequence that end without having opened a stream, or cannot be started, after which the
controller reads the streams itself."""

STOP_SECONDS = 2.0
"""Seconds after the end of its channel after which a reader process is killed."""

_log = logging.getLogger(__name__)


class ReaderProcessError(Exception):
    """A bug in a reader process. The message contains its traceback."""


@dataclass(slots=True, eq=False)
class _Connection:
    stream: Stream
    decoder: StreamDecoder
    certificate_ends: float | None
    interval_seconds: float | None = None
    """Interval of the agent's frames, as the process knows it; None until the first layout."""
    orders: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """The last order of each kind, and when (ns) it was sent to the process, by its first word."""


@dataclass(slots=True, eq=False)
class _Reader:
    """One reader process. share: number of its share of the nodes."""

    share: int
    end: ControllerEnd
    process: subprocess.Popen[bytes]
    begun: float
    every: int = 1
    watched: Mapping[str, int] = field(default_factory=dict)
    sent_every: int = 1
    opened: bool = False
    """Whether the process has opened a stream."""
    connections: dict[int, _Connection] = field(default_factory=dict)
    counted: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """By node, the newest numbers that the process has sent: malformed, pauses, identity_refused."""


class FeedWithReaders(Feed):
    """A feed that starts reader processes if there are many agents.

    processes: their number; 0 for none, at any number of agents; None to decide by the number of agents.
    """

    def __init__(self, *arguments: Any, processes: int | None = 0, **more: Any) -> None:
        """As ``Feed``. Raises ConfigError if the credentials are unusable."""
        super().__init__(*arguments, **more)
        self._processes = processes
        self._readers: dict[int, _Reader] = {}  # by descriptor
        self._due_shares: dict[int, float] = {}  # when to start the process of a share
        self._pauses: dict[int, float] = {}
        self._ended = self._failed_starts = 0

    def measures(self) -> Iterator[AnySample]:
        """Yield the feed's metrics. May be called from any thread."""
        yield from super().measures()
        yield "gangwatch_feed_processes", (), float(len(self._readers))
        yield "gangwatch_feed_process_ends_total", (), float(self._ended)

    # --- choice -------------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        few = self._processes is None and self._agents.announced() <= READERS_ABOVE
        while not self._stopping:
            if few or self._processes == 0:
                super()._main()
                few = False
            else:
                self._main_of_readers()

    def _reads_here(self) -> bool:
        return self._processes == 0 or len(self._agents.records) <= READERS_ABOVE

    # --- processes ----------------------------------------------------------------------------------------------------

    def _main_of_readers(self) -> None:
        shares = self._processes or 1
        self._due_shares = dict.fromkeys(range(shares), 0.0)
        _log.info("%d reader processes serve the agents' streams", shares)
        with select.epoll() as self._epoll:
            self._epoll.register(self._wake, select.EPOLLIN)
            try:
                while not self._stopping and self._processes != 0:
                    self._start_due()
                    now_ns = self._clock.monotonic_ns()
                    if now_ns - self._swept_ns >= DISCOVERY_SECONDS * 1e9:
                        self._swept_ns = now_ns
                        self._send_rates(now_ns)
                        self._send_all_orders(now_ns)
                        self._read_expiry(now_ns)
                    wait_seconds = min(self._run_between(), DISCOVERY_SECONDS)
                    if self._due_shares:
                        wait_seconds = min(wait_seconds, max(0.0, min(self._due_shares.values()) - time.monotonic()))
                    begun_ns = self._clock.monotonic_ns()
                    ready = self._epoll.poll(max(0.0, wait_seconds))
                    self._idle_ns += self._clock.monotonic_ns() - begun_ns
                    for descriptor, _ in ready:
                        if (reader := self._readers.get(descriptor)) is not None:
                            self._serve_reader(reader)
            finally:
                for reader in list(self._readers.values()):
                    self._stop_reader(reader)

    def _start_due(self) -> None:
        now = time.monotonic()
        for share in [share for share, due in self._due_shares.items() if due <= now]:
            del self._due_shares[share]
            try:
                self._start_reader(share)
            except OSError as error:
                _log.error("reader process not started: %s", error)
                self._start_later(share)
                self._note_failed_start()

    def _note_failed_start(self) -> None:
        """Read the streams in this process if several processes in sequence could not read any."""
        self._failed_starts += 1
        if self._failed_starts >= MOST_FAILED_STARTS:
            _log.error(
                "reader processes do not work on this machine (see the lines above): the controller reads the agents' "
                "streams itself until it is restarted"
            )
            self._processes = 0

    def _start_reader(self, share: int) -> None:
        end = ControllerEnd(RING_BYTES)
        try:
            command = [sys.executable, "-P", "-m", "scheduler_feedback.feed.reader_process"]
            descriptors = end.memory, end.other.fileno()
            process = subprocess.Popen(
                [*command, *map(str, descriptors)], pass_fds=descriptors, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )  # fmt: skip
        except BaseException:
            end.close()
            raise
        finally:
            end.started()
        given = self._credentials.given
        credentials = None if given is None else fields_of(given)
        end.send(Start(str(self._agents.folder.absolute()), self._wanted, credentials, share, self._processes or 1))
        reader = _Reader(share, end, process, time.monotonic())
        self._readers[end.fileno()] = reader
        self._epoll.register(end.fileno(), select.EPOLLIN)

    def _start_later(self, share: int) -> None:
        pause = self._pauses.get(share, PAUSE_SECONDS)
        self._pauses[share] = min(2 * pause, PAUSE_MOST_SECONDS)
        self._due_shares[share] = time.monotonic() + pause

    def _reader_ended(self, reader: _Reader) -> None:
        """Schedule the start of another process after one has ended. Its agents count as before meanwhile."""
        self._stop_reader(reader)
        if time.monotonic() - reader.begun > PROVEN_SECONDS:
            self._pauses.pop(reader.share, None)
        self._ended += 1
        self._start_later(reader.share)
        code = reader.process.returncode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"status {code}"
        _log.error(
            "reader process %d ended with %s: another one starts in %.1f s and connects to its %d agents again",
            reader.process.pid, how, max(0.0, self._due_shares[reader.share] - time.monotonic()),
            len(reader.connections),
        )  # fmt: skip
        if not reader.opened:
            self._note_failed_start()

    def _stop_reader(self, reader: _Reader) -> None:
        descriptor = reader.end.fileno()
        self._epoll.unregister(descriptor)
        del self._readers[descriptor]
        reader.end.close()
        for connection in reader.connections.values():
            connection.stream.connected = False
        try:
            reader.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            reader.process.kill()
            reader.process.wait()

    def _send_rates(self, now_ns: int) -> None:
        """Send the rate of frames, and the nodes that must send messages more often, to the processes."""
        every = max(self._take_rate(now_ns), *(reader.every for reader in self._readers.values()), 1)
        self._rate.every = every
        watched = {} if every == 1 or self._watched is None else self._watched()
        for reader in self._readers.values():
            reader.end.push()
            if watched != reader.watched:
                reader.watched = watched
                reader.end.send(Watch((), first=True))
                for most in sorted(set(watched.values())):
                    for names in batches(sorted(node for node, one in watched.items() if one == most)):
                        reader.end.send(Watch(names, first=False, every=most))
            if every != reader.sent_every:
                reader.sent_every = every
                reader.end.send(Rate(every))

    def _send_all_orders(self, now_ns: int) -> None:
        """Send the orders that are due to the processes."""
        for reader in self._readers.values():
            for number, one in reader.connections.items():
                for orders in self.orders if one.stream.connected else ():
                    sent = one.orders.get(orders.word, NEVER_SENT)
                    if line := orders.due(one.stream.node, *sent, now_ns):
                        one.orders[orders.word] = line, now_ns
                        reader.end.send(Order(number, line))

    def _read_expiry(self, now_ns: int) -> None:
        """Read changed credentials, for the metric of their expiry. The processes log it if they are unusable."""
        if now_ns - self._credentials_ns >= CREDENTIALS_SECONDS * 1e9:
            self._credentials_ns = now_ns
            with suppress(ConfigError):
                self._credentials.read_again()

    # --- entries ------------------------------------------------------------------------------------------------------

    def _serve_reader(self, reader: _Reader) -> None:
        """Process what the process has sent. The messages of a packet fit into a processor's cache."""
        try:
            reader.end.push()
            while (entries := reader.end.take()) is not None:
                for kind, number, received_ns, message in entries:
                    if kind == EVENT:
                        self._apply(reader, decode_event(message))
                    else:
                        self._take_message(reader, number, received_ns, message, kind == LAYOUT)
                if self._read_frames >= FRAMES_AT_ONCE:
                    self._run_between()
                if self._stopping:
                    return
        except (EndOfChannelError, msgspec.DecodeError):
            self._reader_ended(reader)

    def _take_message(self, reader: _Reader, number: int, received_ns: int, message: bytes, is_layout: bool) -> None:
        connection = reader.connections.get(number)
        if connection is None:
            return  # refused, and not closed yet
        stream, decoder = connection.stream, connection.decoder
        try:
            frame = decoder.take(message)
            if is_layout is not (frame is None):
                raise FrameError("the kind is not where agents write it")
            if frame is None:
                if decoder.interval_seconds != connection.interval_seconds:
                    stream.interval_seconds = connection.interval_seconds = decoder.interval_seconds
                    reader.end.send(Interval(stream.node, decoder.interval_seconds))
                return
            if not stream.connected:
                stream.connected, stream.complaint = True, ""
                stream.certificate_ends = connection.certificate_ends
                reader.end.send(Accept(number))
            stream.frames += 1
            stream.received_ns = received_ns
            self._read_frames += 1
            assert decoder.layout is not None
            self._deliver(decoder.layout, frame, received_ns)
        except FrameError as error:
            kind = "version" if isinstance(error, VersionError) else "frame"
            self._refuse(reader, number, kind, str(error))
        except Exception as error:
            if self._failed is None:
                raise
            self._failed("feed", error, f"node {stream.node}")
            self._refuse(reader, number, "bug", f"a bug in gangwatch: {type(error).__name__}: {error}")

    def _refuse(self, reader: _Reader, number: int, kind: str, complaint: str) -> None:
        reader.connections.pop(number).stream.connected = False
        reader.end.send(Refuse(number, kind, complaint[:2000]))

    def _apply(self, reader: _Reader, event: ReaderEvent) -> None:
        match event:
            case StreamChanged():
                self._apply_change(reader, event)
            case Opened():
                stream = self.streams.setdefault(event.node, Stream(event.node, known_ns=self._clock.monotonic_ns()))
                connection = _Connection(stream, StreamDecoder(event.node), event.certificate_ends)
                reader.connections[event.connection] = connection
                reader.opened, self._failed_starts = True, 0
            case Closed():
                if (closed := reader.connections.pop(event.connection, None)) is not None:
                    closed.stream.connected = False
            case Reached():
                if self._reached is not None:
                    self._reached(event.node, event.address)
            case Failed():
                error = ReaderProcessError(event.text)
                if self._failed is None:
                    raise error
                self._failed("feed", error, event.subject or "a reader process")
            case Logged():
                logging.getLogger(event.logger).log(event.level, "%s", event.text)
            case Busy():
                reader.every = event.every

    def _apply_change(self, reader: _Reader, event: StreamChanged) -> None:
        stream = self.streams.setdefault(event.node, Stream(event.node, known_ns=event.known_ns))
        stream.every, stream.complaint = event.every, event.complaint
        counts = event.malformed, event.pauses, event.identity_refused
        before = reader.counted.get(event.node, (0, 0, 0))
        reader.counted[event.node] = counts
        malformed, pauses, refused = (now - then for now, then in zip(counts, before, strict=True))
        stream.malformed += malformed
        stream.pauses += pauses
        stream.identity_refused += refused


def batches(names: list[str]) -> list[tuple[str, ...]]:
    """Return the names in groups that fit into a packet."""
    return [tuple(names[at : at + NAMES_A_PACKET]) for at in range(0, len(names), NAMES_A_PACKET)]


def fields_of(credentials: Credentials) -> dict[str, str | None]:
    """Return the fields of the credentials, for ``reader_process.credentials_of``. Files as absolute paths."""
    fields: dict[str, str | None] = {"username": credentials.username, "verify": credentials.verify}
    for name in ("ca_file", "cert_file", "key_file", "password_file", "revoked_file"):
        path = getattr(credentials, name)
        fields[name] = None if path is None else str(path.absolute())
    return fields
