"""Routes of the pages: whole pages, streams of their changed parts, and static files.

A stream renders its page again at once when entries were written, and once a second for values without entries (step
times, the queue). Streams of the same page share each rendering. The pages are read-only: their buttons send requests
to the API.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scheduler_feedback.api import documents as documents
from scheduler_feedback.api.access.authentication import Authentication
from scheduler_feedback.api.access.middleware import credentials_of, current_principal, principal_of
from scheduler_feedback.api.access.principal import Principal, Role
from scheduler_feedback.api.error_barrier import ended_by_bug
from scheduler_feedback.api.event_streams import entries_after, newest_entry
from scheduler_feedback.api.list_pages import EventStream, peer_of
from scheduler_feedback.api.reading.listing import Listing
from scheduler_feedback.api.reading.snapshot_reader import SnapshotReader
from scheduler_feedback.api.requests import RefusedError, check_origin, number_of
from scheduler_feedback.api.stories import Story
from scheduler_feedback.api.subscribers import FullError, Subscribers, Subscription
from scheduler_feedback.api.web import frame, job, lists, node, overview, paces, views
from scheduler_feedback.api.web.markup import Markup, join, tag
from scheduler_feedback.core.disclosure import hide
from scheduler_feedback.core.telemetry.pace import MOST_ROWS, NEWEST_ROWS, Pace, Speed
from scheduler_feedback.feed.agent_reporting import AgentStatus
from scheduler_feedback.journal.store import NumberedEntry, Reader
from scheduler_feedback.part_failures import PartFailures, in_words

RENDER_SECONDS = 1.0
"""Interval between two renderings while no entry is written; agents send frames at the same interval."""

GATHER_SECONDS = 0.1
"""Delay after a new entry, so that one rendering shows what one or two cycles write."""

HEARTBEAT_SECONDS = 15.0
"""Interval of heartbeats on an idle stream. Proxies usually close a connection after 60 s without data."""

MOST_KEPT = 64
"""Renderings kept for streams of the same page. Streams are limited to the same number."""

MOST_ENTRIES, MOST_LATEST = 200, 20
"""Entries of a story, and of the overview."""

MOST_NEWS = 3
"""Entries announced to a screen reader at a time."""

NEWS = frozenset(
    {
        "verdict",
        "verdict-refused",
        "cleared",
        "migrate",
        "restart",
        "quarantine",
        "rank-failed",
        "ended",
        "frozen",
        "thawed",
    }
)
"""Kinds of entries that a screen reader announces."""

HEADERS = {
    # No inline script or style, nothing from other servers, and no embedding in a frame.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

_FOLDER = Path(__file__).parent
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class Source(Protocol):
    """The parts of a controller that the pages need."""

    snapshot_reader: SnapshotReader
    subscribers: Subscribers
    failures: PartFailures
    access: Authentication

    @property
    def store(self) -> Reader: ...

    def pace_of(self, gang: str, sequence: int = -1, most: int = MOST_ROWS) -> Pace | None: ...
    async def shared_speeds(self) -> Mapping[str, Speed]: ...
    def shared_agent_statuses(self) -> Mapping[str, AgentStatus]: ...


@dataclass(frozen=True, slots=True)
class View:
    """Identity of a page."""

    kind: str
    """'overview', 'jobs', 'nodes', 'job' or 'node'."""
    name: str = ""
    """Name of the job or node; '' for other kinds. The fields below narrow a list."""
    state: str = ""
    words: str = ""
    page: int = 1
    all_jobs: bool = False
    """For a job's page: whether the reader may see the private fields of every job, or only of jobs of `user`."""
    user: str = ""

    @property
    def query(self) -> dict[str, str]:
        """Query parameters that narrow the list."""
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
    """A page's parts at one point in time; for a job also the ranks with a verdict and the end time."""

    parts: dict[str, Markup]
    accused: tuple[int, ...] = ()
    has_pace: bool = False
    ended_ns: int | None = None


