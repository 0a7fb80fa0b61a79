"""All agents' streams, read by one thread: opening, reading and timeouts.

A stream that ends, stops sending or sends something other than frames is opened again after a pause. The pause doubles
and has jitter, so that the agents of a restarted rack do not all reconnect at once. Each agent gets one read in turn,
and an agent that sends too much is disconnected.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import logging
import os
import resource
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from agent.schema.clock import Clock
from agent.schema.errors import ConfigError, FrameError, VersionError
from agent.schema.frame import AnyLayout, Frame
from agent.schema.identity import Certificate
from agent.schema.sample import AnySample, SampleColumn
from scheduler_feedback.feed.agent_records import AgentRecord, Agents
from scheduler_feedback.feed.credentials import Credentials, CurrentCredentials
from scheduler_feedback.feed.frame_rate import FrameRate, every_of, samples_of
from scheduler_feedback.feed.frames_response import RefusedError
from scheduler_feedback.feed.handshake_slots import HandshakeSlots
from scheduler_feedback.feed.host_addresses import POLL_SECONDS, Address, HostAddresses, literal
from scheduler_feedback.feed.leased_orders import NEVER_SENT, LeasedOrders
from scheduler_feedback.feed.stream_connection import (
    Connection,
    EndedError,
    IdentityError,
    SharedBuffers,
    frames_request,
    reason_of,
)
from scheduler_feedback.feed.stream_decoder import StreamDecoder
from scheduler_feedback.feed.stream_state import ALLOWED_A_SECOND, LAYOUT_WEIGHT, Allowance, Follower, Stream

DISCOVERY_SECONDS = 1.0
CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 10.0
"""Seconds without a complete frame after which a stream is closed: ten frames at the usual interval of a second."""

PART_BYTES = 16 * 1024
"""Bytes of an incomplete message that count as a sign of life if they are read at once. The message of an agent whose
reader is late needs several reads, and a late feed takes seconds from one read to the next."""

CREDENTIALS_SECONDS = 5.0
"""Seconds between two checks of the certificate files: a revoked certificate is refused after ten seconds at most."""

OPENED_A_TURN = 128
"""Maximum number of connections opened between two polls of the open streams. If 10,000 agents reconnect at once, no
frame is delayed by more than these handshakes (about a millisecond each)."""

OPENED_BETWEEN = 64
"""Maximum number of sockets of agents that are connecting which are served between two groups of FRAMES_AT_ONCE frames.
They take about as long as the frames, so neither can starve the other."""

FRAMES_AT_ONCE = 256
"""Maximum number of frames read before detection runs. They take a megabyte, which fits into a CPU's second-level
cache."""

STREAMS_TOGETHER = 256
"""Frames are read in batches if at least this number of streams is open. Without batches, waking the thread for each
frame would cost as much as reading the frame."""

TOGETHER_SECONDS, TOGETHER_OPENING_SECONDS = 0.1, 0.02
"""Longest time in seconds from the start of a batch of frames to the next one: normally, and while TLS handshakes run.
A handshake takes several batches, so long pauses between batches would delay agents that reconnect. A batch ends early
when detection is due. If reading a batch takes longer than this, the next one follows at once."""

MOST_FRAMES_A_SECOND = 64
"""Maximum number of frames a second that are accepted from one agent. An agent sends at most 20 a second
(agent.interval_seconds >= 0.05)."""

ASKED_A_TURN = 2048
"""Maximum number of agents that are asked for another rate in a second. Each takes some ten microseconds."""

NEVER_NS = 1 << 62

MOST_FRAMES_AT_ONCE = 2048
"""Maximum number of frames that one agent may send at once if the controller was late: some minutes of frames in a
socket's buffers."""

DESCRIPTORS_BESIDE = 256
"""Number of files, sockets and pipes of a controller in addition to one descriptor per agent."""

