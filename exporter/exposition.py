"""What a scrape gets: a frame as Prometheus text or OpenMetrics, plain or compressed, at the cost of what changed.

Everything but the numbers is rendered once a layout. Of the numbers, only those that changed since the frame before
are rendered again: of a healthy machine's error counters hardly any. The text is kept in parts of a few kilobytes, and
a part in which nothing changed is neither joined nor compressed again: raw deflate streams that end on a byte's bound
(Z_SYNC_FLUSH) can be put together to one, between gzip's head and tail (RFC 1951 section 3.2.4, RFC 1952 section 2.3).
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from agent.schema.catalog import RENAMED, Renamed
from agent.schema.frame import Frame, Layout, check_fits
from exporter.compatibility import COMPATIBILITY
from exporter.profiles import left_out_by
from exporter.prometheus import OPEN_METRICS_TYPE, TEXT_TYPE, Sample, expose_samples, open_metrics_header, text_header
from exporter.series import Family, Render, View, clean_families, prefix
from exporter.windows import Derived, Memory

PART_BYTES = 16 * 1024
"""Least size of a part: half of deflate's window, so that little of its compression is lost to the cut."""

GZIP_LEVEL = 1
"""Two thirds of level 6's time at nine tenths of its effect on this text; a scrape goes over a local network."""

_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
"""RFC 1952: deflate, no flags, no time, fastest, unknown system."""
_DEFLATE_END = b"\x03\x00"
"""An empty last block with fixed codes."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is published, and how.

    profile: 'default', a node's 1,200 most wanted series, or 'full'. allow, deny: globs on names; what allow names
    comes in whatever the profile, what deny names never. series_limit: most series. compatibility: names of
    COMPATIBILITY. hostname_label: how DCGM's names spell theirs. owner_labels: who uses a GPU, on each of its series.
    """

    profile: str = "full"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    series_limit: int = 20_000
    compatibility: tuple[str, ...] = ()
    hostname_label: str = "Hostname"
    owner_labels: bool = False


EVERYTHING = Settings()

# --- plan ------------------------------------------------------------------------------------------------------------


def plan_families(
    view: View, settings: Settings, memory: Memory, renamed: Sequence[Renamed] = RENAMED
) -> tuple[list[Family], dict[str, int]]:
    """The families to publish, fast ones first, and how many series of the layout were left out, by reason."""
    families = list(clean_families(view, settings.owner_labels))
    by_name = {family.name: family for family in families}
    for one in renamed:
        if (now := by_name.get(one.new)) is not None:
            note = f"Now called {one.new}; this name goes away after {one.release}."
            families.append(Family(one.old, now.kind, note, now.unit, now.rows))
    for name in settings.compatibility:
        families.extend(family for family in COMPATIBILITY[name](view, settings, memory) if family.rows)
    left_out = {"profile": 0, "deny": 0, "limit": 0}
    taken: list[Family] = []
    room = settings.series_limit
    for family in families:
        reason = left_out_by(family.name, settings.profile, settings.allow, settings.deny)
        if reason is not None:
            left_out[reason] += len(family.rows)
            continue
        if len(family.rows) > room:
            left_out["limit"] += len(family.rows) - room
            family = Family(family.name, family.kind, family.help, family.unit, family.rows[:room])
        room -= len(family.rows)
        if family.rows:
            taken.append(family)
    intervals = _intervals(view.layout)
    # What is sampled together changes together: a slow collector's parts then stay as they are for seconds.
    taken.sort(key=lambda family: intervals.get(family.rows[0].source, 0.0))
    return taken, left_out


def _intervals(layout: Layout) -> dict[int, float]:
    """Seconds between two samples, by column."""
    columns = enumerate((*layout.gauges, *layout.counters))
    return {index: layout.tiers[column.tier].interval_seconds for index, column in columns if layout.tiers}


