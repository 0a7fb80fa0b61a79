"""Fuzz targets: malformed HTTP for the agent's parser, the controller's server, and the controller's API."""

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

from benchmarks.fuzz.http_requests import HEADERS, QUERIES, TOKEN, body, request
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

PORT = 9420


@cache
def _token_file() -> Any:
    """Return an open temporary file that contains the API token."""
    file = tempfile.NamedTemporaryFile("w", prefix="gangwatch-fuzz-")  # noqa: SIM115 - it is kept open
    file.write(TOKEN)
    file.flush()
    return file


@cache
def _access() -> Authentication:
    """Return the API's authentication with the token in the temporary file."""
    return Authentication(Tokens(Path(_token_file().name)))


# --- the agent's parser ----------------------------------------------------------------------------------------------


def _agent_head(chance: random.Random) -> bytes:
    """Return the line and headers of a request to an agent, up to the empty line."""
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
    """Replacement of asyncio's transport, which collects the server's output."""

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
        """Do nothing, because all data has already arrived."""

    resume_reading = pause_reading


class _Place:
    peer = "10.0.0.1"

    def value(self, worth: int) -> None:
        assert 0 <= worth <= 3

    def gone(self) -> None:
        """Do nothing, because no connection must be released."""

    malformed = gone


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    """ASGI application that only reads the request's body and responds, in place of the API."""
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
    """uvicorn's configuration and state, without a socket. Each process creates one for all inputs."""

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
    """Make the headers, query and body of an API request, as a JSON list of strings."""
    headers = [
        [name.decode("latin-1").lower(), chance.choice(values).decode("latin-1")]
        for name, values in chance.sample(HEADERS[1:], chance.randrange(6))
        if name != b"Content-Type"
    ]
    headers.append(["host", "127.0.0.1:9420" if chance.random() < 0.9 else chance.choice(HEADERS[0][1]).decode()])
    if chance.random() < 0.95:
        headers.append(["content-type", "application/json"])
    if chance.random() < 0.7:
        headers = [pair for pair in headers if pair[0] not in ("authorization", "origin")]
        headers.append(["authorization", f"Bearer {TOKEN}"])
    usual = ("", "limit=5", f"limit=5&continue={mark_text([5])}", "tail=10")
    query = chance.choice(usual) if chance.random() < 0.7 else chance.choice(QUERIES).decode("latin-1")
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
    """Run a coroutine that never has to wait, and return its result."""
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