class Pages:
    """All pages of one controller."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._renderings: OrderedDict[View, tuple[float, asyncio.Task[Rendering]]] = OrderedDict()
        self._stories: OrderedDict[str, tuple[int, list[documents.Document]]] = OrderedDict()

    def routes(self) -> Iterator[Route]:
        """Yield the routes of all pages. The server has already checked who may read them."""
        for path, kind in (
            ("/", "overview"),
            ("/jobs", "jobs"),
            ("/jobs/{name}", "job"),
            ("/nodes", "nodes"),
            ("/nodes/{name}", "node"),
        ):
            yield Route(path, self._page(kind), methods=["GET"])
            yield Route(f"/live{path}", self._live(kind), methods=["GET"])
        yield Route("/static/{name}", _static, methods=["GET"])

    # --- a page -------------------------------------------------------------------------------------------------------

    def _page(self, kind: str) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            check_origin(request)
            view, visitor = _view(kind, request), visitor_of(request, self._source.access)
            try:
                rendered = await self._render(view, time.monotonic() - RENDER_SECONDS, peer_of(request))
            except RefusedError as error:
                nothing = tag("section", tag("h1", str(error)), class_="panel")
                return _html(frame.page("Not found", "", "", nothing, visitor=visitor), 404)
            return _html(_whole(view, rendered, visitor))

        return endpoint

    # --- its stream ---------------------------------------------------------------------------------------------------

    def _live(self, kind: str) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            check_origin(request)
            view = _view(kind, request)
            subscribers, peer = self._source.subscribers, peer_of(request)
            await self._render(view, time.monotonic() - RENDER_SECONDS, peer)  # raises if there is no such page
            try:
                subscription = subscribers.open(peer)
            except FullError as error:
                raise RefusedError(503 if subscribers.closed else 429, str(error)) from None
            stream = ended_by_bug(self._stream(view, subscription, request), self._source.failures, "page")
            return EventStream(stream, lambda: subscribers.remove(subscription))

        return endpoint

    async def _stream(self, view: View, subscription: Subscription, request: Request) -> AsyncIterator[bytes]:
        """Yield events for changed parts until the reader's rights change. The browser then reconnects with new
        rights."""
        peer, rights = peer_of(request), _rights(principal_of(request))
        try:
            yield b"retry: 1000\n\n"
            sent: dict[str, Markup] = {}
            drawn = _Drawn()
            since = await newest_entry(self._source, peer)
            sent_s = not_before_s = time.monotonic()
            while not subscription.ended and _rights(await current_principal(request, self._source.access)) == rights:
                rendered = await self._render(view, not_before_s, peer)
                for name, markup in rendered.parts.items():
                    if sent.get(name) != markup:
                        sent[name] = markup
                        yield _event("part", {"name": name, "html": str(markup)})
                        sent_s = time.monotonic()
                if (
                    view.kind == "job"
                    and (document := await self._drawing(view.name, rendered, drawn, peer)) is not None
                ):
                    yield _event("pace", document)
                    sent_s = time.monotonic()
                if subscription.wake.is_set():
                    subscription.wake.clear()
                    written, _ = await entries_after(self._source, peer, since)
                    entries = [one.numbered for one in written]
                    since = entries[-1].entry_id if entries else since
                    if news := _news(view, entries):
                        yield _event("news", {"text": news})
                if time.monotonic() - sent_s > HEARTBEAT_SECONDS:
                    yield _event("alive", {})
                    sent_s = time.monotonic()
                not_before_s = await _due(subscription)
        finally:
            self._source.subscribers.remove(subscription)

    async def _drawing(self, name: str, rendered: Rendering, drawn: _Drawn, peer: str) -> documents.Document | None:
        """Return the rows that the page's drawings lack, or None. `whole` in it: draw from the beginning."""
        pace = await run_in_threadpool(self._source.pace_of, name, drawn.sequence)
        if pace is None:
            return None
        of = pace.attempt, len(pace.ranks), rendered.accused, rendered.ended_ns
        whole = of != drawn.of
        if whole:
            drawn.of = of
            pace = await run_in_threadpool(self._source.pace_of, name) or pace
        made = await self._source.snapshot_reader.make(
            peer, partial(paces.document, pace, rendered.accused, time.time_ns(), rendered.ended_ns)
        )
        drawn.sequence = made["sequence"] if made["at"] else drawn.sequence
        return {**made, "whole": whole} if whole or made["at"] else None

    # --- rendering
    # ------------------------------------------------------------------------------------------------------

    async def _render(self, view: View, not_before_s: float, peer: str) -> Rendering:
        """Return the page as rendered after `not_before_s` (monotonic). The cost counts for the peer, unless a
        rendering for another reader can be used. Raise RefusedError if there is no such page."""
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
        troubles = [in_words(one) for one in self._source.failures.troubles()]
        silent = await self._source.snapshot_reader.ask(
            peer, lambda listing: documents.silent_agents(self._source.shared_agent_statuses(), listing.present)
        )
        rendered.parts[frame.TROUBLES] = frame.troubles(troubles, silent)
        return rendered

    async def _render_parts(self, view: View, peer: str) -> Rendering:
        reader = self._source.snapshot_reader
        match view.kind:
            case "overview":
                speeds, now_ns = await self._source.shared_speeds(), time.time_ns()
                latest = await reader.read(peer, self._latest)

                def whole(listing: Listing) -> Rendering:
                    document = views.overview(listing.state, speeds, now_ns, listing.reasons)
                    return Rendering(overview.parts(document, latest, speeds, now_ns))

                return await reader.ask(peer, whole)
            case "jobs":
                speeds, now_ns = await self._source.shared_speeds(), time.time_ns()

                def jobs(listing: Listing) -> Rendering:
                    document = views.jobs_page(listing.state, view.state, view.words, view.page)
                    return Rendering(lists.job_parts(document, view.query, speeds, now_ns))

                return await reader.ask(peer, jobs)
            case "nodes":

                def nodes(listing: Listing) -> Rendering:
                    document = views.nodes_page(listing.state, view.state, view.words, view.page)
                    document["nodes"] = documents.with_agent_status(
                        document["nodes"], self._source.shared_agent_statuses()
                    )
                    return Rendering(lists.node_parts(document, view.query))

                return await reader.ask(peer, nodes)
            case "node":
                found = await reader.ask(peer, lambda listing: views.node_page(listing.state, view.name))
                if found is None:
                    raise RefusedError(404, f"no node {view.name}")
                (found,) = documents.with_agent_status([found], self._source.shared_agent_statuses())
                story = await reader.read(peer, lambda: self._story(f"node:{view.name}"))
                speeds, now_ns = await self._source.shared_speeds(), time.time_ns()
                return Rendering(await reader.make(peer, partial(node.parts, found, story, speeds, now_ns)))
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
        made = await reader.make(peer, partial(job.parts, found, story, summary, time.time_ns()))
        return Rendering(made, accused, pace is not None, found["ended_ns"])

    def _latest(self) -> list[documents.Document]:
        store = self._source.store
        entries = store.entries_after(max(store.newest_entry_id() - MOST_LATEST, 0))
        return [documents.entry_document(entry) for entry in reversed(entries)]

    def _story(self, subject: str) -> list[documents.Document]:
        """Return the newest entries, newest first. Read them again only after new entries were written."""
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


