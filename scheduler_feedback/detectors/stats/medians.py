"""Medians that equal those of numpy.median to the bit, and are much faster for many small arrays.

A controller computes thousands of medians a second, and numpy.median spends about 20 microseconds in Python on each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray


def median(values: FloatArray) -> float:
    """Return the median of all values of an array of any shape. There must be at least one value. NaN if any value is
    NaN."""
    part = values.flatten()
    return float(_middle(part[None, :])[0])


def row_medians(values: FloatArray) -> FloatArray:
    """Return the median of each row of an array [k rows, n columns], n >= 1; NaN for a row that contains NaN."""
    return _middle(values.copy())


def column_medians(values: FloatArray) -> FloatArray:
    """Return the median of each column of an array [k rows, n columns], k >= 1; NaN for a column that contains NaN."""
    return _middle(np.array(values.T, order="C"))


def middle(values: Sequence[float]) -> float:
    """Return the median of a short sequence of numbers. It must contain at least one number and no NaN."""
    rising = sorted(values)
    half = len(rising) // 2
    return rising[half] if len(rising) % 2 else (rising[half - 1] + rising[half]) / 2


def _middle(part: FloatArray) -> FloatArray:
    """Return the median of each row of `part`, an array [k rows, n columns]. Reorders the values of `part`."""
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
    """Return for each value the median of the other values on the last axis, which has n >= 2 values.

    If there are two values, each gets the other one. NaN sorts above all numbers.
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
    """Return the median of all values except the one at `index`. values: one-dimensional array."""
    others = np.delete(values, index)
    count = len(others)
    half = count // 2
    others.partition(half)
    return float(others[half] if count % 2 else (others[:half].max() + others[half]) / 2)
