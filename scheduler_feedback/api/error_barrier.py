"""Error handling around the API and the pages: a bug in a handler fails only one request, and is logged once."""

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
    """Return the part of the controller that a path belongs to: metrics, api or page."""
    if path == "/metrics":
        return "metrics"
    return "api" if path.startswith(_JSON_PATHS) else "page"


class HalfAnsweredError(Exception):
    """Error: the rest of a response is not available, but its beginning was already sent. It is not a bug."""


class Barrier:
    """ASGI middleware that answers an unexpected exception with 500 and a plain message, counts it and logs it.

    If the response has already started, the connection is closed, so that no client takes an incomplete response for a
    complete one.
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
            return  # the client disconnected before it had sent the request: not a bug, and no one to respond to
        except HalfAnsweredError as error:
            _log.warning("response aborted: %s", error)  # the server closes the connection
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
        body = msgspec.json.encode({"error": f"a bug in the controller ({kind}); its log has the traceback"})
        return Response(body, 500, {"cache-control": "no-store"}, media_type="application/json")
    words = f"This page failed because of a bug in gangwatch ({kind}). Jobs are still being scheduled. "
    words += "The controller's log has the traceback. To see the cluster: `gangwatch jobs` and `gangwatch top`."
    if part == "metrics":
        return Response(f"a bug in the controller ({kind}); its log has the traceback\n", 500, media_type="text/plain")
    # Does not use the pages' code, which may contain the bug.
    head = '<!doctype html><html lang="en"><title>gangwatch</title>'
    page = f"{head}<h1>Error 500</h1><p>{html.escape(words)}</p></html>"
    return Response(page, 500, {"cache-control": "no-store"}, media_type="text/html")


async def ended_by_bug(
    stream: AsyncIterator[bytes], failures: PartFailures, part: str, again: bool = False
) -> AsyncIterator[bytes]:
    """Yield the chunks of a stream. A bug ends the stream without an error, so that browsers reconnect.

    again: raise the error again, which breaks the connection, so that no client mistakes a part for the whole document.
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
