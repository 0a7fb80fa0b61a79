"""Checks of metric families of plug-ins and text files. An invalid family would make /metrics unreadable.

Prometheus rejects a whole response for one malformed line. A valid family is copied: later changes of the original
have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from prometheus_client.metrics_core import METRIC_TYPES, Metric
from prometheus_client.samples import Exemplar, Sample

RESERVED = "gangwatch_"
"""Prefix of gangwatch's own metrics. No other code may use it, because a later release may add any such name."""

SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "counter": ("_total", "_created"),
    "gauge": ("",),
    "unknown": ("",),
    "info": ("_info",),
    "stateset": ("",),
    "summary": ("", "_sum", "_count", "_created"),
    "histogram": ("_bucket", "_sum", "_count", "_created"),
    "gaugehistogram": ("_bucket", "_gsum", "_gcount"),
}
"""Suffixes that the name of a sample may have, by the type of its family. A sample's name consists of the name of the
family and one of these suffixes."""

MOST_EXEMPLAR_CHARACTERS = 128
"""Maximum total length of an exemplar's labels, as in the specification of OpenMetrics."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

Key = tuple[str, tuple[tuple[str, str], ...]]
"""Name and sorted labels of a series."""


class InvalidMetricError(ValueError):
    """A family that can't be served. The message names the family and the reason."""


def checked(metric: object) -> Metric:
    """Return a copy of the family with valid names, labels, values and types, and without duplicate series.

    In names, each character that Prometheus 2 does not allow becomes an underscore, which is the default escaping of
    Prometheus 3. Raises InvalidMetricError.
    """
    if not isinstance(metric, Metric):
        raise InvalidMetricError(f"expected a prometheus_client Metric, found {type(metric).__name__}")
    name, kind, unit = metric.name, metric.type, metric.unit or ""
    if not isinstance(name, str) or not name:
        raise InvalidMetricError(f"the name of a metric is {name!r}, expected a text")
    name = _escaped(name, colon=True)
    if kind not in METRIC_TYPES:
        raise InvalidMetricError(f"{name}: unknown type {kind!r}, expected one of {', '.join(METRIC_TYPES)}")
    if not isinstance(unit, str) or (unit and (not _LABEL.fullmatch(unit) or not name.endswith(f"_{unit}"))):
        raise InvalidMetricError(f"{name}: the name does not end with the unit {unit!r}")
    if name.startswith(RESERVED):
        raise InvalidMetricError(f"{name}: names that begin with {RESERVED} are reserved for gangwatch")
    found = Metric(name, _text(metric.documentation, f"{name}: the help"), kind, unit)
    found.samples = [_sample(found, metric.name, sample) for sample in metric.samples]
    seen: set[Key] = set()
    for sample in found.samples:
        if (key := key_of(sample)) in seen:
            raise InvalidMetricError(f"{name}: duplicate series {in_words(key)}")
        seen.add(key)
    return found


def key_of(sample: Sample) -> Key:
    """Return the name and labels that identify the sample's series."""
    return sample.name, tuple(sorted(sample.labels.items()))


def in_words(key: Key) -> str:
    """Return a series as in Prometheus text."""
    labels = ",".join(f'{label}="{value}"' for label, value in key[1])
    return f"{key[0]}{{{labels}}}" if labels else key[0]


def claims(metric: Metric) -> frozenset[str]:
    """Return all names that no other family may use, because this family uses them in Prometheus text or
    OpenMetrics."""
    return frozenset({metric.name, *(metric.name + suffix for suffix in SUFFIXES[metric.type])})


@lru_cache(maxsize=8)  # the families of a node hardly ever change
def claims_of(names: frozenset[str]) -> frozenset[str]:
    """Return the given names of families, and the names without the suffixes _total and _info.

    OpenMetrics uses the shorter names for the same families.
    """
    return frozenset(name.removesuffix(suffix) for name in names for suffix in ("", "_total", "_info"))


def _sample(family: Metric, original: str, sample: Any) -> Sample:
    try:
        name, labels, value = sample.name, dict(sample.labels or {}), float(sample.value)
        timestamp = None if sample.timestamp is None else float(sample.timestamp)
        exemplar = sample.exemplar
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidMetricError(f"{family.name}: invalid sample {str(sample)[:200]}: {error}") from None
    suffix = name.removeprefix(original) if isinstance(name, str) and name.startswith(original) else None
    if suffix not in SUFFIXES[family.type]:
        raise InvalidMetricError(f"{family.name}: the sample {str(name)[:200]!r} does not belong to a {family.type}")
    if timestamp is not None and not abs(timestamp) < 1e15:
        raise InvalidMetricError(f"{family.name}: timestamp {timestamp} is not a time in seconds since 1970")
    return Sample(
        family.name + suffix, _labels(family.name, labels), value, timestamp, _exemplar(family, suffix, exemplar)
    )


def _labels(family: str, labels: Mapping[Any, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for label, value in labels.items():
        if not isinstance(label, str) or not label:
            raise InvalidMetricError(f"{family}: label {label!r} is not a text")
        name = _escaped(label, colon=False)
        if name.startswith("__"):
            raise InvalidMetricError(f"{family}: labels that begin with __ are reserved for Prometheus ({label!r})")
        if name in found:
            raise InvalidMetricError(f"{family}: duplicate label {name}")
        found[name] = _text(value, f"{family}: the value of label {name}")
    return found


def _exemplar(family: Metric, suffix: str, exemplar: Any) -> Exemplar | None:
    """Return a copy of the exemplar; None if the sample can't have one."""
    if exemplar is None or (family.type, suffix) not in (("counter", "_total"), ("histogram", "_bucket")):
        return None
    try:
        labels, value = dict(exemplar.labels), float(exemplar.value)
        timestamp = None if exemplar.timestamp is None else float(exemplar.timestamp)
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidMetricError(f"{family.name}: invalid exemplar: {error}") from None
    found = _labels(family.name, labels)
    if sum(map(len, (*found, *found.values()))) > MOST_EXEMPLAR_CHARACTERS:
        raise InvalidMetricError(f"{family.name}: an exemplar has more than {MOST_EXEMPLAR_CHARACTERS} characters")
    return Exemplar(found, value, timestamp)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidMetricError(f"{what} is a {type(value).__name__}, expected a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidMetricError(f"{what} is not valid Unicode") from None
    return value


def _escaped(name: str, colon: bool) -> str:
    """Return the name with an underscore for each character that Prometheus 2 does not allow."""
    if (_NAME if colon else _LABEL).fullmatch(name):
        return name
    found = re.sub(r"[^a-zA-Z0-9_:]" if colon else r"[^a-zA-Z0-9_]", "_", name)
    return f"_{found[1:]}" if found[0].isdigit() else found
