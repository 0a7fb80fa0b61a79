"""Agent's server over real sockets: responses, rejected requests, and streams of a node's frames."""

from __future__ import annotations

import gzip
import http.client
import json
import select
import socket
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import msgspec
import pytest

from agent.schema.clock import ManualClock
from agent.schema.errors import ConfigError
from agent.schema.frame import EventRecord, Frame, Layout, OpenRecord, check_fits
from agent.schema.wire import MessageSplitter, decode
from exporter.frame_formats import FRAME_TYPE
from exporter.prometheus.exposition import Exposition, expose
from exporter.prometheus.line_cache import Lines
from exporter.prometheus.text_format import OPEN_METRICS_TYPE, TEXT_TYPE
from exporter.security.loopback import is_loopback
from exporter.server import (
    EVERY_HEADER,
    HABIT_FRAMES,
    LEAST_STREAM_SECONDS,
    MOST_STREAMS_EACH,
    UNKNOWN_HEADER,
    AgentApp,
    FrameStream,
    ThreadedServer,
    agent_app,
    listen,
    url_of,
)
from scheduler_feedback.feed.stream_connection import Connection, SharedBuffers, frames_request
from tests.exporter.sample_frames import small_frame, small_layout


class Source:
    """Node for the server, with frames that the test makes."""

    def __init__(self) -> None:
        self.layout = small_layout()
        self.seq = 0
        self.made: tuple[Layout, Frame] | None = None
        self.listeners: list[Callable[[Layout, Frame], None]] = []

    def newest(self) -> tuple[Layout, Frame] | None:
        return self.made

    def add_listener(self, listener: Callable[[Layout, Frame], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def make(self) -> Frame:
        self.seq += 1
        return self.put(small_frame(self.layout, self.seq))

    def put(self, frame: Frame) -> Frame:
        self.made = (self.layout, frame)
        for listener in list(self.listeners):
            listener(self.layout, frame)
        return frame


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def clock() -> ManualClock:
    # The time of small_frame.
    return ManualClock(monotonic_ns=5_000_000_000)


@pytest.fixture
def app(source: Source, clock: ManualClock) -> AgentApp:
    return agent_app(source.newest, source.add_listener, clock)


@pytest.fixture
def server(app: AgentApp) -> Iterator[ThreadedServer]:
    with ThreadedServer(app) as one:
        yield one


def connect(server: ThreadedServer) -> http.client.HTTPConnection:
    address = urlsplit(server.url)
    assert address.hostname is not None
    return http.client.HTTPConnection(address.hostname, address.port, timeout=30)


def ask(
    server: ThreadedServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = connect(server)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


class Reader:
    """Client that reads the stream /frames."""

    def __init__(self, server: ThreadedServer, query: str = "") -> None:
        self.connection = connect(server)
        self.connection.request("GET", f"/frames{query}")
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200
        assert self.answer.headers["content-type"] == FRAME_TYPE
        self._splitter = MessageSplitter()
        self._waiting: list[bytes] = []

    def next(self) -> Layout | Frame | None:
        while not self._waiting:
            data = self.answer.read1(65536)
            if not data:
                return None
            self._waiting = self._splitter.feed(data)
        return decode(self._waiting.pop(0))

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "the condition was not true within 30 s"
        time.sleep(0.005)


# --- responses -------------------------------------------------------------------------------------------------------


def test_metrics_and_frame_return_the_newest_frame(server: ThreadedServer, source: Source) -> None:
    source.make()
    frame = source.make()
    status, headers, body = ask(server, "/metrics")
    assert (status, headers["content-type"]) == (200, TEXT_TYPE)
    text = expose(source.layout, frame)
    assert body.startswith(text), "the frame's series come first, then the exporter's own"
    assert b"\ngangwatch_exporter_series{" in body
    status, headers, packed = ask(server, "/metrics", **{"accept-encoding": "gzip"})
    assert (status, headers["content-encoding"]) == (200, "gzip")
    assert gzip.decompress(packed).startswith(text)
    status, headers, body = ask(
        server, "/metrics", accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    )
    assert (status, headers["content-type"]) == (200, OPEN_METRICS_TYPE)
    assert body.endswith(b"# EOF\n")
    status, headers, body = ask(server, "/frame")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body)["seq"] == 2
    status, headers, body = ask(server, "/frame", accept=FRAME_TYPE)
    assert (status, headers["content-type"]) == (200, FRAME_TYPE)
    layout, read = (decode(message) for message in MessageSplitter().feed(body))
    assert isinstance(layout, Layout) and isinstance(read, Frame)
    check_fits(layout, read)
    assert read.seq == 2


def test_the_next_frame_is_rendered_early_for_a_client_that_reads_all(
    server: ThreadedServer, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[int] = []
    render = Exposition._render

    def noted(exposition: Exposition, layout: Layout, frame: Frame) -> Lines:
        rendered.append(frame.seq)
        return render(exposition, layout, frame)

    monkeypatch.setattr(Exposition, "_render", noted)
    for _ in range(HABIT_FRAMES):
        source.make()
        assert ask(server, "/metrics")[0] == 200
    assert rendered == [1, 2, 3]
    source.make()
    assert rendered == [1, 2, 3, 4], "before any request"
    ask(server, "/metrics")
    assert rendered == [1, 2, 3, 4]
    source.make()
    source.make()
    assert rendered == [1, 2, 3, 4, 5], "one unused rendering, and no more"
    assert source.listeners == []
    source.make()
    source.make()
    ask(server, "/metrics")
    assert rendered == [1, 2, 3, 4, 5, 8], "nothing is rendered early for a client that reads rarely"


def test_before_the_first_frame_the_agent_is_healthy_and_not_ready(server: ThreadedServer, source: Source) -> None:
    assert ask(server, "/healthz")[0] == 200
    for path in ("/readyz", "/metrics", "/frame"):
        status, _, body = ask(server, path)
        assert (status, body) == (503, b"no frame has been made yet\n"), path
    source.make()
    assert ask(server, "/readyz")[0] == 200


def test_without_new_frames_the_agent_is_neither_ready_nor_healthy(
    server: ThreadedServer, source: Source, clock: ManualClock
) -> None:
    source.make()
    clock.advance(10.0)
    assert ask(server, "/healthz")[0] == 200
    clock.advance(2.5)
    for path in ("/readyz", "/healthz"):
        status, _, body = ask(server, path)
        assert (status, body) == (503, b"the latest frame is 12.5 s old\n"), path


def test_head_equals_get_without_the_body(server: ThreadedServer, source: Source) -> None:
    source.make()
    for path in ("/metrics", "/frame", "/healthz", "/readyz"):
        _, headers, body = ask(server, path)
        status, head, nothing = ask(server, path, "HEAD")
        assert (status, nothing) == (200, b"")
        assert int(head["content-length"]) == len(body) and head["content-type"] == headers["content-type"]
    status, head, nothing = ask(server, "/frames", "HEAD")
    assert (status, head["content-type"], nothing) == (200, FRAME_TYPE, b"")
    assert source.listeners == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_everything_is_read_only(server: ThreadedServer, source: Source, method: str) -> None:
    status, headers, _ = ask(server, "/metrics", method)
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_the_response_to_an_unknown_path_lists_the_paths(server: ThreadedServer) -> None:
    status, _, body = ask(server, "/metric")
    assert status == 404
    assert b"/metrics" in body


# --- accepted hosts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "answered"),
    [
        ("localhost", True),
        ("LOCALHOST:1234", True),
        ("127.0.0.1:80", True),
        ("127.8.8.8", True),
        ("[::1]:80", True),
        ("evil.example", False),
        ("evil.example:80", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.1", False),
        ("[2001:db8::1]:80", False),
        ("", False),
    ],
)
def test_only_requests_with_a_loopback_host_are_accepted(
    server: ThreadedServer, source: Source, host: str, answered: bool
) -> None:
    source.make()
    for path in ("/metrics", "/frames"):
        status, _, _ = ask(server, path, "HEAD", host=host)
        assert status == (200 if answered else 403), path
    if not answered:
        assert b"gangwatch_" not in ask(server, "/metrics", host=host)[2]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "gpu001.example", ""])
def test_listening_off_loopback_without_protection_is_rejected(host: str) -> None:
    with pytest.raises(
        ConfigError, match=r"not a loopback address, and there is no web configuration.*--web-config.*ssh -L"
    ):
        listen(host, 0)


def test_the_error_for_a_port_in_use_names_it_and_the_remedy(app: AgentApp) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"host '127\.0\.0\.1', port {port}: the port is in use; stop"):
            ThreadedServer(app, "127.0.0.1", port)
    with pytest.raises(ConfigError, match="port 70000"):
        listen("127.0.0.1", 70000)


