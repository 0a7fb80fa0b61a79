"""Endpoints that read the state: health, jobs, nodes, verdicts, the queue and the overview."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from scheduler_feedback.api import documents as documents
from scheduler_feedback.api.access.middleware import principal_of
from scheduler_feedback.api.access.principal import Principal
from scheduler_feedback.api.control import Control
from scheduler_feedback.api.endpoints.routing import Endpoint, job_of, json_response, no_job, route, tagged
from scheduler_feedback.api.error_barrier import ended_by_bug
from scheduler_feedback.api.list_pages import key_of, key_of_now, next_link, page_of, peer_of
from scheduler_feedback.api.reading import lists
from scheduler_feedback.api.reading.listing import Listing
from scheduler_feedback.api.reading.lists import Lister, Mark, Slice
from scheduler_feedback.api.reading.snapshot_reader import SLICE, Frame
from scheduler_feedback.api.requests import RefusedError, number_of
from scheduler_feedback.api.web import paces, views
from scheduler_feedback.core.disclosure import hide
from scheduler_feedback.core.explanation import Explanation
from scheduler_feedback.core.job import Job, JobState
from scheduler_feedback.core.telemetry.steps.pace import Speed
from scheduler_feedback.part_failures import in_words


class StateEndpoints:
    """Endpoints that read the state, from snapshots of it."""

    def __init__(self, controller: Control) -> None:
        self._controller = controller

    def routes(self) -> Iterator[Route]:
        """Yield the routes of this class, except ``list_jobs``, which shares its path with the submission of jobs."""
        reading: dict[str, Callable[[Listing, Request], Any]] = {
            "/api/jobs/{job}": lambda listing, request: shown(
                _job_document(listing, job_of(listing.state, request)), principal_of(request)
            ),
            "/api/jobs/{job}/explain": _explained,
            "/api/nodes/{node}/jobs": _left_on,
        }
        listed: dict[str, tuple[Lister, Frame | None]] = {
            "/api/nodes": (lists.nodes(self._controller.agent_statuses), None),
            "/api/verdicts": (lists.verdicts, None),
            "/api/queue": (lists.waiting, Frame("waiting", lambda listing: documents.queue_frame(listing.state))),
            "/api/decisions": (lists.decisions, None),
        }
        yield route("/healthz", self._healthz)
        yield route("/readyz", self._readyz)
        yield route("/api/whoami", self._whoami)
        for path, document in reading.items():
            yield route(path, self._of_state(document))
        for path, (lister, frame) in listed.items():
            yield route(path, self._of_list(lister, frame))
        yield route("/api/overview", self._overview)
        yield route("/api/parts", self._parts)
        yield route("/api/jobs/{job}/pace", self._pace)

    async def _healthz(self, _request: Request) -> Response:
        alive, stuck = self._controller.alive()
        return json_response({"alive": True}) if alive else json_response({"alive": False, "error": stuck}, 503)

    async def _readyz(self, _request: Request) -> Response:
        ready, reason = self._controller.ready()
        if ready:
            return json_response({"ready": True, "scheduling": True})
        scheduling, _ = self._controller.scheduling()
        return json_response({"ready": False, "scheduling": scheduling, "error": reason}, 503)

    async def _whoami(self, request: Request) -> Response:
        who = principal_of(request)
        return json_response({"user": who.user, "role": who.role.word, "means": who.means, "peer": who.peer})

    async def _parts(self, _request: Request) -> Response:
        return json_response(
            [{**trouble, "words": in_words(trouble)} for trouble in self._controller.failures.troubles()]
        )

    def _of_state(self, document: Callable[[Listing, Request], Any]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            reader = self._controller.snapshot_reader
            answer = await reader.document(
                peer_of(request), key_of(request), lambda listing: document(listing, request)
            )
            return tagged(request, answer)

        return endpoint

    def _of_list(self, lister: Lister, frame: Frame | None = None) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            return await self._list(request, lister, frame)

        return endpoint

    async def _list(self, request: Request, lister: Lister, frame: Frame | None = None) -> Response:
        """Return a page of the list if the request has a limit, else the whole list.

        lister: returns a part of the list. frame: the document around the list; None for a list alone.
        """
        most, mark = page_of(request)
        reader, peer = self._controller.snapshot_reader, peer_of(request)
        try:
            answer = await reader.page(peer, key_of_now(request), lister, mark, most or SLICE, frame)
        except lists.MarkError as error:
            raise RefusedError(400, f"continue: not a value from this list's Link header: {error}") from None
        if most is None and answer.rest is not None:
            whole = ended_by_bug(
                reader.whole(peer, key_of_now(request), lister, frame), self._controller.failures, "api", again=True
            )
            return StreamingResponse(whole, headers={"cache-control": "no-store"}, media_type="application/json")
        response = tagged(request, answer)
        if answer.rest is not None:
            response.headers["link"] = next_link(request, lists.mark_text(answer.rest))
        return response

    async def list_jobs(self, request: Request) -> Response:
        """Return a response with the jobs that the request's query selects."""
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
        reader, speeds = self._controller.snapshot_reader, await self._controller.shared_speeds()
        answer = await reader.document(
            peer_of(request), key_of_now(request), lambda listing: self._overview_document(listing, speeds)
        )
        return tagged(request, answer)

    def _overview_document(self, listing: Listing, speeds: Mapping[str, Speed]) -> documents.Document:
        document = views.overview(listing.state, speeds, time.time_ns(), listing.reasons, listing.kept)
        known = {job["job"]: speeds[job["job"]] for job in document["running"] if job["job"] in speeds}
        return document | {
            "silent_agents": documents.silent_agents(self._controller.agent_statuses(), listing.present),
            "step_seconds": {job: speed.seconds for job, speed in known.items()},
            "last_step_ns": {job: speed.end_ns for job, speed in known.items()},
            "troubles": self._controller.troubles(),
        }

    async def _pace(self, request: Request) -> Response:
        since = number_of(request, "since", None, 0, 1 << 62)
        job = await self._controller.snapshot_reader.ask(
            peer_of(request), lambda listing: job_of(listing.state, request).job_id
        )
        pace = await run_in_threadpool(self._controller.pace_of, job, -1 if since is None else since)
        if pace is None:
            raise RefusedError(404, f"no step of {job} was received")
        return json_response(
            await self._controller.snapshot_reader.make(peer_of(request), lambda: paces.document(pace, ()))
        )


def _job_document(listing: Listing, job: Job) -> documents.Document:
    verdicts = [listing.encoded_verdict(*one) for one in listing.verdicts_of.get(job.job_id, ())]
    return documents.job_document(listing.state, job, verdicts, listing.reasons_for(job))


def _explained(listing: Listing, request: Request) -> Explanation:
    job_id: str = request.path_params["job"]
    explanation = listing.explain(job_id)
    if explanation is None:
        raise no_job(job_id)
    return explanation


def _left_on(listing: Listing, request: Request) -> documents.Document:
    name: str = request.path_params["node"]
    if name not in listing.state.nodes:
        raise RefusedError(404, f"no node {name}")
    return documents.left_on(listing.state, name)


def shown_to(reader: Principal, lister: Lister) -> Lister:
    """Return a function that lists the same jobs, without the fields that this reader may not see."""

    def shown_list(listing: Listing, mark: Mark | None, most: int) -> Slice:
        part = lister(listing, mark, most)
        return Slice([shown(document, reader) for document in part.items], part.mark)

    return shown_list


def shown(document: documents.Document, reader: Principal) -> documents.Document:
    """Return a job's document without the fields that this reader may not see."""
    return document if reader.sees(document["user"]) else hide(document)
