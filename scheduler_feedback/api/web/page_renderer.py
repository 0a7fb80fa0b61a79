"""Renderings of pages. Readers of the same page share each rendering and its stories."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from urllib.parse import quote, urlencode

from starlette.concurrency import run_in_threadpool

from scheduler_feedback.api import documents as documents
from scheduler_feedback.api.access.authentication import Authentication
from scheduler_feedback.api.reading.listing import Listing
from scheduler_feedback.api.reading.snapshot_reader import SnapshotReader
from scheduler_feedback.api.requests import RefusedError
from scheduler_feedback.api.stories import Story
from scheduler_feedback.api.subscribers import Subscribers
from scheduler_feedback.api.web import elements, job_page, lists_page, node_page, overview, paces, views
from scheduler_feedback.api.web.markup import Markup
from scheduler_feedback.core.disclosure import hide
from scheduler_feedback.core.telemetry.steps.pace import MOST_ROWS, NEWEST_ROWS, Pace, Speed
from scheduler_feedback.feed.agent_reporting import AgentStatuses
from scheduler_feedback.journal.store import Reader
from scheduler_feedback.part_failures import PartFailures

RENDER_SECONDS = 1.0
"""Seconds between two renderings of a page while no log entry is written. Agents send frames at this interval."""
MOST_KEPT = 64
"""Maximum number of pages whose newest rendering is kept for other readers."""

MOST_ENTRIES, MOST_LATEST = 200, 20
"""Maximum number of entries that a page shows: of a story, and of the latest events on the overview."""


class Source(Protocol):
    """Methods and attributes of a controller that the pages use."""

    snapshot_reader: SnapshotReader
    subscribers: Subscribers
    failures: PartFailures
    access: Authentication

    @property
    def store(self) -> Reader: ...

    def pace_of(self, gang: str, sequence: int = -1, most: int = MOST_ROWS) -> Pace | None: ...
    async def shared_speeds(self) -> Mapping[str, Speed]: ...
    def agent_statuses(self) -> AgentStatuses: ...
    def troubles(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class View:
    """The page that a reader has open, with its filter."""

    kind: str
    """Kind of the page: 'overview', 'jobs', 'nodes', 'job' or 'node'."""
    name: str = ""
    """Name of the job or node; '' for other kinds of pages."""
    state: str = ""
    words: str = ""
    page: int = 1
    all_jobs: bool = False
    """For a job's page: whether the reader may see the private fields of every job. If False, only of the jobs of
    `user`."""
    user: str = ""

    @property
    def query(self) -> dict[str, str]:
        """Query parameters that filter the list of jobs or nodes."""
        return {key: value for key, value in (("state", self.state), ("words", self.words)) if value}

    @property
    def stream(self) -> str:
        """Path of the page's event stream."""
        if self.kind in ("job", "node"):
            return f"/live/{self.kind}s/{quote(self.name, safe='')}"
        if self.kind == "overview":
            return "/live/"
        return f"/live/{self.kind}?{urlencode({**self.query, 'page': self.page})}"


@dataclass(frozen=True, slots=True)
class Rendering:
    """Parts of a page as HTML, all from one time. For a job's page also the ranks with a verdict and the end of the
    job."""

    parts: dict[str, Markup]
    accused: tuple[int, ...] = ()
    has_pace: bool = False
    ended_ns: int | None = None