def test_the_port_is_known_before_the_server_runs() -> None:
    for host in ("127.0.0.1", "localhost"):
        with listen(host, 0) as listener:
            assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
            assert listener.getsockname()[1] > 0


def test_names_of_this_machine_are_recognised() -> None:
    for host in ("localhost", "127.0.0.1", "::1", "[::1]", "127.1.2.3"):
        assert is_loopback(host)
    for host in ("", "0.0.0.0", "::", "localhost.", "example.org", "::ffff:10.0.0.1"):
        assert not is_loopback(host)


# --- streams ---------------------------------------------------------------------------------------------------------


def test_a_stream_has_a_layout_and_then_every_frame(server: ThreadedServer, source: Source) -> None:
    source.make()
    reader = Reader(server)
    assert reader.next() == source.layout
    first = reader.next()
    assert isinstance(first, Frame) and first.seq == 1
    for seq in (2, 3, 4):
        source.make()
        frame = reader.next()
        assert isinstance(frame, Frame) and frame.seq == seq
        check_fits(source.layout, frame)
    source.layout = small_layout("renamed")
    source.make()
    assert reader.next() == source.layout, "a new layout precedes its first frame"
    frame = reader.next()
    assert isinstance(frame, Frame) and frame.seq == 5
    reader.close()


