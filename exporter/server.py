"""An agent's frames over HTTP.

    /metrics   Prometheus text or OpenMetrics       /healthz  200 while frames are made (or before the first)
    /frame     the latest frame                     /readyz   200 if there is a recent frame
    /frames    a stream of frames, one long-lived response

All endpoints are read-only (GET and HEAD). Two exceptions: during /frames, the controller may set power limits of GPUs,
where the node's operator allows it (LIMITS_HEADER), and may delay the steps of gangs (SHIFTS_HEADER). Off loopback, TLS
and authentication are required. Without them the server listens on loopback only, and rejects requests whose Host is
another name. This protects against DNS rebinding.
"""

from __future__ import annotations

import re
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qs, unquote

from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import FrameError
from agent.schema.frame import MOST_SAMPLES, EventRecord, Frame, Layout, Record, Selection
from agent.schema.peer_quota import NoPlaceError, Places
from agent.schema.record_table import reads_samples, wants_table
from agent.schema.sample import Sample
from agent.schema.wire import encode_frame, encode_layout, with_length
from exporter.frame_formats import FRAME_TYPE, JSON_TYPE, frame_json, frame_messages, selection, wanted_metrics
from exporter.prometheus.exposition import EVERYTHING, Exposition, Settings
from exporter.security.loopback import LoopbackOnly
from exporter.serving.agent_http import HttpServer
from exporter.serving.http_messages import Answer, Request, accepts_gzip, text_answer, weighted
from exporter.serving.listening import listen, url_of

if TYPE_CHECKING:
    from exporter.plugins.plugins import Plugins
    from exporter.security.security import Security

T = TypeVar("T")
Newest = Callable[[], tuple[Layout, Frame] | None]
Listener = Callable[[Layout, Frame], None]
AddListener = Callable[[Listener], Callable[[], None]]
Own = Callable[[], Iterable[Sample]]

OLD_INTERVALS = 5
OLD_SECONDS = 10.0
"""The agent counts as unhealthy only if its latest frame is older than this number of seconds, and also older than
OLD_INTERVALS sampling intervals."""

STREAM_LAYOUTS = 16
"""Maximum number of frames of different layouts queued for a slow reader of /frames. If there are more, the oldest are
dropped with their records."""

MOST_STREAMS, MOST_STREAMS_EACH = 64, 16
"""Maximum number of readers of /frames, in total and per peer: a controller, its standby, people."""

LEAST_STREAM_SECONDS = 10.0
"""Minimum age of a stream that may be closed for a new one of the same peer, or of a peer with fewer streams. Younger
streams are kept, so that too many readers do not close each other's streams in turn."""

HABIT_FRAMES = 3
"""If at least this number of consecutive frames were requested in one format, the next frame is rendered in this format
before it is requested. If the requests skip frames, each frame is rendered at its request."""

UNKNOWN_HEADER = "Gangwatch-Unknown-Metrics"
"""Header of /frames responses. It lists the requested metrics that are not in this build's catalogue; another build may
have them."""

EVERY_HEADER = "Gangwatch-Every"
"""Header of /frames responses. It says that the reader may send lines like ``every 2`` during the response, and gives
the largest such number. From then on, the stream has only each second frame, with the records of both."""

MOST_EVERY = 100

SAMPLES_HEADER = "Gangwatch-Samples"
"""Header of /frames responses to a reader of frames with earlier samples. It says that the reader may send lines like
``every 8 samples 4`` during the response, and gives the largest second number. From then on, each message has the
values of 4 frames out of 8, equally spaced in time, and the records of all."""

LIMITS_HEADER = "Gangwatch-Power-Limits"
"""Header of /frames responses to the controller. It says that the reader may send lines like ``power-limits GPU=WATTS
GPU=WATTS`` during the response, with the limit of each GPU. GPUs that are not in the newest line get back their own."""

SHIFTS_HEADER = "Gangwatch-Time-Shifts"
"""Header of /frames responses to the controller. It says that the reader may send lines like ``time-shifts
GANG=PERIOD/OFFSET`` during the response, with the grid of times in ns at which the steps of each gang begin. Gangs that
are not in the newest line begin their steps at any time. Names of gangs are percent-encoded."""

Shifting = Callable[[Request, Mapping[str, tuple[int, int]]], bool]
"""Orders time shifts, by gang, for the client of this request; returns whether it may do that."""

Limit = Callable[[Request, Mapping[str, float]], bool]
"""Sets the power limits of GPUs, by UUID in watts, for the client of this request; returns whether it may do that."""

