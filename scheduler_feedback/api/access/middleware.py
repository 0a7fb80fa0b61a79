"""Middleware that authenticates each request before any route, and writes the audit log.

It wraps the whole application and its metrics, so every route is authenticated. A handler reads the principal with
``principal_of``, and adds fields to the audit log's line with ``note``.
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
from scheduler_feedback.api.access.authentication import SAFE_METHODS, Authentication, RequestCredentials
from scheduler_feedback.api.access.principal import AccessError, Principal

OPEN_PATHS = ("/healthz", "/readyz", "/static/")
"""Paths without authentication. Their responses contain nothing about jobs, and health probes have no login."""

NEVER_REFUSED = frozenset({"/api/freeze", "/logout"})
"""Changes that are allowed while the audit log is not writable, because they are safe."""

_PRINCIPAL, _NOTES = "gangwatch.principal", "gangwatch.notes"
_log = logging.getLogger(__name__)


def principal_of(request: Request) -> Principal:
    """Return the user of the request. Without this middleware, as in some tests, the user is anonymous."""
    found: Principal = request.scope.get(_PRINCIPAL) or Principal()
    return found


async def current_principal(request: Request, authentication: Authentication) -> Principal:
    """Return the user of a request whose response is a stream; anonymous if the credential is no longer valid."""
    try:
        return await authentication.identify(credentials_of(request.scope))
    except AccessError:
        return Principal()


def note(request: Request, **about: Any) -> None:
    """Add fields to the request's line in the audit log. Pass names, never secrets."""
    request.scope.setdefault(_NOTES, {}).update(about)


def refusal(request: Request, reason: str) -> None:
    """Set the reason of a refusal in the request's line in the audit log."""
    request.scope[f"{_NOTES}.error"] = reason


def sensitive(request: Request) -> None:
    """Request a line in the audit log for this read of a job's output or of the journal."""
    request.scope[f"{_NOTES}.sensitive"] = True


def signed(request: Request, principal: Principal) -> None:
    """Set the user in the request's line in the audit log, after a login."""
    request.scope[_PRINCIPAL] = principal


def credentials_of(scope: Scope) -> RequestCredentials:
    """Return the headers and connection data from which the user of an ASGI request is determined."""
    headers: dict[str, str] = {}
    for key, value in scope["headers"]:
        name, text = key.decode("latin-1").lower(), value.decode("latin-1")
        joint = "; " if name == "cookie" else ", "  # RFC 6265, 5.4
        headers[name] = f"{headers[name]}{joint}{text}" if name in headers else text
    client, server = scope.get("client"), scope.get("server")
    return RequestCredentials(
        scope["method"],
        headers,
        str(client[0]) if client else "",
        scope.get("scheme") == "https",
        int(server[1]) if server and server[1] else 0,
        str((scope.get("state") or {}).get("gangwatch_peer", "")),
    )


class AccessMiddleware:
    """ASGI middleware that authenticates the requests to one controller and writes the audit log."""

    def __init__(self, app: ASGIApp, authentication: Authentication, audit: Audit) -> None:
        self._app = app
        self._authentication = authentication
        self._audit = audit
        # A separate thread: a hanging disk must not block the threads that all other work shares.
        self._writer = ThreadPoolExecutor(1, "audit")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(OPEN_PATHS):
            await self._app(scope, receive, send)
            return
        credentials = credentials_of(scope)
        changes = credentials.method not in SAFE_METHODS
        try:
            # A login request is not authenticated yet; an expired session's cookie must not prevent it.
            login = scope["path"] == "/login" and changes
            scope[_PRINCIPAL] = (
                Principal(peer=credentials.peer) if login else await self._authentication.identify(credentials)
            )
        except AccessError as error:
            scope[_PRINCIPAL] = Principal(peer=credentials.peer)
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
        """Run the application, and write the line in the audit log before the response is sent."""
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
            if not written:  # a bug, or a disconnected client: Barrier responds
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
        """Append a line about an answered request to the audit log. A failure is logged and counted."""
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
