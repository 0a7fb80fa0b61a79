"""A frame for other programs: as one JSON document, or as the messages of the wire form.

In the JSON form a ``value`` is, digit for digit, what the Prometheus text says (an infinity is the string '+Inf' or
'-Inf'); a counter also has ``raw``, the integer it was read as, and ``raw_unit``. Absent series are left out.
"""

from __future__ import annotations

import msgspec

from agent.schema.catalog import METRICS
from agent.schema.frame import Column, Frame, Layout, check_fits, encode_frame, encode_layout, with_length
from exporter.prometheus import counter_text, decimals_of, gauge_text, labels_of, metric_of

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
            text = counter_text(raw, decimals_of(metric))
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


def wanted_metrics(text: str) -> tuple[str, ...]:
    """The patterns of ``?metrics=a,b*``: names of the catalogue, or beginnings of such with ``*``. '' wants all.

    Raises ValueError, naming the pattern, for one that no metric of the catalogue could ever match.
    """
    patterns = tuple(pattern for pattern in (part.strip() for part in text.split(",")) if pattern)
    for pattern in patterns:
        beginning, star, rest = pattern.partition("*")
        if rest:
            raise ValueError(f"metrics: {pattern!r} goes on after '*', which may only stand at the end")
        if star and any(metric.name.startswith(beginning) for metric in METRICS):
            continue
        if not star and any(metric.name == pattern for metric in METRICS):
            continue
        raise ValueError(f"metrics: no metric of the catalogue is called {pattern!r}")
    return patterns
