"""Text of gangwatch's samples, equal to the text of prometheus_client, at a quarter of its cost.

A controller of 1,000 nodes has 20,000 samples, for which prometheus_client takes half a second of Python's lock.
Families have the same headers, lines, order and numbers as ``family_text(sample_families(samples))``, which the tests
compare. Nothing is kept between two calls except the format of each metric's lines.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from prometheus_client.utils import floatToGoString

from agent.schema.catalog import BY_NAME
from agent.schema.sample import AnySample, Labels, SampleColumn, expanded, name_of
from exporter.prometheus.library_format import empty_family, family_text

_SHORT = 1e6
"""From this value on, Go writes a float with an exponent and Python does not."""

_PLACE = "\0"
"""Placeholder for the label value that differs from line to line. No label in the catalogue contains it."""


def sample_texts(samples: Iterable[AnySample], open_metrics: bool) -> dict[str, str]:
    """Return the text of each family, by its name in OpenMetrics, in the order in which their first samples come.

    Samples with NaN are left out. Raises ValueError for a name or labels that are not in the catalogue, and for a
    duplicate series.
    """
    families: dict[str, list[AnySample]] = {}
    for sample in samples:
        values = sample.values if isinstance(sample, SampleColumn) else sample[2:]
        if all(value != value for value in values):  # only NaN differs from itself
            continue
        families.setdefault(name_of(sample), []).append(sample)
    return {
        empty_family(name).name: _header(name, open_metrics) + (_columns(name, family) or _rows(name, family))
        for name, family in families.items()
    }


def _columns(name: str, family: Sequence[AnySample]) -> str:
    """Return the lines of a metric's samples if all are in columns that are easy to write; otherwise ''."""
    texts, taken, keys = [], set[Labels](), set[str]()
    for column in family:
        if not isinstance(column, SampleColumn):
            return ""
        labels = tuple(sorted(column.labels))
        keys.add(column.key)
        if labels in taken or len(keys) > 1:
            return ""
        taken.add(labels)
        text = _column(name, column)
        if not text:
            return ""
        texts.append(text)
    return "".join(texts)


def _column(name: str, column: SampleColumn) -> str:
    """Return the lines of a column; '' if it needs escapes, or has NaN, labels that are not sorted or equal texts."""
    values = [float(value) for value in column.values]
    keys = tuple(sorted([*dict(column.labels), column.key]))
    form = _form(name, keys)
    if not form or any(value != value for value in values) or len(set(column.texts)) < len(values):
        return ""
    known = {**dict(column.labels), column.key: _PLACE}
    before, *more = (form % tuple([known[key] for key in keys])).split(_PLACE)
    if len(more) != 1 or len(known) != len(column.labels) + 1:
        return ""
    after = more[0]
    write = repr if -math.inf < min(values) and max(values) < _SHORT else _number
    lines = [f"{before}{text}{after}{write(value)}\n" for text, value in zip(column.texts, values, strict=True)]
    text = "".join(lines)
    plain = "\\" not in text and text.count("\n") == len(lines) and text.count('"') == 2 * len(keys) * len(lines)
    return text if plain else ""


def _rows(name: str, samples: Iterable[AnySample]) -> str:
    """Return the lines of a metric's samples."""
    family = [(labels, value) for _, labels, value in expanded(samples) if value == value]
    lines = _lines(name, [labels for labels, _ in family])
    if len(set(lines)) < len(lines):
        twice, _ = Counter(lines).most_common(1)[0]
        raise ValueError(f"duplicate series {twice.rstrip()}")
    values = [float(value) for _, value in family]
    form = repr if -math.inf < min(values) and max(values) < _SHORT else _number
    return "".join([f"{line}{form(value)}\n" for line, value in zip(lines, values, strict=True)])


def _lines(name: str, family: list[Labels]) -> list[str]:
    """Return each line up to its value: all at once if they have the same labels and need no escapes."""
    keys = tuple([key for key, _ in family[0]])
    form = _form(name, keys)
    if not form or set(map(len, family)) != {len(keys)}:
        same, lines = False, []
    elif len(keys) == 1:
        same = {labels[0][0] for labels in family} == {*keys}
        lines = [form % labels[0][1] for labels in family]
    elif len(keys) == 2:  # those of ranks, of which a large cluster has most
        same = {(first[0], second[0]) for first, second in family} == {keys}
        lines = [form % (first[1], second[1]) for first, second in family]
    elif keys:
        pairs = [tuple(zip(*labels, strict=True)) for labels in family]
        same = {pair[0] for pair in pairs} == {keys}
        lines = [form % pair[1] for pair in pairs]
    else:
        same, lines = True, [form] * len(family)
    if same:
        text = "".join(lines)
        if "\\" not in text and "\n" not in text and text.count('"') == 2 * len(keys) * len(family):
            return lines
    return [_any_line(name, labels) for labels in family]


def _number(value: float) -> str:
    """Return a number as prometheus_client writes it. The value must not be NaN."""
    return repr(value) if -math.inf < value < _SHORT else floatToGoString(value)  # type: ignore[no-untyped-call]


@lru_cache(maxsize=1024)
def _form(name: str, keys: tuple[str, ...]) -> str:
    """Return the format of a sample's line up to its value; '' if the keys are not sorted.

    keys: names of the labels in the order of the samples. Raises ValueError for a name or labels that are not in the
    catalogue.
    """
    metric = BY_NAME.get(name)
    if metric is None:
        raise ValueError(f"{name} is not in the catalogue")
    if tuple(sorted(key for key in keys if key != "node")) != metric.labels:
        raise ValueError(f"{name}: labels {keys}, the catalogue has {metric.labels}")
    if list(keys) != sorted(set(keys)):
        return ""
    pairs = ",".join(f'{key}="%s"' for key in keys)
    return f"{name}{{{pairs}}} " if pairs else f"{name} "


def _any_line(name: str, labels: Labels) -> str:
    """Return a sample's line up to its value, written by prometheus_client."""
    _form(name, tuple([key for key, _ in labels]))  # checks the name and the labels
    family = empty_family(name)
    family.add_sample(name, {str(key): str(text) for key, text in labels}, 0.0)
    return family_text([family], False).decode().removeprefix(_header(name, False)).removesuffix("0.0\n")


@lru_cache(maxsize=1024)
def _header(name: str, open_metrics: bool) -> str:
    return family_text([empty_family(name)], open_metrics).decode()
