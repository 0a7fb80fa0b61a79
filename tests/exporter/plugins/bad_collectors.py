"""Plug-ins for tests: one is correct, and the others make every mistake that a plug-in can make."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar, Sample

RELEASED = threading.Event()
"""Ends the collectors that block."""


class Good:
    """Correct plug-in with one family of each usual type."""

    def collect(self) -> Iterable[Metric]:
        power = GaugeMetricFamily("site_power_watts", "Power of the rack.", labels=["rack"], unit="watts")
        power.add_metric(['r"1\\\n'], 1234.5)
        doors = CounterMetricFamily("site_door_openings", "Openings of the door.")
        doors.add_metric([], 7, exemplar=None)
        latency = HistogramMetricFamily("site_latency_seconds", "Latency.")
        latency.add_metric([], [bucket("1.0", 3), bucket("+Inf", 4)], 9.5)
        return [power, doors, latency, InfoMetricFamily("site_room", "The room.", value={"name": "north"})]


def bucket(bound: str, count: float) -> tuple[str, float, Exemplar | None]:
    return bound, count, Exemplar({"trace_id": "abc"}, 0.5)


class Raises:
    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("site_before_the_error", "Never served.", 1.0)
        raise ZeroDivisionError("no rack")


class Exits:
    def collect(self) -> Iterable[Metric]:
        raise SystemExit(3)


class Hangs:
    def collect(self) -> Iterable[Metric]:
        RELEASED.wait()
        return [GaugeMetricFamily("site_after_the_hang", "Served after the hang.", 1.0)]


class Endless:
    def collect(self) -> Iterator[Metric]:
        while True:
            yield GaugeMetricFamily("site_endless", "One of very many.", 1.0)


class Huge:
    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily("site_huge", "Very many series.", labels=["number"])
        for number in range(20_000):
            family.add_metric([str(number)], 1.0)
        return [family]


class NotFamilies:
    def collect(self) -> object:
        return 7


class Duplicates:
    """Plug-in with names of other plug-ins and of gangwatch, and with repeated series."""

    def collect(self) -> Iterable[Metric]:
        twice = GaugeMetricFamily("site_twice", "Two equal series.", labels=["a"])
        twice.add_metric(["x"], 1.0)
        twice.add_metric(["x"], 2.0)
        once = GaugeMetricFamily("site_only_here", "A good family among bad ones.", 5.0)
        again = GaugeMetricFamily("site_only_here", "The same name again.", 6.0)
        taken = [
            GaugeMetricFamily(name, "Of someone else.", 1.0)
            for name in ("process_open_fds", "gangwatch_host_load1", "gangwatch_new", "DCGM_FI_DEV_GPU_TEMP")
        ]
        # In OpenMetrics this gauge would have the name of the process's counter.
        return [twice, once, again, GaugeMetricFamily("process_cpu_seconds", "Of someone else.", 1.0), *taken]


def odd(name: str, kind: str, *samples: tuple[object, ...], help: object = "Odd.", unit: str = "") -> Metric:
    """Return a family without the checks that prometheus_client's constructors make."""
    family = Metric("placeholder", "", "gauge")
    family.name, family.documentation, family.type, family.unit = name, help, kind, unit  # type: ignore[assignment]
    family.samples = [Sample(*sample) for sample in samples]  # type: ignore[arg-type]
    return family


class Invalid:
    """Plug-in with invalid families. Each would make /metrics unreadable for Prometheus."""

    def collect(self) -> Iterable[object]:
        return [
            odd("site_type", "gauge\nsite_injected 1", ("site_type", {}, 1.0)),
            odd("site_value", "gauge", ("site_value", {}, "much")),
            odd("site_label", "gauge", ("site_label", {"a": 7}, 1.0)),
            odd("site_reserved", "gauge", ("site_reserved", {"__name__": "x"}, 1.0)),
            odd("site_same", "gauge", ("site_same", {"a.b": "1", "a-b": "2"}, 1.0)),
            odd("site_surrogate", "gauge", ("site_surrogate", {"a": "\ud800"}, 1.0)),
            odd("site_help", "gauge", ("site_help", {}, 1.0), help=None),
            odd("site_unit", "gauge", ("site_unit", {}, 1.0), unit="watts\n# EOF"),
            odd("site_other", "gauge", ("up", {}, 1.0)),
            odd("site_counter", "counter", ("site_counter", {}, 1.0)),
            odd("site_time", "gauge", ("site_time", {}, 1.0, "now")),
            odd("site_endless_time", "gauge", ("site_endless_time", {}, 1.0, float("nan"))),
            odd("site_exemplar", "counter", ("site_exemplar_total", {}, 1.0, None, Exemplar({"a": "x" * 200}, 1.0))),
            odd("", "gauge"),
            "site_text 1\n",
            None,
            odd("site.escaped name", "gauge", ("site.escaped name", {"a label": "x\ny"}, 1.0)),
            odd("9lives", "gauge", ("9lives", {}, 9.0)),
        ]


def fails_to_load() -> object:
    raise RuntimeError("no licence")


def not_a_collector() -> object:
    return object()


REGISTRY = CollectorRegistry()
Gauge("site_in_a_registry", "A metric of a registry.", registry=REGISTRY).set(4.0)
