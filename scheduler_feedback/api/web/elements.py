"""Elements common to all pages. Without a script a page shows the state at the time of the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import urlencode

from scheduler_feedback.api.web import words
from scheduler_feedback.api.web.markup import Child, Markup, join, tag

PLACES = (("/", "Overview"), ("/jobs", "Jobs"), ("/nodes", "Nodes"))


def panel(title: str, part: str, parts: Mapping[str, Markup], note: Child = None) -> Markup:
    """Render a section with a title around the named part of the page. note: text next to the title."""
    return tag(
        "section",
        tag("header", tag("h2", title, id=f"{part}-title"), note),
        live(part, parts),
        class_="panel",
        aria_labelledby=f"{part}-title",
    )


def live(part: str, parts: Mapping[str, Markup], class_: str = "") -> Markup:
    """Render the named part of the page, which the event stream updates."""
    return tag("div", parts[part], id=part, data_part=True, class_=class_ or None)


TROUBLES = "troubles"
"""Name of the banner on every page about failed parts of the controller and agents that are not reporting."""

MOST_SILENT = 5
"""Maximum number of agents that the banner names as not reporting. The list of nodes shows all of them."""


def troubles(broken: list[str], silent: Sequence[Mapping[str, Any]] = ()) -> Markup:
    """Render the banner of failed parts and of agents that are not reporting; empty if there are none.

    broken: names of failed parts. silent: {"node", "since_ns"} of each agent, the longest outage first.
    """
    lines = [tag("p", one) for one in broken]
    if silent:
        named: list[Child] = []
        for one in silent[:MOST_SILENT]:
            since = ("last ", words.instant(one["since_ns"], "ago")) if one["since_ns"] else "none received yet"
            named += [", " if named else "", words.node_link(one["node"]), " (", since, ")"]
        more = f" and {len(silent) - MOST_SILENT:,} more" if len(silent) > MOST_SILENT else ""
        lines.append(tag("p", tag("strong", "No telemetry from "), named, more, "."))
    return tag("div", lines, class_="notice", role="alert") if lines else Markup("")


@dataclass(frozen=True, slots=True)
class Visitor:
    """The user who reads a page. The name is empty without a login."""

    name: str = ""
    """Name of the logged-in user; '' if not logged in."""
    csrf: str = ""
    """The session's token against cross-site requests; '' without a session."""
    here: str = "/"
    """Path of the page, to which the browser returns after a login."""


def page(
    title: str,
    here: str,
    stream: str,
    main: Child,
    scripts: tuple[str, ...] = (),
    modules: tuple[str, ...] = (),
    visitor: Visitor = Visitor(),
) -> Markup:
    """Render a whole page.

    here: the page's entry in PLACES. stream: path of the page's event stream. scripts, modules: files that the page
    loads in addition to the files of every page. visitor: the reader of the page.
    """
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="csrf", content=visitor.csrf) if visitor.csrf else None,
        tag("title", f"{title} · gangwatch"),
        tag("link", rel="icon", href="/static/icon.svg", type="image/svg+xml"),
        tag("link", rel="stylesheet", href="/static/uPlot.min.css") if scripts else None,
        tag("link", rel="stylesheet", href="/static/page.css"),
        [tag("script", src=f"/static/{script}") for script in ("theme.js", "clicks.js")],
        [tag("script", src=f"/static/{script}", defer=True) for script in ("idiomorph.min.js", *scripts)],
        # Modules have separate scopes. They run after the libraries, in this order.
        [tag("script", src=f"/static/{module}", type="module") for module in (*modules, "page.js")],
    )
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        _banner(here, visitor),
        tag("main", main, id="content", tabindex="-1"),
        tag("footer", tag("p", f"gangwatch {version('gangwatch')}. Changes require a login.")),
        tag("p", id="news", class_="unseen", role="status", aria_live="polite"),
        _dialog(visitor),
        data_stream=stream,
    )
    return Markup("<!doctype html>" + tag("html", head, body, lang="en"))


