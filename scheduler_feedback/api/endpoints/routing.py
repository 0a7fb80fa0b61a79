"""Routes with the role that each requires, and the responses that all endpoints share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scheduler_feedback.api.access.middleware import principal_of
from scheduler_feedback.api.access.principal import Role
from scheduler_feedback.api.reading.snapshot_reader import Answer
from scheduler_feedback.api.requests import RefusedError, check_origin
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import State

Endpoint = Callable[[Request], Awaitable[Response]]

FRESH = {"cache-control": "private, no-cache"}
"""Header of responses that only the client may cache. It must ask the server again before each use."""


def route(path: str, endpoint: Endpoint, role: Role = Role.ANONYMOUS, what: str = "", method: str = "GET") -> Route:
    """Return a route whose endpoint requires the role. what: the action, for the text of a refusal."""
    return Route(path, _guarded(endpoint, role, what), methods=[method])


def jobs_route(read: Endpoint, submit: Endpoint) -> Route:
    """Return the route of /api/jobs: GET lists jobs, POST submits one."""
    reads, writes = _guarded(read, Role.ANONYMOUS), _guarded(submit, Role.SUBMITTER, "submitting a job")

    async def endpoint(request: Request) -> Response:
        return await (writes if request.method == "POST" else reads)(request)

    return Route("/api/jobs", endpoint, methods=["GET", "POST"])


def _guarded(endpoint: Endpoint, role: Role, what: str = "") -> Endpoint:
    async def guarded(request: Request) -> Response:
        check_origin(request)
        if role is not Role.ANONYMOUS:
            principal_of(request).require(role, what)
        return await endpoint(request)

    return guarded


def json_response(document: Any, status: int = 200) -> Response:
    """Return the document as a JSON response that must not be cached."""
    return Response(msgspec.json.encode(document), status, {"cache-control": "no-store"}, media_type="application/json")


def tagged(request: Request, answer: Answer) -> Response:
    """Return the answer as a response, or status 304 if the client has the current version."""
    headers = FRESH | {"etag": answer.tag}
    if answer.tag in (tag.strip() for tag in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    return Response(answer.content, headers=headers, media_type="application/json")


def no_job(job_id: str) -> RefusedError:
    """Return the error for a request about an unknown job."""
    return RefusedError(404, f"no job {job_id}")


def job_of(state: State, request: Request) -> Job:
    """Return the job that the request's path names. Raises RefusedError if there is no such job."""
    job_id: str = request.path_params["job"]
    if job_id not in state.jobs:
        raise no_job(job_id)
    return state.jobs[job_id]