_EVERY = re.compile(rb"every ([1-9][0-9]{0,2})(?: samples ([1-9][0-9]?))?")
_MOST_LINE_BYTES = 64
_LIMITS = re.compile(rb"power-limits((?: [A-Za-z0-9-]{1,80}=[0-9]{1,5}){0,64})")
_MOST_LIMITS_BYTES = 64 * 90
_SHIFTS = re.compile(rb"time-shifts((?: [A-Za-z0-9._~%/-]{1,256}=[1-9][0-9]{0,11}/[0-9]{1,12}){0,64})")
_MOST_SHIFTS_BYTES = 64 * 284

_PATHS = ("/metrics", "/frame", "/frames", "/healthz", "/readyz")


# --- streams ---------------------------------------------------------------------------------------------------------


class FrameStream:
    """Queue of one reader of /frames: the latest frame, then all later ones. A layout is sent before its frames.

    While the reader is slower than the frames, each frame replaces the one before it in the queue and takes over its
    records. So a reader that is late gets fewer frames, which leaves a gap in ``seq``, but all records and recent
    counters. A reader may also ask for fewer frames (EVERY_HEADER). Events and layouts are sent at once nevertheless.

    A reader of earlier samples (SAMPLES_HEADER) also gets the values of the replaced frames, up to MOST_SAMPLES.
    """

    def __init__(
        self,
        patterns: tuple[str, ...],
        closed: Callable[[FrameStream], None],
        as_table: bool = False,
        limit: Callable[[Mapping[str, float]], bool] | None = None,
        with_samples: bool = False,
        shift: Callable[[Mapping[str, tuple[int, int]]], bool] | None = None,
    ) -> None:
        """limit: sets power limits; None: the reader may set none. shift: the same for time shifts. with_samples:
        whether the reader can read earlier samples."""
        self._with_samples = with_samples
        self._limit, self._shift = limit, shift
        most = _MOST_LINE_BYTES if limit is None else _MOST_LIMITS_BYTES
        self._most_line_bytes = most if shift is None else max(most, _MOST_SHIFTS_BYTES)
        self._patterns = patterns
        self._as_table = as_table
        self._closed = closed
        self._frames: deque[tuple[Layout, Frame]] = deque(maxlen=STREAM_LAYOUTS)
        self._condition = threading.Condition()
        self._newest_seq = 0
        self._ended = False
        self._selected: tuple[str, Selection] | None = None  # with the id of the whole layout
        self._every = self._apart = 1
        self._due = False
        self._put_id = ""
        self._request = b""

    def put(self, layout: Layout, frame: Frame) -> None:
        """Queue a frame. Called from any thread; never waits for the reader."""
        with self._condition:
            # A frame made while the stream is opened arrives twice: as the latest and from the listener.
            if frame.seq > self._newest_seq:
                self._newest_seq = frame.seq
                if self._frames and self._frames[-1][0].layout_id == layout.layout_id:
                    frame = self._joined(frame, self._frames.pop()[1])
                self._frames.append((layout, frame))
                if (
                    self._has_turn(frame, self._every)
                    or layout.layout_id != self._put_id
                    or any(map(_is_event, frame.records))
                ):
                    self._due, self._put_id = True, layout.layout_id
                    self._condition.notify()

    def _has_turn(self, frame: Frame, every: int) -> bool:
        """Return whether this is one of each `every` frames. Agents that are asked at once do not all send in the same
        second: it depends on their id."""
        return every == 1 or frame.seq % every == zlib.crc32(frame.agent_id.encode()) % every

    def _joined(self, frame: Frame, before: Frame) -> Frame:
        """Return the frame with the records of the frame before it, which is not sent, and perhaps with its values."""
        if not self._with_samples:
            return frame.with_records_of(before)
        keep = self._has_turn(before, self._apart)
        selected = self._selected
        if keep and selected is not None and selected[0] == before.layout_id:
            before = selected[1].apply(before)  # a tenth of the memory
        return frame.joined(before, keep)

    def take_request(self, data: bytes) -> bool:
        *lines, self._request = (self._request + data).split(b"\n")
        for line in lines:
            if self._limit is not None and (limits := _LIMITS.fullmatch(line)) is not None:
                pairs = (pair.split("=") for pair in limits[1].decode().split())
                if not self._limit({gpu: float(watts) for gpu, watts in pairs}):
                    return False
                continue
            if self._shift is not None and (shifts := _SHIFTS.fullmatch(line)) is not None:
                if not self._shift(_shifts_of(shifts[1])):
                    return False
                continue
            found = _EVERY.fullmatch(line)
            every, samples = (0, 0) if found is None else (int(found[1]), int(found[2] or 1))
            if not 0 < every <= MOST_EVERY or samples > (min(MOST_SAMPLES, every) if self._with_samples else 1):
                return False
            with self._condition:
                self._every, self._apart = every, every // samples
        return len(self._request) <= self._most_line_bytes

    def end(self) -> None:
        """End the stream after the queued frames."""
        with self._condition:
            self._ended = True
            self._condition.notify()

    def next(self, timeout_seconds: float) -> bytes | None:
        with self._condition:
            if not self._due and not self._ended:
                self._condition.wait(timeout_seconds)
            if not self._due and not self._ended:
                return b""
            if not self._frames:
                return None
            layout, frame = self._frames.popleft()
            self._due = bool(self._frames)
        body = b""
        if self._selected is None or layout.layout_id != self._selected[0]:
            self._selected = layout.layout_id, selection(layout, self._patterns)
            body = with_length(encode_layout(self._selected[1].layout))
        return body + with_length(encode_frame(self._selected[1].apply(frame), self._as_table))

    def close(self) -> None:
        self._closed(self)