COLLECT_AFTER = 100_000
"""Number of new Python objects after which the garbage collector runs. Frames contain no reference cycles, so it
finds nothing in them; at Python's default (700), scanning the queued frames takes a tenth of the processing time.
A collection stops all threads: with 12,500 nodes, 50,000 new objects took a tenth of a second, every 5 s."""

Deliver = Callable[[AnyLayout, Frame, int], None]
"""Receives a frame with its layout and the monotonic time of its receipt. Called on the feed's thread: must not
block."""

_log = logging.getLogger(__name__)


def _column(name: str, streams: Sequence[Stream], values: Sequence[float]) -> SampleColumn:
    """Return samples with one value for each stream's node."""
    return SampleColumn(name, (), "node", [stream.node for stream in streams], values)


def silence_ns(stream: Stream) -> int:
    """Return the time without a message after which a stream is closed, in nanoseconds."""
    return int((SILENCE_SECONDS + (stream.every - 1) * stream.interval_seconds) * 1e9)


class Feed:
    """A reader of the frames of every agent that announces itself in `folder`.

    wanted: metric names (or prefixes ending in ``*``) to request from the agents; none requests all. credentials: for
    agents with TLS. between: called on the feed's thread between two reads; returns the seconds until it must be called
    again. failed: called with the agent and the exception if one agent's stream triggers a bug; the stream is opened
    again after the longest pause. reached: called with each agent's node and the address of its stream. watched: called
    on the feed's thread; returns nodes with the largest number of frames for which they may send one message. ticks_ns:
    returns how long the ticks of detection took that `between` has run so far, in nanoseconds.
    """

    def __init__(
        self,
        folder: Path,
        deliver: Deliver,
        wanted: Sequence[str],
        clock: Clock,
        credentials: Credentials | None = None,
        between: Callable[[], float] | None = None,
        failed: Callable[[str, Exception, str], None] | None = None,
        reached: Callable[[str, str], None] | None = None,
        watched: Callable[[], Mapping[str, int]] | None = None,
        ticks_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        """Read the credentials. Raises ConfigError if they are unusable."""
        self._credentials = CurrentCredentials(credentials)
        self._deliver = deliver
        self._between = between
        self._failed = failed
        self._reached = reached
        self._watched = watched
        self._rate, self._ticks_ns = FrameRate(), ticks_ns
        self._every, self._most_every = 1, cast(Mapping[str, int], {})
        self._to_ask: set[str] = set()
        self._wanted = tuple(wanted)
        self._clock = clock
        self._agents = Agents(folder)
        self._followers: dict[str, Follower] = {}
        self._open: dict[int, Follower] = {}
        self._due: list[tuple[int, int, Follower]] = []
        self._paused: list[tuple[int, int, Follower, Connection]] = []
        self._turn = 0
        self._addresses: HostAddresses[Follower] = HostAddresses()
        self._handshakes: HandshakeSlots[Follower] = HandshakeSlots()
        self._buffers = SharedBuffers()
        self._stopping = False
        self._idle_ns = 0
        self._asked_ns = self._polled_ns = self._swept_ns = self._away_ns = self._read_frames = self._credentials_ns = 0
        self._unopened = 0
        self.streams: dict[str, Stream] = {}
        self.orders: Sequence[LeasedOrders] = ()
        """Orders to agents, of each kind. Set it before `run`."""

    # --- from the event loop -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read on a separate thread until cancelled. Raises the error that ended the thread, which is a bug."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end(error: BaseException) -> None:
            if not ended.done():
                ended.set_exception(error)

        def follow() -> None:
            try:
                self._main()
            except BaseException as error:
                loop.call_soon_threadsafe(end, error)

        self._stopping = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        often = gc.get_threshold()
        gc.set_threshold(COLLECT_AFTER, *often[1:])
        thread = threading.Thread(target=follow, name="feed", daemon=True)
        thread.start()
        try:
            await ended
        finally:
            self._stopping = True
            os.eventfd_write(self._wake, 1)
            thread.join()
            os.close(self._wake)
            gc.set_threshold(*often)

    def measures(self) -> Iterator[AnySample]:
        """Yield the feed's metrics. May be called from any thread."""
        now_ns = self._clock.monotonic_ns()
        yield "gangwatch_feed_every", (), float(self._rate.every)
        if (ends := self._credentials.ends) is not None:
            yield "gangwatch_certificate_expiry_seconds", (("use", "feed"),), ends
        streams = list(self.streams.values())
        yield _column("gangwatch_feed_connected", streams, [float(stream.connected) for stream in streams])
        yield _column("gangwatch_feed_frames_total", streams, [float(stream.frames) for stream in streams])
        yield _column("gangwatch_feed_malformed_total", streams, [float(stream.malformed) for stream in streams])
        yield _column("gangwatch_feed_pauses_total", streams, [float(stream.pauses) for stream in streams])
        yield _column(
            "gangwatch_feed_identity_refused_total", streams, [float(stream.identity_refused) for stream in streams]
        )
        dated = [(stream, ends) for stream in streams if (ends := stream.certificate_ends) is not None]
        yield _column(
            "gangwatch_feed_certificate_expiry_seconds", [stream for stream, _ in dated], [ends for _, ends in dated]
        )
        aged = [(stream, at_ns) for stream in streams if (at_ns := stream.received_ns) is not None]
        ages = [(now_ns - at_ns) / 1e9 for _, at_ns in aged]
        yield _column("gangwatch_feed_frame_age_seconds", [stream for stream, _ in aged], ages)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        with select.epoll() as self._epoll, select.epoll() as self._opening:
            self._epoll.register(self._wake, select.EPOLLIN)
            self._epoll.register(self._opening.fileno(), select.EPOLLIN)  # ready when one of its sockets is
            try:
                sweep_ns = 0
                while not self._stopping and self._reads_here():
                    now_ns = self._clock.monotonic_ns()
                    if now_ns >= sweep_ns:
                        self._sweep(now_ns)
                        sweep_ns = now_ns + int(DISCOVERY_SECONDS * 1e9)
                    self._resume(now_ns)
                    self._open_more(now_ns, len(self._open) + 64)
                    until_ns = min(sweep_ns, self._due[0][0] if self._due else sweep_ns)
                    until_ns = min(until_ns, self._paused[0][0] if self._paused else until_ns)
                    wait_seconds = self._run_between()
                    until_ns = min(until_ns, self._clock.monotonic_ns() + int(wait_seconds * 1e9))
                    self._read_ready(until_ns)
            finally:
                for follower in self._followers.values():
                    self._close(follower)
                self._followers.clear()
                self._addresses.close()

    def _reads_here(self) -> bool:
        """Return whether this thread continues to read the streams. If not, ``_main`` closes them and returns."""
        return True

    def _changed(self, stream: Stream) -> None:
        """Called after fields of the stream have changed, but not for each frame."""

    def _read_ready(self, until_ns: int) -> None:
        wait_seconds = max(0.0, (until_ns - self._clock.monotonic_ns()) / 1e9)
        if self._addresses.asked:
            wait_seconds = min(wait_seconds, POLL_SECONDS)
        if len(self._open) >= STREAMS_TOGETHER:
            longest = TOGETHER_OPENING_SECONDS if self._handshakes.running else TOGETHER_SECONDS
            passed_seconds = (self._clock.monotonic_ns() - self._polled_ns) / 1e9
            together_seconds = min(wait_seconds, max(0.0, longest - passed_seconds))
            if together_seconds > 0.0:
                begun_ns = self._clock.monotonic_ns()
                time.sleep(together_seconds)
                wait_seconds -= together_seconds
                self._idle_ns += self._clock.monotonic_ns() - begun_ns
        asked_ns = self._listened_ns()
        begun_ns = self._clock.monotonic_ns()
        ready = self._epoll.poll(wait_seconds, len(self._open) + 64)
        self._polled_ns = self._clock.monotonic_ns()
        self._idle_ns += self._polled_ns - begun_ns
        for descriptor, mask in ready:
            follower = self._open.get(descriptor)
            if follower is not None and follower.poll is self._epoll:
                self._serve(follower, mask)
            if self._read_frames >= FRAMES_AT_ONCE:
                self._run_between()
                self._open_more(self._clock.monotonic_ns(), OPENED_BETWEEN)
        self._serve_opening(len(self._open) + 64)
        self._asked_ns = asked_ns

    def _run_between(self) -> float:
        """Run `between` on this thread; return the seconds until it must run again."""
        self._read_frames = 0
        if self._between is None:
            return DISCOVERY_SECONDS
        begun_ns = self._clock.monotonic_ns()
        wait_seconds = self._between()
        self._away_ns += self._clock.monotonic_ns() - begun_ns
        return wait_seconds

    def _listened_ns(self) -> int:
        """Return the time of the clock for timeouts. It stops while this thread does work other than reading."""
        return self._clock.monotonic_ns() - self._away_ns

    def _silence_deadline(self, stream: Stream) -> int:
        """Return the time on that clock at which a stream times out if it sends nothing from now on."""
        return self._listened_ns() + silence_ns(stream)

    def _sweep(self, now_ns: int) -> None:
        """Once a second, update the list of agents and close streams that have timed out.

        The deadline is compared with the time of the last poll, after which all ready sockets were read. So an agent
        does not time out because this thread was late.
        """
        if self._agents.refresh(now_ns, self._clock.wall_ns()):
            self._match(now_ns)
        if now_ns - self._credentials_ns >= CREDENTIALS_SECONDS * 1e9:
            self._credentials_ns = now_ns
            self._read_credentials()
        allowed = MOST_FRAMES_A_SECOND * (now_ns - self._swept_ns) / 1e9
        self._swept_ns = now_ns
        wall_seconds = self._clock.wall_ns() / 1e9
        for follower in list(self._open.values()):
            ends = follower.stream.certificate_ends
            if ends is not None and ends < wall_seconds and follower.stream.connected:
                self._lost(follower, "its certificate has expired")
                continue
            if follower.deadline_ns < self._asked_ns:
                connecting = follower.connection is not None and follower.connection.writes
                self._lost(follower, "no connection in time" if connecting else "it has fallen silent")
            follower.burst = max(0.0, follower.burst - allowed)
        self._ask_for_rate(now_ns)
        for orders in self.orders:
            self._send_orders(now_ns, orders)

    def _send_orders(self, now_ns: int, orders: LeasedOrders) -> None:
        """Send the orders that are due to the agents that accept them."""
        for follower in list(self._open.values()):
            stream, connection = follower.stream, follower.connection
            if not stream.connected or connection is None or orders.word not in connection.takes:
                continue
            line = orders.due(stream.node, *connection.orders.get(orders.word, NEVER_SENT), now_ns)
            if line and not connection.writes:
                self._order(follower, connection, line, now_ns)

    def _order(self, follower: Follower, connection: Connection, line: bytes, now_ns: int) -> None:
        """Send an order to an agent."""
        try:
            connection.order(line, now_ns)
        except OSError as error:
            self._lost(follower, reason_of(error))
            return
        self._write_later(follower, connection)

    def _write_later(self, follower: Follower, connection: Connection) -> None:
        """Wait until the socket accepts the rest of the sent line, if there is one."""
        if connection.writes and follower.deadline_ns != NEVER_NS:
            follower.poll.modify(follower.descriptor, select.EPOLLIN | select.EPOLLOUT)

    def _ask_for_rate(self, now_ns: int) -> None:
        """Ask agents for fewer messages while this thread has too little time, and for all frames again later."""
        before, watched_before = self._every, self._most_every
        self._every = self._take_rate(now_ns)
        self._most_every = {} if self._every == 1 or self._watched is None else self._watched()
        if self._every != before:
            self._to_ask.update(self._followers)
        else:
            self._to_ask.update(node for node, _ in self._most_every.items() ^ watched_before.items())
        left = ASKED_A_TURN
        for node in list(self._to_ask):
            follower = self._followers.get(node)
            if follower is not None and follower.stream.connected:
                if follower.deadline_ns == NEVER_NS:
                    continue  # reading is paused; ask later
                left -= self._ask_agent(follower)
            self._to_ask.discard(node)  # an agent that connects later is asked then
            if not left:
                return

    def _ask_agent(self, follower: Follower) -> bool:
        """Ask an agent for the present rate; return whether it was sent another one before."""
        stream, connection = follower.stream, follower.connection
        if connection is None or follower.deadline_ns == NEVER_NS:
            return False
        every = min(self._every, self._most_every.get(stream.node, self._every))
        wanted = every_of(every, stream.interval_seconds, connection.most_samples)
        if (wanted := min(wanted, connection.most_every)) == stream.every:
            return False
        try:
            connection.ask_every(wanted, samples_of(wanted))
        except OSError as error:
            self._lost(follower, reason_of(error))
            return False
        stream.every = wanted
        follower.deadline_ns = max(follower.deadline_ns, self._silence_deadline(stream))
        self._changed(stream)
        if connection.writes:
            follower.poll.modify(follower.descriptor, select.EPOLLIN | select.EPOLLOUT)
        return True

    def _take_rate(self, now_ns: int) -> int:
        """Decide how many frames agents leave out, log a change, and return the decision (``FrameRate.every``)."""
        before, every = self._rate.every, self._rate.take(now_ns, self._idle_ns, self._ticks_ns())
        if every != before:
            what = "every frame" if every == 1 else f"one message for {every} frames"
            _log.info("agents are asked for %s, because the feed is %s", what, "busy" if every > before else "idle")
        return every

    def _match(self, now_ns: int) -> None:
        """Begin to follow newly announced agents, and stop following agents whose announcement is gone."""
        records = self._agents.records
        for node, follower in list(self._followers.items()):
            if records.get(node) != follower.record:
                self._forget(follower)
        # In order of name, so that the nodes of a job mostly come together, and its shape is rebuilt less often.
        for node in sorted(records.keys() - self._followers.keys()):
            self._follow(records[node], now_ns)
        wanted = len(records) + DESCRIPTORS_BESIDE
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < wanted and soft != resource.RLIM_INFINITY:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            if most < wanted:
                _log.warning("%d agents, but this process may open only %d files (LimitNOFILE)", len(records), most)

    def _follow(self, record: AgentRecord, now_ns: int) -> None:
        stream = self.streams.setdefault(record.node, Stream(record.node, known_ns=now_ns))
        follower = self._followers[record.node] = Follower(record, stream, StreamDecoder(record.node))
        self._changed(stream)
        self._schedule(follower, now_ns)

    def _forget(self, follower: Follower) -> None:
        self._close(follower)
        follower.followed = False
        self._followers.pop(follower.record.node, None)

    def _schedule(self, follower: Follower, at_ns: int) -> None:
        self._turn += 1
        heapq.heappush(self._due, (at_ns, self._turn, follower))

    # --- opening -----------------------------------------------------------------------------------------------------

    def _open_more(self, now_ns: int, most: int) -> None:
        """Continue opening streams, and serve up to `most` sockets of agents that have not sent a layout yet.

        A handshake takes several polls. It must not wait for the frames of all open streams each time: a controller
        with as many streams as it can read would otherwise never open the remaining ones.
        """
        self._open_due(now_ns)
        self._take_addresses()
        self._let_in()
        self._serve_opening(most)

    def _serve_opening(self, most: int) -> None:
        """Serve up to `most` ready sockets of agents that have not sent a layout yet."""
        if not self._unopened:
            return
        for descriptor, mask in self._opening.poll(0, most):
            follower = self._open.get(descriptor)
            if follower is not None and follower.poll is self._opening:
                self._serve(follower, mask)
            if self._read_frames >= FRAMES_AT_ONCE:
                self._run_between()

    def _open_due(self, now_ns: int) -> None:
        for _ in range(OPENED_A_TURN):
            if not self._due or self._due[0][0] > now_ns or self._handshakes.crowded:
                return
            follower = heapq.heappop(self._due)[2]
            if not follower.followed:
                continue
            record = self._agents.current(follower.record.node)
            if record != follower.record:
                # The agent was restarted at another address.
                self._forget(follower)
                if record is None:
                    continue
                self._follow(record, now_ns)
                continue
            try:
                self._begin(follower)
            except Exception as error:
                self._bug(follower, error)

    def _begin(self, follower: Follower) -> None:
        """Open the stream, after a DNS look-up if the host is a name."""
        url = urlsplit(follower.record.url)
        host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        addresses = literal(host, port)
        if addresses is not None:
            self._connect(follower, addresses)
            return
        self._addresses.ask(follower, host, port)

    def _take_addresses(self) -> None:
        for follower, found in self._addresses.results():
            if not follower.followed:
                continue
            if isinstance(found, str):
                self._lost(follower, found)
                continue
            try:
                self._connect(follower, found)
            except Exception as error:
                self._bug(follower, error)

    def _connect(self, follower: Follower, addresses: list[Address]) -> None:
        follower.tries += 1
        follower.decoder = StreamDecoder(follower.record.node)
        follower.frames_before, follower.stream.every = follower.stream.frames, 1
        family, address = addresses[follower.tries % len(addresses)]
        try:
            url = follower.record.url
            request = frames_request(url, self._wanted, self._credentials.headers(url))
            connection = self._open_connection(follower, family, address, request)
        except OSError as error:
            self._lost(follower, reason_of(error))
            return
        except ValueError as error:  # a name that is not valid for TLS
            self._lost(follower, f"{follower.record.url}: {error}", longest=True)
            return
        follower.connection, follower.descriptor = connection, connection.fileno()
        if self._reached is not None:
            self._reached(follower.record.node, address[0])
        follower.deadline_ns = self._listened_ns() + int(CONNECT_SECONDS * 1e9)
        self._open[follower.descriptor] = follower
        self._unopened += 1
        follower.poll = self._opening
        follower.poll.register(follower.descriptor, select.EPOLLIN | select.EPOLLOUT)

    def _open_connection(self, follower: Follower, family: int, address: tuple[str, int], request: bytes) -> Connection:
        url, node = urlsplit(follower.record.url), follower.record.node
        host = url.hostname or ""
        if url.scheme != "https":
            return Connection(family, address, host, request, self._buffers, None)
        trust = self._credentials.trust()

        def check(certificate: Certificate) -> str:
            return self._credentials.trust().refusal(certificate, node, host)  # as configured at that time

        return Connection(family, address, trust.name_of(node, host), request, self._buffers, trust.context, check)

    def _may_go_on(self, follower: Follower) -> bool:
        """Return whether a connected stream may start its TLS handshake now; it waits while too many run."""
        now_ns = self._listened_ns()
        if self._handshakes.enter(follower, now_ns):
            follower.deadline_ns = now_ns + int(CONNECT_SECONDS * 1e9)
            return True
        follower.poll.modify(follower.descriptor, 0)
        follower.deadline_ns = NEVER_NS
        return False

    def _let_in(self) -> None:
        """Start TLS handshakes that waited because too many were running."""
        now_ns = self._listened_ns()
        for follower in self._handshakes.let_in(now_ns):
            follower.deadline_ns = now_ns + int(CONNECT_SECONDS * 1e9)
            follower.poll.modify(follower.descriptor, select.EPOLLIN | select.EPOLLOUT)

    def _read_credentials(self) -> None:
        """Load changed certificates, keys and revocations. A faulty change is logged, and the former files stay valid.

        Open streams keep their certificates, unless these were revoked.
        """
        try:
            trust = self._credentials.read_again()
        except ConfigError as error:
            _log.error("changed feed certificates not loaded, the former ones stay valid: %s", error)
            return
        if trust is None:
            return
        _log.info("changed feed certificates loaded")
        for follower in list(self._open.values()):
            certificate = follower.connection.certificate if follower.connection is not None else None
            if certificate is not None and (why := trust.revocations.refuses(certificate)):
                follower.stream.identity_refused += 1
                self._lost(follower, f"its certificate is not accepted: {why}", longest=True)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _serve(self, follower: Follower, mask: int) -> None:
        """Handle an agent's socket that is ready for reading or writing."""
        connection = follower.connection
        assert connection is not None
        longest = False
        try:
            if (
                connection.connecting
                and not mask & (select.EPOLLERR | select.EPOLLHUP)
                and not self._may_go_on(follower)
            ):
                return
            if mask & select.EPOLLOUT:
                connection.push()
                if not connection.writes:
                    follower.poll.modify(follower.descriptor, select.EPOLLIN)
                    follower.deadline_ns = self._silence_deadline(follower.stream)
            if mask & ~select.EPOLLOUT:
                messages = connection.take()
                if messages:
                    self._receive(follower, messages)
                elif connection.read_bytes >= PART_BYTES and follower.deadline_ns != NEVER_NS:
                    follower.deadline_ns = self._silence_deadline(follower.stream)
                if connection.ended:
                    raise EndedError("the agent closed the stream")
                if connection.writes and follower.deadline_ns != NEVER_NS:
                    follower.poll.modify(follower.descriptor, select.EPOLLIN | select.EPOLLOUT)
            return
        except (VersionError, FrameError) as error:
            self._invalid(follower, error)
            return
        except IdentityError as error:
            follower.stream.identity_refused += 1
            complaint, longest = str(error), True
        except (EndedError, RefusedError) as error:
            complaint = str(error)
        except OSError as error:
            complaint = reason_of(error)
        except Exception as error:
            self._bug(follower, error)
            return
        self._lost(follower, complaint, longest)

    def _invalid(self, follower: Follower, error: VersionError | FrameError) -> None:
        """Close a stream that has sent an invalid message."""
        follower.stream.malformed += 1
        if isinstance(error, VersionError):
            self._lost(follower, str(error), longest=True)  # only an upgrade helps
        else:
            self._lost(follower, f"not a stream of frames: {error}")

    def _bug(self, follower: Follower, error: Exception) -> None:
        """Report a bug that one agent's record or stream triggered. Other streams are not affected."""
        if self._failed is None:
            raise error
        self._failed("feed", error, f"node {follower.record.node}")
        self._lost(follower, f"a bug in gangwatch: {type(error).__name__}: {error}", longest=True)

    def _receive(self, follower: Follower, messages: list[bytes]) -> None:
        """Process messages of one agent. Raises FrameError for an invalid message, or one of another node."""
        stream, take = follower.stream, follower.decoder.take
        cost = 0
        received_ns = self._clock.monotonic_ns()
        deadline_ns = received_ns - self._away_ns + silence_ns(stream)
        opened = False
        for message in messages:
            frame = take(message)
            cost += self._count_message(follower, message, frame is None)
            follower.deadline_ns = deadline_ns
            if frame is None:
                stream.interval_seconds = follower.decoder.interval_seconds
                self._to_ask.add(stream.node)
                self._layout_received(follower)
                continue
            if not stream.connected:
                self._connected(follower)
                opened = True
            stream.frames += 1
            stream.received_ns = received_ns
            self._read_frames += 1
            assert follower.decoder.layout is not None
            self._deliver(follower.decoder.layout, frame, received_ns)
        self._spend(follower, cost, received_ns)
        if opened and self._every > 1:
            self._ask_agent(follower)

    def _count_message(self, follower: Follower, message: bytes, is_layout: bool) -> int:
        """Count a message against its agent's limit; return its weighted bytes. Raises FrameError above the limit."""
        follower.burst += 1
        if follower.burst > MOST_FRAMES_AT_ONCE:
            raise FrameError(f"it sends more than {MOST_FRAMES_A_SECOND} messages a second")
        return LAYOUT_WEIGHT * len(message) if is_layout else len(message)

    def _layout_received(self, follower: Follower) -> None:
        self._handshakes.leave(follower)
        if follower.poll is self._opening:
            self._opened(follower)

    def _connected(self, follower: Follower) -> None:
        stream = follower.stream
        _log.info("stream of %s (%s) is open", stream.node, follower.record.url)
        stream.connected, stream.complaint = True, ""
        certificate = follower.connection.certificate if follower.connection is not None else None
        stream.certificate_ends = certificate.not_after if certificate is not None else None
        self._changed(stream)

    def _spend(self, follower: Follower, cost: int, received_ns: int) -> None:
        """Subtract weighted bytes from the agent's allowance, and pause reading if it is used up."""
        if follower.allowance is None:
            follower.allowance = Allowance(received_ns)
        if pause_seconds := follower.allowance.take(cost, received_ns):
            self._pause(follower, received_ns + int(pause_seconds * 1e9))

    def _opened(self, follower: Follower) -> None:
        """Move a stream that has sent its first layout to the streams of frames."""
        assert follower.connection is not None
        self._unopened -= 1
        self._opening.unregister(follower.descriptor)
        follower.poll = self._epoll
        writes = select.EPOLLOUT if follower.connection.writes else 0
        follower.poll.register(follower.descriptor, select.EPOLLIN | writes)

    def _pause(self, follower: Follower, until_ns: int) -> None:
        """Stop reading the stream until this time. An agent that sends too much delays only itself."""
        stream = follower.stream
        stream.pauses += 1
        self._changed(stream)
        if stream.pauses == 1:
            _log.warning(
                "node=%s reason=too-much: its agent sends more than %d MiB a second (layouts count %d-fold); its "
                "stream is throttled (gangwatch_feed_pauses_total)",
                stream.node, ALLOWED_A_SECOND >> 20, LAYOUT_WEIGHT,
            )  # fmt: skip
        assert follower.connection is not None
        follower.poll.modify(follower.descriptor, 0)
        follower.deadline_ns = NEVER_NS
        self._turn += 1
        heapq.heappush(self._paused, (until_ns, self._turn, follower, follower.connection))

    def _resume(self, now_ns: int) -> None:
        """Continue streams whose pause is over."""
        while self._paused and self._paused[0][0] <= now_ns:
            _, _, follower, connection = heapq.heappop(self._paused)
            if follower.connection is connection:
                follower.deadline_ns = self._silence_deadline(follower.stream)
                writes = select.EPOLLOUT if connection.writes else 0
                follower.poll.modify(follower.descriptor, select.EPOLLIN | writes)

    def _lost(self, follower: Follower, complaint: str, longest: bool = False) -> None:
        """Close a stream that ended or failed, and schedule the next connection attempt."""
        stream = follower.stream
        self._close(follower)
        # Log a repeated complaint once; the counters show the repetitions.
        if complaint != stream.complaint:
            _log.warning("stream of %s (%s): %s", stream.node, follower.record.url, complaint)
            stream.complaint = complaint
        self._changed(stream)
        if stream.frames > follower.frames_before and not longest:
            follower.backoff.reset()
        self._schedule(follower, self._clock.monotonic_ns() + int(follower.backoff.next(longest) * 1e9))

    def _close(self, follower: Follower) -> None:
        follower.stream.connected = False
        self._handshakes.leave(follower)
        if follower.connection is not None:
            del self._open[follower.descriptor]
            if follower.poll is self._opening:
                self._unopened -= 1
            follower.poll.unregister(follower.descriptor)
            follower.connection.close()
            follower.connection = None
            follower.decoder = StreamDecoder(follower.record.node)