@dataclass(slots=True)
class _Drawn:
    """The rows that a stream has sent: (attempt, ranks, accused, end) of the drawing, and the last row's sequence."""

    of: tuple[int, int, tuple[int, ...], int | None] | None = None
    sequence: int = -1


# --- parts -----------------------------------------------------------------------------------------------------------


def _view(kind: str, request: Request) -> View:
    """Return the view of a request. Raise RefusedError if its page is not a number."""
    if kind == "job":
        reader = principal_of(request)
        everything = reader.role >= Role.OPERATOR
        user = reader.user if reader.logged_in and not everything else ""
        return View(kind, request.path_params["name"], all_jobs=everything, user=user)
    if kind == "node":
        return View(kind, request.path_params["name"])
    if kind == "overview":
        return View(kind)
    query = request.query_params
    page = number_of(request, "page", 1, 1, 1_000_000)
    assert page is not None
    return View(kind, "", query.get("state", "")[:40], query.get("words", "")[:100], page)


def visitor_of(request: Request, access: Authentication) -> frame.Visitor:
    """Return the reader of the page that this request is for."""
    principal = principal_of(request)
    session = access.session_of(credentials_of(request.scope)) if principal.by_cookie else None
    name = principal.name if principal.logged_in else ""
    return frame.Visitor(name, session.csrf if session is not None else "", request.url.path)


