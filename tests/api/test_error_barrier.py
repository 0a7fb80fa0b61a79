"""Error barrier of the server: it distinguishes a client that disconnects from a bug."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scheduler_feedback.api.error_barrier import Barrier
from scheduler_feedback.part_failures import PartFailures


async def read_all(request: Request) -> Response:
    return Response(await request.body())


def ask(messages: list[dict[str, Any]], failures: PartFailures) -> list[Any]:
    """Send the messages as one request to /api/jobs. Return the response's messages."""
    scope = {"type": "http", "method": "POST", "path": "/api/jobs", "headers": [], "query_string": b"", "root_path": ""}
    answered: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        answered.append(message)

    route = Route("/api/jobs", read_all, methods=["POST"])
    app = Starlette(routes=[route], middleware=[Middleware(Barrier, failures=failures)])
    asyncio.run(app(scope, receive, send))
    return answered


def test_a_client_that_disconnects_while_sending_is_no_bug() -> None:
    failures = PartFailures()
    part = {"type": "http.request", "body": b"{", "more_body": True}
    assert ask([part, {"type": "http.disconnect"}], failures) == []
    assert failures.troubles() == []
