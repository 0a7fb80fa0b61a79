"""Prometheus text: Prometheus's own parsers read every digit back."""

from __future__ import annotations

import json
import math
import subprocess
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from agent.schema.catalog import BY_NAME, METRICS, Metric
from agent.schema.errors import FrameError
from agent.schema.frame import Column, Frame, Layout, Tier, make_layout
from agent.schema.sample import Sample
from exporter.frame_formats import frame_json
from exporter.prometheus.exposition import EVERYTHING, Exposition, expose
from exporter.prometheus.series import counter_text, decimals_of, gauge_text
from exporter.prometheus.text_format import expose_samples
from exporter.push.points import Points
from tests import needs
from tests.exporter.sample_frames import (
    LABEL_TEXT,
    METRIC_NAMES,
    exposed,
    frame_of,
    series_key,
    small_frame,
    small_layout,
)

GOLDEN = r"""# HELP gangwatch_host_load1 Load average over one minute.
# TYPE gangwatch_host_load1 gauge
gangwatch_host_load1{node="n0"} 0.21
# HELP gangwatch_gpu_power_watts Power drawn, averaged by the driver.
# TYPE gangwatch_gpu_power_watts gauge
gangwatch_gpu_power_watts{gpu="GPU-1",node="n0"} 345.678
gangwatch_gpu_power_watts{gpu="GPU-2",node="n0"} 1e-7
# HELP gangwatch_host_cpu_seconds_total CPU time of all processors, by mode.
# TYPE gangwatch_host_cpu_seconds_total counter
gangwatch_host_cpu_seconds_total{mode="user",node="n0"} 9223372036.854775809
gangwatch_host_cpu_seconds_total{mode="idle",node="n0"} 0.000000005
# HELP gangwatch_host_network_receive_errors_total Receive errors of the interface.
# TYPE gangwatch_host_network_receive_errors_total counter
gangwatch_host_network_receive_errors_total{device="a\"b\\c\nd",node="n0"} 3
"""


