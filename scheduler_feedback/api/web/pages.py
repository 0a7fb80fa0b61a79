"""Routes of the pages: whole pages, and streams of their changed parts.

A stream renders its page again at once when entries were written, and once a second for values without entries (step
times, the queue). Streams of the same page share each rendering. The pages are read-only: their buttons send requests
to the API.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scheduler_feedback.api import documents as documents
from scheduler_feedback.api.access.middleware import current_principal, principal_of
from scheduler_feedback.api.access.principal import Principal, Role
from scheduler_feedback.api.error_barrier import ended_by_bug
from scheduler_feedback.api.event_streams import entries_after, newest_entry
from scheduler_feedback.api.list_pages import EventStream, peer_of
from scheduler_feedback.api.requests import RefusedError, check_origin, number_of
from scheduler_feedback.api.subscribers import FullError, Subscription
from scheduler_feedback.api.web import elements, job_page, lists_page, node_page, overview, paces
from scheduler_feedback.api.web.markup import Markup, join, tag
from scheduler_feedback.api.web.page_renderer import RENDER_SECONDS, PageRenderer, Rendering, Source, View
from scheduler_feedback.api.web.page_responses import html, static_file, visitor_of
from scheduler_feedback.journal.store import NumberedEntry

GATHER_SECONDS = 0.1
"""Seconds to wait after a new entry before a page is rendered, so that one rendering shows several new entries."""

HEARTBEAT_SECONDS = 15.0
"""Interval of heartbeats on an idle stream. Proxies usually close a connection after 60 s without data."""

MOST_NEWS = 3
"""Maximum number of new entries that one announcement to a screen reader contains."""

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


class Pages:
    """Routes and event streams of all pages of one controller."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._renderer = PageRenderer(source)

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
        yield Route("/static/{name}", static_file, methods=["GET"])

    # --- a page -------------------------------------------------------------------------------------------------------

    def _page(self, kind: str) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            check_origin(request)
            view, visitor = _view(kind, request), visitor_of(request, self._source.access)
            try:
                rendered = await self._renderer.render(view, time.monotonic() - RENDER_SECONDS, peer_of(request))
            except RefusedError as error:
                nothing = tag("section", tag("h1", str(error)), class_="panel")
                return html(elements.page("Not found", "", "", nothing, visitor=visitor), 404)
            return html(_whole(view, rendered, visitor))

        return endpoint

    # --- its stream ---------------------------------------------------------------------------------------------------

    def _live(self, kind: str) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            check_origin(request)
            view = _view(kind, request)
            subscribers, peer = self._source.subscribers, peer_of(request)
            await self._renderer.render(
                view, time.monotonic() - RENDER_SECONDS, peer
            )  # raises if there is no such page
            try:
                subscription = subscribers.open(peer)
            except FullError as error:
                raise RefusedError(503 if subscribers.closed else 429, str(error)) from None
            stream = ended_by_bug(self._stream(view, subscription, request), self._source.failures, "page")
            return EventStream(stream, lambda: subscribers.remove(subscription))

        return endpoint

    async def _stream(self, view: View, subscription: Subscription, request: Request) -> AsyncIterator[bytes]:
        """Yield an event for each changed part, until the reader's rights change. Then the browser reconnects."""
        peer, rights = peer_of(request), _rights(principal_of(request))
        try:
            yield b"retry: 1000\n\n"
            sent: dict[str, Markup] = {}
            drawn = _Drawn()
            since = await newest_entry(self._source, peer)
            sent_s = not_before_s = time.monotonic()
            while not subscription.ended and _rights(await current_principal(request, self._source.access)) == rights:
                rendered = await self._renderer.render(view, not_before_s, peer)
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
        """Return the data of the charts that the page does not have yet; None if there is none.

        Field `whole`: whether the page must draw its charts again from the start.
        """
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


@dataclass(slots=True)
class _Drawn:
    """Record of the chart data that a stream has sent: of which attempt, and up to which row.

    of: (attempt, number of ranks, ranks with a verdict, end of the job). sequence: number of the last row that was
    sent.
    """

    of: tuple[int, int, tuple[int, ...], int | None] | None = None
    sequence: int = -1


def _view(kind: str, request: Request) -> View:
    """Return the page and filter that a request asks for. Raise RefusedError if its page number is not valid."""
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


def _rights(principal: Principal) -> tuple[str, Role]:
    return principal.user, principal.role


def _whole(view: View, rendered: Rendering, visitor: elements.Visitor) -> Markup:
    stream = view.stream

    def page(
        title: str, here: str, main: Markup, scripts: tuple[str, ...] = (), modules: tuple[str, ...] = ()
    ) -> Markup:
        whole = join((elements.live(elements.TROUBLES, rendered.parts), main))
        return elements.page(title, here, stream, whole, scripts, modules, visitor)

    match view.kind:
        case "overview":
            return page("Overview", "/", overview.main(rendered.parts))
        case "jobs":
            return page("Jobs", "/jobs", lists_page.job_main(rendered.parts, view.query))
        case "nodes":
            return page("Nodes", "/nodes", lists_page.node_main(rendered.parts, view.query))
        case "node":
            return page(view.name, "/nodes", node_page.main(rendered.parts))
    return page(
        view.name, "/jobs", job_page.main(rendered.parts, rendered.has_pace), ("uPlot.iife.min.js",), ("pace.js",)
    )


def _event(name: str, document: documents.Document) -> bytes:
    return b"event: %s\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(document))


def _news(view: View, entries: list[NumberedEntry]) -> str:
    """Return the text about new entries that a screen reader announces on this page; '' if there is none."""
    subject = {"job": view.name, "node": f"node:{view.name}"}.get(view.kind)
    announced = [one.entry for one in entries if one.entry.kind in NEWS and subject in (None, one.entry.subject)]
    words = [f"{entry.subject.removeprefix('node:')}: {entry.text}" for entry in announced[-MOST_NEWS:]]
    return ". ".join([*words, f"and {len(announced) - MOST_NEWS} more"] if len(announced) > MOST_NEWS else words)


async def _due(subscription: Subscription) -> float:
    """Wait until the next rendering is due. Return the time (monotonic) before which a rendering is too old."""
    try:
        await asyncio.wait_for(subscription.wake.wait(), RENDER_SECONDS)
    except TimeoutError:
        return time.monotonic() - RENDER_SECONDS / 2
    woken_s = time.monotonic()
    await asyncio.sleep(GATHER_SECONDS)
    return woken_s
