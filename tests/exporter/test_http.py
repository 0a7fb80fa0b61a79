"""HTTP server: invalid requests, slow ones or too many of them do not affect the next request."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.server import wants_open_metrics
from exporter.serving import agent_http
from exporter.serving.agent_http import HttpServer
from exporter.serving.http_messages import Answer, BadRequestError, Request, accepts_gzip, parse_request, text_answer
from exporter.serving.listening import listen


def hello(request: Request) -> Answer:
    if request.path == "/bug":
        raise RuntimeError("a bug")
    return text_answer(200, f"{request.method} {request.path} {request.query} {sorted(request.headers)}")


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    listener = listen("127.0.0.1", 0)
    server = HttpServer(hello, listener)
    server.start()
    yield listener.getsockname()
    server.stop()


def talk(address: tuple[str, int], *parts: bytes, end: bool = True) -> bytes:
    """Send the parts, and return what the server sends until it closes. end: whether to close our sending side."""
    with socket.create_connection(address, timeout=30) as client:
        for part in parts:
            client.sendall(part)
        if end:
            client.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while data := client.recv(65536):
                answer += data
        except ConnectionResetError:
            pass
        return answer


GOOD = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n"


def test_a_connection_serves_several_requests_also_in_one_packet(address: tuple[str, int]) -> None:
    answer = talk(address, GOOD + GOOD, GOOD[:7], GOOD[7:])
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 3
    assert answer.count(b"GET /a b=c ['host']\n") == 3


def test_close_and_http_1_0_end_the_connection(address: tuple[str, int]) -> None:
    for request in (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"):
        answer = talk(address, request + GOOD, end=False)
        assert answer.count(b"HTTP/1.1 200 OK") == 1
        assert b"Connection: close\r\n" in answer


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\ny\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
        (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Y: z\r\n" * 3000 + b"\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
)
def test_an_invalid_request_is_rejected_and_ends_the_connection(
    address: tuple[str, int], request_bytes: bytes, status: int
) -> None:
    answer = talk(address, request_bytes + GOOD)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1") == 1, (
        "bytes after a rejected request get no response, because they may be its body"
    )
    assert talk(address, GOOD).startswith(b"HTTP/1.1 200"), "the next connection gets a response"


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_parsed_or_rejected(data: bytes) -> None:
    try:
        request, _ = parse_request(data)
    except BadRequestError as error:
        assert error.status in (400, 413)
    else:
        assert request.path.startswith("/")


def test_a_bug_affects_only_its_own_response(address: tuple[str, int], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        answer = talk(address, b"GET /bug HTTP/1.1\r\nHost: x\r\n\r\n" + GOOD)
    assert answer.startswith(b"HTTP/1.1 500 ") and b"HTTP/1.1 200 OK" in answer
    assert "GET /bug failed" in caplog.text


def test_a_slow_sender_is_disconnected(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_http, "REQUEST_SECONDS", 0.3)
    assert talk(address, GOOD[:10], end=False).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("bound", ["MOST_CONNECTIONS", "MOST_CONNECTIONS_EACH"])
def test_at_the_limit_the_longest_idle_connection_is_closed(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_http, bound, 3)
    listener = listen("127.0.0.1", 0)
    server = HttpServer(hello, listener)
    server.start()

    def ask(client: socket.socket) -> None:
        client.sendall(GOOD)
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        while any(one.idle_since is None for one in server._connections):
            time.sleep(0.01)

    idle = [socket.create_connection(listener.getsockname(), timeout=30) for _ in range(3)]
    for client in (*idle, idle[0]):
        ask(client)
    assert talk(listener.getsockname(), GOOD).startswith(b"HTTP/1.1 200")
    assert idle[1].recv(1) == b"", "the connection that was idle longest"
    idle[2].sendall(GOOD)
    assert idle[2].recv(65536).startswith(b"HTTP/1.1 200")
    for client in idle:
        client.close()
    server.stop()


def test_new_connections_are_rate_limited_except_those_of_the_own_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_http, "CONNECTIONS_PER_SECOND", 0.01)
    listener = listen("127.0.0.1", 0)
    server = HttpServer(hello, listener)
    server.start()
    place = listener.getsockname()
    try:
        assert all(talk(place, GOOD).startswith(b"HTTP/1.1 200") for _ in range(10))
        monkeypatch.setattr(agent_http.Peers, "of", lambda *_: "uid 4711")
        answers = []
        for _ in range(5):
            with contextlib.suppress(OSError):  # a reset, or not connected any more (ENOTCONN)
                answers.append(talk(place, GOOD))
        assert len([answer for answer in answers if answer.startswith(b"HTTP/1.1 200")]) == 1, (
            "one connection at once, and the next in 100 s"
        )
        monkeypatch.undo()
        assert talk(place, GOOD).startswith(b"HTTP/1.1 200"), "other peers are not delayed"
        assert server.refused["rate"] == 4
    finally:
        server.stop()


def test_the_server_stops_with_open_connections_and_leaves_no_thread() -> None:
    listener = listen("127.0.0.1", 0)
    before = threading.active_count()
    server = HttpServer(hello, listener)
    server.start()
    clients = [socket.create_connection(listener.getsockname(), timeout=30) for _ in range(4)]
    clients[0].sendall(GOOD[:5])
    clients[1].sendall(GOOD)
    assert clients[1].recv(65536)
    server.stop()
    end = time.monotonic() + 30
    while threading.active_count() > before:
        assert time.monotonic() < end
        time.sleep(0.01)
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    ("header", "accepted"),
    [("gzip", True), ("", False), ("identity", False), ("gzip;q=0", False), ("deflate, GZIP ;q=0.5", True), ("*", True),
     ("*;q=0", False), ("gzip;q=0, *", False), ("gzip;q=x", False)],
)  # fmt: skip
def test_the_accept_encoding_header_enables_gzip(header: str, accepted: bool) -> None:
    assert accepts_gzip({"accept-encoding": header}) is accepted


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        # Prometheus 2.42 and 3.5.
        ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
         "text/plain;version=0.0.4;q=0.5,*/*;q=0.1", True),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.3", True),
        ("application/openmetrics-text; version=1.0.0", True),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.9", False),
    ],
)  # fmt: skip
def test_the_accept_header_selects_the_format(header: str, wanted: bool) -> None:
    assert wants_open_metrics(header) is wanted
