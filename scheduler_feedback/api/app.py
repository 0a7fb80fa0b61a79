"""The API: an ASGI application over one controller, with JSON and server-sent events.

::

    GET  /healthz  /readyz
    GET  /api/jobs[?active=1][&state=S,S][&user=U][&queue=Q]  /api/jobs/JOB  /api/jobs/JOB/explain  /api/jobs/JOB/story
         /api/jobs/JOB/pace[?since=SEQUENCE]   own step times by rank, of the last minutes
         /api/jobs/JOB/logs?rank=R[&attempt=A][&tail=LINES]              (the job's user, operator)
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

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agent.schema.errors import BackendError, ConfigError, GangwatchError, StoreError, SubmissionError
from scheduler_feedback.api import documents as documents
from scheduler_feedback.api import event_streams
from scheduler_feedback.api.access.audit import Audit
from scheduler_feedback.api.access.authentication import Authentication
from scheduler_feedback.api.access.middleware import (
    AccessMiddleware,
    current_principal,
    note,
    principal_of,
    refusal,
    sensitive,
)
from scheduler_feedback.api.access.principal import AccessError, Principal, Role
from scheduler_feedback.api.error_barrier import Barrier, ended_by_bug
from scheduler_feedback.api.list_pages import EventStream, entry_of, key_of, key_of_now, next_link, page_of, peer_of
from scheduler_feedback.api.rank_log_tail import tail_of
from scheduler_feedback.api.reading import lists
from scheduler_feedback.api.reading.desk import SLICE, Answer, Desk, Frame
from scheduler_feedback.api.reading.listing import Listing
from scheduler_feedback.api.reading.lists import Lister, Mark, Slice
from scheduler_feedback.api.reading.reads import BusyError
from scheduler_feedback.api.requests import (
    NodeReason,
    Reason,
    RefusedError,
    Submission,
    body_of,
    check_origin,
    number_of,
    submitted_by,
)
from scheduler_feedback.api.stories import Story
from scheduler_feedback.api.subscribers import FullError, Subscribers
from scheduler_feedback.api.web import paces, views
from scheduler_feedback.api.web.login import Login
from scheduler_feedback.api.web.pages import Pages
from scheduler_feedback.controller.cycle_thread import CycleThread
from scheduler_feedback.controller.inbox import StoppedError
from scheduler_feedback.core.disclosure import hide
from scheduler_feedback.core.events import CancelRequested, Event, NodeCommand, NodeCommanded, Submitted, VerdictJudged
from scheduler_feedback.core.explanation import Explanation
from scheduler_feedback.core.job import Job, JobState
from scheduler_feedback.core.state import State
from scheduler_feedback.core.telemetry.pace import MOST_ROWS, Pace, Speed
from scheduler_feedback.cycle import admit_check
from scheduler_feedback.feed.agent_reporting import AgentStatus
from scheduler_feedback.journal.store import Reader
from scheduler_feedback.part_failures import PartFailures, in_words
from scheduler_feedback.policies.intake.user_requests import array_members
from scheduler_feedback.policies.nodes.draining import why_not_removed

STORY_SLICE, JOURNAL_SLICE, JOURNAL_BLOCKS = 200, 200, 16
"""Entries of a story, and cycles and blocks of the journal, that one read fetches."""

DEFAULT_TAIL, MAX_TAIL = 100, 10_000

_T = TypeVar("_T")
_Endpoint = Callable[[Request], Awaitable[Response]]
_STATUS: tuple[tuple[type[GangwatchError], int], ...] = (
    (SubmissionError, 422),
    (ConfigError, 422),
    (StoreError, 507),
    (BusyError, 429),
    (StoppedError, 503),
    (BackendError, 503),
)


class Control(Protocol):
    """The parts of a controller that the API needs."""

    access: Authentication
    audit: Audit
    folder: Path
    cycle: CycleThread
    desk: Desk
    subscribers: Subscribers
    failures: PartFailures
    elsewhere: str

    @property
    def store(self) -> Reader: ...

    def pace_of(self, gang: str, sequence: int = -1, most: int = MOST_ROWS) -> Pace | None: ...
    async def shared_speeds(self) -> Mapping[str, Speed]: ...
    def shared_agent_statuses(self) -> Mapping[str, AgentStatus]: ...
    def alive(self) -> tuple[bool, str]: ...
    def scheduling(self) -> tuple[bool, str]: ...
    def ready(self) -> tuple[bool, str]: ...
    async def freeze(self, by: str) -> str: ...
    async def thaw(self, by: str) -> None: ...
    async def reload(self, by: str) -> None: ...


def create_api(controller: Control, more: Sequence[Route] = ()) -> Starlette:
    """Return the application. It is stateless. more: routes to add, with the same authentication."""
    pages = (*Login(controller).routes(), *Pages(controller).routes())
    return Starlette(
        routes=[*more, *_Api(controller).routes(), *pages],
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


# --- answers ---------------------------------------------------------------------------------------------------------


def _json(document: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, {"cache-control": "no-store"}, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    refusal(request, error.detail if isinstance(error, HTTPException) else str(error))
    if isinstance(error, HTTPException):
        response = _json({"error": error.detail}, error.status_code)
        response.headers.update(error.headers or {})
        return response
    if isinstance(error, RefusedError | AccessError):
        response = _json({"error": str(error)}, error.status)
        if error.status == 401:
            response.headers["www-authenticate"] = "Bearer"
        if error.status == 429:
            response.headers["retry-after"] = "10" if isinstance(error, AccessError) else "1"
        return response
    if isinstance(error, BusyError):
        return await _refused(request, RefusedError(429, str(error)))
    return _json({"error": str(error)}, next((status for kind, status in _STATUS if isinstance(error, kind)), 500))


def _known(state: State, job_id: str) -> bool:
    """Return whether a job or an array has that id."""
    return job_id in state.jobs or bool(array_members(state, job_id))


_FRESH = {"cache-control": "private, no-cache"}
"""Only the client itself may store the response, and must revalidate it before each use."""


def _tagged(request: Request, answer: Answer) -> Response:
    """Return the answer, or 304 if the client already has it."""
    headers = _FRESH | {"etag": answer.tag}
    if answer.tag in (tag.strip() for tag in request.headers.get("if-none-match", "").split(",")):
        return Response(status_code=304, headers=headers)
    return Response(answer.content, headers=headers, media_type="application/json")


class _Api:
    def __init__(self, controller: Control) -> None:
        self._controller = controller

    def routes(self) -> Iterator[Route]:
        """Yield every route, each with the role that it requires."""
        reading: dict[str, Callable[[Listing, Request], Any]] = {
            "/api/jobs/{job}": lambda listing, request: shown(
                _job_document(listing, _job(listing.state, request)), principal_of(request)
            ),
            "/api/jobs/{job}/explain": _explained,
            "/api/nodes/{node}/jobs": _left_on,
        }
        listed: dict[str, tuple[Lister, Frame | None]] = {
            "/api/nodes": (lists.nodes(self._controller.shared_agent_statuses), None),
            "/api/verdicts": (lists.verdicts, None),
            "/api/queue": (lists.waiting, Frame("waiting", lambda listing: documents.queue_frame(listing.state))),
            "/api/decisions": (lists.decisions, None),
        }
        yield self._route("/healthz", self._healthz)
        yield self._route("/readyz", self._readyz)
        yield self._route("/api/whoami", self._whoami)
        yield Route("/api/jobs", self._guarded_by_method(self._list_jobs, self._submit), methods=["GET", "POST"])
        for path, document in reading.items():
            yield self._route(path, self._of_state(document))
        for path, (lister, frame) in listed.items():
            yield self._route(path, self._of_list(lister, frame))
        yield self._route("/api/overview", self._overview)
        yield self._route("/api/parts", self._parts)
        yield self._route("/api/jobs/{job}/pace", self._pace)
        yield self._route("/api/jobs/{job}/story", self._job_story)
        yield self._route("/api/nodes/{node}/story", self._node_story)
        yield self._route("/api/events", self._events)
        yield self._route("/api/jobs/{job}/logs", self._logs, Role.VIEWER, "reading a job's logs")
        yield self._route("/api/journal", self._journal, Role.OPERATOR, "reading the journal")
        yield self._route("/api/jobs/{job}/cancel", self._cancel, Role.SUBMITTER, "cancelling a job", "POST")
        for path, post, what in (
            ("/api/nodes/{node}/{command}", self._command_node, "commanding a node"),
            ("/api/verdicts/{verdict:path}/{ruling}", self._judge, "ruling on a verdict"),
            ("/api/freeze", self._freeze, "freezing the scheduler"),
            ("/api/thaw", self._thaw, "thawing the scheduler"),
            ("/api/reload", self._reload, "reloading the configuration"),
        ):
            yield self._route(path, post, Role.OPERATOR, what, "POST")

    def _route(
        self, path: str, endpoint: _Endpoint, role: Role = Role.NOBODY, what: str = "", method: str = "GET"
    ) -> Route:
        return Route(path, self._guarded(endpoint, role, what), methods=[method])

    def _guarded(self, endpoint: _Endpoint, role: Role, what: str = "") -> _Endpoint:
        """Wrap an endpoint so that it requires the role. what: the action, for the text of a refusal."""

        async def guarded(request: Request) -> Response:
            check_origin(request)
            if role is not Role.NOBODY:
                principal_of(request).require(role, what)
            return await endpoint(request)

        return guarded

    def _guarded_by_method(self, get: _Endpoint, post: _Endpoint) -> _Endpoint:
        reads, writes = self._guarded(get, Role.NOBODY), self._guarded(post, Role.SUBMITTER, "submitting a job")

        async def guarded(request: Request) -> Response:
            return await (writes if request.method == "POST" else reads)(request)

        return guarded

    async def _ask(self, request: Request, question: Callable[[Listing], _T]) -> _T:
        return await self._controller.desk.ask(peer_of(request), question)

    async def _perform(self, make: Callable[[State], Event]) -> Event:
        return await asyncio.wrap_future(self._controller.cycle.request(make))

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _healthz(self, _request: Request) -> Response:
        alive, stuck = self._controller.alive()
        return _json({"alive": True}) if alive else _json({"alive": False, "error": stuck}, 503)

    async def _readyz(self, _request: Request) -> Response:
        ready, reason = self._controller.ready()
        if ready:
            return _json({"ready": True, "scheduling": True})
        scheduling, _ = self._controller.scheduling()
        return _json({"ready": False, "scheduling": scheduling, "error": reason}, 503)

    async def _whoami(self, request: Request) -> Response:
        who = principal_of(request)
        return _json({"user": who.user, "role": who.role.word, "means": who.means, "peer": who.peer})

    async def _parts(self, _request: Request) -> Response:
        return _json([{**trouble, "words": in_words(trouble)} for trouble in self._controller.failures.troubles()])

    def _of_state(self, document: Callable[[Listing, Request], Any]) -> _Endpoint:
        async def endpoint(request: Request) -> Response:
            desk = self._controller.desk
            answer = await desk.document(peer_of(request), key_of(request), lambda listing: document(listing, request))
            return _tagged(request, answer)

        return endpoint

    def _of_list(self, lister: Lister, frame: Frame | None = None) -> _Endpoint:
        async def endpoint(request: Request) -> Response:
            return await self._list(request, lister, frame)

        return endpoint

    async def _list(self, request: Request, lister: Lister, frame: Frame | None = None) -> Response:
        """Return a page of the list if the request has a limit, else the whole list."""
        most, mark = page_of(request)
        desk, peer = self._controller.desk, peer_of(request)
        try:
            answer = await desk.page(peer, key_of_now(request), lister, mark, most or SLICE, frame)
        except lists.MarkError as error:
            raise RefusedError(400, f"continue: not a value from this list's Link header: {error}") from None
        if most is None and answer.rest is not None:
            whole = ended_by_bug(
                desk.whole(peer, key_of_now(request), lister, frame), self._controller.failures, "api", again=True
            )
            return StreamingResponse(whole, headers={"cache-control": "no-store"}, media_type="application/json")
        response = _tagged(request, answer)
        if answer.rest is not None:
            response.headers["link"] = next_link(request, lists.mark_text(answer.rest))
        return response

    async def _list_jobs(self, request: Request) -> Response:
        active = bool(number_of(request, "active", 0, 0, 1))
        states, given = None, request.query_params
        if "state" in given:
            states = frozenset(given["state"].split(","))
            if unknown := sorted(states - {known.value for known in JobState}):
                raise RefusedError(
                    400, f"state: {unknown[0]!r} is not one of {', '.join(known.value for known in JobState)}"
                )
        wanted = lists.Wanted(active, states, given.get("user", ""), given.get("queue", ""))
        return await self._list(request, shown_to(principal_of(request), lists.jobs(wanted)))

    async def _overview(self, request: Request) -> Response:
        desk, speeds = self._controller.desk, await self._controller.shared_speeds()
        answer = await desk.document(
            peer_of(request), key_of_now(request), lambda listing: self._overview_document(listing, speeds)
        )
        return _tagged(request, answer)

    def _overview_document(self, listing: Listing, speeds: Mapping[str, Speed]) -> documents.Document:
        document = views.overview(listing.state, speeds, time.time_ns(), listing.reasons)
        known = {job["job"]: speeds[job["job"]] for job in document["running"] if job["job"] in speeds}
        return document | {
            "silent_agents": documents.silent_agents(self._controller.shared_agent_statuses(), listing.present),
            "step_seconds": {job: speed.seconds for job, speed in known.items()},
            "last_step_ns": {job: speed.end_ns for job, speed in known.items()},
            "troubles": [in_words(trouble) for trouble in self._controller.failures.troubles()],
        }

    async def _pace(self, request: Request) -> Response:
        since = number_of(request, "since", None, 0, 1 << 62)
        job = await self._ask(request, lambda listing: _job(listing.state, request).job_id)
        pace = await run_in_threadpool(self._controller.pace_of, job, -1 if since is None else since)
        if pace is None:
            raise RefusedError(404, f"no step of {job} was received")
        return _json(await self._controller.desk.make(peer_of(request), lambda: paces.document(pace, ())))

    async def _job_story(self, request: Request) -> Response:
        job_id: str = request.path_params["job"]
        story = Story(self._controller.store, job_id)
        return await self._story(request, story.page, _no_job(job_id))

    async def _node_story(self, request: Request) -> Response:
        node: str = request.path_params["node"]

        def page(after: int, most: int) -> list[documents.Document]:
            entries = self._controller.store.entries_of(f"node:{node}", after, most)
            return [documents.entry_document(entry) for entry in entries]

        return await self._story(request, page, RefusedError(404, f"no node {node}"))

    async def _story(
        self, request: Request, page: Callable[[int, int], Sequence[documents.Document]], unknown: RefusedError
    ) -> Response:
        """Return entries, oldest first: a page if the request has a limit, else all of them, read in pieces."""
        desk, peer = self._controller.desk, peer_of(request)
        most, mark = page_of(request)
        after = entry_of(mark)

        def content(after: int, most: int) -> tuple[bytes, int | None]:
            entries = page(after, most + 1)
            last = entries[most - 1]["id"] if len(entries) > most else None
            return msgspec.json.encode(entries[:most])[1:-1], last

        found, rest = await desk.read(peer, partial(content, after, most or STORY_SLICE))
        if not found and mark is None:
            raise unknown
        if rest is None or most is not None:
            response = Response(b"[%b]" % found, headers=_FRESH, media_type="application/json")
            if rest is not None:
                response.headers["link"] = next_link(request, lists.mark_text([rest]))
            return response

        async def whole() -> AsyncIterator[bytes]:
            yield b"[" + found
            left: int | None = rest
            while left is not None:
                more, left = await desk.read(peer, partial(content, left, STORY_SLICE), patient=True)
                yield b"," + more
            yield b"]"

        stream = ended_by_bug(whole(), self._controller.failures, "api", again=True)
        return StreamingResponse(stream, headers=_FRESH, media_type="application/json")

    async def _logs(self, request: Request) -> Response:
        lines = number_of(request, "tail", DEFAULT_TAIL, 0, MAX_TAIL)
        rank = number_of(request, "rank", 0, 0, 1 << 20)
        place = await self._ask(request, lambda listing: _place_of_logs(_job(listing.state, request)))
        job_id, ranks, newest, user = place
        sensitive(request)
        note(request, job=job_id, user=user)
        if not principal_of(request).sees(user):
            raise AccessError(403, f"only its user ({user or 'none'}) and operators may read the logs of {job_id}")
        attempt = number_of(request, "attempt", newest, 1, max(newest, 1))
        assert rank is not None and lines is not None
        if rank >= ranks:
            raise RefusedError(404, f"{job_id} has no rank {rank}; its ranks are 0 to {ranks - 1}")
        path = self._controller.folder / "jobs" / job_id / "logs" / str(attempt) / f"rank-{rank}.log"
        try:
            text = await self._controller.desk.read(peer_of(request), lambda: tail_of(path, lines))
        except FileNotFoundError:
            raise RefusedError(404, f"rank {rank} of {job_id} has no log of attempt {attempt}") from None
        return _json({"job": job_id, "attempt": attempt, "rank": rank, "text": text})

    async def _journal(self, request: Request) -> Response:
        sensitive(request)
        desk, peer, store = self._controller.desk, peer_of(request), self._controller.store
        begin = await desk.read(peer, store.journal_extent)
        cycles, counted = 0, begin.after
        while counted < begin.last:
            count = partial(store.journal_count, counted, begin.last, JOURNAL_BLOCKS)
            more, counted = await desk.read(peer, count, patient=True)
            cycles += more

        def part(after: int) -> tuple[bytes, int | None]:
            rows = store.journal_part(after, begin.last, JOURNAL_SLICE)
            lines = [msgspec.json.encode(documents.journal_document(row)) + b"\n" for row in rows]
            return b"".join(lines), rows[-1].cycle if len(rows) == JOURNAL_SLICE else None

        async def lines() -> AsyncIterator[bytes]:
            yield msgspec.json.encode({"complete": begin.complete, "cycles": cycles}) + b"\n"
            after: int | None = begin.after
            while after is not None:
                content, after = await desk.read(peer, partial(part, after), patient=True)
                yield content

        stream = ended_by_bug(lines(), self._controller.failures, "api", again=True)
        return StreamingResponse(stream, media_type="application/x-ndjson")

    async def _events(self, request: Request) -> Response:
        given = request.headers.get("last-event-id", "")
        since = number_of(request, "since", int(given[:18]) if given.isdecimal() else None, 0, 1 << 62)
        peer, subscribers = peer_of(request), self._controller.subscribers
        if since is None:
            since = await event_streams.newest_entry(self._controller, peer)
        try:
            subscription = subscribers.open(peer)
        except FullError as error:
            raise RefusedError(503 if subscribers.closed else 429, str(error)) from None
        reader = principal_of(request)

        async def has_access() -> bool:
            return await current_principal(request, self._controller.access) == reader

        entries = event_streams.stream(self._controller, subscription, peer, since, has_access)
        stream = ended_by_bug(entries, self._controller.failures, "api")
        return EventStream(stream, lambda: subscribers.remove(subscription))

    # --- requests ----------------------------------------------------------------------------------------------------

    async def _submit(self, request: Request) -> Response:
        if self._controller.elsewhere:
            raise RefusedError(409, self._controller.elsewhere)
        submission = await body_of(request, Submission)
        submitter = principal_of(request)
        spec = submitted_by(submission.spec(), submitter)
        note(request, user=spec.user, name=spec.name, ranks=spec.ranks, queue=spec.queue)

        def make(state: State) -> Event:
            if (why_not := admit_check(state, spec)) is not None:
                raise SubmissionError(why_not)
            if unknown := [one.job_id for one in spec.after if not _known(state, one.job_id)]:
                raise SubmissionError(
                    f"no job {', '.join(unknown)} to wait for (after); `gangwatch jobs --all` lists all jobs"
                )
            by = "" if submitter.user == spec.user else submitter.user
            return Submitted(self._controller.cycle.new_job_id(), spec, by=by)

        submitted = await self._perform(make)
        assert isinstance(submitted, Submitted)
        note(request, job=submitted.job_id)
        return _json({"job": submitted.job_id}, 201)

    async def _cancel(self, request: Request) -> Response:
        reason, who = await body_of(request, Reason), principal_of(request)

        def make(state: State) -> Event:
            job_id: str = request.path_params["job"]
            jobs = [state.jobs[member] for member in array_members(state, job_id)] or [_job(state, request)]
            for job in jobs:
                who.require_own(job.spec.user, f"cancelling {job_id}")
            if all(job.state.ended for job in jobs):
                raise RefusedError(409, f"{job_id} has already ended: {jobs[0].state.value}")
            return CancelRequested(job_id, who.signature(reason.by))

        await self._perform(make)
        return _json({"job": request.path_params["job"]})

    async def _command_node(self, request: Request) -> Response:
        name, word = request.path_params["node"], request.path_params["command"]
        if word not in tuple(NodeCommand):  # before Python 3.12 `in` raises for a str and an enum class
            raise RefusedError(404, f"unknown node command {word!r}: use one of {', '.join(NodeCommand)}")

        def make(state: State) -> Event:
            if name not in state.nodes:
                raise RefusedError(404, f"no node {name}; known nodes: {', '.join(sorted(state.nodes)) or 'none'}")
            if word == NodeCommand.REMOVE and (why_not := why_not_removed(state, state.nodes[name])) is not None:
                raise RefusedError(409, why_not)
            return NodeCommanded(name, NodeCommand(word), by, reason.reason, reason.drain)

        reason = await body_of(request, NodeReason)
        by = _signed(request, reason)
        if reason.drain and word != NodeCommand.MAINTENANCE:
            raise RefusedError(400, f"drain: only valid for maintenance, not for {word}")
        await self._perform(make)
        # Read on the cycle's thread, like the command itself: the response does not wait for a snapshot.
        left = await asyncio.wrap_future(self._controller.cycle.ask(lambda state: documents.left_on(state, name)))
        return _json({"node": name, "command": word} | left)

    async def _judge(self, request: Request) -> Response:
        verdict_id, ruling = request.path_params["verdict"], request.path_params["ruling"]
        if ruling not in ("confirm", "reject"):
            raise RefusedError(404, f"unknown verdict command {ruling!r}: use confirm or reject")
        reason = await body_of(request, Reason)
        by = _signed(request, reason)

        def make(state: State) -> Event:
            if not _is_known(state, verdict_id):
                raise RefusedError(404, f"no verdict {verdict_id}: `gangwatch verdict list` prints the ids")
            return VerdictJudged(verdict_id, ruling == "confirm", by)

        await self._perform(make)
        return _json({"verdict_id": verdict_id, "ruling": ruling})

    async def _freeze(self, request: Request) -> Response:
        warning = await self._controller.freeze(_signed(request, await body_of(request, Reason)))
        return _json({"frozen": True, "warning": warning} if warning else {"frozen": True})

    async def _thaw(self, request: Request) -> Response:
        await self._controller.thaw(_signed(request, await body_of(request, Reason)))
        return _json({"frozen": False})

    async def _reload(self, request: Request) -> Response:
        await self._controller.reload(_signed(request, await body_of(request, Reason)))
        return _json({"reloaded": True})


# --- parts -----------------------------------------------------------------------------------------------------------


def _signed(request: Request, reason: Reason) -> str:
    """Return the user named in the story. The audit log also has the name and the reason that the request contains."""
    note(request, **{key: text for key, text in (("claimed", reason.by), ("reason", reason.reason)) if text})
    return principal_of(request).signature(reason.by)


def _no_job(job_id: str) -> RefusedError:
    return RefusedError(404, f"no job {job_id}")


def _job(state: State, request: Request) -> Job:
    job_id: str = request.path_params["job"]
    if job_id not in state.jobs:
        raise _no_job(job_id)
    return state.jobs[job_id]


def _job_document(listing: Listing, job: Job) -> documents.Document:
    verdicts = [
        documents.verdict_document(listing.state, verdict, past)
        for verdict, past in listing.verdicts_of.get(job.job_id, ())
    ]
    return documents.job_document(listing.state, job, verdicts, listing.reasons_for(job))


def _explained(listing: Listing, request: Request) -> Explanation:
    job_id: str = request.path_params["job"]
    explanation = listing.explain(job_id)
    if explanation is None:
        raise _no_job(job_id)
    return explanation


def _left_on(listing: Listing, request: Request) -> documents.Document:
    name: str = request.path_params["node"]
    if name not in listing.state.nodes:
        raise RefusedError(404, f"no node {name}")
    return documents.left_on(listing.state, name)


def _place_of_logs(job: Job) -> tuple[str, int, int, str]:
    return job.job_id, job.spec.ranks, job.attempt, job.spec.user


def shown_to(reader: Principal, lister: Lister) -> Lister:
    """Return the list of jobs as this reader may see it."""

    def shown_list(listing: Listing, mark: Mark | None, most: int) -> Slice:
        part = lister(listing, mark, most)
        return Slice([shown(document, reader) for document in part.items], part.mark)

    return shown_list


def shown(document: documents.Document, reader: Principal) -> documents.Document:
    """Return a job's document as this reader may see it."""
    return document if reader.sees(document["user"]) else hide(document)


def _is_known(state: State, verdict_id: str) -> bool:
    """Return whether the id is of a known verdict: active, past, or recorded with a node or a decision."""
    return (
        verdict_id in state.verdicts
        or verdict_id in state.judged
        or any(past.verdict.verdict_id == verdict_id for past in state.past_verdicts)
        or any(node.verdict_id == verdict_id for node in state.nodes.values())
        or any(decision.verdict_id == verdict_id for decision in state.decisions)
    )
