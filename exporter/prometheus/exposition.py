"""Exposition of a frame as Prometheus text or OpenMetrics, plain or compressed; only changed lines are rendered.

The families are selected once per layout. Their lines (line_cache.py) are rendered only if a number has changed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agent.schema.catalog import RENAMED, Renamed
from agent.schema.frame import Frame, Layout, check_fits
from agent.schema.sample import Sample
from exporter.prometheus.compatibility import COMPATIBILITY
from exporter.prometheus.derived_values import Memory
from exporter.prometheus.line_cache import Lines
from exporter.prometheus.profiles import Reason, left_out_by, matches
from exporter.prometheus.series import Family, View, clean_families
from exporter.prometheus.text_format import (
    OPEN_METRICS_TYPE,
    TEXT_TYPE,
    open_metrics_header,
    sample_lines,
    sample_text,
    text_header,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of /metrics.

    profile: 'default', the 1,200 most important series of a node, or 'full'. allow, deny: globs of metric names to
    include regardless of the profile, and to exclude. series_limit: maximum number of series. compatibility: names
    of COMPATIBILITY. hostname_label: spelling of DCGM's label. owner_labels: whether each series of a GPU has labels
    of the GPU's owner. pod_labels: whether DCGM's series have the labels of the pod that uses the GPU. metrics:
    families to publish instead of the profile's, with their help texts ('' for the catalogue's text); None for the
    profile's families. textfile_folder: folder of *.prom files whose metrics are served too; '' for none.
    """

    profile: str = "full"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    series_limit: int = 20_000
    compatibility: tuple[str, ...] = ()
    hostname_label: str = "Hostname"
    owner_labels: bool = False
    pod_labels: bool = True
    metrics: Mapping[str, str] | None = None
    textfile_folder: str = ""

    def left_out(self, name: str) -> Reason | None:
        """Return why a family is omitted; None if it is published."""
        if self.metrics is None:
            return left_out_by(name, self.profile, self.allow, self.deny)
        denied = left_out_by(name, "full", (), self.deny)
        return denied or (None if name in self.metrics or matches(name, self.allow) else "profile")


EVERYTHING = Settings()

MOST_LOGGED = 64
"""Maximum number of unknown metrics that an exposition logs, each once."""

# --- plan ------------------------------------------------------------------------------------------------------------


