"""Endpoints that read records: stories, the journal, logs of ranks, and new log entries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from scheduler_feedback.api import documents as documents
from scheduler_feedback.api import event_streams
from scheduler_feedback.api.access.middleware import current_principal, note, principal_of, sensitive
from scheduler_feedback.api.access.principal import AccessError, Role
from scheduler_feedback.api.control import Control
from scheduler_feedback.api.endpoints.routing import FRESH, job_of, json_response, no_job, route
from scheduler_feedback.api.error_barrier import ended_by_bug
from scheduler_feedback.api.list_pages import EventStream, entry_of, next_link, page_of, peer_of
from scheduler_feedback.api.rank_log_tail import tail_of
from scheduler_feedback.api.reading import lists
from scheduler_feedback.api.requests import RefusedError, number_of
from scheduler_feedback.api.stories import Story
from scheduler_feedback.api.subscribers import FullError
from scheduler_feedback.core.job import Job

STORY_SLICE, JOURNAL_SLICE, JOURNAL_BLOCKS = 200, 200, 16
"""Maximum number of items that one read fetches: entries of a story, cycles of the journal, blocks of the journal."""

DEFAULT_TAIL, MAX_TAIL = 100, 10_000
"""Number of log lines in a response: the default, and the maximum that `tail` may request."""


class JournalEndpoints:
    """Endpoints that read the journal and log files."""

    def __init__(self, controller: Control) -> None:
        self._controller = controller

    def routes(self) -> Iterator[Route]:
        """Yield the routes of this class."""
        yield route("/api/jobs/{job}/story", self._job_story)
        yield route("/api/nodes/{node}/story", self._node_story)
        yield route("/api/events", self._events)
        yield route("/api/jobs/{job}/logs", self._logs, Role.VIEWER, "reading a job's logs")
        yield route("/api/jobs/{job}/stacks", self._stacks, Role.VIEWER, "reading a job's stacks")
        yield route("/api/journal", self._journal, Role.OPERATOR, "reading the journal")

    async def _job_story(self, request: Request) -> Response:
        job_id: str = request.path_params["job"]
        story = Story(self._controller.store, job_id)
        return await self._story(request, story.page, no_job(job_id))

    async def _node_story(self, request: Request) -> Response:
        node: str = request.path_params["node"]

        def page(after: int, most: int) -> list[documents.Document]:
            entries = self._controller.store.entries_of(f"node:{node}", after, most)
            return [documents.entry_document(entry) for entry in entries]

        return await self._story(request, page, RefusedError(404, f"no node {node}"))

    async def _story(
        self, request: Request, page: Callable[[int, int], Sequence[documents.Document]], unknown: RefusedError
    ) -> Response:
        """Return the entries of a story, the oldest first: one page if the request has a limit, else all entries."""
        reader, peer = self._controller.snapshot_reader, peer_of(request)
        most, mark = page_of(request)
        after = entry_of(mark)

        def content(after: int, most: int) -> tuple[bytes, int | None]:
            entries = page(after, most + 1)
            last = entries[most - 1]["id"] if len(entries) > most else None
            return msgspec.json.encode(entries[:most])[1:-1], last

        found, rest = await reader.read(peer, partial(content, after, most or STORY_SLICE))
        if not found and mark is None:
            raise unknown
        if rest is None or most is not None:
            response = Response(b"[%b]" % found, headers=FRESH, media_type="application/json")
            if rest is not None:
                response.headers["link"] = next_link(request, lists.mark_text([rest]))
            return response

        async def whole() -> AsyncIterator[bytes]:
            yield b"[" + found
            left: int | None = rest
            while left is not None:
                more, left = await reader.read(peer, partial(content, left, STORY_SLICE), patient=True)
                yield b"," + more
            yield b"]"

        stream = ended_by_bug(whole(), self._controller.failures, "api", again=True)
        return StreamingResponse(stream, headers=FRESH, media_type="application/json")

    async def _logs(self, request: Request) -> Response:
        lines = number_of(request, "tail", DEFAULT_TAIL, 0, MAX_TAIL)
        rank = number_of(request, "rank", 0, 0, 1 << 20)
        place = await self._controller.snapshot_reader.ask(
            peer_of(request), lambda listing: _place_of_logs(job_of(listing.state, request))
        )
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
            text = await self._controller.snapshot_reader.read(peer_of(request), lambda: tail_of(path, lines))
        except FileNotFoundError:
            raise RefusedError(404, f"rank {rank} of {job_id} has no log of attempt {attempt}") from None
        return json_response({"job": job_id, "attempt": attempt, "rank": rank, "text": text})

    async def _stacks(self, request: Request) -> Response:
        """Return where the ranks of an attempt were blocked when it hung. The stacks name the program's files."""
        job_id, _, newest, user = await self._controller.snapshot_reader.ask(
            peer_of(request), lambda listing: _place_of_logs(job_of(listing.state, request))
        )
        sensitive(request)
        note(request, job=job_id, user=user)
        if not principal_of(request).sees(user):
            raise AccessError(403, f"only its user ({user or 'none'}) and operators may read the stacks of {job_id}")
        if newest < 1:
            raise RefusedError(404, f"{job_id} has not started")
        attempt = number_of(request, "attempt", newest, 1, newest)
        assert attempt is not None
        found = await self._controller.snapshot_reader.read(
            peer_of(request), lambda: self._controller.hang_of(job_id, attempt)
        )
        if found is None:
            raise RefusedError(404, f"no hang of attempt {attempt} of {job_id} was saved")
        return json_response(found)

    async def _journal(self, request: Request) -> Response:
        sensitive(request)
        reader, peer, store = self._controller.snapshot_reader, peer_of(request), self._controller.store
        begin = await reader.read(peer, store.journal_extent)
        cycles, counted = 0, begin.after
        while counted < begin.last:
            count = partial(store.journal_count, counted, begin.last, JOURNAL_BLOCKS)
            more, counted = await reader.read(peer, count, patient=True)
            cycles += more

        def part(after: int) -> tuple[bytes, int | None]:
            rows = store.journal_part(after, begin.last, JOURNAL_SLICE)
            lines = [msgspec.json.encode(documents.journal_document(row)) + b"\n" for row in rows]
            return b"".join(lines), rows[-1].cycle if len(rows) == JOURNAL_SLICE else None

        async def lines() -> AsyncIterator[bytes]:
            yield msgspec.json.encode({"complete": begin.complete, "cycles": cycles}) + b"\n"
            after: int | None = begin.after
            while after is not None:
                content, after = await reader.read(peer, partial(part, after), patient=True)
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


def _place_of_logs(job: Job) -> tuple[str, int, int, str]:
    return job.job_id, job.spec.ranks, job.attempt, job.spec.user