def _shifts_of(text: bytes) -> dict[str, tuple[int, int]]:
    """Return the period and offset in ns of each gang of an order."""
    found: dict[str, tuple[int, int]] = {}
    for pair in text.decode().split():
        gang, _, numbers = pair.partition("=")
        period, _, offset = numbers.partition("/")
        found[unquote(gang)] = int(period), int(offset)
    return found


def _is_event(record: Record) -> bool:
    return isinstance(record, EventRecord)


# --- the agent's app -------------------------------------------------------------------------------------------------


class AgentApp:
    """The agent's endpoints. Create it with ``agent_app``; ``close`` ends its streams. Thread-safe."""

    def __init__(
        self,
        newest: Newest,
        add_listener: AddListener,
        clock: Clock,
        settings: Settings,
        own: Own,
        plugins: Plugins | None,
        limit: Limit | None = None,
        shift: Shifting | None = None,
    ) -> None:
        self._newest = newest
        self._limit, self._shift = limit, shift
        self._plugins = plugins
        self._add_listener = add_listener
        self._clock = clock
        self._own = own
        self._streams: Places[FrameStream] = Places(MOST_STREAMS, MOST_STREAMS_EACH, least_s=LEAST_STREAM_SECONDS)
        self._newest_json: tuple[Frame, bytes] | None = None
        self._lock = threading.Lock()
        self._remove_listener: Callable[[], None] | None = None
        self._closing = False
        self._settings = settings
        self._expositions: dict[bool, Exposition] = {}
        # By format and compression: the latest requested frame, and how many were requested before it without a gap.
        self._habits: dict[tuple[bool, bool], tuple[int, int]] = {}

    def use(self, settings: Settings) -> None:
        """Apply other settings."""
        with self._lock:
            self._settings, self._expositions = settings, {}
        if self._plugins is not None:
            self._plugins.use(settings.textfile_folder, settings.deny)

    def healthy(self) -> bool:
        """Return whether frames are made, or the first frame is not due yet."""
        return self._newest() is None or self._why_not_ready() is None

    def close(self) -> None:
        """End every stream and refuse new ones."""
        with self._lock:
            self._closing = True
            for stream in self._streams:
                stream.end()

    def __call__(self, request: Request) -> Answer:
        path = request.path
        if request.method not in ("GET", "HEAD"):
            return text_answer(405, f"{request.method} {path}: only GET and HEAD", ("Allow", "GET, HEAD"))
        if path == "/frames":
            return self._frames(request)
        if path == "/healthz":
            return text_answer(200, "ok") if self.healthy() else text_answer(503, self._why_not_ready() or "")
        if path == "/readyz":
            why = self._why_not_ready()
            return text_answer(200, "ok") if why is None else text_answer(503, why)
        if path not in _PATHS:
            return text_answer(404, f"no such path: {path}; available: {' '.join(_PATHS)}")
        newest = self._newest()
        if newest is None:
            return text_answer(503, "no frame has been made yet", ("Retry-After", "1"))
        if path == "/metrics":
            return self._metrics(request, newest)
        if FRAME_TYPE in request.headers.get("accept", ""):
            return Answer(200, FRAME_TYPE, frame_messages(*newest))
        return Answer(200, JSON_TYPE, self._json(*newest))

    def _json(self, layout: Layout, frame: Frame) -> bytes:
        """Return the frame as JSON, rendered once for all requests."""
        kept = self._newest_json
        if kept is None or kept[0] is not frame:
            kept = self._newest_json = frame, frame_json(layout, frame)
        return kept[1]

    def _metrics(self, request: Request, newest: tuple[Layout, Frame]) -> Answer:
        open_metrics = wants_open_metrics(request.headers.get("accept", ""))
        compress = accepts_gzip(request.headers)
        exposition = self._exposition(open_metrics)
        more = b""
        if self._plugins is not None:
            more = self._plugins.text(open_metrics, exposition.names(*newest), (("node", newest[0].node),))
        body = exposition.body(*newest, compress=compress, more=more)
        self._remember(open_metrics, compress, newest[1].seq)
        vary = ("Vary", "Accept, Accept-Encoding")
        encoding = (("Content-Encoding", "gzip"),) if compress else ()
        return Answer(200, exposition.content_type, body, (*encoding, vary))

    def _remember(self, open_metrics: bool, compress: bool, seq: int) -> None:
        """Record that frame `seq` was requested in this format, so that later frames can be rendered before the
        request."""
        with self._lock:
            newest, before = self._habits.get((open_metrics, compress), (0, 0))
            if seq != newest:
                before = before + 1 if seq == newest + 1 else 0
                self._habits[open_metrics, compress] = seq, before
            if before >= HABIT_FRAMES - 1:
                self._listen()

    def _render_ahead(self, layout: Layout, frame: Frame) -> bool:
        """Render the frame in the formats of recent requests. Return whether there were such requests."""
        with self._lock:
            habits = [
                key
                for key, (newest, before) in self._habits.items()
                if before >= HABIT_FRAMES - 1 and frame.seq <= newest + 1
            ]
        for open_metrics, compress in habits:
            try:
                self._exposition(open_metrics).prepare(layout, frame, compress)
            except FrameError:
                pass  # the next request reports the error
        return bool(habits)

    def _exposition(self, open_metrics: bool) -> Exposition:
        with self._lock:
            exposition = self._expositions.get(open_metrics)
            if exposition is None:
                exposition = self._expositions[open_metrics] = Exposition(self._settings, open_metrics, self._own)
            return exposition

    def _why_not_ready(self) -> str | None:
        newest = self._newest()
        if newest is None:
            return "no frame has been made yet"
        layout, frame = newest
        interval_seconds = layout.tiers[0].interval_seconds if layout.tiers else 0.0
        age_seconds = (self._clock.monotonic_ns() - frame.monotonic_ns) / 1e9
        if age_seconds > max(OLD_SECONDS, OLD_INTERVALS * interval_seconds):
            return f"the latest frame is {age_seconds:.1f} s old"
        return None

    # --- streams -----------------------------------------------------------------------------------------------------

    def _frames(self, request: Request) -> Answer:
        try:
            patterns, unknown = _patterns(request.query)
        except ValueError as error:
            return text_answer(400, str(error))
        headers = ((EVERY_HEADER, f"{MOST_EVERY}"), *([(UNKNOWN_HEADER, ", ".join(unknown))] if unknown else ()))
        accept = request.headers.get("accept", "")
        as_table, with_samples = wants_table(accept), reads_samples(accept)
        if with_samples:
            headers = (*headers, (SAMPLES_HEADER, f"{MOST_SAMPLES}"))
        limit, shift = _for_client(self._limit, request), _for_client(self._shift, request)
        if limit is not None:
            headers = (*headers, (LIMITS_HEADER, "1"))
        if shift is not None:
            headers = (*headers, (SHIFTS_HEADER, "1"))
        stream = FrameStream(patterns, self._close_stream, as_table, limit, with_samples, shift)
        if request.method == "HEAD":
            return Answer(200, FRAME_TYPE, stream, headers)
        with self._lock:
            if self._closing:
                return text_answer(503, "stopping")
            try:
                displaced = self._streams.take(request.peer, stream, self._clock.monotonic_ns() / 1e9)
            except NoPlaceError as error:
                return text_answer(503, f"too many streams: {error}", ("Retry-After", "10"))
            if displaced is not None:
                displaced.end()
            self._listen()
        newest = self._newest()
        if newest is not None:
            stream.put(*newest)
        return Answer(200, FRAME_TYPE, stream, headers)

    def _close_stream(self, stream: FrameStream) -> None:
        with self._lock:
            self._streams.drop(stream)
            if not self._streams:
                self._listen_no_more()

    # --- every frame -------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._remove_listener is None:
            self._remove_listener = self._add_listener(self._on_frame)

    def _listen_no_more(self) -> None:
        if self._remove_listener is not None:
            self._remove_listener()
            self._remove_listener = None

    def _on_frame(self, layout: Layout, frame: Frame) -> None:
        with self._lock:
            streams = tuple(self._streams)
        for stream in streams:
            stream.put(layout, frame)
        if not self._render_ahead(layout, frame):
            with self._lock:
                if not self._streams:
                    self._listen_no_more()


