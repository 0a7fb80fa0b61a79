"""Frames for the exporter's tests: a fixed one, and arbitrary ones for hypothesis."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from agent.schema.catalog import BY_NAME, EXPORTER, METRICS
from agent.schema.frame import Column, Frame, Layout, Member, OpenRecord, StepRecord, Tier, make_layout

LABEL_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
"""Any text that UTF-8 can encode, with quotes, backslashes and line ends."""

METRIC_NAMES = st.sampled_from([metric.name for metric in METRICS if metric not in EXPORTER])
"""Metrics of agents: all but the exporter's own."""


def frame_of(
    layout: Layout, gauges: list[float], counters: list[int], valid: list[bool] | None = None, seq: int = 1
) -> Frame:
    return Frame(
        node=layout.node,
        boot_id="boot",
        agent_id="agent",
        seq=seq,
        layout_id=layout.layout_id,
        wall_ns=1_700_000_000_000_000_000,
        monotonic_ns=5_000_000_000,
        tier_ns=np.array([4_000_000_000] * len(layout.tiers), np.int64),
        gauges=np.array(gauges, np.float64),
        counters=np.array(counters, np.uint64),
        counters_valid=np.array([True] * len(counters) if valid is None else valid, np.bool_),
        record_seq=8,
        records=(
            StepRecord(Member("j-000001", 1, 0), 41, 7, 9, None, 3),
            OpenRecord(Member("j-000001", 1, 0), "collective", 42, 11),
        ),
    )


def small_layout(node: str = "n0") -> Layout:
    """Return a layout of two families whose columns alternate: one with labels, and a counter of seconds without."""
    cpu, disk = "gangwatch_host_cpu_seconds_total", "gangwatch_host_network_receive_errors_total"
    return make_layout(
        node,
        [Tier("host", 1.0)],
        [
            Column("gangwatch_host_load1"),
            Column("gangwatch_gpu_power_watts", (("gpu", "GPU-1"),)),
            Column("gangwatch_host_cpus"),
            Column("gangwatch_gpu_power_watts", (("gpu", "GPU-2"),)),
        ],
        [
            Column(cpu, (("mode", "user"),)),
            Column(disk, (("device", 'a"b\\c\nd'),)),
            Column(cpu, (("mode", "idle"),)),
            Column(cpu, (("mode", "steal"),)),
        ],
    )


def small_frame(layout: Layout, seq: int = 1) -> Frame:
    return frame_of(layout, [0.21, 345.678, math.nan, 1e-7], [2**63 + 1, 3, 5, 7], [True, True, True, False], seq=seq)


def series_key(chosen: tuple[str, list[str]] | tuple[str, list[str], float]) -> tuple[str, ...]:
    """Return the metric's name and its label values. `chosen` has more values than the metric has labels."""
    return (chosen[0], *chosen[1][: len(BY_NAME[chosen[0]].labels)])


@st.composite
def exposed(draw: st.DrawFn) -> tuple[Layout, Frame]:
    """Draw a layout of catalogue metrics without duplicate series, and a frame with this layout."""
    chosen = draw(
        st.lists(
            st.tuples(METRIC_NAMES, st.lists(LABEL_TEXT, min_size=12, max_size=12)),
            max_size=12,
            unique_by=series_key,
        )
    )
    gauges, counters = [], []
    for name, values in chosen:
        metric = BY_NAME[name]
        column = Column(metric.name, tuple(zip(metric.labels, values, strict=False)))
        (counters if metric.kind == "counter" else gauges).append(column)
    layout = make_layout(draw(LABEL_TEXT), [Tier("any", 1.0)], gauges, counters)

    def one_each(columns: list[Column], values: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(values, min_size=len(columns), max_size=len(columns)))

    return layout, frame_of(
        layout,
        one_each(gauges, st.floats()),  # type: ignore[arg-type]
        one_each(counters, st.integers(0, 2**64 - 1)),  # type: ignore[arg-type]
        one_each(counters, st.booleans()),  # type: ignore[arg-type]
    )
