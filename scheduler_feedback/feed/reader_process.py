"""A reader process: opens and reads agents' streams for a controller, and passes their messages on undecoded.

``python -m scheduler_feedback.feed.reader_process MEMORY SOCKET``, with the inherited descriptors of a channel
(reader_channel.py). The controller starts it. It ends when the channel does.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import traceback
import zlib
from pathlib import Path

from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import ConfigError, FrameError, VersionError
from scheduler_feedback.feed.agent_records import AgentRecord
from scheduler_feedback.feed.credentials import Credentials, Verify
from scheduler_feedback.feed.feed import (
    COLLECT_AFTER,
    DISCOVERY_SECONDS,
    FRAMES_AT_ONCE,
    Feed,
    silence_ns,
)
from scheduler_feedback.feed.leased_orders import word_of
from scheduler_feedback.feed.reader_channel import (
    FRAME,
    LAYOUT,
    Accept,
    Busy,
    Closed,
    EndOfChannelError,
    Failed,
    Interval,
    Logged,
    Opened,
    Order,
    Rate,
    Reached,
    ReaderEnd,
    Refuse,
    Start,
    StreamChanged,
    Watch,
)
from scheduler_feedback.feed.stream_state import Follower, Stream

_LAYOUT_KEY = b"\xa1k\xa6layout"
"""Kind of a message as encoded by agents ('k': 'layout' in msgpack), which is the second key of its map."""


class ForwardingFeed(Feed):
    """A feed that passes messages on through a channel, instead of decoding them."""

    def __init__(self, start: Start, channel: ReaderEnd, clock: Clock) -> None:
        """Read the credentials. Raises ConfigError if they are unusable."""
        credentials = None if start.credentials is None else credentials_of(start.credentials)
        super().__init__(
            Path(start.folder), _unused, start.wanted, clock, credentials, self._exchange, self._report, self._reach,
            lambda: self._watched_nodes,
        )  # fmt: skip
        self._channel, self._start = channel, start
        self._watched_nodes: dict[str, int] = {}
        self._wanted_every = 1
        self._numbers: dict[int, Follower] = {}
        self._number_of: dict[Follower, int] = {}
        self._next_number = 0
        self._wake = channel.fileno()

    def read(self) -> None:
        """Read until the channel ends, which raises EndOfChannelError."""
        self._main()

    # --- the channel --------------------------------------------------------------------------------------------------

    def _exchange(self) -> float:
        """Send what was read, and execute the controller's commands."""
        self._channel.flush()
        for command in self._channel.commands():
            if isinstance(command, Refuse):
                self._refuse(command)
            elif isinstance(command, Accept):
                if (follower := self._numbers.get(command.connection)) is not None:
                    self._connected(follower)
                    follower.stream.frames += 1
                    self._ask_agent(follower)
            elif isinstance(command, Order):
                self._pass_order(command)
            elif isinstance(command, Rate):
                self._wanted_every = command.every
            elif isinstance(command, Watch):
                known = {} if command.first else self._watched_nodes
                self._watched_nodes = known | dict.fromkeys(command.nodes, command.every)
            elif isinstance(command, Interval) and (stream := self.streams.get(command.node)) is not None:
                stream.interval_seconds = command.seconds
                self._to_ask.add(command.node)
        return DISCOVERY_SECONDS

    def _pass_order(self, command: Order) -> None:
        follower = self._numbers.get(command.connection)
        connection = follower.connection if follower is not None else None
        if follower is None or connection is None:
            return
        if word_of(command.line) in connection.takes:
            self._order(follower, connection, command.line, self._clock.monotonic_ns())

    def _refuse(self, command: Refuse) -> None:
        follower = self._numbers.get(command.connection)
        if follower is None:
            return  # closed meanwhile
        if command.kind == "bug":
            self._lost(follower, command.complaint, longest=True)
            return
        error = VersionError if command.kind == "version" else FrameError
        self._invalid(follower, error(command.complaint))

    def _report(self, _part: str, error: Exception, subject: str) -> None:
        self._channel.add_event(Failed(subject, "".join(traceback.format_exception(error))[-8000:]))

    def _reach(self, node: str, address: str) -> None:
        self._channel.add_event(Reached(node, address))

    # --- streams ------------------------------------------------------------------------------------------------------

    def _follow(self, record: AgentRecord, now_ns: int) -> None:
        if zlib.crc32(record.node.encode()) % self._start.shares == self._start.share:
            super()._follow(record, now_ns)

    def _changed(self, stream: Stream) -> None:
        self._channel.add_event(
            StreamChanged(
                stream.node, stream.known_ns, stream.every, stream.malformed, stream.pauses, stream.identity_refused,
                stream.complaint,
            )
        )  # fmt: skip

    def _take_rate(self, now_ns: int) -> int:
        before, own = self._rate.every, self._rate.take(now_ns, self._idle_ns, 0)
        if own != before:
            self._channel.add_event(Busy(own))
        return self._wanted_every

    def _receive(self, follower: Follower, messages: list[bytes]) -> None:
        """Pass an agent's messages on. Raises FrameError if it sends too many."""
        received_ns = self._clock.monotonic_ns()
        number = self._number_of.get(follower)
        if number is None:
            number = self._number(follower)
        cost = 0
        for message in messages:
            is_layout = message.find(_LAYOUT_KEY, 0, 16) >= 0
            cost += self._count_message(follower, message, is_layout)
            self._channel.add(LAYOUT if is_layout else FRAME, number, received_ns, message)
            self._read_frames += not is_layout
        follower.deadline_ns = received_ns - self._away_ns + silence_ns(follower.stream)
        self._layout_received(follower)
        self._spend(follower, cost, received_ns)
        if self._channel.full:
            self._read_frames = FRAMES_AT_ONCE  # sent before the next stream is read

    def _number(self, follower: Follower) -> int:
        self._next_number = number = (self._next_number + 1) & 0xFFFFFFFF
        self._numbers[number], self._number_of[follower] = follower, number
        certificate = follower.connection.certificate if follower.connection is not None else None
        ends = certificate.not_after if certificate is not None else None
        self._channel.add_event(Opened(number, follower.stream.node, ends))
        return number

    def _close(self, follower: Follower) -> None:
        number = self._number_of.pop(follower, None)
        if number is not None:
            del self._numbers[number]
            self._channel.add_event(Closed(number))
        super()._close(follower)


