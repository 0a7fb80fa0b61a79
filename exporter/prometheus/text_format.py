"""The text formats of Prometheus and OpenMetrics: headers of families, and samples by name.

Names, help, kinds and units come from the catalogue. For the text of an agent's frames see exposition.py.

Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ and
https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from agent.schema.catalog import BY_NAME, Metric
from agent.schema.sample import Sample
from exporter.prometheus.series import Family, gauge_text, prefix

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


# --- headers ---------------------------------------------------------------------------------------------------------


def text_header(family: Family) -> str:
    """Return the HELP and TYPE lines of a family in the Prometheus text format."""
    help_text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {family.name} {help_text}\n# TYPE {family.name} {family.kind}\n"


def open_metrics_header(family: Family) -> str:
    """Return the TYPE, UNIT and HELP lines of a family in OpenMetrics. There the family name of a counter or info lacks
    the suffix (_total, _info).

    OpenMetrics does not allow counters without ``_total``, such as DCGM's. They get the type `unknown`.
    """
    name, kind = family.name, family.kind
    if kind == "counter":
        name, kind = (name.removesuffix("_total"), kind) if name.endswith("_total") else (name, "unknown")
    elif name.endswith("_info"):
        name, kind = name.removesuffix("_info"), "info"
    unit = f"# UNIT {name} {family.unit}\n" if family.unit and name.endswith(f"_{family.unit}") else ""
    help_text = family.help.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return f"# TYPE {name} {kind}\n{unit}# HELP {name} {help_text}\n"


# --- samples ---------------------------------------------------------------------------------------------------------


def expose_samples(samples: Iterable[Sample], header: Callable[[Family], str] = text_header) -> str:
    """Return samples as text, grouped by name. Values are in the catalogue's unit; samples with NaN are left out.

    The samples may be in any order. Labels are the catalogue's for that name, with or without ``node``. Raises
    ValueError for a name or labels that are not in the catalogue, and for a duplicate series.
    """
    kept = [sample for sample in samples if sample[2] == sample[2]]  # only NaN differs from itself
    return "".join(f"{start}{sample_text(kept[at][2])}\n" for at, start in sample_lines(kept, header))


def sample_lines(samples: Sequence[Sample], header: Callable[[Family], str] = text_header) -> list[tuple[int, str]]:
    """Return the lines grouped by name: for each line, the index of its sample and the text before the sample's value.

    The text of the first line of a name begins with the header. Raises ValueError as ``expose_samples`` does.
    """
    families: dict[str, dict[str, int]] = {}
    for at, (name, labels, _) in enumerate(samples):
        line = _before_value(name, tuple(labels))
        rows = families.setdefault(name, {})
        if line in rows:
            raise ValueError(f"duplicate series {line.rstrip()}")
        rows[line] = at
    lines: list[tuple[int, str]] = []
    for name, rows in families.items():
        before = _header(name, header)
        for line, at in rows.items():
            lines.append((at, before + line))
            before = ""
    return lines


def sample_text(value: float) -> str:
    """Return a sample's value as text. Integers are printed with all digits."""
    return str(int(value)) if isinstance(value, int) else gauge_text(float(value))


@lru_cache(maxsize=4096)
def _before_value(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    """Return a sample's line up to its value. Raises ValueError for a name or labels that are not in the catalogue."""
    metric = BY_NAME.get(name)
    if metric is None:
        raise ValueError(f"{name} is not in the catalogue")
    own = tuple(sorted(key for key, _ in labels if key != "node"))
    if own != metric.labels:
        raise ValueError(f"{name}: labels {own}, the catalogue has {metric.labels}")
    return prefix(name, sorted(labels))


@lru_cache(maxsize=1024)
def _header(name: str, header: Callable[[Family], str]) -> str:
    return header(_family(BY_NAME[name]))


def _family(metric: Metric) -> Family:
    """Return an empty family for the metric: its name, type, help text and unit, without series."""
    return Family(metric.name, "gauge" if metric.kind == "info" else metric.kind, metric.help, metric.unit)
