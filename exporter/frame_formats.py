"""Frames for other programs: as a JSON document, or as messages of the wire format.

In JSON, a ``value`` has the same digits as in the Prometheus text (an infinity is the string '+Inf' or '-Inf'). A
counter also has ``raw``, the integer as it was read, and ``raw_unit``. Absent series are left out.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

import msgspec
import numpy as np

from agent.schema.catalog import BY_NAME, METRICS, RENAMED, Metric, Renamed
from agent.schema.errors import FrameError
from agent.schema.frame import Column, Frame, Layout, Selection, check_fits, make_layout
from agent.schema.wire import encode_frame, encode_layout, with_length
from exporter.prometheus.series import gauge_text, labels_of, metric_of, render_of

JSON_TYPE = "application/json"
FRAME_TYPE = "application/vnd.gangwatch.frame"
"""Media type of the wire format: messages with length prefixes, a layout and then frames (agent/schema/frame.py)."""

SUMMED = "summed"
"""Label of a column that is a sum. The label's value is the number of summed columns."""

_SUMMED = re.compile(r"([a-z0-9_]+)\(([a-z0-9_;]*)\)")

_encode = msgspec.json.encode


def frame_json(layout: Layout, frame: Frame) -> bytes:
    """Return the frame as a JSON document. A column that is not in the catalogue is left out; a counter in /metrics
    shows how many.

    Raises FrameError if the frame does not fit the layout.
    """
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
        if value == value and _metric_of(column, is_counter=False) is not None:  # only NaN differs from itself
            text = gauge_text(value)
            series.append(_series(layout, column, f'"{text}"' if text.endswith("Inf") else text))
    for column, raw, valid in zip(layout.counters, frame.counters.tolist(), frame.counters_valid.tolist(), strict=True):
        if valid and (metric := _metric_of(column, is_counter=True)) is not None:
            text = render_of(metric)(raw)
            unit = f',"raw_unit":"{metric.integer_unit}"' if metric.integer_unit else ""
            series.append(_series(layout, column, f'{text},"raw":{raw}{unit}'))
    return _encode(head)[:-1] + b',"series":[' + b",".join(series) + b"]}"


def _metric_of(column: Column, is_counter: bool) -> Metric | None:
    try:
        return metric_of(column, is_counter)
    except FrameError:
        return None


def _series(layout: Layout, column: Column, value: str) -> bytes:
    """Return the JSON entry of one series. value: the number as JSON text."""
    labels = _encode(dict(labels_of(layout, column)))
    return b'{"name":%b,"labels":%b,"value":%b}' % (_encode(column.metric), labels, value.encode())


def frame_messages(layout: Layout, frame: Frame) -> bytes:
    """Return the layout and the frame in the wire format. Each message begins with its length."""
    return with_length(encode_layout(layout)) + with_length(encode_frame(frame))


def wanted_metrics(text: str, renamed: Sequence[Renamed] = RENAMED) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the patterns of ``?metrics=a,b*``, and the patterns that match nothing in this build's catalogue.

    A pattern is a metric name, or a prefix with ``*``; '' selects all. A counter's name may be followed by labels,
    ``gangwatch_nvlink_errors_total(gpu)``, ``gangwatch_rdma_pause_frames_total(device;direction)``: its series are
    then summed by these labels. Unknown metrics, which a client of another release may request, are skipped. Raises
    ValueError for a malformed pattern, and if no pattern matches.
    """
    patterns = tuple(pattern for pattern in (part.strip() for part in text.split(",")) if pattern)
    names = [*(metric.name for metric in METRICS), *(one.old for one in renamed)]
    unknown: list[str] = []
    for pattern in patterns:
        if "*" in pattern[:-1]:
            raise ValueError(f"metrics: {pattern!r}: '*' is only allowed at the end")
        summed = _SUMMED.fullmatch(pattern)
        if summed is None and "(" in pattern:
            raise ValueError(f"metrics: {pattern!r}: malformed sum, expected NAME(LABEL;LABEL)")
        if summed is not None and (metric := BY_NAME.get(summed[1])) is not None:
            if metric.kind != "counter":
                raise ValueError(f"metrics: {pattern!r}: {metric.name} is not a counter; only counters can be summed")
            for label in _kept(summed):
                if label not in metric.labels:
                    raise ValueError(f"metrics: {pattern!r}: {metric.name} has no label {label!r}")
        if not any(_matches(pattern, name) for name in names):
            unknown.append(pattern)
    if patterns and len(unknown) == len(patterns):
        raise ValueError(f"metrics: no metric of the catalogue matches {', '.join(map(repr, unknown))}")
    return patterns, tuple(unknown)


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern.partition("(")[0]


def _kept(summed: re.Match[str]) -> tuple[str, ...]:
    return tuple(sorted(filter(None, summed[2].split(";"))))


def selection(layout: Layout, patterns: Sequence[str], renamed: Sequence[Renamed] = RENAMED) -> Selection:
    """Return the selected columns and their tiers. If several patterns match a column, the first one applies.

    A renamed metric also appears under its old name, if requested. The column of a sum has the labels by which it is
    summed, and the label SUMMED with the number of summed columns. If this number changes, the sum is a new column,
    so that readers do not compare it with the old sum. Columns of different tiers are not summed, because their
    sample times differ.
    """
    olds: dict[str, list[str]] = {}
    for one in renamed:
        olds.setdefault(one.new, []).append(one.old)

    def chosen(columns: tuple[Column, ...]) -> tuple[list[list[int]], list[Column]]:
        places: dict[Hashable, int] = {}
        parts: list[list[int]] = []
        made: list[Column] = []
        for index, column in enumerate(columns):
            for name in (column.metric, *olds.get(column.metric, ())):
                pattern = next((pattern for pattern in patterns if _matches(pattern, name)), None)
                if pattern is None and patterns:
                    continue
                summed = _SUMMED.fullmatch(pattern) if pattern is not None else None
                if summed is None:
                    parts.append([index])
                    made.append(msgspec.structs.replace(column, metric=name))
                    continue
                kept = _kept(summed)
                labels = tuple(pair for pair in column.labels if pair[0] in kept)
                place = places.setdefault((name, labels, column.tier), len(parts))
                if place == len(parts):
                    parts.append([])
                    made.append(Column(name, labels, column.tier, column.width))
                parts[place].append(index)
        for place in places.values():
            labels = tuple(sorted((*made[place].labels, (SUMMED, str(len(parts[place]))))))
            width = made[place].width if len(parts[place]) == 1 else 64
            made[place] = msgspec.structs.replace(made[place], labels=labels, width=width)
        return parts, made

    gauge_parts, gauges = chosen(layout.gauges)
    counter_parts, counters = chosen(layout.counters)
    tiers = sorted({column.tier for column in (*gauges, *counters)}) if patterns else [*range(len(layout.tiers))]
    place_of = {tier: place for place, tier in enumerate(tiers)}
    narrowed = make_layout(
        layout.node,
        (layout.tiers[tier] for tier in tiers),
        (msgspec.structs.replace(column, tier=place_of[column.tier]) for column in gauges),
        (msgspec.structs.replace(column, tier=place_of[column.tier]) for column in counters),
    )
    counts = [len(part) for part in counter_parts]
    starts = np.cumsum([0, *counts[:-1]]).astype(np.intp) if len(counts) < sum(counts) else None
    return Selection(
        narrowed,
        np.array([part[0] for part in gauge_parts], np.intp),
        np.array([index for part in counter_parts for index in part], np.intp),
        starts,
        np.array(tiers, np.intp) if len(tiers) < len(layout.tiers) else None,
    )