def _banner(here: str, visitor: Visitor) -> Markup:
    who: Markup
    if visitor.name:
        who = join((tag("span", visitor.name, class_="who"), _log_out(visitor)))
    else:
        who = tag("a", "Log in", href=_login_of(visitor), class_="login")
    return tag(
        "header",
        tag("a", tag("span", "gang", class_="first"), "watch", href="/", class_="brand", aria_label="gangwatch"),
        tag(
            "nav",
            [tag("a", name, href=path, aria_current="page" if path == here else None) for path, name in PLACES],
            aria_label="Pages",
        ),
        tag(
            "div",
            who,
            tag("span", "not live", id="liveness", class_="liveness", data_state="off"),
            tag("button", "Theme", type="button", id="theme", class_="plain", aria_label="Theme: as the system's"),
            class_="tools",
        ),
        class_="banner",
    )


def action(what: str, path: str, question: str, class_: str = "", reason: bool = False) -> Markup:
    """Render a button that sends a request to the API. It requires a login."""
    return tag(
        *("button", what),
        type="button",
        class_=f"action {class_}".strip(),
        data_post=path,
        data_question=question,
        data_reason=reason,
    )


def _login_of(visitor: Visitor) -> str:
    return f"/login?{urlencode({'next': visitor.here})}"


def _log_out(visitor: Visitor) -> Markup | None:
    """Render the logout button; None without a session, as for a visitor with a token or a certificate."""
    if not visitor.csrf:
        return None
    return tag("button", "Log out", type="button", id="log-out", class_="plain")


def _dialog(visitor: Visitor) -> Markup:
    """Render the dialog that asks to confirm an action, or links to the login if the visitor is not logged in."""
    return tag(
        "dialog",
        tag(
            "form",
            tag("h2", "Are you sure?", id="dialog-question"),
            tag(
                "label", "Reason (shown in the story)", tag("input", name="reason", autocomplete="off"), class_="reason"
            ),
            None
            if visitor.csrf
            else tag("p", "This action requires a login. ", tag("a", "Log in", href=_login_of(visitor)), class_="hint"),
            tag("p", id="dialog-answer", role="alert", class_="answer"),
            tag(
                "div",
                tag("button", "No", type="button", class_="plain", data_close=True),
                tag("button", "Yes", type="submit", class_="primary", disabled=not visitor.csrf),
                class_="buttons",
            ),
            method="dialog",
        ),
        id="dialog",
        aria_labelledby="dialog-question",
    )


def table(caption: str, columns: tuple[str, ...], rows: list[Markup], empty: str) -> Markup:
    """Render a table. On a narrow screen each row is a block, in which the column's name is before each cell."""
    if not rows:
        return tag("p", empty, class_="empty")
    head = tag("tr", [tag("th", name, scope="col") for name in columns])
    drawn = tag("table", tag("caption", caption, class_="unseen"), tag("thead", head), tag("tbody", rows))
    return tag("div", drawn, class_="scroll", tabindex="0", role="region", aria_label=caption)


def row(key: str, cells: tuple[Child, ...], columns: tuple[str, ...], class_: str = "") -> Markup:
    """Render a table row, whose first cell is its header. key: unique name of the row on the page, for updates."""
    first, *others = cells
    return tag(
        "tr",
        tag("th", first, scope="row", data_label=columns[0]),
        [tag("td", cell, data_label=name) for cell, name in zip(others, columns[1:], strict=True)],
        id=f"row-{key}",
        class_=class_ or None,
    )


def pager(path: str, query: Mapping[str, str], page_number: int, pages: int) -> Markup | None:
    """Render links to the previous and next page."""
    if pages < 2:
        return None

    def link(words: str, to: int) -> Markup:
        if not 1 <= to <= pages:
            return tag("span", words, class_="off")
        return tag("a", words, href=f"{path}?{urlencode({**query, 'page': str(to)})}")

    position = tag("span", f"Page {page_number:,} of {pages:,}")
    return tag(
        "nav",
        join((link("Previous", page_number - 1), position, link("Next", page_number + 1))),
        class_="pager",
        aria_label="Pages of the list",
    )
