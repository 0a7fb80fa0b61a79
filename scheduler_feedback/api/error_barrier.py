"""The barrier around the API and the pages: a bug in one handler costs one request, and is logged once."""

from __future__ import annotations

import html
import logging
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.schema.errors import GangwatchError
from scheduler_feedback.part_failures import PartFailures

_log = logging.getLogger(__name__)

_JSON_PATHS = ("/api/", "/healthz", "/readyz", "/metrics")


def part_of(path: str) -> str:
    """Which part a path belongs to: metrics, api or page."""
    if path == "/metrics":
        return "metrics"
    return "api" if path.startswith(_JSON_PATHS) else "page"


class HalfAnsweredError(Exception):
    """What was to be sent next can't be had any more, and the answer has begun. No bug."""


class Barrier:
    """ASGI middleware: what a handler raises unexpectedly is answered with 500 and a plain message, counted and logged.

    Where the answer has begun already, the connection ends there: half of it must not pass for all of it.
    """

    def __init__(self, app: ASGIApp, failures: PartFailures) -> None:
        self._app = app
        self._failures = failures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientDisconnect:
            return  # the client went away before it had sent all: no bug, and no answer that anyone would read
        except HalfAnsweredError as error:
            _log.warning("an answer was broken off: %s", error)  # the server closes a connection without its end
        except Exception as error:
            request = Request(scope)
            part = part_of(request.url.path)
            self._failures.report(part, error, f"{request.method} {request.url.path}"[:200])
            if begun:
                raise
            await _answer(part, error)(scope, receive, send)


def _answer(part: str, error: Exception) -> Response:
    kind = type(error).__name__
    if part == "api":
        body = msgspec.json.encode({"error": f"a bug of the controller: {kind}; its log tells more"})
        return Response(body, 500, {"cache-control": "no-store"}, media_type="application/json")
    words = f"This page can't be shown because of a bug of gangwatch ({kind}). Jobs are still scheduled. "
    words += "The controller's log has the traceback; `gangwatch jobs` and `gangwatch top` show the cluster meanwhile."
    if part == "metrics":
        return Response(f"a bug of the controller: {kind}; its log tells more\n", 500, media_type="text/plain")
    # Without the pages' own parts: one of these may be what is broken.
    head = '<!doctype html><html lang="en"><title>gangwatch</title>'
    page = f"{head}<h1>Error 500</h1><p>{html.escape(words)}</p></html>"
    return Response(page, 500, {"cache-control": "no-store"}, media_type="text/html")


async def ended_by_bug(
    stream: AsyncIterator[bytes], failures: PartFailures, part: str, again: bool = False
) -> AsyncIterator[bytes]:
    """The stream, which a bug ends without a word more. Who reads events connects again.

    again: what was raised is raised again, so that the connection breaks: half a document must not pass for all of it.
    """
    try:
        async for chunk in stream:
            yield chunk
    except GangwatchError as error:
        if again:
            raise HalfAnsweredError(str(error)) from error
        failures.report(part, error, "event stream")
    except Exception as error:
        if again:
            raise
        failures.report(part, error, "event stream")