def plan_families(
    view: View, settings: Settings, memory: Memory, renamed: Sequence[Renamed] = RENAMED
) -> tuple[list[Family], dict[str, int]]:
    """Return the families to publish, and the number of omitted series by reason. Families that are sampled most often
    come first."""
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
        reason = settings.left_out(family.name)
        if reason is not None:
            left_out[reason] += len(family.rows)
            continue
        if len(family.rows) > room:
            left_out["limit"] += len(family.rows) - room
            family = Family(family.name, family.kind, family.help, family.unit, family.rows[:room])
        if text := (settings.metrics or {}).get(family.name):
            family = Family(family.name, family.kind, text, family.unit, family.rows)
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
    """Text of one agent's frames in one format (Prometheus text or OpenMetrics). Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        open_metrics: bool = False,
        own: Callable[[], Iterable[Sample]] = tuple,
        renamed: Sequence[Renamed] = RENAMED,
    ) -> None:
        """Create the exposition. own: returns additional samples, with names of the catalogue and without the label
        ``node``."""
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
        self._missing: frozenset[str] = frozenset()
        self._rendered: tuple[str, int] | None = None
        self._bodies: dict[bool, tuple[bytes, bytes]] = {}  # by compression: further families, and the whole
        self._names: frozenset[str] = frozenset()
        self._logged: set[str] = set()
        self._tail = b""
        self._own_shape: list[tuple[str, tuple[tuple[str, str], ...]]] = []
        self._own_lines: list[tuple[int, str]] = []
        self._renders = 0
        self._seconds = 0.0

    def body(self, layout: Layout, frame: Frame, compress: bool = False, more: bytes = b"") -> bytes:
        """Return the frame's text for /metrics, as one gzip member if compressed.

        more: text of additional families, in the same format. Raises FrameError if the frame does not fit the
        layout.
        """
        with self._lock:
            lines = self._lines_of(layout, frame)
            kept = self._bodies.get(compress)
            if kept is not None and kept[0] == more:
                return kept[1]
            began = time.perf_counter()
            tail = self._tail + more + (b"# EOF\n" if self._open_metrics else b"")
            body = lines.compressed(tail) if compress else b"".join((*lines.texts, tail))
            self._bodies[compress] = more, body
            self._seconds += time.perf_counter() - began
            return body

    def names(self, layout: Layout, frame: Frame) -> frozenset[str]:
        """Return the names of the families that the text of this frame may contain, without those about the exporter.
        Raises FrameError as ``body`` does."""
        with self._lock:
            self._lines_of(layout, frame)
            return self._names

    def prepare(self, layout: Layout, frame: Frame, compress: bool = False) -> None:
        """Render the frame before it is requested; with `compress`, compress it too. Raises FrameError as ``body``
        does."""
        with self._lock:
            lines = self._lines_of(layout, frame)
            if compress:
                lines.pack()

    def _lines_of(self, layout: Layout, frame: Frame) -> Lines:
        """Return the lines of this frame. If the previous call had the same frame, its lines are not rendered again."""
        key = frame.agent_id, frame.seq
        if self._lines is None or self._rendered != key or self._lines.layout_id != frame.layout_id:
            began = time.perf_counter()
            self._lines = self._render(layout, frame)
            self._rendered, self._bodies = key, {}
            self._renders += 1
            self._seconds = time.perf_counter() - began
        return self._lines

    def _render(self, layout: Layout, frame: Frame) -> Lines:
        check_fits(layout, frame)
        lines = self._lines
        if lines is None or not lines.fits(layout, frame):
            self._lines = lines = None  # release the memory of the old lines first
            view = View(layout, lambda source: not np.isnan(frame.gauges[source]))
            families, self._left_out = plan_families(view, self._settings, self._memory, self._renamed)
            self._report(view.unknown)
            self._log_missing({family.name for family in families})
            self._names = frozenset(family.name for family in families)
            lines = Lines(layout, view, families, self._header)
        lines.take(frame)
        self._tail = self._own_text(layout.node, lines.series).encode("utf-8", "replace")
        return lines

    def _report(self, unknown: Sequence[str]) -> None:
        """Count and log the columns that are left out because this build's catalogue does not have them."""
        self._left_out["catalogue"] = len(unknown)
        for reason in unknown:
            self._log_once(reason)

    def _log_once(self, reason: str) -> None:
        if reason not in self._logged and len(self._logged) < MOST_LOGGED:
            self._logged.add(reason)
            _log.warning("reason=%s: the series are left out of /metrics; this is a bug, please report it", reason)

    def _log_missing(self, published: set[str]) -> None:
        """Log which metrics of the metrics file have no series, if they are not the same as at the previous call."""
        missing = frozenset(self._settings.metrics or ()) - published
        if missing != self._missing:
            self._missing = missing
            if missing:
                _log.info("metrics file: no series of %s", ", ".join(sorted(missing)))

    def _own_text(self, node: str, series: int) -> str:
        """Return the text of the series about the exporter. series: number of published series."""
        samples: list[Sample] = [
            ("gangwatch_exporter_series", (), series),
            ("gangwatch_exporter_series_limit", (), self._settings.series_limit),
            ("gangwatch_exporter_renders_total", (), self._renders),
            ("gangwatch_exporter_render_seconds", (), self._seconds),
            *(
                ("gangwatch_exporter_series_left_out", (("reason", reason),), count)
                for reason, count in self._left_out.items()
            ),
            *self._more_own(),
        ]
        shape = [sample[:2] for sample in samples]
        if shape != self._own_shape:
            # The lines stay the same between frames, so look each up only once.
            named = [(name, (*labels, ("node", node)), value) for name, labels, value in samples]
            self._own_shape, self._own_lines = shape, self._lines_of_own(named)
        texts = [f"{start}{sample_text(samples[at][2])}\n" for at, start in self._own_lines]
        return "".join(texts)

    def _more_own(self) -> list[Sample]:
        try:
            return list(self._own())
        except Exception as error:  # a bug in one of them does not affect the other series
            self._log_once(f"{type(error).__name__}: {error}")
            return []

    def _lines_of_own(self, samples: list[Sample]) -> list[tuple[int, str]]:
        """Return the lines of the samples as ``sample_lines`` does: (index in `samples`, text before the value).

        A sample whose name or labels are not in the catalogue, or whose series is a duplicate, is left out and
        logged.
        """
        good: list[int] = []
        for at, sample in enumerate(samples):
            try:
                sample_lines([*(samples[one] for one in good), sample], self._header)
                good.append(at)
            except ValueError as error:
                self._log_once(str(error))
        return [(good[at], start) for at, start in sample_lines([samples[one] for one in good], self._header)]


def expose(layout: Layout, frame: Frame, settings: Settings = EVERYTHING, open_metrics: bool = False) -> bytes:
    """Return the text of a frame's series, without series about the exporter itself. Used for files and tests. Raises
    FrameError if the frame does not fit the layout."""
    check_fits(layout, frame)
    view = View(layout, lambda source: not np.isnan(frame.gauges[source]))
    families, _ = plan_families(view, settings, Memory())
    lines = Lines(layout, view, families, open_metrics_header if open_metrics else text_header)
    lines.take(frame)
    return b"".join((*lines.texts, b"# EOF\n" if open_metrics else b""))
