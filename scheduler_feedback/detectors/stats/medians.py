"""Medians, equal to numpy.median to the bit, at a fraction of its cost for many small arrays.

A controller computes thousands of medians a second. numpy.median spends about 20 microseconds of Python on each,
requests two places of the partition instead of one and a maximum, and reads the columns of an array as if they were
rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray


def median(values: FloatArray) -> float:
    """Return the median of all values, of any shape, at least one; NaN if one of them is NaN."""
    part = values.flatten()
    return float(_middle(part[None, :])[0])


def row_medians(values: FloatArray) -> FloatArray:
    """Return the median of each row: [k, n] -> [k], n >= 1; NaN if one of its values is NaN."""
    return _middle(values.copy())


def column_medians(values: FloatArray) -> FloatArray:
    """Return the median of each column: [k, n] -> [n], k >= 1; NaN if one of its values is NaN."""
    return _middle(np.array(values.T, order="C"))


def middle(values: Sequence[float]) -> float:
    """Return the median of a short sequence of numbers, at least one, none of them NaN."""
    rising = sorted(values)
    half = len(rising) // 2
    return rising[half] if len(rising) % 2 else (rising[half - 1] + rising[half]) / 2


def _middle(part: FloatArray) -> FloatArray:
    """Return the median of each row: [k, n] -> [k]. Reorders `part`."""
    count = part.shape[1]
    half = count // 2
    part.partition(half, axis=1)
    above = part[:, half:]
    high = above[:, 0]
    result: FloatArray = high.copy() if count % 2 else (part[:, :half].max(axis=1) + high) / 2
    largest = above.max(axis=1)  # NaN is sorted behind all numbers
    unknown = np.isnan(largest)
    if unknown.any():
        result[unknown] = np.nan
    return result


def median_of_others(values: FloatArray) -> FloatArray:
    """Return for each value the median of the other values: [..., n] -> [..., n], n >= 2.

    With two values each gets the other. NaN sorts above all numbers.
    """
    count = values.shape[-1]
    middle = (count - 2) // 2
    ordered = np.partition(values, middle + 1, axis=-1)
    low, here = ordered[..., : middle + 1].max(axis=-1, keepdims=True), ordered[..., middle + 1 : middle + 2]
    # For a value at or below the lower middle, the median of the others is one place further up.
    first: FloatArray = np.where(values <= low, here, low)
    if count % 2 == 0:
        return first
    high = np.fmin.reduce(ordered[..., middle + 2 :], axis=-1, keepdims=True)
    second: FloatArray = np.where(values <= here, high, here)
    second += first
    second /= 2
    return second


def median_of_the_others(values: FloatArray, index: int) -> float:
    """Return the median of all values except the one at `index`; the values have the shape [n]."""
    others = np.delete(values, index)
    count = len(others)
    half = count // 2
    others.partition(half)
    return float(others[half] if count % 2 else (others[:half].max() + others[half]) / 2)