def _for_client(order: Callable[[Request, T], bool] | None, request: Request) -> Callable[[T], bool] | None:
    """Return the function that takes this client's orders; None if it may not give any.

    It needs a client certificate: on loopback, or with a password alone, any process could send orders.
    """
    if order is None or request.certificate is None or not request.certificate.names:
        return None
    return lambda wanted: order(request, wanted)


def _nothing() -> Iterable[Sample]:
    return ()


def agent_app(
    newest: Newest,
    add_listener: AddListener,
    clock: Clock | None = None,
    settings: Settings = EVERYTHING,
    own: Own = _nothing,
    plugins: Plugins | None = None,
    limit: Limit | None = None,
    shift: Shifting | None = None,
) -> AgentApp:
    """Return the agent's endpoints for a node: ``agent_app(node.newest, node.add_listener)``.

    newest: returns the latest frame and its layout, None before the first. add_listener: registers a callback for
    every frame, from any thread, and returns a function that removes it. clock: the clock of the frames' timestamps.
    own: returns additional samples for /metrics. plugins: metrics of the process, plug-ins and text files, for
    /metrics. limit: sets power limits for the controller; None: no client may set any. shift: the same for time shifts.
    """
    return AgentApp(newest, add_listener, clock or SystemClock(), settings, own, plugins, limit, shift)


