"""An ASGI app behind uvicorn: what the controller is served with, under the same TLS and passwords as an agent.

An agent is served by exporter/http.py, which costs less; the controller's API and its page are an app of Starlette's.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import uvicorn

from exporter.http import STOP_SECONDS
from exporter.http_messages import Answer, Request
from exporter.loopback import LoopbackOnly
from exporter.security import Security
from exporter.server import listen

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guarded:
    """An ASGI app around another that answers only whom `guard` admits, and adds its headers."""

    def __init__(self, app: App, guard: Security | LoopbackOnly) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # In a thread: a password that is not remembered takes bcrypt tens of milliseconds.
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


class _Context(ssl.SSLContext):
    """Encrypts each new connection as the guard says at that moment, so that a changed certificate needs no restart."""

    guard: Security

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        context = self.guard.context()
        if context is None:
            raise ssl.SSLError("there is no TLS any more")
        return context.wrap_bio(*arguments, **named)


class _Server(uvicorn.Server):
    """uvicorn's server that first ends the app's endless responses when it stops: otherwise it waits for them."""

    def __init__(self, config: uvicorn.Config, closing: Sequence[Callable[[], None]]) -> None:
        super().__init__(config)
        self._closing = closing

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for close in self._closing:
            close()
        await super().shutdown(sockets)


def create_server(
    app: App, host: str, port: int, closing: Sequence[Callable[[], None]] = (), security: Security | None = None
) -> tuple[uvicorn.Server, socket.socket]:
    """A server of `app`, not yet running, and its socket, which is bound already: its port is known.

    Run it with ``server.run(sockets=[socket])`` or, in a running loop, ``await server.serve(sockets=[socket])``; in the
    main thread either takes SIGINT and SIGTERM while it runs, and raises them again once it has stopped. ``closing`` is
    called in the loop when it begins to stop. Raises ConfigError as ``listen`` does.
    """
    listener = listen(host, port, security)
    config = uvicorn.Config(
        Guarded(app, security or LoopbackOnly()),
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        # Else anybody on this machine says by a header which scheme and address a request came by.
        proxy_headers=False,
        timeout_graceful_shutdown=int(STOP_SECONDS),
    )
    if security is not None and security.config.tls is not None:
        config.load()
        context = _Context(ssl.PROTOCOL_TLS_SERVER)
        context.guard = security
        config.ssl = context
    return _Server(config, closing), listener


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
        scope.get("scheme") == "https",
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
