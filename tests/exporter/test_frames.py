"""Frames as JSON and as binary messages: the same numbers as in the Prometheus text."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given

from agent.schema.catalog import Renamed
from agent.schema.frame import Column, Frame, Layout, Tier, check_fits, make_layout
from agent.schema.wire import MessageSplitter, decode, encode_layout
from exporter.frame_formats import frame_json, frame_messages, selection, wanted_metrics
from exporter.prometheus.exposition import expose
from tests.exporter.sample_frames import exposed, small_frame, small_layout


def test_json_of_a_known_frame() -> None:
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
                "squares": None,
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
def test_json_and_text_have_equal_values(made: tuple[Layout, Frame]) -> None:
    layout, frame = made
    # Compare text, so that no conversion can hide a difference.
    document = json.loads(frame_json(layout, frame), parse_float=str, parse_int=str)
    in_document = sorted((one["name"], one["value"]) for one in document["series"])
    lines = [line for line in expose(layout, frame).decode().split("\n") if line and not line.startswith("#")]
    in_text = sorted((line.partition("{")[0], line.rpartition(" ")[2]) for line in lines)
    assert in_document == in_text


@given(exposed())
def test_messages_contain_the_layout_and_the_frame(made: tuple[Layout, Frame]) -> None:
    layout, frame = made
    first, second = (decode(message) for message in MessageSplitter().feed(frame_messages(layout, frame)))
    assert first == layout
    assert isinstance(second, Frame) and second.seq == frame.seq
    assert second.counters.tolist() == frame.counters.tolist()


def test_patterns_select_metrics() -> None:
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


def test_a_renamed_metric_is_found_by_both_names() -> None:
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


def test_counters_are_summed_by_labels() -> None:
    links = [(f"GPU-{gpu}", str(link)) for gpu in (1, 2) for link in range(3)]
    layout = make_layout(
        "n0",
        [Tier("unwanted", 1.0), Tier("gpu/1", 1.0), Tier("gpu/2", 10.0)],
        [Column("gangwatch_host_load1"), Column("gangwatch_gpu_power_watts", (("gpu", "GPU-1"),), 1)],
        [
            *(Column("gangwatch_nvlink_transmit_bytes_total", (("gpu", gpu), ("link", link)), int(gpu[-1]), 32)
              for gpu, link in links),
            Column("gangwatch_rdma_out_of_sequence_total", (("device", "mlx5_0"), ("port", "1")), 1, 32),
        ],
    )  # fmt: skip
    frame = Frame(
        "n0", "boot", "agent", 1, layout.layout_id, 1, 1, np.array([1, 2, 3], np.int64), np.array([0.5, 300.0]),
        np.array([1, 2, 3, 10, 20, 30, 7], np.uint64), np.array([True] * 6 + [True]),
    )  # fmt: skip
    patterns, unknown = wanted_metrics(
        "gangwatch_gpu_power_watts,gangwatch_nvlink_transmit_bytes_total(gpu),"
        "gangwatch_rdma_out_of_sequence_total(device),gangwatch_of_next_year_total(gpu)"
    )
    assert unknown == ("gangwatch_of_next_year_total(gpu)",)
    chosen = selection(layout, patterns)
    assert [tier.name for tier in chosen.layout.tiers] == ["gpu/1", "gpu/2"]
    assert [(dict(column.labels), column.tier, column.width) for column in chosen.layout.counters] == [
        ({"gpu": "GPU-1", "summed": "3"}, 0, 64),
        ({"gpu": "GPU-2", "summed": "3"}, 1, 64),
        ({"device": "mlx5_0", "summed": "1"}, 0, 32),
    ]
    sums = chosen.apply(frame)
    check_fits(chosen.layout, sums)
    assert (sums.tier_ns.tolist(), sums.gauges.tolist()) == ([2, 3], [300.0])
    assert (sums.counters.tolist(), sums.counters_valid.tolist()) == ([6, 60, 7], [True] * 3)
    frame.counters_valid[4] = False
    assert chosen.apply(frame).counters_valid.tolist() == [True, False, True], "a sum without all its parts is absent"
    fewer = make_layout("n0", layout.tiers, layout.gauges, layout.counters[1:])
    assert selection(fewer, patterns).layout.layout_id != chosen.layout.layout_id, (
        "the parts changed, so there is no difference"
    )
    total = selection(layout, ("gangwatch_nvlink_transmit_bytes_total()",))
    assert total.apply(frame).counters.tolist() == [6, 60], "columns of different times are not summed"
    for wrong in (
        "gangwatch_gpu_power_watts(gpu)",
        "gangwatch_nvlink_transmit_bytes_total(nic)",
        "gangwatch_gpu_*(gpu)",
        "gangwatch_nvlink_transmit_bytes_total(gpu",
        "gangwatch_nvlink_transmit_bytes_total(gpu)x",
    ):
        with pytest.raises(ValueError, match="metrics: "):
            wanted_metrics(wrong)
