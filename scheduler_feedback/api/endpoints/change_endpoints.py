"""Endpoints that change something: submit or cancel a job, command a node, review a verdict, freeze, thaw, reload."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent.schema.errors import SubmissionError
from scheduler_feedback.api import documents as documents
from scheduler_feedback.api.access.middleware import note, principal_of
from scheduler_feedback.api.access.principal import Role
from scheduler_feedback.api.control import Control
from scheduler_feedback.api.endpoints.routing import job_of, json_response, route
from scheduler_feedback.api.requests import NodeReason, Reason, RefusedError, Submission, body_of, submitted_by
from scheduler_feedback.core.events import CancelRequested, Event, NodeCommand, NodeCommanded, Submitted, VerdictJudged
from scheduler_feedback.core.state import State
from scheduler_feedback.cycle import admit_check
from scheduler_feedback.policies.intake.user_requests import array_members
from scheduler_feedback.policies.nodes.draining import why_not_removed


class ChangeEndpoints:
    """Endpoints that turn a user's request into an event, which the cycle's thread checks against the current state."""

    def __init__(self, controller: Control) -> None:
        self._controller = controller

    def routes(self) -> Iterator[Route]:
        """Yield the routes of this class, except ``submit``, which shares its path with the list of jobs."""
        yield route("/api/jobs/{job}/cancel", self._cancel, Role.SUBMITTER, "cancelling a job", "POST")
        for path, post, what in (
            ("/api/nodes/{node}/{command}", self._command_node, "commanding a node"),
            ("/api/verdicts/{verdict:path}/{ruling}", self._judge, "ruling on a verdict"),
            ("/api/freeze", self._freeze, "freezing the scheduler"),
            ("/api/thaw", self._thaw, "thawing the scheduler"),
            ("/api/reload", self._reload, "reloading the configuration"),
        ):
            yield route(path, post, Role.OPERATOR, what, "POST")

    async def submit(self, request: Request) -> Response:
        """Submit the job in the request's body."""
        if self._controller.submit_with:
            raise RefusedError(409, self._controller.submit_with)
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
        return json_response({"job": submitted.job_id}, 201)

    async def _cancel(self, request: Request) -> Response:
        reason, who = await body_of(request, Reason), principal_of(request)

        def make(state: State) -> Event:
            job_id: str = request.path_params["job"]
            jobs = [state.jobs[member] for member in array_members(state, job_id)] or [job_of(state, request)]
            for job in jobs:
                who.require_own(job.spec.user, f"cancelling {job_id}")
            if all(job.state.ended for job in jobs):
                raise RefusedError(409, f"{job_id} has already ended: {jobs[0].state.value}")
            return CancelRequested(job_id, who.signature(reason.by))

        await self._perform(make)
        return json_response({"job": request.path_params["job"]})

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
        return json_response({"node": name, "command": word} | left)

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
        return json_response({"verdict_id": verdict_id, "ruling": ruling})

    async def _freeze(self, request: Request) -> Response:
        warning = await self._controller.freeze(_signed(request, await body_of(request, Reason)))
        return json_response({"frozen": True, "warning": warning} if warning else {"frozen": True})

    async def _thaw(self, request: Request) -> Response:
        await self._controller.thaw(_signed(request, await body_of(request, Reason)))
        return json_response({"frozen": False})

    async def _reload(self, request: Request) -> Response:
        await self._controller.reload(_signed(request, await body_of(request, Reason)))
        return json_response({"reloaded": True})

    async def _perform(self, make: Callable[[State], Event]) -> Event:
        return await asyncio.wrap_future(self._controller.cycle.request(make))


def _signed(request: Request, reason: Reason) -> str:
    """Return the user that the story names, and note the name and the reason of the request for the audit log."""
    note(request, **{key: text for key, text in (("claimed", reason.by), ("reason", reason.reason)) if text})
    return principal_of(request).signature(reason.by)


def _known(state: State, job_id: str) -> bool:
    """Return whether the state has a job or an array with this id."""
    return job_id in state.jobs or bool(array_members(state, job_id))


def _is_known(state: State, verdict_id: str) -> bool:
    """Return whether the id belongs to a known verdict, active or past, or one recorded with a node or a decision."""
    return (
        verdict_id in state.verdicts
        or verdict_id in state.judged
        or any(past.verdict.verdict_id == verdict_id for past in state.past_verdicts)
        or any(node.verdict_id == verdict_id for node in state.nodes.values())
        or any(decision.verdict_id == verdict_id for decision in state.decisions)
    )