def wants_open_metrics(accept: str) -> bool:
    """Return whether an Accept header prefers OpenMetrics (up to 1.0.0) to the text format."""
    weights = weighted(accept)
    open_metrics = max(
        (
            weight
            for name, weight in weights.items()
            if name.startswith("application/openmetrics-text")
            and ("version=" not in name or "version=1.0.0" in name or "version=0.0.1" in name)
        ),
        default=0.0,
    )
    text = max((weight for name, weight in weights.items() if name.startswith("text/plain")), default=0.0)
    return open_metrics > 0.0 and open_metrics >= text


def _patterns(query: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the patterns of the ``metrics`` parameter, and those without a match.

    Raises ValueError for any other parameter, for a malformed pattern, and if no pattern matches.
    """
    parameters = parse_qs(query, keep_blank_values=True)
    if unknown := sorted(parameters.keys() - {"metrics"}):
        raise ValueError(f"/frames: unknown parameter {', '.join(unknown)}; the only one is 'metrics'")
    return wanted_metrics(",".join(parameters.get("metrics", ())))


# --- serving ---------------------------------------------------------------------------------------------------------


class ThreadedServer:
    """Threaded server of an agent's app, from ``start`` to ``stop`` or as a context manager; ``url`` is its address."""

    def __init__(self, app: AgentApp, host: str = "127.0.0.1", port: int = 0, security: Security | None = None) -> None:
        """Bind the socket.

        Raises ConfigError if the socket can't be bound, and for an address off loopback without TLS and authentication.
        """
        self._app = app
        listener = listen(host, port, security)
        self.url = url_of(listener, security)
        self._guard: Security | LoopbackOnly = security or LoopbackOnly()
        self._server = HttpServer(app, listener, self._guard)

    def start(self) -> None:
        """Start serving. Requests that clients sent before wait in the socket's backlog."""
        self._server.start()

    def stop(self) -> None:
        """End streams, wait up to STOP_SECONDS for responses in progress, and close the socket."""
        self._app.close()
        self._server.stop()

    def measures(self) -> Iterator[Sample]:
        """Yield the metric samples of this server."""
        yield from self._server.measures()
        for status, count in sorted(self._guard.refused.items()):
            yield "gangwatch_exporter_requests_refused_total", (("status", str(status)),), count
        if not isinstance(self._guard, LoopbackOnly):
            yield "gangwatch_exporter_web_config_in_force", (), int(not self._guard.failure)
            yield from self._guard.measures()

    def __enter__(self) -> ThreadedServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
