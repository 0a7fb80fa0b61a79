"""Columns that the controller requests from agents: enough for every feature, and not more than a frame may have."""

from __future__ import annotations

import numpy as np

from agent.schema.catalog import BY_NAME
from agent.schema.frame import Frame
from agent.schema.wire import encode_frame
from benchmarks.ingest.frames import Job, whole_layout
from exporter.frame_formats import selection, wanted_metrics
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.process_states import METRIC
from scheduler_feedback.core.telemetry.series.column_subscription import WANTED
from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES

MOST_BYTES = 4096
"""Bytes of a frame of an eight-GPU node without records; the limit for a controller of 12,500 nodes."""


def frame(seq: int, layout_sizes: tuple[int, int, int], layout_id: str) -> Frame:
    tiers, gauges, counters = layout_sizes
    return Frame(
        "n0", "9b1c2a34-0000-4000-8000-000000000000", "1234567890123456", seq, layout_id, 10**18 + seq, 10**15 + seq,
        np.full(tiers, 10**15 + seq * 10**9, np.int64), np.ones(gauges),
        np.arange(counters, dtype=np.uint64) * np.uint64(seq), np.ones(counters, np.bool_),
    )  # fmt: skip


def test_every_metric_of_every_feature_is_requested() -> None:
    names = {pattern.partition("(")[0] for pattern in WANTED}
    assert names <= BY_NAME.keys()
    for feature in FEATURES:
        assert set(feature.metrics) <= names, feature.name
    assert names >= {"gangwatch_gpu_up", "gangwatch_rdma_port_state", "gangwatch_rdma_port_link_downed_total"}
    assert wanted_metrics(",".join(WANTED)) == (WANTED, ()), "an agent of this version knows every requested column"


def test_process_states_are_requested() -> None:
    """Without them, a hang is found only by the waiting peers, and a stopped process is not reported."""
    assert METRIC in WANTED


def test_frame_of_an_eight_gpu_node_fits() -> None:
    whole = whole_layout("node-00000", 0, Job("j-000001", 0, 10**9))
    narrow = selection(whole, WANTED)
    assert len(whole.counters) > 1000
    assert len(encode_frame(narrow.apply(frame(1 << 33, whole.sizes, whole.layout_id)))) <= MOST_BYTES


def test_agent_sums_give_the_same_features_as_all_columns() -> None:
    whole = whole_layout("n0", 0, Job("j-000001", 0, 10**9))
    names = tuple(pattern.partition("(")[0] for pattern in WANTED)
    values = []
    for patterns in (WANTED, names):
        chosen, fleet = selection(whole, patterns), Fleet()
        for seq in (1, 2):
            reported = chosen.apply(frame(seq, whole.sizes, whole.layout_id))
            assert fleet.observe(chosen.layout, reported, seq)
        [kind] = fleet.counting.kinds
        values.append(kind.values[0])
    summed, apart = values
    assert np.array_equal(np.isnan(summed), np.isnan(apart))
    known = np.isfinite(summed)
    assert known[FEATURE["nvlink_bytes"]].all() and known[FEATURE["nic_pause_sent"]].all()
    assert np.allclose(summed[known], apart[known])
