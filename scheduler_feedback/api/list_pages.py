"""Of requests for lists: which page is meant, where the next one is, and who asks."""

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
"""Items that a request may ask for at once."""

VOLATILE_SECONDS = 0.5
"""For so long what changes by itself is taken to be the same."""

PEER, TOKEN = "gangwatch_peer", "token"
"""In the ASGI scope's state the server says who asks: a user of this machine, an address, or a holder of the token."""


def peer_of(request: Request) -> str:
    """Who asks, as far as readers share what there is to have."""
    known = request.scope.get("state", {}).get(PEER)
    if known is not None:
        return str(known)
    return request.client.host if request.client is not None else ""


def key_of(request: Request) -> str:
    """What names an answer: the question, and what the reader may see."""
    reader = principal_of(request)
    rights = (reader.role.word, reader.user) if reader.logged_in else ()
    return f"{rights} {request.url.path}?{request.url.query}"


def key_of_now(request: Request) -> str:
    """``key_of``, where the answer also follows from what changes by itself, as the age of a frame does."""
    return f"{key_of(request)} {int(time.monotonic() / VOLATILE_SECONDS)}"


def page_of(request: Request) -> tuple[int | None, Mark | None]:
    """How many items are asked for at most (None: all), and after which mark. Raises RefusedError."""
    most = number_of(request, "limit", None, 1, MOST_A_PAGE)
    text = request.query_params.get("continue")
    if text is None:
        return most, None
    try:
        return most or MOST_A_PAGE, read_mark(text)
    except MarkError as error:
        raise RefusedError(400, f"continue: no mark of a list: {error}") from None


def entry_of(mark: Mark | None) -> int:
    """The entry that a story goes on after. Raises RefusedError."""
    if mark is None:
        return 0
    if len(mark) != 1 or not isinstance(mark[0], int):
        raise RefusedError(400, "continue: no mark of this list")
    return mark[0]


def next_link(request: Request, mark: str) -> str:
    """The header Link that leads to the next page (RFC 8288)."""
    query = [(name, value) for name, value in request.query_params.multi_items() if name != "continue"]
    return f'<{request.url.path}?{urlencode([*query, ("continue", mark)])}>; rel="next"'


class EventStream(StreamingResponse):
    """Server-sent events. ended: called once nothing more is sent, whatever the reason."""

    def __init__(self, content: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(content, headers={"cache-control": "no-store"}, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()
