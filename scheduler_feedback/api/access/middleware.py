"""Middleware: finds out who makes each request, before any part of the app sees it, and writes down who did what.

It stands around the whole app, metrics included, so that no route can forget it. A handler reads the principal with
``principal_of``, and adds to the audit's line with ``note``.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.schema.errors import StoreError
from scheduler_feedback.api.access.audit import Audit, Line
from scheduler_feedback.api.access.authentication import SAFE_METHODS, Asked, Authentication
from scheduler_feedback.api.access.principal import AccessError, Principal

OPEN_PATHS = ("/healthz", "/readyz", "/static/")
"""Nobody is asked who they are: these say nothing of jobs, and probes have no login."""

NEVER_REFUSED = frozenset({"/api/freeze", "/logout"})
"""Changes that are made also while the audit can't be written: neither makes anything worse."""

_PRINCIPAL, _NOTES = "gangwatch.principal", "gangwatch.notes"
_log = logging.getLogger(__name__)


def principal_of(request: Request) -> Principal:
    """Who makes the request; nobody where the middleware is not there (a test of one handler)."""
    found: Principal = request.scope.get(_PRINCIPAL) or Principal()
    return found


async def still(request: Request, authentication: Authentication) -> Principal:
    """Who makes the request by now: for an answer that has no end. Nobody where the proof is not valid any more."""
    try:
        return await authentication.identify(asked_of(request.scope))
    except AccessError:
        return Principal()


def note(request: Request, **about: Any) -> None:
    """Have the audit's line say what the request was about. Read by operators: names, never secrets."""
    request.scope.setdefault(_NOTES, {}).update(about)


def refusal(request: Request, reason: str) -> None:
    """Have the audit's line say why the request was refused."""
    request.scope[f"{_NOTES}.error"] = reason


def sensitive(request: Request) -> None:
    """Have the audit write this read down: what jobs wrote, and the journal."""
    request.scope[f"{_NOTES}.sensitive"] = True


def signed(request: Request, principal: Principal) -> None:
    """Have the audit's line name somebody who has only just proven who they are."""
    request.scope[_PRINCIPAL] = principal


def asked_of(scope: Scope) -> Asked:
    """What of an ASGI request says who makes it. Of a header that comes twice the parts are joined (RFC 9110, 5.3)."""
    headers: dict[str, str] = {}
    for key, value in scope["headers"]:
        name, text = key.decode("latin-1").lower(), value.decode("latin-1")
        joint = "; " if name == "cookie" else ", "  # RFC 6265, 5.4
        headers[name] = f"{headers[name]}{joint}{text}" if name in headers else text
    client, server = scope.get("client"), scope.get("server")
    return Asked(
        scope["method"],
        headers,
        str(client[0]) if client else "",
        scope.get("scheme") == "https",
        int(server[1]) if server and server[1] else 0,
        str((scope.get("state") or {}).get("gangwatch_peer", "")),
    )


class AccessMiddleware:
    """ASGI middleware around one controller's app."""

    def __init__(self, app: ASGIApp, authentication: Authentication, audit: Audit) -> None:
        self._app = app
        self._authentication = authentication
        self._audit = audit
        # One thread of its own: a disk that does not answer must not take those that everything else waits for.
        self._writer = ThreadPoolExecutor(1, "audit")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(OPEN_PATHS):
            await self._app(scope, receive, send)
            return
        asked = asked_of(scope)
        changes = asked.method not in SAFE_METHODS
        try:
            # Whoever logs in has yet to prove who they are; a cookie of a session that is over is no reason to refuse.
            login = scope["path"] == "/login" and changes
            scope[_PRINCIPAL] = Principal(peer=asked.peer) if login else await self._authentication.identify(asked)
        except AccessError as error:
            scope[_PRINCIPAL] = Principal(peer=asked.peer)
            await self._write(self._line(scope, "answered", error.status, str(error)), unknown=True)
            await _answer(error.status, str(error))(scope, receive, send)
            return
        identifier = ""
        if changes and scope[_PRINCIPAL].logged_in:
            line = self._line(scope, "asked")
            identifier = line.id
            try:
                await self._append(line)
            except StoreError as error:
                if scope["path"] not in NEVER_REFUSED:
                    await _answer(507, str(error))(scope, receive, send)
                    return
        await self._watched(scope, receive, send, changes, identifier)

    async def _watched(self, scope: Scope, receive: Receive, send: Send, changes: bool, identifier: str) -> None:
        """Run the app, and write its answer down before anybody has it: whoever looks then finds the line."""
        written = False

        async def write(status: int) -> None:
            nonlocal written
            written = True
            if changes or scope.get(f"{_NOTES}.sensitive"):
                line = self._line(scope, "answered", status, scope.get(f"{_NOTES}.error", ""))
                line.id = identifier or line.id
                await self._write(line, unknown=not scope[_PRINCIPAL].logged_in)

        async def seen(message: Message) -> None:
            if message["type"] == "http.response.start":
                await write(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, seen)
        finally:
            if not written:  # a bug, or a client that went away: Barrier answers
                await write(0)

    def _line(self, scope: Scope, stage: str, status: int = 0, error: str = "") -> Line:
        principal: Principal = scope[_PRINCIPAL]
        return Line(
            time=self._audit.now(),
            id=self._audit.number(),
            stage=stage,
            user=principal.user,
            role=principal.role.word,
            means=principal.means,
            peer=principal.peer,
            method=scope["method"],
            path=scope["path"],
            about=dict(scope.get(_NOTES, {})),
            status=status,
            error=error,
        )

    async def _write(self, line: Line, unknown: bool) -> None:
        """Append a line about what has been answered already; that it can't be written is logged and counted."""
        if unknown and not self._audit.has_room():
            return
        try:
            await self._append(line)
        except StoreError:
            pass

    async def _append(self, line: Line) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writer, self._audit.write, line)


def _answer(status: int, reason: str) -> Response:
    headers = {"cache-control": "no-store"}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status == 429:
        headers["retry-after"] = "10"
    return Response(msgspec.json.encode({"error": reason}), status, headers, media_type="application/json")