class PageRenderer:
    """Renderer of pages. Readers of the same page share its renderings."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._renderings: OrderedDict[View, tuple[float, asyncio.Task[Rendering]]] = OrderedDict()
        self._stories: OrderedDict[str, tuple[int, list[documents.Document]]] = OrderedDict()

    async def render(self, view: View, not_before_s: float, peer: str) -> Rendering:
        """Return a rendering of the page that is not older than `not_before_s` (monotonic seconds).

        The work counts for the peer, unless a rendering for another reader can be used. Raise RefusedError if there is
        no such page.
        """
        kept = self._renderings.get(view)
        if kept is None or kept[0] < not_before_s:
            task = asyncio.ensure_future(self._render_page(view, peer))
            # The reader may have disconnected by then. A later reader of this rendering gets its exception.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            kept = self._renderings[view] = time.monotonic(), task
            self._renderings.move_to_end(view)
            while len(self._renderings) > MOST_KEPT:
                self._renderings.popitem(last=False)
        return await asyncio.shield(kept[1])

    async def _render_page(self, view: View, peer: str) -> Rendering:
        rendered = await self._render_parts(view, peer)
        troubles = self._source.troubles()
        silent = await self._source.snapshot_reader.ask(
            peer, lambda listing: documents.silent_agents(self._source.agent_statuses(), listing.present)
        )
        rendered.parts[elements.TROUBLES] = elements.troubles(troubles, silent)
        return rendered

    async def _render_parts(self, view: View, peer: str) -> Rendering:
        match view.kind:
            case "overview":
                return await self._overview(peer)
            case "jobs":
                return await self._jobs(view, peer)
            case "nodes":
                return await self._nodes(view, peer)
            case "node":
                return await self._node(view, peer)
        return await self._job(view, peer)

    async def _overview(self, peer: str) -> Rendering:
        speeds, now_ns = await self._source.shared_speeds(), time.time_ns()
        latest = await self._source.snapshot_reader.read(peer, self._latest)

        def whole(listing: Listing) -> Rendering:
            document = views.overview(listing.state, speeds, now_ns, listing.reasons, listing.kept)
            return Rendering(overview.parts(document, latest, speeds, now_ns))

        return await self._source.snapshot_reader.ask(peer, whole)

    async def _jobs(self, view: View, peer: str) -> Rendering:
        speeds, now_ns = await self._source.shared_speeds(), time.time_ns()

        def jobs(listing: Listing) -> Rendering:
            document = views.jobs_page(listing.state, view.state, view.words, view.page)
            return Rendering(lists_page.job_parts(document, view.query, speeds, now_ns))

        return await self._source.snapshot_reader.ask(peer, jobs)

    async def _nodes(self, view: View, peer: str) -> Rendering:
        def nodes(listing: Listing) -> Rendering:
            document = views.nodes_page(listing.state, view.state, view.words, view.page)
            document["nodes"] = documents.with_agent_status(document["nodes"], self._source.agent_statuses())
            return Rendering(lists_page.node_parts(document, view.query))

        return await self._source.snapshot_reader.ask(peer, nodes)

    async def _node(self, view: View, peer: str) -> Rendering:
        reader = self._source.snapshot_reader
        found = await reader.ask(peer, lambda listing: views.node_page(listing.state, view.name))
        if found is None:
            raise RefusedError(404, f"no node {view.name}")
        (found,) = documents.with_agent_status([found], self._source.agent_statuses())
        story = await reader.read(peer, lambda: self._story(f"node:{view.name}"))
        speeds, now_ns = await self._source.shared_speeds(), time.time_ns()
        return Rendering(await reader.make(peer, partial(node_page.parts, found, story, speeds, now_ns)))

    async def _job(self, view: View, peer: str) -> Rendering:
        reader = self._source.snapshot_reader
        pace = await run_in_threadpool(self._source.pace_of, view.name, -1, NEWEST_ROWS)
        summary = None if pace is None else await reader.make(peer, partial(paces.summary, pace))
        slowest = () if summary is None else summary["slowest"]
        found = await reader.ask(
            peer, lambda listing: views.job_page(listing.state, view.name, slowest, listing.reasons, listing.explain)
        )
        if found is None:
            raise RefusedError(404, f"no job {view.name}")
        if not (view.all_jobs or (view.user and view.user == found["user"])):
            found = hide(found)
        story = await reader.read(peer, lambda: self._story(view.name))
        accused = tuple(found["accused"][: paces.MOST_ACCUSED])
        made = await reader.make(peer, partial(job_page.parts, found, story, summary, time.time_ns()))
        return Rendering(made, accused, pace is not None, found["ended_ns"])

    def _latest(self) -> list[documents.Document]:
        store = self._source.store
        entries = store.entries_after(max(store.newest_entry_id() - MOST_LATEST, 0))
        return [documents.entry_document(entry) for entry in reversed(entries)]

    def _story(self, subject: str) -> list[documents.Document]:
        """Return the newest log entries of the subject, newest first. They are read again only after new entries."""
        store = self._source.store
        newest = self._source.subscribers.newest
        if newest is None:
            newest = store.newest_entry_id()
        kept = self._stories.get(subject)
        if kept is None or kept[0] != newest:
            if subject.startswith("node:"):
                whole = [(subject, 0, 2**63 - 1)]
                entries = store.entries_of_all(whole, most=MOST_ENTRIES, newest=True)
                entries_shown = [documents.entry_document(entry) for entry in entries]
            else:
                entries_shown = Story(store, subject).newest(MOST_ENTRIES)
            kept = newest, entries_shown
            self._stories[subject] = kept
            while len(self._stories) > MOST_KEPT:
                self._stories.popitem(last=False)
        return kept[1]