def test_a_stream_can_begin_before_the_first_frame(server: ThreadedServer, source: Source) -> None:
    reader = Reader(server)
    wait_until(lambda: len(source.listeners) == 1)
    source.make()
    assert reader.next() == source.layout
    assert isinstance(reader.next(), Frame)
    reader.close()


def test_a_stream_contains_the_requested_metrics(server: ThreadedServer, source: Source) -> None:
    source.make()
    reader = Reader(server, "?metrics=gangwatch_gpu_*,gangwatch_host_network_receive_errors_total")
    layout, frame = reader.next(), reader.next()
    assert isinstance(layout, Layout) and isinstance(frame, Frame)
    check_fits(layout, frame)
    assert {column.metric for column in layout.gauges} == {"gangwatch_gpu_power_watts"}
    assert frame.gauges.tolist() == [345.678, 1e-7]
    assert frame.counters.tolist() == [3]
    assert len(frame.records) == 2
    reader.close()


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("?metrics=gangwatch_unheard_of", b"gangwatch_unheard_of"),
        ("?metrics=x,y*", b"'y*'"),
        ("?metrics=gang*watch", b"gang*watch"),
        ("?metric=gangwatch_host_load1", b"unknown parameter metric"),
    ],
)
def test_a_pattern_without_matches_is_rejected_with_the_reason(
    server: ThreadedServer, query: str, reason: bytes
) -> None:
    status, _, body = ask(server, f"/frames{query}")
    assert status == 400
    assert reason in body


def test_a_disconnected_reader_is_removed(server: ThreadedServer, source: Source, app: AgentApp) -> None:
    source.make()
    first, second = Reader(server), Reader(server)
    first.next()
    second.next()
    assert len(source.listeners) == 1, "one listener for all streams"
    first.close()
    second.close()
    wait_until(lambda: source.listeners == [])


def test_the_number_of_streams_is_limited(server: ThreadedServer, source: Source, clock: ManualClock) -> None:
    readers = [Reader(server) for _ in range(MOST_STREAMS_EACH)]
    status, _, body = ask(server, "/frames")
    assert status == 503
    assert str(MOST_STREAMS_EACH).encode() in body
    clock.advance(LEAST_STREAM_SECONDS)
    readers.append(Reader(server))  # the server closes the oldest stream
    assert readers[0].next() is None
    for reader in readers:
        reader.close()
    wait_until(lambda: source.listeners == [])


def test_stopping_ends_streams_cleanly_and_at_once(app: AgentApp, source: Source) -> None:
    source.make()
    with ThreadedServer(app) as server:
        reader = Reader(server)
        reader.next()
        reader.next()
        began = time.monotonic()
    # The response ends regularly instead of being cut off.
    assert reader.next() is None
    assert time.monotonic() - began < 15
    reader.close()
    assert source.listeners == []


