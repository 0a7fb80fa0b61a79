"""Validity masks: which columns contain a sample. One mask serves all features that miss samples in the same columns.

Masks are needed while the frames of some nodes have not arrived yet. Copying or clearing with a boolean mask takes
numpy five to fifty times as long as adding two rows. A bit mask takes only as long as the addition.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.telemetry import Float32Array, Grouping, IndexArray

BoolArray = npt.NDArray[np.bool_]

_BITS = np.dtype(np.uint32)


class ValidityMask:
    """Validity mask over N columns that belong to groups.

    of: bool [N], whether each column has a sample. whole: whether all columns have a sample. any: whether at least one
    has.
    """

    def __init__(self, of: BoolArray, grouping: Grouping) -> None:
        self.of = of
        self._grouping = grouping
        count = int(np.count_nonzero(of))
        self.whole, self.any = count == len(of), count > 0

    @cached_property
    def first(self) -> int:
        """Return the index of the first column that has a sample."""
        return int(self.of.argmax())

    @cached_property
    def sizes(self) -> IndexArray:
        """Return the number of members of each group that have a sample: [groups]."""
        groups = self._grouping
        return groups.sizes if self.whole else np.bincount(groups.of[self.of], minlength=len(groups))

    @cached_property
    def _bits(self) -> npt.NDArray[np.uint32]:
        """Return one bit mask for each of the N columns: all bits set if the column has a sample, no bit set if it has
        none."""
        return np.negative(self.of.astype(np.int32)).view(_BITS)

    @cached_property
    def _instead(self) -> npt.NDArray[np.uint32]:
        """Return a placeholder for each missing sample, as the bits of a float: [N].

        In each group, just enough placeholders are lower than all values. So the lower median of all members equals the
        lower median of the members that have a sample.
        """
        groups = self._grouping
        missing = groups.order[~self.of[groups.order]]  # by group
        group = groups.of[missing]
        counts = groups.sizes - self.sizes
        place = np.arange(len(missing)) - (np.cumsum(counts) - counts)[group]
        below = (groups.sizes - 1) // 2 - (self.sizes - 1) // 2
        instead = np.zeros(len(self.of), np.float32)
        instead[missing] = np.where(place < below[group], -np.inf, np.inf)
        return instead.view(_BITS)

    def clear(self, row: Float32Array) -> None:
        """Set the values of a row [N] to zero where there is no sample. Changes the row."""
        bits = row.view(_BITS)
        np.bitwise_and(bits, self._bits, out=bits)

    def put(self, row: Float32Array, values: Float32Array) -> None:
        """Copy those of the N values that are samples into a row. Changes the row."""
        bits = row.view(_BITS)
        bits ^= (bits ^ values.view(_BITS)) & self._bits

    def fill(self, row: Float32Array) -> None:
        """Replace missing samples of a row [N] by placeholders that do not change the medians. Changes the row."""
        bits = row.view(_BITS)
        np.bitwise_and(bits, self._bits, out=bits)
        np.bitwise_or(bits, self._instead, out=bits)


class ValidityMasks:
    """Cache of recent validity masks. Most features of one evaluation use the same mask."""

    MOST = 8

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._whole = ValidityMask(np.ones(len(grouping.of), np.bool_), grouping)
        self._met: list[ValidityMask] = []

    def of(self, row: Float32Array) -> ValidityMask:
        """Return the mask for a row of N >= 1 values, in which NaN means that there is no sample."""
        if not np.isnan(row.min()):
            return self._whole
        known = ~np.isnan(row)
        for one in self._met:
            if np.array_equal(one.of, known):
                return one
        self._met = [ValidityMask(known, self._grouping), *self._met[: self.MOST - 1]]
        return self._met[0]
