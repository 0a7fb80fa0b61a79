"""The controller's /metrics: its own series, those of its process, and those of plug-ins and text files.

If one part of the controller fails, the metrics of the other parts are still served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from agent.schema.sample import AnySample, name_of
from exporter.plugins.plugins import Plugins
from exporter.prometheus.library_format import page
from exporter.prometheus.line_cache import gzipped
from exporter.prometheus.sample_page import sample_texts
from exporter.server import wants_open_metrics
from exporter.serving.http_messages import accepts_gzip
from scheduler_feedback.part_failures import PartFailures

Sources = Sequence[Callable[[], Iterable[AnySample]]]


class ControllerMetrics:
    """Content of the controller's /metrics. Thread-safe."""

    def __init__(self, failures: PartFailures, sources: Sources, plugins: Plugins) -> None:
        """Create the content of /metrics.

        failures: failed parts of the controller. sources: functions that return the samples of the parts. plugins:
        metrics of the process, plug-ins and text files.
        """
        self._failures, self._sources, self._plugins = failures, sources, plugins

    def answer(self, headers: Mapping[str, str]) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of a response. headers: those of the request, by lower-case name."""
        open_metrics = wants_open_metrics(headers.get("accept", ""))
        own = controller_texts(self._failures, self._sources, open_metrics)
        more, kind = page(self._plugins.families(own), open_metrics)
        body = "".join(own.values()).encode() + more
        found = {"Content-Type": kind, "Vary": "Accept, Accept-Encoding"}
        if accepts_gzip(headers):
            return gzipped(body), {**found, "Content-Encoding": "gzip"}
        return body, found


def controller_texts(failures: PartFailures, sources: Sources, open_metrics: bool) -> dict[str, str]:
    """Return the samples of all sources as text, by family. A source that fails because of a bug is left out and
    reported."""
    samples: list[AnySample] = []
    for source in sources:
        try:
            samples += list(source())
        except Exception as error:
            failures.report("metrics", error)
    try:
        return sample_texts(samples, open_metrics)
    except Exception as error:
        failures.report("metrics", error)
    by_name: dict[str, list[AnySample]] = {}
    for sample in samples:
        by_name.setdefault(str(name_of(sample)), []).append(sample)
    found: dict[str, str] = {}
    for one in by_name.values():
        found |= _texts(one, open_metrics)
    return found


def _texts(samples: list[AnySample], open_metrics: bool) -> dict[str, str]:
    try:
        return sample_texts(samples, open_metrics)
    except Exception:  # already reported above
        return {}
