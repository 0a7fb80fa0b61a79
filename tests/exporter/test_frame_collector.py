"""prometheus_client Collector of a node's newest frame: the same series as an agent's /metrics."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics

from agent.schema.catalog import BY_NAME
from agent.schema.frame import Frame, Layout
from exporter.prometheus.exposition import Exposition, Settings, expose
from exporter.prometheus.frame_collector import FrameCollector
from tests.exporter.sample_frames import exposed, frame_of, small_frame, small_layout
from tests.exporter.test_exposition import owned, series_of


def registry_of(collector: FrameCollector) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(collector)
    return registry


@settings(max_examples=60)
@given(exposed())
def test_any_frame_has_the_series_of_the_text(made: tuple[Layout, Frame]) -> None:
    layout, frame = made
    for index, column in enumerate(layout.gauges):
        if BY_NAME[column.metric].kind == "info":
            frame.gauges[index] = 1.0
    registry = registry_of(FrameCollector(lambda: made))
    assert series_of(generate_latest(registry)) == series_of(expose(layout, frame))
    text: bytes = generate_open_metrics(registry)  # type: ignore[no-untyped-call]
    assert series_of(text, open_metrics=True) == series_of(expose(layout, frame, open_metrics=True), open_metrics=True)


@pytest.mark.parametrize("compatibility", [(), ("dcgm", "node_exporter", "rdma_exporter")])
def test_derived_values_follow_the_frames(compatibility: tuple[str, ...]) -> None:
    """DCGM's rates and ratios are computed between two frames, so all scrapes of a frame share one computation."""
    chosen = Settings(compatibility=compatibility)
    layout = small_layout()
    made: list[tuple[Layout, Frame]] = []
    collector, kept = FrameCollector(lambda: made[-1] if made else None, chosen), Exposition(chosen)
    registry = registry_of(collector)
    assert generate_latest(registry) == b"", "no frame yet"
    for seq in (1, 2, 3):
        frame = frame_of(layout, [0.1 * seq, 100.0 + seq, 8.0, math.nan], [5 * seq, seq, 7, 9], seq=seq)
        made.append((layout, frame))
        expected = series_of(kept.body(layout, frame))
        assert series_of(generate_latest(registry)) == expected
        assert series_of(generate_latest(registry)) == expected
        assert collector.collect() is collector.collect()


def test_owners_of_gpus_are_followed() -> None:
    layout = owned()
    frames = [
        frame_of(layout, [100.0, 200.0, 1.0, 1.0, 1.0], [], seq=1),
        frame_of(layout, [100.0, 200.0, math.nan, math.nan, 1.0], [], seq=2),
    ]
    at = 0
    chosen = Settings(owner_labels=True)
    registry, kept = registry_of(FrameCollector(lambda: (layout, frames[at]), chosen)), Exposition(chosen)
    for at in (0, 1):
        assert series_of(generate_latest(registry)) == series_of(kept.body(layout, frames[at]))


def test_it_stands_next_to_metrics_of_the_program() -> None:
    layout = small_layout()
    registry = registry_of(FrameCollector(lambda: (layout, small_frame(layout))))
    Gauge("my_queue_length", "Of the program.", registry=registry).set(3)
    text = generate_latest(registry).decode()
    assert "my_queue_length 3.0" in text
    assert 'gangwatch_gpu_power_watts{gpu="GPU-1",node="n0"} 345.678' in text
