"""Admission control as an ASGI middleware: handle, delay or refuse a request.

Requests with the controller's token are never delayed, so that an operator's commands work under any load. Every
other peer has a limit on requests per second and on concurrent requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from agent.schema.peer_quota import NoPlaceError, Places
from agent.schema.sample import Sample
from exporter.serving.limits import BODY_BYTES, Limits
from exporter.serving.protocol import PEER, PLACE, Place, Worth
from exporter.serving.token_buckets import Buckets

TOKEN = "token"
"""Name of the peer that all clients with the token belong to."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HoldsToken = Callable[[str], bool]
"""Function that returns whether an Authorization header contains the token of the state folder."""


class Admission:
    """Middleware that checks the limits before it passes a request on."""

    def __init__(self, app: App, limits: Limits, holds_token: HoldsToken | None) -> None:
        self._app = app
        self._limits = limits
        self._holds_token = holds_token
        self._rates = Buckets(limits.requests_per_second)
        self._all = Buckets(limits.requests_per_second_all)
        self._answering: Places[object] = Places(1 << 30, limits.answering_each, worth_own=-1, worth_others=-1)
        self.refused: Counter[str] = Counter()
        self.answered = self.waited = 0

    def measures(self) -> Iterator[Sample]:
        """Yield the metric samples of this middleware."""
        yield "gangwatch_http_requests_total", (), float(self.answered)
        yield "gangwatch_http_requests_waited_total", (), float(self.waited)
        yield "gangwatch_http_answering", (), float(len(self._answering))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        place: Place | None = state.get(PLACE)
        self.answered += 1
        if self._holds_token is not None and self._holds_token(_authorization(scope)):
            state[PEER] = TOKEN
            await self._pass_on(scope, receive, send, place, Worth.TOKEN)
            return
        client = scope.get("client")
        peer: str = state.setdefault(PEER, client[0] if client else "")
        if _length(scope) > BODY_BYTES:
            await self._refuse(send, 413, "length", f"the request body is larger than {BODY_BYTES} bytes")
            return
        try:
            self._answering.take(peer, scope_key := object(), 0.0)
        except NoPlaceError as error:
            await self._refuse(send, 429, "answering", f"too many concurrent requests: {error}", retry=1)
            return
        try:
            wait_seconds = self._wait_seconds(peer)
            if wait_seconds > self._limits.most_wait_seconds:
                text = f"more than {self._limits.requests_per_second:g} requests a second from your address or user"
                await self._refuse(send, 429, "rate", text, retry=round(wait_seconds))
                return
            if wait_seconds > 0:
                self.waited += 1
                await asyncio.sleep(wait_seconds)
            await self._pass_on(scope, receive, send, place, Worth.ANSWERING)
        finally:
            self._answering.drop(scope_key)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, place: Place | None, worth: Worth) -> None:
        if place is not None:
            place.value(worth)
        try:
            await self._app(scope, receive, send)
        finally:
            if place is not None:
                place.value(Worth.IDLE)

    def _wait_seconds(self, peer: str) -> float:
        """Return how many seconds the peer's request must wait to keep the rate limits.

        The request is counted in the rates unless it must wait longer than `most_wait_seconds`; the caller then
        refuses it.
        """
        now_s, most = time.monotonic(), self._limits.most_wait_seconds
        own, total = self._rates.of(peer, now_s), self._all.of("", now_s)
        wait_seconds = max(own.wait_seconds(now_s), total.wait_seconds(now_s))
        if wait_seconds <= most:
            own.owe()
            total.owe()
        return wait_seconds

    async def _refuse(self, send: Send, status: int, reason: str, text: str, retry: int = 0) -> None:
        self.refused[reason] += 1
        body = f"{text}\n".encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        if retry:
            headers.append((b"retry-after", str(retry).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _authorization(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return str(value.decode("latin-1"))
    return ""


def _length(scope: Scope) -> int:
    """Return the announced length of the body in bytes; 0 if there is none."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 20 else BODY_BYTES + 1
    return 0