class ChannelHandler(logging.Handler):
    """Handler that passes log lines on to the controller, which writes them in its own format."""

    def __init__(self, channel: ReaderEnd) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self._channel.add_event(Logged(record.name, record.levelno, self.format(record)))


def credentials_of(fields: dict[str, str | None]) -> Credentials:
    """Return the credentials with these fields (``fields_of``)."""
    paths = {name: Path(value) for name, value in fields.items() if name.endswith("_file") and value is not None}
    verify: Verify = "host" if fields["verify"] == "host" else "node"
    return Credentials(username=fields["username"] or "", verify=verify, **paths)


def _unused(*_: object) -> None:
    raise AssertionError("messages are passed on undecoded")


def main() -> None:
    """Run the process. Its parent is the controller."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to the whole group: the controller ends the process
    memory = int(sys.argv[1])
    channel = ReaderEnd(memory, socket.socket(fileno=int(sys.argv[2])))
    os.close(memory)
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])
    logging.basicConfig(level=logging.INFO, handlers=[ChannelHandler(channel)], format="%(message)s")
    try:
        start = channel.wait_for_command()
        assert isinstance(start, Start)
        try:
            ForwardingFeed(start, channel, SystemClock()).read()
        except ConfigError as error:
            logging.getLogger(__name__).error("%s", error)
            channel.flush()
        except Exception as error:
            channel.add_event(Failed("", "".join(traceback.format_exception(error))[-8000:]))
            channel.flush()
            os._exit(1)
    except EndOfChannelError:
        pass
    os._exit(0)  # without waiting for DNS look-ups


if __name__ == "__main__":
    main()
