"""The controller's ASGI server on uvicorn, with the same TLS and passwords as an agent's server.

Agents use exporter/serving/agent_http.py, which needs fewer resources. The controller's API and page are a Starlette
application.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import uvicorn

from agent.schema.errors import ConfigError
from agent.schema.sample import Sample
from exporter.security.loopback import LoopbackOnly
from exporter.security.security import Security
from exporter.serving.admission import Admission, App, HoldsToken, Message, Receive, Scope, Send
from exporter.serving.agent_http import STOP_SECONDS
from exporter.serving.gate import Connection, Gate
from exporter.serving.http_messages import Answer, Request
from exporter.serving.limits import HEAD_BYTES, IDLE_SECONDS, Limits
from exporter.serving.listening import listen
from exporter.serving.protocol import BoundedProtocol

__all__ = ["App", "Guarded", "Message", "Receive", "Scope", "Send", "Server", "create_server"]

_log = logging.getLogger(__name__)


class Guarded:
    """ASGI middleware that adds headers to responses and refuses requests that `guard` does not admit."""

    def __init__(self, app: App, guard: Security | LoopbackOnly) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if isinstance(self._guard, LoopbackOnly):
            refusal = self._guard.refusal(_request(scope))
        else:  # in a thread: bcrypt takes tens of milliseconds for a password that is not cached
            refusal = await asyncio.to_thread(self._guard.refusal, _request(scope))
        if refusal is not None:
            await _send_answer(refusal, scope["method"], send)
            return
        more = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self._guard.headers()]

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start" and more:
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        await self._app(scope, receive, with_headers)


class Server(uvicorn.Server):
    """uvicorn's server behind a `Gate`, which limits connections.

    On stop it first ends the application's streams, because uvicorn would wait for them.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        closing: Sequence[Callable[[], None]],
        limits: Limits,
        admission: Admission,
        guard: Security | LoopbackOnly,
    ) -> None:
        super().__init__(config)
        self._closing = closing
        self._limits = limits
        self._admission = admission
        self._guard = guard
        self._gates: list[Gate] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start like uvicorn, but accept connections through the gate."""
        assert sockets is not None, "create_server has bound it"
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise ConfigError("the server's app could not start; the log says why")
        for listener in sockets:
            # A unix socket in a private folder needs no TLS: the kernel identifies the peer.
            plain = listener.family == socket.AF_UNIX
            context = _no_tls if plain else self._guard.context
            self._gates.append(Gate(listener, self._limits, context, self._protocol))
        self.servers = cast("list[asyncio.base_events.Server]", self._gates)
        self.started = True

    def _protocol(self, connection: Connection) -> BoundedProtocol:
        return BoundedProtocol(self.config, self.server_state, self.lifespan.state, connection, self._guard.admits)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for close in self._closing:
            close()
        await super().shutdown(sockets)
        for gate in self._gates:
            gate.end()

    def measures(self) -> Iterator[Sample]:
        """Yield the metric samples of this server. Thread-safe."""
        refused: Counter[str] = Counter(self._admission.refused)
        together: dict[str, float] = {}
        for gate in self._gates:  # TCP port and unix socket have different peers and limits
            for name, _, value in gate.measures():
                together[name] = together.get(name, 0.0) + value
            refused.update(gate.refused)
        yield from ((name, (), value) for name, value in together.items())
        yield from self._admission.measures()
        for reason, count in sorted(refused.items()):
            yield "gangwatch_http_refused_total", (("reason", reason),), float(count)
        for status, count in sorted(self._guard.refused.items()):
            yield "gangwatch_exporter_requests_refused_total", (("status", str(status)),), float(count)


def _no_tls() -> None:
    return None


def create_server(
    app: App,
    host: str,
    port: int,
    closing: Sequence[Callable[[], None]] = (),
    security: Security | None = None,
    limits: Limits | None = None,
    holds_token: HoldsToken | None = None,
) -> tuple[Server, socket.socket]:
    """Return a server of `app`, not yet running, and its socket, which is already bound.

    Run it with ``server.run(sockets=[socket])`` or, in a running loop, ``await server.serve(sockets=[socket])``. In
    the main thread, both calls handle SIGINT and SIGTERM while running, and raise them again afterwards. closing:
    functions called when the server begins to stop. limits: limits of connections and requests. holds_token: returns
    whether a request has the token and so no limits. Raises ConfigError if the socket can't be bound, and for an
    address off loopback without TLS and authentication.
    """
    listener = listen(host, port, security)
    guard = security or LoopbackOnly()
    limits = limits or Limits()
    admission = Admission(Guarded(app, guard), limits, holds_token)
    config = uvicorn.Config(
        admission,
        # Always h11: it limits the size of a request's head, other parsers do not.
        http=BoundedProtocol,
        loop="asyncio",
        h11_max_incomplete_event_size=HEAD_BYTES,
        timeout_keep_alive=int(IDLE_SECONDS),
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        # Otherwise any local client could set scheme and address of a request with a header.
        proxy_headers=False,
        timeout_graceful_shutdown=int(STOP_SECONDS),
    )
    return Server(config, closing, limits, admission, guard), listener


@contextmanager
def local_socket(path: Path) -> Iterator[list[socket.socket]]:
    """Yield a unix socket at `path`, in a folder that only this user and root can enter.

    If it can't be created (the path is too long for sun_path, unix(7)), log a warning and yield none.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(64)
    except OSError as error:
        _log.warning("no socket at %s: %s", path, error)
        listener.close()
        yield []
        return
    try:
        yield [listener]
    finally:
        listener.close()
        path.unlink(missing_ok=True)


def _request(scope: Scope) -> Request:
    headers: dict[str, str] = {}
    for key, value in scope["headers"]:
        name, text = key.decode("latin-1").lower(), value.decode("latin-1")
        headers[name] = f"{headers[name]}, {text}" if name in headers else text
    client = scope.get("client")
    return Request(
        scope["method"],
        scope["path"],
        scope["query_string"].decode("latin-1"),
        headers,
        client[0] if client else "",
    )


async def _send_answer(answer: Answer, method: str, send: Send) -> None:
    assert isinstance(answer.body, bytes), "a refusal is a text"
    headers = [
        (b"content-type", answer.content_type.encode("ascii")),
        (b"content-length", str(len(answer.body)).encode("ascii")),
        (b"cache-control", b"no-store"),
        *((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers),
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else answer.body})
