"""A frame as JSON and as messages: the same numbers as in the text."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given

from agent.schema.catalog import Renamed
from agent.schema.frame import Frame, Layout, MessageSplitter, decode, encode_layout
from exporter.exposition import expose
from exporter.frames import frame_json, frame_messages, selection, wanted_metrics
from tests.exporter.sample_frames import exposed, small_frame, small_layout


def test_the_document_of_a_known_frame() -> None:
    layout = small_layout()
    document = json.loads(frame_json(layout, small_frame(layout)), parse_float=Decimal)
    series = document.pop("series")
    assert document == {
        "node": "n0",
        "boot_id": "boot",
        "agent_id": "agent",
        "seq": 1,
        "layout_id": layout.layout_id,
        "wall_ns": 1_700_000_000_000_000_000,
        "monotonic_ns": 5_000_000_000,
        "tiers": [{"name": "host", "interval_seconds": 1, "sampled_ns": 4_000_000_000}],
        "record_seq": 8,
        "records": [
            {
                "type": "step",
                "member": ["j-000001", 1, 0],
                "step": 41,
                "start_ns": 7,
                "duration_ns": 9,
                "wait_ns": None,
                "tokens": 3,
                "collectives": 0,
            },
            {"type": "open", "member": ["j-000001", 1, 0], "what": "collective", "number": 42, "since_ns": 11},
        ],
    }
    assert [(one["name"], one["labels"], one["value"]) for one in series[:2]] == [
        ("gangwatch_host_load1", {"node": "n0"}, Decimal("0.21")),
        ("gangwatch_gpu_power_watts", {"gpu": "GPU-1", "node": "n0"}, Decimal("345.678")),
    ]
    assert series[3] == {
        "name": "gangwatch_host_cpu_seconds_total",
        "labels": {"mode": "user", "node": "n0"},
        "value": Decimal("9223372036.854775809"),
        "raw": 2**63 + 1,
        "raw_unit": "ns",
    }
    assert series[4] == {
        "name": "gangwatch_host_network_receive_errors_total",
        "labels": {"device": 'a"b\\c\nd', "node": "n0"},
        "value": 3,
        "raw": 3,
    }


@given(exposed())
def test_document_and_text_agree_value_by_value(made: tuple[Layout, Frame]) -> None:
    layout, frame = made
    # As text, so that no conversion can hide a difference.
    document = json.loads(frame_json(layout, frame), parse_float=str, parse_int=str)
    in_document = sorted((one["name"], one["value"]) for one in document["series"])
    lines = [line for line in expose(layout, frame).decode().split("\n") if line and not line.startswith("#")]
    in_text = sorted((line.partition("{")[0], line.rpartition(" ")[2]) for line in lines)
    assert in_document == in_text


@given(exposed())
def test_messages_hold_the_layout_and_the_frame(made: tuple[Layout, Frame]) -> None:
    layout, frame = made
    first, second = (decode(message) for message in MessageSplitter().feed(frame_messages(layout, frame)))
    assert first == layout
    assert isinstance(second, Frame) and second.seq == frame.seq
    assert second.counters.tolist() == frame.counters.tolist()


def test_patterns() -> None:
    known = ("gangwatch_rank_*", "gangwatch_host_load1")
    assert wanted_metrics("") == ((), ())
    assert wanted_metrics("gangwatch_rank_*, gangwatch_host_load1,") == (known, ())
    assert wanted_metrics("*") == (("*",), ())
    assert wanted_metrics("gangwatch_host_load1,gangwatch_of_next_year") == (
        ("gangwatch_host_load1", "gangwatch_of_next_year"),
        ("gangwatch_of_next_year",),
    )
    for wrong in ("gangwatch_host_load", "host*", "gangwatch_*_total", "gangwatch_host_load1,x*y", "x,y"):
        with pytest.raises(ValueError, match="metrics: "):
            wanted_metrics(wrong)


def test_a_renamed_metric_is_had_by_either_name() -> None:
    renamed = (Renamed("gangwatch_host_load", "gangwatch_host_load1", "9.9"),)
    layout = small_layout()
    frame = small_frame(layout)
    assert wanted_metrics("gangwatch_host_load", renamed) == (("gangwatch_host_load",), ())
    for patterns, names in (
        (("gangwatch_host_load",), ["gangwatch_host_load"]),
        (("gangwatch_host_load1",), ["gangwatch_host_load1"]),
        (("gangwatch_host_l*",), ["gangwatch_host_load1", "gangwatch_host_load"]),
    ):
        chosen = selection(layout, patterns, renamed)
        assert [column.metric for column in chosen.layout.gauges] == names
        assert chosen.apply(frame).gauges.tolist() == [0.21] * len(names)
        assert decode(encode_layout(chosen.layout)) == chosen.layout
    everything = selection(layout, (), renamed).layout
    assert len(everything.gauges) == len(layout.gauges) + 1 and len(everything.counters) == len(layout.counters)
