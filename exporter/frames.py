"""A frame for other programs: as one JSON document, or as the messages of the wire form.

In the JSON form a ``value`` is, digit for digit, what the Prometheus text says (an infinity is the string '+Inf' or
'-Inf'); a counter also has ``raw``, the integer it was read as, and ``raw_unit``. Absent series are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from agent.schema.catalog import METRICS, RENAMED, Renamed
from agent.schema.frame import (
    Column,
    Frame,
    Layout,
    Selection,
    check_fits,
    encode_frame,
    encode_layout,
    make_layout,
    with_length,
)
from exporter.series import gauge_text, labels_of, metric_of, render_of

JSON_TYPE = "application/json"
FRAME_TYPE = "application/vnd.gangwatch.frame"
"""Messages of the wire form, each after its length: a layout, then frames (agent/schema/frame.py)."""

_encode = msgspec.json.encode


def frame_json(layout: Layout, frame: Frame) -> bytes:
    """The frame as a JSON document. Raises FrameError as ``exporter.prometheus.expose`` does."""
    check_fits(layout, frame)
    head = {
        "node": frame.node,
        "boot_id": frame.boot_id,
        "agent_id": frame.agent_id,
        "seq": frame.seq,
        "layout_id": frame.layout_id,
        "wall_ns": frame.wall_ns,
        "monotonic_ns": frame.monotonic_ns,
        "tiers": [
            {"name": tier.name, "interval_seconds": tier.interval_seconds, "sampled_ns": sampled_ns}
            for tier, sampled_ns in zip(layout.tiers, frame.tier_ns.tolist(), strict=True)
        ],
        "record_seq": frame.record_seq,
        "records": frame.records,
    }
    series: list[bytes] = []
    for column, value in zip(layout.gauges, frame.gauges.tolist(), strict=True):
        if value == value:  # only NaN differs from itself
            metric_of(column, is_counter=False)
            text = gauge_text(value)
            series.append(_series(layout, column, f'"{text}"' if text.endswith("Inf") else text))
    for column, raw, valid in zip(layout.counters, frame.counters.tolist(), frame.counters_valid.tolist(), strict=True):
        if valid:
            metric = metric_of(column, is_counter=True)
            text = render_of(metric)(raw)
            unit = f',"raw_unit":"{metric.integer_unit}"' if metric.integer_unit else ""
            series.append(_series(layout, column, f'{text},"raw":{raw}{unit}'))
    return _encode(head)[:-1] + b',"series":[' + b",".join(series) + b"]}"


def _series(layout: Layout, column: Column, value: str) -> bytes:
    """One entry; `value` is JSON text, so that no number takes a way of its own."""
    labels = _encode(dict(labels_of(layout, column)))
    return b'{"name":%b,"labels":%b,"value":%b}' % (_encode(column.metric), labels, value.encode())


def frame_messages(layout: Layout, frame: Frame) -> bytes:
    """Layout and frame in the wire form, each after its length."""
    return with_length(encode_layout(layout)) + with_length(encode_frame(frame))


def wanted_metrics(text: str, renamed: Sequence[Renamed] = RENAMED) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The patterns of ``?metrics=a,b*`` and, of these, those that this build's catalogue has nothing for.

    A pattern is a name of the catalogue or the beginning of some with ``*``; '' wants all. A reader of another release
    may ask for what is not known here: that is left out, and told. Raises ValueError, naming the pattern, for one that
    is malformed, and where nothing that was asked for is known.
    """
    patterns = tuple(pattern for pattern in (part.strip() for part in text.split(",")) if pattern)
    names = [*(metric.name for metric in METRICS), *(one.old for one in renamed)]
    unknown: list[str] = []
    for pattern in patterns:
        if "*" in pattern[:-1]:
            raise ValueError(f"metrics: {pattern!r} goes on after '*', which may only stand at the end")
        if not any(_matches(pattern, name) for name in names):
            unknown.append(pattern)
    if patterns and len(unknown) == len(patterns):
        raise ValueError(f"metrics: no metric of the catalogue is called {', '.join(map(repr, unknown))}")
    return patterns, tuple(unknown)


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def selection(layout: Layout, patterns: Sequence[str], renamed: Sequence[Renamed] = RENAMED) -> Selection:
    """The columns that a reader asked for. A metric that was renamed also stands under its old name, where wanted."""
    olds: dict[str, list[str]] = {}
    for one in renamed:
        olds.setdefault(one.new, []).append(one.old)

    def chosen(columns: tuple[Column, ...]) -> list[tuple[int, Column]]:
        found: list[tuple[int, Column]] = []
        for index, column in enumerate(columns):
            for name in (column.metric, *olds.get(column.metric, ())):
                if not patterns or any(_matches(pattern, name) for pattern in patterns):
                    found.append((index, msgspec.structs.replace(column, metric=name)))
        return found

    gauges, counters = chosen(layout.gauges), chosen(layout.counters)
    narrowed = make_layout(
        layout.node, layout.tiers, (column for _, column in gauges), (column for _, column in counters)
    )
    return Selection(
        narrowed, np.array([index for index, _ in gauges], np.intp), np.array([index for index, _ in counters], np.intp)
    )
