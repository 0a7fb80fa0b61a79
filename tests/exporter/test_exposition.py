"""Exposition of successive frames: equal to rendering each frame alone, in both formats, plain and compressed."""

from __future__ import annotations

import gzip
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from agent.schema.catalog import BY_NAME, METRICS, Renamed
from agent.schema.frame import Column, Frame, Layout, Tier, make_layout
from exporter.prometheus.exposition import EVERYTHING, Exposition, Settings, expose
from exporter.prometheus.line_cache import Lines
from tests.exporter.sample_frames import exposed, frame_of, small_frame, small_layout

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series_of(body: bytes, open_metrics: bool = False) -> Series:
    """Return the series that a client reads, without those about the exporter."""
    parse = parse_open_metrics if open_metrics else parse_text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
        for family in parse(body.decode())
        for sample in family.samples
        if not sample.name.startswith("gangwatch_exporter_")
    }


def own_of(body: bytes) -> dict[str, float]:
    """Return the series about the exporter by name, or by name and reason."""
    return {
        sample.name + sample.labels.get("reason", ""): sample.value
        for family in parse_text(body.decode())
        for sample in family.samples
        if sample.name.startswith("gangwatch_exporter_")
    }


@st.composite
def histories(draw: st.DrawFn) -> tuple[Layout, list[Frame]]:
    """Draw a layout and frames. From frame to frame only some values change, appear or disappear."""
    layout, first = draw(exposed())
    frames = [first]
    for seq in range(2, draw(st.integers(2, 5)) + 1):
        before = frames[-1]
        gauges, counters, valid = before.gauges.copy(), before.counters.copy(), before.counters_valid.copy()
        for index in range(len(gauges)):
            if draw(st.booleans()):
                gauges[index] = draw(st.floats())
        for index in range(len(counters)):
            if draw(st.booleans()):
                counters[index] = draw(st.integers(0, 2**64 - 1))
                valid[index] = draw(st.booleans())
        frames.append(frame_of(layout, gauges.tolist(), counters.tolist(), valid.tolist(), seq=seq))
    return layout, frames


@settings(max_examples=60)
@given(histories(), st.booleans())
def test_an_updated_exposition_equals_a_fresh_one(made: tuple[Layout, list[Frame]], open_metrics: bool) -> None:
    layout, frames = made
    kept = Exposition(EVERYTHING, open_metrics)
    for frame in frames:
        plain = kept.body(layout, frame)
        fresh = expose(layout, frame, EVERYTHING, open_metrics).removesuffix(b"# EOF\n")
        assert plain.startswith(fresh)
        assert gzip.decompress(kept.body(layout, frame, compress=True)) == plain
        assert kept.body(layout, frame) is plain, "each frame is rendered once"


@settings(max_examples=60)
@given(exposed())
def test_open_metrics_has_the_same_values_as_the_text(made: tuple[Layout, Frame]) -> None:
    layout, frame = made
    # The parser of OpenMetrics requires the value 1 for an info; the agent publishes no other value.
    for index, column in enumerate(layout.gauges):
        if BY_NAME[column.metric].kind == "info":
            frame.gauges[index] = 1.0
    text, open_metrics = expose(layout, frame), expose(layout, frame, open_metrics=True)
    assert series_of(open_metrics, open_metrics=True) == series_of(text)
    assert open_metrics.endswith(b"# EOF\n")


def test_open_metrics_of_a_known_frame() -> None:
    layout = small_layout()
    lines = expose(layout, small_frame(layout), open_metrics=True).decode().splitlines()
    assert lines[0:3] == [
        "# TYPE gangwatch_host_load1 gauge",
        "# HELP gangwatch_host_load1 Load average over one minute.",
        'gangwatch_host_load1{node="n0"} 0.21',
    ]
    at = lines.index("# TYPE gangwatch_host_cpu_seconds counter")
    assert lines[at + 1 : at + 4] == [
        "# UNIT gangwatch_host_cpu_seconds seconds",
        "# HELP gangwatch_host_cpu_seconds CPU time of all processors, by mode.",
        'gangwatch_host_cpu_seconds_total{mode="user",node="n0"} 9223372036.854775809',
    ]


