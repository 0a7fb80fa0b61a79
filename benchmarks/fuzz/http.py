"""Malformed HTTP for both servers: the agent's parser, the controller's server, and its API's parsing of requests."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec
import uvicorn
from starlette.requests import Request as StarletteRequest

from benchmarks.fuzz.mutate import octets
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST, Target
from exporter.frame_formats import wanted_metrics
from exporter.security.loopback import LoopbackOnly
from exporter.server import wants_open_metrics
from exporter.serving.admission import Admission, Receive, Scope, Send
from exporter.serving.asgi import Guarded
from exporter.serving.http_messages import BadRequestError, accepts_gzip, parse_request, weighted
from exporter.serving.limits import BODY_BYTES, HEAD_BYTES, Limits
from exporter.serving.protocol import BoundedProtocol
from scheduler_feedback.api.access.authentication import Authentication
from scheduler_feedback.api.access.middleware import credentials_of
from scheduler_feedback.api.access.principal import AccessError, Principal, Role
from scheduler_feedback.api.access.tokens import Tokens
from scheduler_feedback.api.list_pages import entry_of, key_of, next_link, page_of
from scheduler_feedback.api.reading.lists import mark_text
from scheduler_feedback.api.requests import (
    NodeReason,
    Reason,
    RefusedError,
    Submission,
    body_of,
    check_origin,
    number_of,
    submitted_by,
)

TOKEN = "a-token-of-the-state-folder"
PORT = 9420


@cache
def _token_file() -> Any:
    """Return a file with the token, deleted when this process ends."""
    file = tempfile.NamedTemporaryFile("w", prefix="gangwatch-fuzz-")  # noqa: SIM115 - it is kept open
    file.write(TOKEN)
    file.flush()
    return file


@cache
def _access() -> Authentication:
    """Return an authentication that accepts the token."""
    return Authentication(Tokens(Path(_token_file().name)))


# --- inputs ----------------------------------------------------------------------------------------------------------

_METHODS = (b"GET", b"HEAD", b"POST", b"OPTIONS", b"DELETE", b"PRI", b"get", b"G" * 17)
_PATHS = (
    *(b"/", b"/metrics", b"/frame", b"/frames", b"/healthz", b"/api/jobs", b"/%2e%2e/%00", b"//x", b"*", b"x"),
    *(b"http://evil/", b"/a#b", b"/\xc3\xa9", b"/ b", b"/" + b"a" * 300),
)
_QUERIES = (
    *(b"metrics=gangwatch_step*", b"metrics=gangwatch_nvlink_errors_total(gpu)", b"metrics=*", b"metrics=a*b"),
    *(b"metrics=a(b", b"metrics=gangwatch_gpu_power_watts(gpu)", b"x=1", b"limit=5&continue=AAAA", b"limit=-1"),
    *(b"continue=" + mark_text([5]).encode(), b"state=a,b", b"since=" + b"9" * 30, b"%ff=%00", b"&&==", b"a" * 2000),
)
_HEADERS: tuple[tuple[bytes, tuple[bytes, ...]], ...] = (
    (
        b"Host",
        (b"127.0.0.1:9420", b"localhost:9420", b"[::1]:9420", b"[::1", b"evil.example", b"127.0.0.1:1", b"", b":"),
    ),
    (b"Accept", (b"*/*", b"application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.5", b"a/b;q=x,,;,q=0.1")),
    (b"Accept-Encoding", (b"gzip", b"gzip;q=0", b"*;q=0.5, identity", b"br;q=1.0.0", b";;;", b"gzip;q=nan")),
    (b"Connection", (b"close", b"keep-alive", b"Upgrade, close", b"")),
    (b"Upgrade", (b"websocket", b"h2c")),
    (b"Content-Length", (b"0", b"2", b"-1", b"+2", b"2, 2", b"18446744073709551616", b"1048577", b"0x2", b" 2")),
    (b"Transfer-Encoding", (b"chunked", b"identity", b"chunked, chunked", b"gzip, chunked")),
    (b"Content-Type", (b"application/json", b"application/json; charset=utf-8", b"text/plain")),
    (
        b"Authorization",
        (
            b"Bearer " + TOKEN.encode(),
            b"bearer x",
            b"Bearer gwt_" + b"A" * 43,
            b"Bearer a.b.c",
            b"Basic YTpi",
            b"Basic !",
            b"Bearer",
            b"\xff",
        ),
    ),
    (b"Cookie", (b"gangwatch-9420=x", b"gangwatch-9420=", b";;=", b"a=b; gangwatch-9420=\xff", b"x" * 9000)),
    (b"Origin", (b"http://127.0.0.1:9420", b"http://evil.example", b"null")),
    (b"Expect", (b"100-continue",)),
    (b"If-None-Match", (b'"a"', b"*", b"W/")),
    (b"Last-Event-ID", (b"5", b"-5", b"9" * 40)),
    (b"Range", (b"bytes=0-1",)),
)
_ODD_LINES = (
    *(
        b"X : y",
        b": y",
        b"X",
        b"X:\x00",
        b" folded: no",
        b"\tfolded",
        b"X:" + b"a" * 20_000,
        b"X\x7f: y",
        b"X: \xff\xfe",
    ),
    *(b"Host: a\r\nHost: b", b"X: a\nY: b", b"\r", b"X: " + b"\t" * 50),
)
_SPEC: dict[str, tuple[Any, ...]] = {
    "name": ("train", "", "x" * 300, 5, None, "a\u202eb", "<script>"),
    "command": (["true"], [], "true", [5], ["\ud800"], None),
    "ranks": (1, 2, 0, -1, 1 << 21, 1.5, "2", True, None),
    "user": ("ana", "x" * 2000, 7, "a\nb"),
    "queue": ("default", "", "q" * 300),
    "time_limit_seconds": (60, 0, -1, 1e300, "1h", None),
    "working_directory": ("/tmp", "here", ""),
    "environment": ({}, {"A": "b"}, {"A": 5}, [], {"": ""}),
    "array_size": (0, 5, -1, 10**6),
    "groups": ([], [{"role": "a", "ranks": 1}], [{"role": 5}], {}),
    "after": ([], [{"job_id": "j-1", "condition": "ok"}], [{"job_id": "\n", "condition": "ok"}], [{"job_id": 1}]),
    "gpu_types": ([], ["H100"], ["\x9b"], "H100"),
    "throughput": ({}, {"H100": 2.0}, {"H100": 0}, {"H100": "x"}),
    "packing": ("pack", "spread", "x"),
    "required_level": ("rack", "node", "x", None),
    "unknown": (1,),
    "by": ("ana", "x" * 2000, "a\u202eb", 5),
    "reason": ("new NIC", "\x1b[2J", [], None),
    "drain": (True, False, "yes"),
}


def body(chance: random.Random) -> bytes:
    """Return a body for a POST."""
    if chance.random() < 0.1:
        return chance.choice(
            (b"", b"{", b"[]", b"null", b"\xff", b"[" * 5000, b'{"a":1e999}', b'{"name":"\\ud800"}', b"5")
        )
    names = chance.sample(list(_SPEC), chance.randrange(len(_SPEC)))
    if chance.random() < 0.6:
        names = ["name", "command", "ranks", *names]
    made = {name: _SPEC[name][0] if chance.random() < 0.8 else chance.choice(_SPEC[name]) for name in names}
    if chance.random() < 0.85:
        made.pop("unknown", None)
    if chance.random() < 0.7:
        for name in ("by", "reason", "drain"):
            made.pop(name, None)
    elif chance.random() < 0.7:
        made = {name: value for name, value in made.items() if name in ("by", "reason", "drain")}
    content = json.dumps(made).encode()
    return octets(chance, content, chance.randrange(1, 4)) if chance.random() < 0.15 else content


def request(chance: random.Random, bodies: bool = True) -> bytes:
    """Return a request as a client would send it, or slightly wrong; sometimes two or none."""
    if chance.random() < 0.04:
        return chance.choice(
            (chance.randbytes(chance.randrange(300)), b"\r\n" * chance.randrange(1, 400), b"\x16\x03\x01")
        )
    usual = chance.random() < 0.7
    method = chance.choice(_METHODS[:3] if usual else _METHODS)
    path = chance.choice(_PATHS[:6] if usual else _PATHS)
    if chance.random() < 0.4:
        path += b"?" + b"&".join(chance.choices(_QUERIES, k=chance.randrange(1, 3)))
    version = (
        b"HTTP/1.1" if usual else chance.choice((b"HTTP/1.0", b"HTTP/1.1", b"HTTP/2.0", b"HTTP/9.9", b"HTTP/1.1 ", b""))
    )
    lines = [method + b" " + path + b" " + version]
    if chance.random() < 0.95:
        lines.append(b"Host: " + (b"127.0.0.1:9420" if chance.random() < 0.85 else chance.choice(_HEADERS[0][1])))
    for name, values in chance.sample(_HEADERS[1:], chance.randrange(5)):
        if name in (b"Content-Length", b"Transfer-Encoding") and chance.random() < 0.7:
            continue
        lines.append(name + b": " + chance.choice(values))
    if chance.random() < 0.1:
        lines.insert(chance.randrange(1, len(lines) + 1), chance.choice(_ODD_LINES))
    content = b""
    if bodies and method == b"POST" and chance.random() < 0.8:
        content = body(chance)
        if chance.random() < 0.5:
            lines.append(b"Content-Length: %d" % (len(content) + (chance.random() < 0.1)))
        else:
            lines.append(b"Transfer-Encoding: chunked")
            content = b"%x\r\n%b\r\n0\r\n%b\r\n" % (
                len(content),
                content,
                b"T: x\r\n" if chance.random() < 0.1 else b"",
            )
        lines.append(b"Content-Type: application/json")
    made = b"\r\n".join(lines) + b"\r\n\r\n" + content
    match chance.randrange(20):
        case 0:
            return octets(chance, made, chance.randrange(1, 4))
        case 1:
            return made[: chance.randrange(len(made))]
        case 2:
            return made + request(chance, bodies)
    return made


# --- the agent's parser ----------------------------------------------------------------------------------------------


def _agent_head(chance: random.Random) -> bytes:
    """Return a head as the agent's server passes it to its parser: up to the empty line."""
    return request(chance, bodies=False).lstrip(b"\r\n").partition(b"\r\n\r\n")[0][:HEAD_BYTES]


