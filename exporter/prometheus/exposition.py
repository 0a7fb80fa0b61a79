"""Exposition of a frame as Prometheus text or OpenMetrics, plain or compressed; only changed lines are rendered.

The families are planned once per layout. Their lines (line_cache.py) are rendered only if a number changed, which
hardly ever happens for the error counters of a healthy machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from agent.schema.catalog import RENAMED, Renamed
from agent.schema.frame import Frame, Layout, check_fits
from exporter.prometheus.compatibility import COMPATIBILITY
from exporter.prometheus.derived_values import Memory
from exporter.prometheus.line_cache import Lines
from exporter.prometheus.profiles import left_out_by
from exporter.prometheus.series import Family, View, clean_families
from exporter.prometheus.text_format import (
    OPEN_METRICS_TYPE,
    TEXT_TYPE,
    Sample,
    open_metrics_header,
    sample_lines,
    sample_text,
    text_header,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the metrics page.

    profile: 'default', the 1,200 most important series of a node, or 'full'. allow, deny: globs of metric names to
    include regardless of the profile, and to exclude. series_limit: maximum number of series. compatibility: names of
    COMPATIBILITY. hostname_label: spelling of DCGM's label. owner_labels: whether each series of a GPU has labels of
    the GPU's user.
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
    """Return the families to publish, fast ones first, and the number of omitted series by reason."""
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
    # Columns that are sampled together change together, so parts of slow collectors stay unchanged for seconds.
    taken.sort(key=lambda family: intervals.get(family.rows[0].source, 0.0))
    return taken, left_out


def _intervals(layout: Layout) -> dict[int, float]:
    """Return the sampling interval of each column, in seconds."""
    columns = enumerate((*layout.gauges, *layout.counters))
    return {index: layout.tiers[column.tier].interval_seconds for index, column in columns if layout.tiers}


# --- rendering -------------------------------------------------------------------------------------------------------


class Exposition:
    """One format of one agent's frames, rendered incrementally. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        open_metrics: bool = False,
        own: Callable[[], Iterable[Sample]] = tuple,
        renamed: Sequence[Renamed] = RENAMED,
    ) -> None:
        """Create it. own: additional samples, with names of the catalogue and without ``node``."""
        self.content_type = OPEN_METRICS_TYPE if open_metrics else TEXT_TYPE
        self._settings = settings
        self._open_metrics = open_metrics
        self._header = open_metrics_header if open_metrics else text_header
        self._own = own
        self._renamed = renamed
        self._memory = Memory()
        self._lock = threading.Lock()
        self._lines: Lines | None = None
        self._left_out: dict[str, int] = {}
        self._rendered: tuple[str, int] | None = None
        self._bodies: dict[bool, bytes] = {}
        self._tail = b""
        self._own_shape: list[tuple[str, tuple[tuple[str, str], ...]]] = []
        self._own_lines: list[tuple[int, str]] = []
        self._renders = 0
        self._seconds = 0.0

    def body(self, layout: Layout, frame: Frame, compress: bool = False) -> bytes:
        """Return the frame's exposition, as one gzip member if compressed.

        Raises FrameError if the frame does not fit the layout or a column is not in the catalogue.
        """
        with self._lock:
            key = frame.agent_id, frame.seq
            if self._rendered != key or self._lines is None or self._lines.layout_id != frame.layout_id:
                began = time.perf_counter()
                self._render(layout, frame)
                self._rendered, self._bodies = key, {}
                self._renders += 1
                self._seconds = time.perf_counter() - began
            assert self._lines is not None
            body = self._bodies.get(compress)
            if body is None:
                began = time.perf_counter()
                body = self._lines.compressed(self._tail) if compress else b"".join((*self._lines.texts, self._tail))
                self._bodies[compress] = body
                self._seconds += time.perf_counter() - began
            return body

    def _render(self, layout: Layout, frame: Frame) -> None:
        check_fits(layout, frame)
        if self._lines is None or not self._lines.fits(layout, frame):
            view = View(layout, lambda source: not np.isnan(frame.gauges[source]))
            families, self._left_out = plan_families(view, self._settings, self._memory, self._renamed)
            self._lines = Lines(layout, view, families, self._header)
        self._lines.take(frame)
        self._tail = self._own_text(layout.node, self._lines.series).encode("utf-8", "replace")

    def _own_text(self, node: str, series: int) -> str:
        """Return the exporter's own series, and OpenMetrics' end marker."""
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
        shape = [sample[:2] for sample in samples]
        if shape != self._own_shape:
            # The lines stay the same between frames, so look each up only once.
            named = [(name, (*labels, ("node", node)), value) for name, labels, value in samples]
            self._own_shape, self._own_lines = shape, sample_lines(named, self._header)
        texts = [f"{start}{sample_text(samples[at][2])}\n" for at, start in self._own_lines]
        return "".join(texts) + ("# EOF\n" if self._open_metrics else "")


def expose(layout: Layout, frame: Frame, settings: Settings = EVERYTHING, open_metrics: bool = False) -> bytes:
    """Return a frame's series without the exporter's own, for files and tests. Raises like ``Exposition.body``."""
    check_fits(layout, frame)
    view = View(layout, lambda source: not np.isnan(frame.gauges[source]))
    families, _ = plan_families(view, settings, Memory())
    lines = Lines(layout, view, families, open_metrics_header if open_metrics else text_header)
    lines.take(frame)
    return b"".join((*lines.texts, b"# EOF\n" if open_metrics else b""))