def test_family_names_are_unique_in_open_metrics() -> None:
    """OpenMetrics removes _total from names of counters, and _info from infos."""
    names = [metric.name.removesuffix("_total").removesuffix("_info") for metric in METRICS]
    assert sorted(names) == sorted(set(names))


def test_an_unchanged_part_is_not_rendered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [Column("gangwatch_gpu_power_watts", (("gpu", f"GPU-{index:036}"),)) for index in range(400)]
    more = [Column("gangwatch_gpu_temperature_celsius", (("gpu", f"GPU-{index:036}"),)) for index in range(400)]
    layout = make_layout("n0", [Tier("gpu", 1.0)], [*columns, *more], [])
    packed: list[int] = []
    deflate = Lines._deflate

    def counted(lines: Lines, text: bytes) -> bytes:
        packed.append(len(text))
        return deflate(lines, text)

    monkeypatch.setattr(Lines, "_deflate", counted)
    kept = Exposition(EVERYTHING)
    values = [float(index) for index in range(800)]
    kept.body(layout, frame_of(layout, values, [], seq=1), compress=True)
    assert len(packed) == 3, "two families of more than 16 KiB, and the exporter's own series"
    packed.clear()
    values[7] += 1
    body = kept.body(layout, frame_of(layout, values, [], seq=2), compress=True)
    assert len(packed) == 2
    assert b'000000000007",node="n0"} 8.0\n' in gzip.decompress(body)


def test_a_family_that_lost_its_last_series_loses_its_header() -> None:
    layout = small_layout()
    kept = Exposition(EVERYTHING)
    assert b"# TYPE gangwatch_gpu_power_watts gauge" in kept.body(layout, small_frame(layout))
    gone = frame_of(layout, [0.2, math.nan, math.nan, math.nan], [0] * 4, [False] * 4, seq=2)
    body = kept.body(layout, gone)
    assert b"power_watts" not in body and b"cpu_seconds" not in body
    assert b"# TYPE gangwatch_gpu_power_watts gauge" in kept.body(layout, small_frame(layout, seq=3))


def test_the_first_frame_of_a_restarted_agent_is_rendered_again() -> None:
    layout = small_layout()
    kept = Exposition(EVERYTHING)
    first = small_frame(layout)
    before = kept.body(layout, first)
    again = Frame(
        *(first.node, first.boot_id, "another agent", first.seq, first.layout_id, first.wall_ns, first.monotonic_ns),
        *(first.tier_ns, first.gauges + 1, first.counters, first.counters_valid),
    )
    assert kept.body(layout, again) != before


# --- omitted series --------------------------------------------------------------------------------------------------


def many(families: int, series: int) -> tuple[Layout, Frame]:
    names = [metric.name for metric in METRICS if metric.kind == "gauge" and metric.labels == ("gpu",)][:families]
    columns = [Column(name, (("gpu", f"GPU-{index}"),)) for name in names for index in range(series)]
    layout = make_layout("n0", [Tier("gpu", 1.0)], columns, [])
    return layout, frame_of(layout, [1.0] * len(columns), [])


def test_series_above_the_limit_are_dropped_and_counted() -> None:
    layout, frame = many(4, 50)
    body = Exposition(Settings(series_limit=130)).body(layout, frame)
    assert len(series_of(body)) == 130
    own = own_of(body)
    assert own["gangwatch_exporter_series"] == 130
    assert own["gangwatch_exporter_series_left_outlimit"] == 70
    assert own["gangwatch_exporter_series_limit"] == 130