def _rights(principal: Principal) -> tuple[str, Role]:
    return principal.user, principal.role


def _whole(view: View, rendered: Rendering, visitor: frame.Visitor) -> Markup:
    stream = view.stream

    def page(
        title: str, here: str, main: Markup, scripts: tuple[str, ...] = (), modules: tuple[str, ...] = ()
    ) -> Markup:
        whole = join((frame.live(frame.TROUBLES, rendered.parts), main))
        return frame.page(title, here, stream, whole, scripts, modules, visitor)

    match view.kind:
        case "overview":
            return page("Overview", "/", overview.main(rendered.parts))
        case "jobs":
            return page("Jobs", "/jobs", lists.job_main(rendered.parts, view.query))
        case "nodes":
            return page("Nodes", "/nodes", lists.node_main(rendered.parts, view.query))
        case "node":
            return page(view.name, "/nodes", node.main(rendered.parts))
    return page(view.name, "/jobs", job.main(rendered.parts, rendered.has_pace), ("uPlot.iife.min.js",), ("pace.js",))


def _html(markup: Markup, status: int = 200) -> Response:
    return Response(markup, status, {**HEADERS, "cache-control": "no-store"}, media_type="text/html")


def _event(name: str, document: documents.Document) -> bytes:
    return b"event: %s\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(document))


def _news(view: View, entries: list[NumberedEntry]) -> str:
    """Return the text of the entries to announce on that page; '' for none."""
    subject = {"job": view.name, "node": f"node:{view.name}"}.get(view.kind)
    announced = [one.entry for one in entries if one.entry.kind in NEWS and subject in (None, one.entry.subject)]
    words = [f"{entry.subject.removeprefix('node:')}: {entry.text}" for entry in announced[-MOST_NEWS:]]
    return ". ".join([*words, f"and {len(announced) - MOST_NEWS} more"] if len(announced) > MOST_NEWS else words)


async def _due(subscription: Subscription) -> float:
    """Wait until the next rendering is due; return the earliest time (monotonic) of a rendering that is recent
    enough."""
    try:
        await asyncio.wait_for(subscription.wake.wait(), RENDER_SECONDS)
    except TimeoutError:
        return time.monotonic() - RENDER_SECONDS / 2
    woken_s = time.monotonic()
    await asyncio.sleep(GATHER_SECONDS)
    return woken_s


# --- files -----------------------------------------------------------------------------------------------------------


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Return content, type and tag of every file that a page may load, by name."""
    found = {}
    for folder in ("static", "vendored"):
        for path in (_FOLDER / folder).iterdir():
            if path.suffix in _TYPES:
                content = path.read_bytes()
                found[path.name] = content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return found


async def _static(request: Request) -> Response:
    check_origin(request)
    file = _files().get(request.path_params["name"])
    if file is None:
        raise RefusedError(404, "no such file")
    content, kind, mark = file
    headers = {**HEADERS, "cache-control": "no-cache", "etag": mark}
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=kind)