class _Plan:
    """The lines of one layout, and which column each is fed from."""

    def __init__(self, layout: Layout, view: View, families: list[Family], header: Callable[[Family], str]) -> None:
        self.layout_id = layout.layout_id
        self.structure = np.array(view.structure(), np.intp)
        self.derived: list[tuple[int, Derived, list[float | int | None]]] = [
            (first, one, [None] * one.outputs) for first, one in view.derived
        ]
        self.prefixes: list[str] = []
        self.renders: list[Render] = []
        self.lines: list[str] = []
        self.family_of: list[int] = []
        self.part_of: list[int] = []
        self.header_at: list[int] = []
        self.headers: list[str] = []
        self.present: list[int] = [0] * len(families)
        self.bounds: list[int] = [0]
        fed: list[list[int]] = [[] for _ in range(view.sources)]
        size = 0
        for position, family in enumerate(families):
            if size >= PART_BYTES:
                self.bounds.append(len(self.lines))
                size = 0
            self.header_at.append(len(self.lines))
            self.headers.append(header(family))
            self._line("", gauge_placeholder, position)
            for row in family.rows:
                fed[row.source].append(len(self.lines))
                self._line(prefix(family.name, row.labels), row.render, position)
                size += len(self.prefixes[-1]) + 8
        self.bounds.append(len(self.lines))
        self.lines_of: list[tuple[int, ...]] = [tuple(lines) for lines in fed]
        parts = len(self.bounds) - 1
        self.texts: list[bytes] = [b""] * parts
        self.deflated: list[bytes | None] = [None] * parts
        self.dirty: set[int] = set(range(parts))
        self.gauges = np.full(len(layout.gauges), np.nan, np.float64)
        self.counters = np.zeros(len(layout.counters), np.uint64)
        self.valid = np.zeros(len(layout.counters), np.bool_)

    def _line(self, before: str, render: Render, family: int) -> None:
        self.prefixes.append(before)
        self.renders.append(render)
        self.lines.append("")
        self.family_of.append(family)
        self.part_of.append(len(self.bounds) - 1)

    def series(self) -> int:
        return sum(self.present)

    def fits(self, layout: Layout, frame: Frame) -> bool:
        """Whether the plan is still the layout's, and every owner that it knew is one, and no other."""
        if layout.layout_id != self.layout_id:
            return False
        if not len(self.structure):
            return True
        return bool(np.array_equal(np.isnan(frame.gauges[self.structure]), np.isnan(self.gauges[self.structure])))

    def take(self, frame: Frame) -> None:
        """Render what changed since the frame before."""
        # Bits, not numbers: NaN differs from itself, and an absent value that stays absent is no change.
        changed = np.flatnonzero(frame.gauges.view(np.int64) != self.gauges.view(np.int64))
        self._set(changed.tolist(), frame.gauges[changed].tolist())
        changed = np.flatnonzero((frame.counters != self.counters) | (frame.counters_valid != self.valid))
        present = frame.counters_valid[changed].tolist()
        values = [
            value if valid else None for value, valid in zip(frame.counters[changed].tolist(), present, strict=True)
        ]
        self._set((changed + len(frame.gauges)).tolist(), values)
        self.gauges, self.counters, self.valid = frame.gauges, frame.counters, frame.counters_valid
        for first, derived, before in self.derived:
            after = derived.update(frame)
            moved = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
            self._set([first + at for at in moved], [after[at] for at in moved])
            before[:] = after
        for part in self.dirty:
            begin, end = self.bounds[part], self.bounds[part + 1]
            self.texts[part] = "".join(self.lines[begin:end]).encode("utf-8", "replace")
            self.deflated[part] = None
        self.dirty.clear()

    def _set(self, sources: list[int], values: Sequence[float | int | None]) -> None:
        lines, prefixes, renders, part_of = self.lines, self.prefixes, self.renders, self.part_of
        lines_of, dirty = self.lines_of, self.dirty
        for source, value in zip(sources, values, strict=True):
            for at in lines_of[source]:
                before = lines[at]
                if value is None or value != value:  # only NaN differs from itself
                    if before:
                        lines[at] = ""
                        self._count(at, -1)
                else:
                    lines[at] = f"{prefixes[at]}{renders[at](value)}\n"  # type: ignore[arg-type]
                    if not before:
                        self._count(at, 1)
                dirty.add(part_of[at])

    def _count(self, at: int, change: int) -> None:
        """A series came or went: the first brings its family's header, the last takes it away."""
        family = self.family_of[at]
        self.present[family] += change
        self.lines[self.header_at[family]] = self.headers[family] if self.present[family] else ""

    def compressed(self, tail: bytes) -> bytes:
        """Everything and the tail as one gzip member."""
        pieces = [_GZIP_HEAD]
        check = size = 0
        for part, text in enumerate(self.texts):
            piece = self.deflated[part]
            if piece is None:
                piece = self.deflated[part] = _deflate(text)
            pieces.append(piece)
            check = zlib.crc32(text, check)
            size += len(text)
        check, size = zlib.crc32(tail, check), size + len(tail)
        pieces += (_deflate(tail), _DEFLATE_END, check.to_bytes(4, "little"), (size & 0xFFFFFFFF).to_bytes(4, "little"))
        return b"".join(pieces)


