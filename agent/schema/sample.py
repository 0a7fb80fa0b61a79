"""Samples: metrics of gangwatch's own processes, with their labels and values at one time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

Labels = tuple[tuple[str, str], ...]
"""Names and values of labels."""

Sample = tuple[str, Labels, float]
"""Name, labels, and value in the catalogue's unit."""


@dataclass(frozen=True, slots=True)
class SampleColumn:
    """n samples of one metric whose labels differ only in one value, such as the rank.

    A controller of 12,500 nodes has 200,000 samples. As columns they take a fraction of the time and of the memory.
    """

    name: str
    labels: Labels
    """Labels that all samples share, sorted by name."""
    key: str
    """Name of the label that differs. It is not in `labels`."""
    texts: Sequence[str] | Sequence[int]
    """Value of this label for each sample: n different texts or numbers."""
    values: Sequence[float]
    """Value of each sample, in the catalogue's unit."""


AnySample = Sample | SampleColumn


def name_of(sample: AnySample) -> str:
    """Return the name of the metric."""
    return sample.name if isinstance(sample, SampleColumn) else sample[0]


def expanded(samples: Iterable[AnySample]) -> Iterator[Sample]:
    """Yield the samples one by one. Their labels are sorted by name if those of the column are."""
    for one in samples:
        if not isinstance(one, SampleColumn):
            yield one
            continue
        before = tuple(label for label in one.labels if label[0] < one.key)
        after = one.labels[len(before) :]
        for text, value in zip(one.texts, one.values, strict=True):
            yield one.name, (*before, (one.key, str(text)), *after), value
