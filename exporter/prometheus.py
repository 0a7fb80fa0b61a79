"""Prometheus text: a frame, or samples by name, in exposition format 0.0.4.

Names, help, kinds and units come from the catalogue. Everything that does not change from frame to frame, which is all
but the numbers, is rendered once a layout. A number has one rendering, here, which the JSON form of a frame uses too.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from agent.schema.catalog import BY_NAME, Metric
from agent.schema.errors import FrameError
from agent.schema.frame import Column, Frame, Layout, check_fits

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_CACHED_LAYOUTS = 16
"""An agent has one layout at a time; the rest is room for tests and for a machine's several virtual nodes."""


# --- numbers ---------------------------------------------------------------------------------------------------------


def decimals_of(metric: Metric) -> int:
    """Decimal digits that take the metric's integers to its unit: 9 for nanoseconds to seconds, 0 where they are one.

    Raises ValueError for a scale that is no power of ten: it could not be printed without loss.
    """
    decimals = round(-math.log10(metric.scale))
    if decimals < 0 or float(f"1e-{decimals}") != metric.scale:
        raise ValueError(f"{metric.name}: scale {metric.scale} is not 1, 0.1, 0.01, ...")
    return decimals


def counter_text(value: int, decimals: int) -> str:
    """An integer times 10^-decimals, in decimal notation with every digit."""
    if not decimals:
        return str(value)
    digits = str(value).rjust(decimals + 1, "0")
    return f"{digits[:-decimals]}.{digits[-decimals:]}"


def gauge_text(value: float) -> str:
    """The shortest text that reads back as the same number. Not for NaN: absent values are not printed."""
    if value in (math.inf, -math.inf):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


# --- text ------------------------------------------------------------------------------------------------------------


def _label_value(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _header(metric: Metric) -> str:
    kind = "gauge" if metric.kind == "info" else metric.kind
    help_text = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {metric.name} {help_text}\n# TYPE {metric.name} {kind}\n"


def _prefix(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """A sample line up to its value."""
    pairs = ",".join(f'{key}="{_label_value(value)}"' for key, value in sorted(labels))
    return f"{name}{{{pairs}}} " if pairs else f"{name} "


def labels_of(layout: Layout, column: Column) -> list[tuple[str, str]]:
    """The labels of a column's series as they are published: its own and the node's, sorted."""
    return sorted((*column.labels, ("node", layout.node)))


def metric_of(column: Column, is_counter: bool) -> Metric:
    """The catalogue's row of a column. Raises FrameError for a name or kind that is not there."""
    metric = BY_NAME.get(column.metric)
    if metric is None:
        raise FrameError(f"{column.metric} is not in the catalogue")
    if (metric.kind == "counter") is not is_counter:
        raise FrameError(f"{column.metric} is a {metric.kind}, and stands among the other columns")
    return metric


@dataclass(frozen=True, slots=True)
class _Family:
    """One metric of a layout: its header, and each series' line up to the value with its column's index."""

    header: str
    is_counter: bool
    decimals: int
    rows: list[tuple[str, int]]


def _families(layout: Layout) -> tuple[_Family, ...]:
    """The layout's families in order of first appearance; columns of one family may stand anywhere."""
    families: dict[str, _Family] = {}
    for is_counter, columns in ((False, layout.gauges), (True, layout.counters)):
        for index, column in enumerate(columns):
            family = families.get(column.metric)
            if family is None:
                metric = metric_of(column, is_counter)
                family = _Family(_header(metric), is_counter, decimals_of(metric) if is_counter else 0, [])
                families[column.metric] = family
            family.rows.append((_prefix(column.metric, labels_of(layout, column)), index))
    return tuple(families.values())


_cache: dict[str, tuple[_Family, ...]] = {}


def _cached_families(layout: Layout) -> tuple[_Family, ...]:
    families = _cache.get(layout.layout_id)
    if families is None:
        families = _families(layout)
        if len(_cache) >= _CACHED_LAYOUTS:
            _cache.clear()
        _cache[layout.layout_id] = families
    return families


def expose(layout: Layout, frame: Frame) -> bytes:
    """The frame as Prometheus text. Every series also carries the label ``node``; absent series are left out.

    Raises FrameError where the frame does not fit the layout or a column is not in the catalogue.
    """
    check_fits(layout, frame)
    gauges = frame.gauges.tolist()
    counters = frame.counters.tolist()
    valid = frame.counters_valid.tolist()
    parts: list[str] = []
    for family in _cached_families(layout):
        before = len(parts)
        parts.append(family.header)
        if family.is_counter:
            decimals = family.decimals
            for prefix, index in family.rows:
                if valid[index]:
                    parts.append(f"{prefix}{counter_text(counters[index], decimals)}\n")
        else:
            for prefix, index in family.rows:
                value = gauges[index]
                if value == value:  # only NaN differs from itself
                    parts.append(f"{prefix}{gauge_text(value)}\n")
        if len(parts) == before + 1:
            parts.pop()
    return "".join(parts).encode("utf-8", "replace")


def expose_families(samples: Iterable[tuple[str, tuple[tuple[str, str], ...], float]]) -> bytes:
    """Samples as Prometheus text: (name, labels, value in the catalogue's unit); NaN is left out.

    Labels are the catalogue's for that name, with or without ``node``. Samples of one name may stand anywhere. Raises
    ValueError for a name or labels that are not in the catalogue, and for a series that stands twice.
    """
    families: dict[str, dict[str, str]] = {}
    for name, labels, value in samples:
        metric = BY_NAME.get(name)
        if metric is None:
            raise ValueError(f"{name} is not in the catalogue")
        own = tuple(sorted(key for key, _ in labels if key != "node"))
        if own != metric.labels:
            raise ValueError(f"{name}: labels {own}, the catalogue has {metric.labels}")
        rows = families.setdefault(name, {})
        prefix = _prefix(name, labels)
        if prefix in rows:
            raise ValueError(f"{prefix.rstrip()} stands twice")
        if not math.isnan(value):
            rows[prefix] = str(int(value)) if isinstance(value, int) else gauge_text(float(value))
    parts: list[str] = []
    for name, rows in families.items():
        if rows:
            parts.append(_header(BY_NAME[name]))
            parts.extend(f"{prefix}{text}\n" for prefix, text in rows.items())
    return "".join(parts).encode("utf-8", "replace")
