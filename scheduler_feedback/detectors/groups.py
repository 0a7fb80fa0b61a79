"""Arithmetic over all groups of a grouping at once: medians of [features, N] arrays, however unequal the groups are.

np.partition spends more on a call for each row than on the row where rows are short. Small groups are therefore laid
with their members on the first axis and sorted by a network of minima and maxima, which runs over all of them at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry import Float32Array, Grouping

NETWORK_SIZE = 16
"""Up to so many members a sorting network is faster than partitioning (measured: at 8 members five times)."""


def group_median(values: Float32Array, grouping: Grouping) -> Float32Array:
    """float32 [features, N] -> [features, groups]: the lower median of each group's known members; NaN without any.

    The lower of the two middle ones, not their mean: it is a value that some member really has.
    """
    features, columns = values.shape
    padded = np.empty((features, columns + 2), np.float32)
    padded[:, :columns] = values
    padded[:, columns:] = (-np.inf, np.inf)
    result = np.full((features, len(grouping)), np.nan, np.float32)
    holes = bool(np.isnan(values).any())
    for bucket in grouping.buckets:
        size = bucket.index.shape[1]
        if holes:
            members = padded[:, bucket.index]
            members[:, ~bucket.real] = np.nan
            members.sort(axis=2)
            middles = np.maximum((~np.isnan(members)).sum(axis=2) - 1, 0) // 2
            result[:, bucket.group] = np.take_along_axis(members, middles[:, :, None], axis=2)[:, :, 0]
        elif size <= NETWORK_SIZE:
            members = np.ascontiguousarray(padded[:, bucket.index.T].transpose(1, 0, 2))
            result[:, bucket.group] = _sorted(members)[bucket.middle]
        else:
            members = padded[:, bucket.index]
            members.partition(bucket.middle, axis=2)
            result[:, bucket.group] = members[:, :, bucket.middle]
    return result


def usual_value(values: Float32Array, usual: float, grouping: Grouping) -> bool:
    """Whether more than half of the members of every group have just this value, which then is its median.

    Errors are zero nearly everywhere; to see that costs a fraction of a median.
    """
    unlike = values != usual
    if 4 * np.count_nonzero(unlike) > len(values):
        return False
    counts = np.bincount(grouping.of[unlike], minlength=len(grouping))
    return bool((2 * counts < grouping.sizes).all())


def group_mean(values: Float32Array, grouping: Grouping) -> Float32Array:
    """float32 [features, N] -> [features, groups]: mean of each group's known members; NaN without any."""
    order = grouping.order
    known = np.isfinite(values)
    if known.all():
        sums = np.add.reduceat(values[:, order], grouping.starts, axis=1)
        return (sums / grouping.sizes).astype(np.float32)
    sums = np.add.reduceat(np.where(known, values, 0.0)[:, order], grouping.starts, axis=1)
    counts = np.add.reduceat(known[:, order].astype(np.float32), grouping.starts, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (sums / counts).astype(np.float32)


def _sorted(members: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Sort along the first axis by Batcher's odd-even merge network."""
    low = np.empty(members.shape[1:], np.float32)
    for a, b in _network(len(members)):
        np.minimum(members[a], members[b], out=low)
        np.maximum(members[a], members[b], out=members[b])
        members[a] = low
    return members


def _network(size: int) -> list[tuple[int, int]]:
    """Pairs to compare and exchange, for any size (Knuth, TAOCP 3, algorithm 5.2.2M)."""
    pairs = []
    top = 1 << max(size - 1, 1).bit_length() >> 1
    p = max(top, 1)
    while p > 0:
        q, r, d = max(top, 1), 0, p
        while d > 0:
            pairs += [(i, i + d) for i in range(size - d) if i & p == r]
            d, q, r = q - p, q >> 1, p
        p >>= 1
    return pairs