def parsed(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    names: list[str] = []
    for family in text_string_to_metric_families(text.decode()):
        names.append(family.name)
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples, "duplicate series"
            samples[key] = float(sample.value)
    assert len(set(names)) == len(names), "the family is split"
    return samples


def expected(layout: Layout, frame: Frame) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    samples = {}
    for column, value in zip(layout.gauges, frame.gauges.tolist(), strict=True):
        if not math.isnan(value):
            samples[column.metric, (*column.labels, ("node", layout.node))] = value
    for column, raw, valid in zip(layout.counters, frame.counters.tolist(), frame.counters_valid.tolist(), strict=True):
        if valid:
            scaled = Decimal(raw) * Decimal(str(BY_NAME[column.metric].scale))
            samples[column.metric, (*column.labels, ("node", layout.node))] = float(scaled)
    return {(name, tuple(sorted(labels))): value for (name, labels), value in samples.items()}


def test_the_text_of_a_known_frame() -> None:
    layout = small_layout()
    assert expose(layout, small_frame(layout)).decode() == GOLDEN


@given(exposed())
def test_any_frame_is_read_back_unchanged(made: tuple[Layout, Frame]) -> None:
    layout, frame = made
    text = expose(layout, frame)
    assert parsed(text) == expected(layout, frame)
    assert b"nan" not in b" ".join(line.rpartition(b" ")[2].lower() for line in text.splitlines())


@given(st.integers(0, 2**64 - 1), st.sampled_from([0, 3, 9]))
def test_a_counter_keeps_every_digit(raw: int, decimals: int) -> None:
    assert Decimal(counter_text(raw, decimals)) == Decimal(raw).scaleb(-decimals)
    assert "e" not in counter_text(raw, decimals).lower()


@given(st.floats(allow_nan=False))
def test_a_gauge_reads_back_as_the_same_number(value: float) -> None:
    assert float(gauge_text(value)) == value


def test_every_scale_of_the_catalogue_is_printed_without_loss() -> None:
    for metric in METRICS:
        decimals_of(metric)
    with pytest.raises(ValueError, match="scale"):
        decimals_of(Metric("x", "counter", "help", scale=1 / 1024))


def test_no_label_is_reserved_by_prometheus() -> None:
    for metric in METRICS:
        assert not {"job", "instance", "node", "le", "quantile"} & set(metric.labels), metric.name
        assert not any(label.startswith("__") for label in metric.labels), metric.name
        assert metric.labels == tuple(sorted(metric.labels)), metric.name


UNITS = ("bytes", "bytes_per_second", "celsius", "hertz", "joules", "ratio", "seconds", "watts")


def test_the_unit_of_a_metric_is_that_of_its_name() -> None:
    for metric in METRICS:
        name = metric.name.removesuffix("_total").removesuffix("_slot_seconds")  # work, not a time
        named = [unit for unit in UNITS if name.endswith(f"_{unit}") and not name.endswith(f"_per_{unit}")]
        assert not named or metric.unit == named[-1], metric.name
        assert not metric.unit or (metric.unit in UNITS and f"_{metric.unit}" in metric.name), metric.name


def test_a_frame_of_another_layout_is_rejected() -> None:
    layout = small_layout()
    with pytest.raises(FrameError):
        expose(small_layout("n1"), small_frame(layout))


@pytest.mark.parametrize(
    ("gauges", "counters", "named"),
    [
        ([Column("gangwatch_unheard_of")], [], "gangwatch_unheard_of is not"),
        ([Column("gangwatch_agent_frames_total")], [], "is a counter"),
        ([], [Column("gangwatch_host_load1")], "is a gauge"),
    ],
)
def test_a_column_outside_the_catalogue_is_left_out_and_named_once(
    gauges: list[Column], counters: list[Column], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    gauges = [Column("gangwatch_host_cpus"), *gauges]
    layout = make_layout("n0", [Tier("any", 1.0)], gauges, counters)
    kept = Exposition(EVERYTHING)
    for seq in (1, 2):
        frame = frame_of(layout, [1.0] * len(gauges), [1] * len(counters), seq=seq)
        text = kept.body(layout, frame).decode()
        found = [line for line in text.splitlines() if not line.startswith(("#", "gangwatch_exporter_"))]
        assert found == ['gangwatch_host_cpus{node="n0"} 1.0']
        assert 'gangwatch_exporter_series_left_out{node="n0",reason="catalogue"} 1' in text
    assert [named in record.getMessage() for record in caplog.records] == [True]
    assert [one["name"] for one in json.loads(frame_json(layout, frame))["series"]] == ["gangwatch_host_cpus"]
    assert [point.metric.name for point in Points(layout, lambda _: True).points] == ["gangwatch_host_cpus"]


def test_a_bug_in_the_samples_of_the_exporter_affects_only_them() -> None:
    layout = small_layout()

    def strange() -> list[Sample]:
        return [
            ("gangwatch_unheard_of", (), 1.0),
            ("gangwatch_http_connections", (), 3.0),
            ("gangwatch_http_connections", (), 4.0),
            ("gangwatch_http_connections_limit", (("odd", "1"),), 4.0),
        ]

    def broken() -> list[Sample]:
        raise ZeroDivisionError

    text = Exposition(EVERYTHING, own=strange).body(layout, small_frame(layout)).decode()
    assert text.startswith(GOLDEN)
    assert [line for line in text.splitlines() if line.startswith("gangwatch_http")] == [
        'gangwatch_http_connections{node="n0"} 3.0'
    ]
    assert Exposition(EVERYTHING, own=broken).body(layout, small_frame(layout)).decode().startswith(GOLDEN)


def whole_catalogue() -> tuple[Layout, Frame]:
    def column(metric: Metric, value: str) -> Column:
        return Column(metric.name, tuple((label, value) for label in metric.labels))

    gauges = [column(metric, "a") for metric in METRICS if metric.kind != "counter"]
    counters = [column(metric, value) for value in "ab" for metric in METRICS if metric.kind == "counter"]
    counters = list(dict.fromkeys(counters))
    layout = make_layout("n0", [Tier("any", 1.0)], gauges, counters)
    return layout, frame_of(layout, [0.5] * len(gauges), list(range(len(counters))))


def test_promtool_accepts_the_whole_catalogue() -> None:
    promtool = needs.component("promtool", "prometheus")
    checked = subprocess.run([promtool, "check", "metrics"], input=expose(*whole_catalogue()), capture_output=True)
    assert (checked.returncode, checked.stdout.decode(), checked.stderr.decode()) == (0, "", "")


# --- by name ---------------------------------------------------------------------------------------------------------


def test_samples_by_name_are_grouped_by_family() -> None:
    text = expose_samples(
        [
            ("gangwatch_nodes", (("state", "healthy"),), 3),
            ("gangwatch_frozen", (), 0.0),
            ("gangwatch_nodes", (("state", "suspect"),), math.nan),
            ("gangwatch_nodes", (("state", "quarantine"),), 1),
            ("gangwatch_feed_connected", (("node", "n0"),), True),
            ("gangwatch_gang_step_seconds", (("gang", 'j"1'),), math.inf),
            ("gangwatch_slots", (("use", "free"),), math.nan),
        ]
    )
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'gangwatch_nodes{state="healthy"} 3',
        'gangwatch_nodes{state="quarantine"} 1',
        "gangwatch_frozen 0.0",
        'gangwatch_feed_connected{node="n0"} 1',
        'gangwatch_gang_step_seconds{gang="j\\"1"} +Inf',
    ]
    assert text.count("# TYPE gangwatch_nodes gauge") == 1
    assert "gangwatch_slots" not in text


@given(
    st.lists(
        st.tuples(METRIC_NAMES, st.lists(LABEL_TEXT, min_size=12, max_size=12), st.floats()),
        max_size=10,
        unique_by=series_key,
    )
)
def test_any_samples_are_read_back_unchanged(samples: list[tuple[str, list[str], float]]) -> None:
    given_samples = [
        (name, tuple(zip(BY_NAME[name].labels, values, strict=False)), value) for name, values, value in samples
    ]
    back = parsed(expose_samples(given_samples).encode())
    assert back == {(name, labels): value for name, labels, value in given_samples if not math.isnan(value)}


@pytest.mark.parametrize(
    ("samples", "named"),
    [
        ([("gangwatch_unheard_of", (), 1.0)], "gangwatch_unheard_of"),
        ([("gangwatch_nodes", (), 1.0)], "gangwatch_nodes: labels"),
        ([("gangwatch_frozen", (("job", "x"),), 1.0)], "gangwatch_frozen: labels"),
        ([("gangwatch_frozen", (), 1.0), ("gangwatch_frozen", (), 0.0)], "duplicate series"),
    ],
)
def test_samples_outside_the_catalogue_are_rejected(
    samples: list[tuple[str, tuple[tuple[str, str], ...], float]], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        expose_samples(samples)
