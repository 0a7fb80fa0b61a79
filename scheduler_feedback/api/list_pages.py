"""Requests for lists: the requested page, the address of the next page, and the peer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from scheduler_feedback.api.access.middleware import principal_of
from scheduler_feedback.api.reading.lists import Mark, MarkError, read_mark
from scheduler_feedback.api.requests import RefusedError, number_of

MOST_A_PAGE = 1000
"""Maximum number of items that a request may ask for at once."""

VOLATILE_SECONDS = 0.5
"""Seconds for which a response with changing values, such as the age of a frame, may be cached."""

PEER, TOKEN = "gangwatch_peer", "token"
"""PEER: key under which the server stores the peer in the state of the ASGI scope. A peer is the source of a request: a
user of this machine, an address, or TOKEN for the holder of a token."""


def peer_of(request: Request) -> str:
    """Return the name of the peer (user, address or token) for which the request's load is counted."""
    known = request.scope.get("state", {}).get(PEER)
    if known is not None:
        return str(known)
    return request.client.host if request.client is not None else ""


def key_of(request: Request) -> str:
    """Return the cache key of a response, from the reader's rights and the request's path and query."""
    reader = principal_of(request)
    rights = (reader.role.word, reader.user) if reader.logged_in else ()
    return f"{rights} {request.url.path}?{request.url.query}"


def key_of_now(request: Request) -> str:
    """Return the cache key of a response with values that change all the time. It is valid for VOLATILE_SECONDS."""
    return f"{key_of(request)} {int(time.monotonic() / VOLATILE_SECONDS)}"


def page_of(request: Request) -> tuple[int | None, Mark | None]:
    """Return (number of requested items, None for all; mark of the item to continue after). Raises RefusedError."""
    most = number_of(request, "limit", None, 1, MOST_A_PAGE)
    text = request.query_params.get("continue")
    if text is None:
        return most, None
    try:
        return most or MOST_A_PAGE, read_mark(text)
    except MarkError as error:
        raise RefusedError(400, f"continue: not a value from a Link header: {error}") from None


def entry_of(mark: Mark | None) -> int:
    """Return the number of the entry after which a story continues. Raises RefusedError for an invalid mark."""
    if mark is None:
        return 0
    if len(mark) != 1 or not isinstance(mark[0], int):
        raise RefusedError(400, "continue: not a value from this list's Link header")
    return mark[0]


def next_link(request: Request, mark: str) -> str:
    """Return the Link header for the next page (RFC 8288)."""
    query = [(name, value) for name, value in request.query_params.multi_items() if name != "continue"]
    return f'<{request.url.path}?{urlencode([*query, ("continue", mark)])}>; rel="next"'


class EventStream(StreamingResponse):
    """A response of server-sent events. ended: function that is called when the response ends for any reason."""

    def __init__(self, content: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(content, headers={"cache-control": "no-store"}, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()
