"""Parser of the HTML page."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from html.parser import HTMLParser

COUNTING = "(counting)"
"""Value that replaces the text of a cell whose time advances."""


@dataclass(slots=True)
class PageTable:
    """One table of the page. rows: text of each cell by its column's title."""

    caption: str = ""
    titles: list[str] = field(default_factory=list)
    rows: list[dict[str, str]] = field(default_factory=list)


class Page(HTMLParser):
    """Content of one page. tables, texts: in order of the page.

    states: all displayed states, in order. times: all displayed times, in seconds since 1970. counting: whether a time
    on the page advances.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[PageTable] = []
        self.texts: list[str] = []
        self._cells: list[str] | None = None
        self._cell: list[str] | None = None
        self._place = ""
        self._states: list[str] = []
        self._in_state = False
        self.states: list[str] = []
        self.times: set[int] = set()
        self.counting = False
        self._row_counts = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append(PageTable())
        elif tag == "tr":
            self._cells, self._row_counts = [], False
        elif tag in ("td", "th", "caption"):
            self._cell, self._place = [], tag
        if tag == "time":
            self._take_time(dict(attrs))
        if tag == "span" and (dict(attrs).get("class") or "").split()[:1] == ["state"]:
            self._in_state = True

    def _take_time(self, attributes: dict[str, str | None]) -> None:
        try:
            self.times.add(int(datetime.fromisoformat(attributes.get("datetime") or "").timestamp()))
        except ValueError:
            pass
        if attributes.get("data-count") == "for":
            self.counting = self._row_counts = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "caption") and self._cell is not None:
            text = " ".join("".join(self._cell).split())
            if tag == "caption" and self.tables:
                self.tables[-1].caption = text
            elif self._cells is not None:
                self._cells.append(text)
            self._cell = None
        elif tag == "thead" and self.tables and self._cells is not None:
            self.tables[-1].titles = self._cells
            self._cells = None
        elif tag == "tr" and self.tables and self._cells is not None:
            table = self.tables[-1]
            if not table.titles:
                table.titles = self._cells
            else:
                row = dict(zip(table.titles, self._cells, strict=False))
                table.rows.append(row | {COUNTING: "yes"} if self._row_counts else row)
            self._cells = None
        elif tag == "span":
            self._in_state = False

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())
            if self._in_state:
                self.states.append(data.strip())
        if self._cell is not None:
            self._cell.append(data)

    def table(self, title: str) -> PageTable | None:
        """Return the first table with a column of this title."""
        return next((one for one in self.tables if title in one.titles), None)