def test_a_slow_reader_gets_the_newest_frame_with_all_records(source: Source) -> None:
    """Use no sockets, because their buffers would hide the frames that are left out."""
    closed: list[FrameStream] = []
    stream = FrameStream((), closed.append)
    made = [msgspec.structs.replace(source.make(), record_seq=8 + 2 * place) for place in range(101)]
    stream.put(source.layout, made[0])
    first = stream.next(0.0)
    assert first is not None
    for frame in made[1:]:
        stream.put(source.layout, frame)
    stream.end()
    parts = [first]
    while (part := stream.next(0.0)) is not None:
        parts.append(part)
    messages = [decode(one) for one in MessageSplitter().feed(b"".join(parts))]
    frames = [one for one in messages if isinstance(one, Frame)]
    assert [one.seq for one in frames] == [1, 101]
    assert frames[1].records == sum((one.records for one in made[1:]), ())
    assert frames[1].record_seq == made[1].record_seq
    assert frames[1].counters.tolist() == made[-1].counters.tolist()
    assert sum(isinstance(one, Layout) for one in messages) == 1
    stream.close()
    assert closed == [stream]


def test_frames_of_a_controller_that_reads_nothing_do_not_fill_the_kernels_buffers(
    server: ThreadedServer, source: Source
) -> None:
    """The kernel would queue megabytes of old frames. Of the later ones, the controller gets all records."""
    made: list[Frame] = []

    def make() -> None:
        frame = small_frame(source.layout, len(made) + 1)
        made.append(source.put(msgspec.structs.replace(frame, record_seq=8 + 2 * len(made))))
        time.sleep(0.0005)

    make()
    buffers = SharedBuffers()
    request = frames_request(server.url, (), {})
    address = ("127.0.0.1", urlsplit(server.url).port or 0)
    connection = Connection(socket.AF_INET, address, "127.0.0.1", request, buffers, None)
    select.select([], [connection], [], 30)
    connection.push()
    wait_until(lambda: source.listeners != [])
    for _ in range(1800):
        make()
    messages: list[Layout | Frame] = []
    while not messages or not isinstance(messages[-1], Frame) or messages[-1].seq < len(made):
        select.select([connection], [], [], 30)
        messages += map(decode, connection.take())
    connection.close()
    frames = [one for one in messages if isinstance(one, Frame)]
    assert len(frames) < 1400, "the others are joined"
    ends = [one.record_seq + len(one.table or ()) + one.left_out for one in frames]
    assert [one.record_seq for one in frames] == [8, *ends[:-1]] and ends[-1] == 8 + 2 * len(made)
    newer = [one for frame in made for one in frame.records if not isinstance(one, OpenRecord)]
    assert sum(len(one.table or ()) for one in frames) >= len(newer)


def test_a_reader_may_ask_for_fewer_frames(server: ThreadedServer, source: Source) -> None:
    """Records come with the next frame; a layout or an event does not wait."""
    source.make()
    reader = Reader(server)
    assert reader.answer.headers[EVERY_HEADER] == "100"
    reader.next()
    assert isinstance(reader.next(), Frame)
    assert reader.connection.sock is not None
    reader.connection.sock.sendall(b"ev")
    reader.connection.sock.sendall(b"ery 4\n")
    got: list[Frame] = []
    deadline = time.monotonic() + 30
    while len(got) < 2 or got[-1].seq - got[-2].seq != 4:
        assert time.monotonic() < deadline
        source.make()
        time.sleep(0.002)
        if select.select([reader.connection.sock], [], [], 0)[0]:
            found = reader.next()
            assert isinstance(found, Frame)
            got.append(found)
    assert len(got[-1].records) == 4 * len(got[0].records)
    event = EventRecord("gpu-xid", "GPU-0", 5_000_000_000)
    source.put(msgspec.structs.replace(small_frame(source.layout, source.seq + 1), records=(event,)))
    found = reader.next()
    assert isinstance(found, Frame) and found.records[-1] == event
    reader.close()


@pytest.mark.parametrize("said", [b"every 0\n", b"every 101\n", b"every two\n", b"GET / HTTP/1.1\r\n", b"x" * 65])
def test_a_reader_that_says_anything_else_is_disconnected(
    server: ThreadedServer, source: Source, app: AgentApp, said: bytes
) -> None:
    source.make()
    reader = Reader(server)
    reader.next()
    reader.next()
    assert reader.connection.sock is not None
    reader.connection.sock.sendall(said)
    source.make()
    wait_until(lambda: source.listeners == [])
    reader.close()


def test_metrics_of_another_release_are_left_out_and_listed(server: ThreadedServer, source: Source) -> None:
    source.make()
    reader = Reader(server, "?metrics=gangwatch_gpu_*,gangwatch_of_next_year")
    assert reader.answer.headers[UNKNOWN_HEADER] == "gangwatch_of_next_year"
    layout = reader.next()
    assert isinstance(layout, Layout)
    assert {column.metric for column in layout.gauges} == {"gangwatch_gpu_power_watts"}
    reader.close()