def gauge_placeholder(_: float) -> str:
    """Of a header's line, which no column feeds."""
    return ""


def _deflate(text: bytes) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(text) + packer.flush(zlib.Z_SYNC_FLUSH)


# --- rendering -------------------------------------------------------------------------------------------------------


class Exposition:
    """One format of one agent's frames, rendered from frame to frame. May be asked from several threads."""

    def __init__(
        self,
        settings: Settings,
        open_metrics: bool = False,
        own: Callable[[], Iterable[Sample]] = tuple,
        renamed: Sequence[Renamed] = RENAMED,
    ) -> None:
        """own: samples beside the frame's, by names of the catalogue, without ``node``."""
        self.content_type = OPEN_METRICS_TYPE if open_metrics else TEXT_TYPE
        self._settings = settings
        self._open_metrics = open_metrics
        self._header = open_metrics_header if open_metrics else text_header
        self._own = own
        self._renamed = renamed
        self._memory = Memory()
        self._lock = threading.Lock()
        self._plan: _Plan | None = None
        self._left_out: dict[str, int] = {}
        self._rendered: tuple[str, int] | None = None
        self._bodies: dict[bool, bytes] = {}
        self._tail = b""
        self._renders = 0
        self._seconds = 0.0

    def body(self, layout: Layout, frame: Frame, compress: bool = False) -> bytes:
        """The frame's exposition, as one gzip member where compressed.

        Raises FrameError where the frame does not fit the layout or a column is not in the catalogue.
        """
        with self._lock:
            key = frame.agent_id, frame.seq
            if self._rendered != key or self._plan is None or self._plan.layout_id != frame.layout_id:
                began = time.perf_counter()
                self._render(layout, frame)
                self._rendered, self._bodies = key, {}
                self._renders += 1
                self._seconds = time.perf_counter() - began
            assert self._plan is not None
            body = self._bodies.get(compress)
            if body is None:
                began = time.perf_counter()
                body = self._plan.compressed(self._tail) if compress else b"".join((*self._plan.texts, self._tail))
                self._bodies[compress] = body
                self._seconds += time.perf_counter() - began
            return body

    def _render(self, layout: Layout, frame: Frame) -> None:
        check_fits(layout, frame)
        if self._plan is None or not self._plan.fits(layout, frame):
            view = View(layout, lambda source: not np.isnan(frame.gauges[source]))
            families, self._left_out = plan_families(view, self._settings, self._memory, self._renamed)
            self._plan = _Plan(layout, view, families, self._header)
        self._plan.take(frame)
        self._tail = self._own_text(layout.node, self._plan.series()).encode("utf-8", "replace")

    def _own_text(self, node: str, series: int) -> str:
        """The exporter's own series, and OpenMetrics' end."""
        samples: list[Sample] = [
            ("gangwatch_exporter_series", (), series),
            ("gangwatch_exporter_series_limit", (), self._settings.series_limit),
            ("gangwatch_exporter_renders_total", (), self._renders),
            ("gangwatch_exporter_render_seconds", (), self._seconds),
            *(
                ("gangwatch_exporter_series_left_out", (("reason", reason),), count)
                for reason, count in self._left_out.items()
            ),
            *self._own(),
        ]
        named = [(name, (*labels, ("node", node)), value) for name, labels, value in samples]
        return expose_samples(named, self._header) + ("# EOF\n" if self._open_metrics else "")


def expose(layout: Layout, frame: Frame, settings: Settings = EVERYTHING, open_metrics: bool = False) -> bytes:
    """A single frame's series without the exporter's own, for files and tests. Raises as ``Exposition.body`` does."""
    check_fits(layout, frame)
    view = View(layout, lambda source: not np.isnan(frame.gauges[source]))
    families, _ = plan_families(view, settings, Memory())
    plan = _Plan(layout, view, families, open_metrics_header if open_metrics else text_header)
    plan.take(frame)
    return b"".join((*plan.texts, b"# EOF\n" if open_metrics else b""))
