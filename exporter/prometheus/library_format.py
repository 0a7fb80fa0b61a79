"""Conversion between prometheus_client's families, gangwatch's samples, and text in both formats.

It is used for metrics of plug-ins, of the process and of the controller. Frames have a faster renderer
(line_cache.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.registry import Collector

from agent.schema.catalog import BY_NAME
from agent.schema.sample import Sample
from exporter.prometheus.text_format import OPEN_METRICS_TYPE, TEXT_TYPE

PROCESS_SECONDS = 10.0
"""The metrics of the process are read again only if the last values are older than this number of seconds. Most scrape
intervals are longer."""

_EOF = b"# EOF\n"


class _Families(CollectorRegistry):
    """Registry with a given list of families, as input of prometheus_client's renderers."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def family_text(families: Iterable[Metric], open_metrics: bool) -> bytes:
    """Return the families as Prometheus text or OpenMetrics, without the end marker of the latter.

    Raises an exception of prometheus_client for an invalid family.
    """
    if open_metrics:
        found: bytes = generate_open_metrics(_Families(families))  # type: ignore[no-untyped-call]
        return found.removesuffix(_EOF)
    return generate_latest(_Families(families))


def page(families: Iterable[Metric], open_metrics: bool) -> tuple[bytes, str]:
    """Return a complete response body with these families, and its media type."""
    text = family_text(families, open_metrics)
    return (text + _EOF, OPEN_METRICS_TYPE) if open_metrics else (text, TEXT_TYPE)


def sample_families(samples: Iterable[Sample], labels: Sequence[tuple[str, str]] = ()) -> list[Metric]:
    """Return gangwatch's samples as families, grouped by name. Samples with NaN are left out.

    The samples may be in any order, with values in the catalogue's unit. labels: added to each sample. Raises
    ValueError for a name or labels that are not in the catalogue, and for a duplicate series.
    """
    families: dict[str, Metric] = {}
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for name, own, value in samples:
        if value != value:  # only NaN differs from itself
            continue
        family = families.get(name) or families.setdefault(name, empty_family(name))
        metric = BY_NAME[name]
        if tuple(sorted(key for key, _ in own if key != "node")) != metric.labels:
            raise ValueError(f"{name}: labels {tuple(key for key, _ in own)}, the catalogue has {metric.labels}")
        pairs = {str(key): str(text) for key, text in (*own, *labels)}
        key = name, frozenset(pairs.items())
        if key in seen:
            raise ValueError(f"duplicate series {name}{pairs}")
        seen.add(key)
        family.add_sample(name, pairs, float(value))
    return list(families.values())


def empty_family(name: str) -> Metric:
    """Return the catalogue's family of this name, without samples. Raises ValueError for an unknown name."""
    metric = BY_NAME.get(name)
    if metric is None:
        raise ValueError(f"{name} is not in the catalogue")
    base = name.removesuffix({"counter": "_total", "info": "_info"}.get(metric.kind, ""))
    unit = metric.unit if metric.unit and base.endswith(f"_{metric.unit}") else ""
    return Metric(base, metric.help, metric.kind, unit)


class ProcessMetrics(Collector):
    """prometheus_client's metrics of this process: process_* and python_gc_*.

    They are read at most every PROCESS_SECONDS, because the library lists /proc/self/fd, and an agent has hundreds of
    open files.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create the collector. clock: returns seconds of a monotonic clock."""
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self._registry, self._clock = registry, clock
        self._newest: tuple[float, list[Metric]] | None = None

    def collect(self) -> Iterable[Metric]:
        """Return the families of this process, at most PROCESS_SECONDS old."""
        now_s, newest = self._clock(), self._newest
        if newest is None or now_s - newest[0] >= PROCESS_SECONDS:
            newest = self._newest = now_s, list(self._registry.collect())
        return newest[1]
