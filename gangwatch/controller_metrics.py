"""The controller's /metrics. A bug in a source omits only its samples; an invalid sample omits only its family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from exporter.prometheus.text_format import expose_samples
from scheduler_feedback.core.telemetry.fleet import Sample
from scheduler_feedback.part_failures import PartFailures


def exposition(failures: PartFailures, sources: Sequence[Callable[[], Iterable[Sample]]]) -> str:
    """Return the samples of all sources as text; leave out and report what fails because of a bug."""
    samples: list[Sample] = []
    for source in sources:
        try:
            samples += list(source())
        except Exception as error:
            failures.report("metrics", error)
    try:
        return expose_samples(samples)
    except Exception as error:
        failures.report("metrics", error)
    families: dict[str, list[Sample]] = {}
    for sample in samples:
        families.setdefault(str(sample[0]), []).append(sample)
    return "".join(map(_family, families.values()))


def _family(samples: list[Sample]) -> str:
    try:
        return expose_samples(samples)
    except Exception:  # already reported above
        return ""