def _parse_agent(head: bytes) -> str:
    try:
        asked, _ = parse_request(head, "10.0.0.1")
    except BadRequestError as error:
        return REFUSED_FIRST if "first line" in str(error) else REFUSED
    accepts_gzip(asked.headers)
    weighted.__wrapped__(asked.headers.get("accept", ""))  # bypass its cache, so that each input is parsed
    wants_open_metrics(asked.headers.get("accept", ""))
    try:
        wanted_metrics(asked.query.removeprefix("metrics="))
    except ValueError:
        return REFUSED
    return ACCEPTED


# --- the controller's server -----------------------------------------------------------------------------------------


class _Transport:
    """The transport that asyncio would pass to the protocol."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.closing = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.closing = True

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 4000), "sockname": ("127.0.0.1", PORT)}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Do nothing: all data is already there."""

    resume_reading = pause_reading


class _Place:
    peer = "10.0.0.1"

    def value(self, worth: int) -> None:
        assert 0 <= worth <= 3

    def gone(self) -> None:
        """Discard the transport."""

    malformed = gone


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body as the API does, and respond."""
    asked = StarletteRequest(scope, receive)
    status = 200
    try:
        check_origin(asked)
        page_of(asked)
        if asked.method == "POST":
            await body_of(asked, Submission)
    except RefusedError as error:
        status = error.status
    except Exception as error:
        if type(error).__name__ != "ClientDisconnect":
            raise
        return
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


class _Server:
    """uvicorn's configuration and state, without a socket. One a process, made with its first input."""

    made: _Server | None = None

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.failed: list[BaseException] = []
        limits = Limits(requests_per_second=1e9, requests_per_second_all=1e9)
        app = Admission(Guarded(self._watched, LoopbackOnly()), limits, _access().is_operators)
        self.config = uvicorn.Config(
            app, http=BoundedProtocol, ws="none", log_config=None, h11_max_incomplete_event_size=HEAD_BYTES
        )
        self.config.load()
        self.state = uvicorn.server.ServerState()

    async def _watched(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _app(scope, receive, send)
        except Exception as error:
            self.failed.append(error)
            raise

    async def feed(self, content: bytes) -> bytes:
        """Return the server's response to these bytes, which arrive in several pieces."""
        transport = _Transport()
        protocol = BoundedProtocol(self.config, self.state, {}, _Place(), lambda _: True)
        protocol.connection_made(cast("asyncio.Transport", transport))
        step = max(1, len(content) // 3)
        for place in range(0, len(content), step):
            if not transport.closing:
                protocol.data_received(content[place : place + step])
            for _ in range(6):
                await asyncio.sleep(0)
        now_s = self.loop.time()
        for later in (0.0, 15.0, 100.0):
            protocol.look(now_s + later)
        protocol.connection_lost(None)
        while self.state.tasks:
            await asyncio.sleep(0)
        return bytes(transport.sent)


def _parse_controller(content: bytes) -> str:
    server = _Server.made
    if server is None:
        server = _Server.made = _Server()
    answer = server.loop.run_until_complete(server.feed(content))
    if server.failed:
        raise server.failed.pop()
    assert answer == b"" or answer.startswith(b"HTTP/1.1 "), answer[:40]
    status = answer[9:12]
    if status in (b"", b"400", b"408"):
        return REFUSED_FIRST
    return ACCEPTED if status == b"200" else REFUSED


# --- requests to the API ---------------------------------------------------------------------------------------------

_KINDS: tuple[type[msgspec.Struct], ...] = (Submission, Submission, Reason, NodeReason)


def _api_request(chance: random.Random) -> bytes:
    """Make a request's headers, query and body, as JSON of strings."""
    headers = [
        [name.decode("latin-1").lower(), chance.choice(values).decode("latin-1")]
        for name, values in chance.sample(_HEADERS[1:], chance.randrange(6))
        if name != b"Content-Type"
    ]
    headers.append(["host", "127.0.0.1:9420" if chance.random() < 0.9 else chance.choice(_HEADERS[0][1]).decode()])
    if chance.random() < 0.95:
        headers.append(["content-type", "application/json"])
    if chance.random() < 0.7:
        headers = [pair for pair in headers if pair[0] not in ("authorization", "origin")]
        headers.append(["authorization", f"Bearer {TOKEN}"])
    usual = ("", "limit=5", f"limit=5&continue={mark_text([5])}", "tail=10")
    query = chance.choice(usual) if chance.random() < 0.7 else chance.choice(_QUERIES).decode("latin-1")
    content = body(chance) if chance.random() < 0.99 else b" " * (BODY_BYTES + 1)
    return json.dumps([chance.randrange(4), query, headers, content.decode("latin-1")]).encode()


def _parse_api(content: bytes) -> str:
    kind, query, headers, text = json.loads(content)
    data = text.encode("latin-1")
    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "path": "/api/jobs",
        "query_string": query.encode("latin-1"),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        "server": ("127.0.0.1", PORT),
        "client": ("10.0.0.1", 4000),
    }
    pieces = [data[: len(data) // 2], data[len(data) // 2 :]]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    asked = StarletteRequest(scope, receive)
    first = True
    try:
        check_origin(asked)
        first = False
        for name in ("limit", "since", "tail"):
            number_of(asked, name, None, 0, 1 << 62)
        _, mark = page_of(asked)
        entry_of(mark)
        key_of(asked)
        next_link(asked, mark_text(mark or [1]))
        made = _run(body_of(asked, _KINDS[kind]))
        who = _run(_access().identify(credentials_of(scope)))
        who.require(Role.SUBMITTER, "submitting a job")
        if isinstance(made, Submission):
            submitted_by(made.spec(), who)
            submitted_by(made.spec(), Principal("ana", Role.SUBMITTER))
    except (RefusedError, AccessError) as error:
        assert 400 <= error.status < 500
        return REFUSED_FIRST if first else REFUSED
    return ACCEPTED


def _run(coroutine: Any) -> Any:
    """Run a coroutine that waits only for its own request; return its result."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as stopped:
        return stopped.value


TARGETS: tuple[Target, ...] = (
    Target(
        "http-agent",
        _agent_head,
        _parse_agent,
        ("exporter.serving.http_messages", "exporter.frame_formats:wanted_metrics"),
    ),
    Target(
        "http-controller",
        request,
        _parse_controller,
        (
            "exporter.serving.asgi:_request",
            "exporter.serving.admission:_authorization",
            "exporter.serving.admission:_length",
        ),
    ),
    Target(
        "http-api",
        _api_request,
        _parse_api,
        ("scheduler_feedback.api.requests", "scheduler_feedback.api.reading.lists:read_mark"),
    ),
)