def test_deny_overrides_allow_and_allow_overrides_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.prometheus.profiles.FULL_ONLY", ("gangwatch_gpu_*_clock_hertz",))
    columns = [
        Column(name, (("gpu", "GPU-1"),))
        for name in ("gangwatch_gpu_sm_clock_hertz", "gangwatch_gpu_memory_clock_hertz", "gangwatch_gpu_power_watts")
    ]
    layout = make_layout("n0", [Tier("gpu", 1.0)], columns, [])
    frame = frame_of(layout, [1.0] * 3, [])

    def names(**named: object) -> set[str]:
        body = Exposition(Settings(**named)).body(layout, frame)  # type: ignore[arg-type]
        return {name.removeprefix("gangwatch_gpu_") for name, _ in series_of(body)}

    assert names(profile="full") == {"sm_clock_hertz", "memory_clock_hertz", "power_watts"}
    assert names(profile="default") == {"power_watts"}
    assert names(profile="default", allow=("*sm_clock*",)) == {"power_watts", "sm_clock_hertz"}
    assert names(profile="full", allow=("*sm_clock*",), deny=("*_hertz",)) == {"power_watts"}
    own = own_of(Exposition(Settings(profile="default", deny=("*watts",))).body(layout, frame))
    assert own["gangwatch_exporter_series_left_outprofile"] == 2
    assert own["gangwatch_exporter_series_left_outdeny"] == 1


def test_a_renamed_metric_is_published_under_both_names() -> None:
    layout = small_layout()
    renamed = (Renamed("gangwatch_host_load", "gangwatch_host_load1", "0.2"),)
    body = Exposition(EVERYTHING, renamed=renamed).body(layout, small_frame(layout))
    found = series_of(body)
    assert found["gangwatch_host_load", (("node", "n0"),)] == found["gangwatch_host_load1", (("node", "n0"),)] == 0.21
    assert b"# HELP gangwatch_host_load Now called gangwatch_host_load1; this name goes away after 0.2." in body


# --- owners ----------------------------------------------------------------------------------------------------------


def owner(gpu: str, **labels: str) -> Column:
    named = dict.fromkeys(BY_NAME["gangwatch_gpu_owner_info"].labels, "")
    return Column("gangwatch_gpu_owner_info", tuple(sorted({**named, "gpu": gpu, **labels}.items())))


def owned() -> Layout:
    gauges = [
        Column("gangwatch_gpu_power_watts", (("gpu", "GPU-1"),)),
        Column("gangwatch_gpu_power_watts", (("gpu", "GPU-2"),)),
        owner("GPU-1", pod="a", namespace="ml", container="c"),
        owner("GPU-2", pod="a", namespace="ml", container="c"),
        owner("GPU-2", pod="b", namespace="ml", container="c"),
    ]
    return make_layout("n0", [Tier("gpu", 1.0)], gauges, [])


def test_owner_labels_are_added_only_if_enabled() -> None:
    layout = owned()
    frame = frame_of(layout, [100.0, 200.0, 1.0, 1.0, 1.0], [])
    plain = series_of(expose(layout, frame))
    assert plain["gangwatch_gpu_power_watts", (("gpu", "GPU-1"), ("node", "n0"))] == 100.0
    joined = series_of(expose(layout, frame, Settings(owner_labels=True)))
    own = (("container", "c"), ("gpu", "GPU-1"), ("namespace", "ml"), ("node", "n0"), ("pod", "a"))
    assert joined["gangwatch_gpu_power_watts", own] == 100.0
    # Two pods share the second GPU: its series get no pod label.
    assert joined["gangwatch_gpu_power_watts", (("gpu", "GPU-2"), ("node", "n0"))] == 200.0


def test_labels_of_an_ended_owner_disappear_at_once() -> None:
    layout = owned()
    kept = Exposition(Settings(owner_labels=True))
    kept.body(layout, frame_of(layout, [100.0, 200.0, 1.0, 1.0, 1.0], [], seq=1))
    body = kept.body(layout, frame_of(layout, [100.0, 200.0, math.nan, math.nan, 1.0], [], seq=2))
    found = series_of(body)
    assert ("gangwatch_gpu_power_watts", (("gpu", "GPU-1"), ("node", "n0"))) in found
    alone = (("container", "c"), ("gpu", "GPU-2"), ("namespace", "ml"), ("node", "n0"), ("pod", "b"))
    assert found["gangwatch_gpu_power_watts", alone] == 200.0
    assert np.isnan(list(found.values())).sum() == 0
