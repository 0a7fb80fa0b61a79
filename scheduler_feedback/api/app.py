"""The API: an ASGI application over one controller, with JSON and server-sent events.

::

    GET  /healthz  /readyz
    GET  /api/jobs[?active=1][&state=S,S][&user=U][&queue=Q]  /api/jobs/JOB  /api/jobs/JOB/explain  /api/jobs/JOB/story
         /api/jobs/JOB/pace[?since=SEQUENCE]   own step times by rank, of the last minutes
         /api/jobs/JOB/logs?rank=R[&attempt=A][&tail=LINES]              (the job's user, operator)
         /api/jobs/JOB/stacks[?attempt=A]  where its ranks were blocked in a hang   (the job's user, operator)
         /api/overview                    the document of the overview page and of `gangwatch top`
         /api/parts                       parts of the controller that failed because of a bug
         /api/nodes  /api/nodes/NODE/jobs  /api/nodes/NODE/story  /api/verdicts  /api/queue  /api/decisions
         /api/journal                     one line per cycle, for a replay                          (operator)
         /api/events[?since=ENTRY]        entries as they are written, as server-sent events
         /api/whoami                      user and role of the request

    Lists (jobs, nodes, verdicts, queue, decisions, stories) are paged if a request has ?limit=N: the header
    Link: <...>; rel="next" is the address of the next page. The last page has no such header. Without a limit the
    response is the whole list. Responses about the state have an ETag; 304 answers a matching If-None-Match.

    POST /api/jobs                                                                                  (submitter)
         /api/jobs/JOB/cancel                                            (the job's user as submitter, operator)
         /api/nodes/NODE/{release|quarantine|maintenance|remove}  /api/verdicts/VERDICT/{confirm|reject}
         /api/freeze  /api/thaw  /api/reload                                                         (operator)

and the pages: /  /jobs  /jobs/JOB  /nodes  /nodes/NODE (web/pages.py), with their /login (web/login.py).

Submitting a job runs a program, so every change requires a role (access/). Reading the output of jobs requires a role
too. Only a job's user and operators see its command line and folder; for other readers `hidden` lists the omitted
fields. Every error is {"error": text}: 400 malformed, 401 not logged in, 403 wrong role, Host or Origin, 404, 405, 409
conflict with the current state, 413 too long, 415 not JSON, 422 impossible on this cluster, 429 too many requests or
too many wrong tokens, 500 a bug (logged; only this request fails), 503 not ready, 507 journal or audit log not
writable.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent.schema.errors import BackendError, ConfigError, GangwatchError, StoreError, SubmissionError
from scheduler_feedback.api.access.middleware import AccessMiddleware, refusal
from scheduler_feedback.api.access.principal import AccessError
from scheduler_feedback.api.control import Control
from scheduler_feedback.api.endpoints.change_endpoints import ChangeEndpoints
from scheduler_feedback.api.endpoints.journal_endpoints import JournalEndpoints
from scheduler_feedback.api.endpoints.routing import jobs_route, json_response
from scheduler_feedback.api.endpoints.state_endpoints import StateEndpoints
from scheduler_feedback.api.error_barrier import Barrier
from scheduler_feedback.api.reading.reads import BusyError
from scheduler_feedback.api.requests import RefusedError
from scheduler_feedback.api.web.login import Login
from scheduler_feedback.api.web.pages import Pages
from scheduler_feedback.controller.inbox import StoppedError

_STATUS: tuple[tuple[type[GangwatchError], int], ...] = (
    (SubmissionError, 422),
    (ConfigError, 422),
    (StoreError, 507),
    (BusyError, 429),
    (StoppedError, 503),
    (BackendError, 503),
)


def create_api(controller: Control, more: Sequence[Route] = ()) -> Starlette:
    """Return the ASGI application of one controller. more: routes to add, with the same authentication."""
    state, journal, changes = StateEndpoints(controller), JournalEndpoints(controller), ChangeEndpoints(controller)
    jobs = jobs_route(state.list_jobs, changes.submit)
    api = (jobs, *state.routes(), *journal.routes(), *changes.routes())
    pages = (*Login(controller).routes(), *Pages(controller).routes())
    return Starlette(
        routes=[*more, *api, *pages],
        exception_handlers={
            RefusedError: _refused,
            GangwatchError: _refused,
            HTTPException: _refused,
        },
        middleware=[
            Middleware(Barrier, failures=controller.failures),
            Middleware(AccessMiddleware, authentication=controller.access, audit=controller.audit),
        ],
    )


async def _refused(request: Request, error: Exception) -> Response:
    refusal(request, error.detail if isinstance(error, HTTPException) else str(error))
    if isinstance(error, HTTPException):
        response = json_response({"error": error.detail}, error.status_code)
        response.headers.update(error.headers or {})
        return response
    if isinstance(error, RefusedError | AccessError):
        response = json_response({"error": str(error)}, error.status)
        if error.status == 401:
            response.headers["www-authenticate"] = "Bearer"
        if error.status == 429:
            response.headers["retry-after"] = "10" if isinstance(error, AccessError) else "1"
        return response
    if isinstance(error, BusyError):
        return await _refused(request, RefusedError(429, str(error)))
    return json_response(
        {"error": str(error)}, next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    )
