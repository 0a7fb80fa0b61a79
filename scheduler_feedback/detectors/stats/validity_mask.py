"""Validity masks: which columns hold a sample, with derived data, computed once for all features that miss the same.

Masks are needed while some nodes' frames have arrived and others' have not. Copying or clearing with a boolean mask
takes numpy five to fifty times as long as adding two rows. A bit mask takes as long as the addition.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.telemetry import Float32Array, Grouping, IndexArray

BoolArray = npt.NDArray[np.bool_]

_BITS = np.dtype(np.uint32)


class ValidityMask:
    """Validity mask over the N columns of a grouping. of: bool [N]. whole: all columns hold a sample; any: at least one
    does."""

    def __init__(self, of: BoolArray, grouping: Grouping) -> None:
        self.of = of
        self._grouping = grouping
        count = int(np.count_nonzero(of))
        self.whole, self.any = count == len(of), count > 0

    @cached_property
    def first(self) -> int:
        """First column that holds a sample."""
        return int(self.of.argmax())

    @cached_property
    def sizes(self) -> IndexArray:
        """Number of members of each group that hold a sample: [groups]."""
        groups = self._grouping
        return groups.sizes if self.whole else np.bincount(groups.of[self.of], minlength=len(groups))

    @cached_property
    def _bits(self) -> npt.NDArray[np.uint32]:
        """Words with all bits set in columns that hold a sample, and no bit set in other columns: [N]."""
        return np.negative(self.of.astype(np.int32)).view(_BITS)

    @cached_property
    def _instead(self) -> npt.NDArray[np.uint32]:
        """Placeholders for missing samples, as bits: [N].

        In each group, enough placeholders are below all values that the lower median of all members is the lower median
        of the known ones.
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
        """Set a row [N] to zero where there is no sample. Changes the row."""
        bits = row.view(_BITS)
        np.bitwise_and(bits, self._bits, out=bits)

    def put(self, row: Float32Array, values: Float32Array) -> None:
        """Copy the values [N] that hold a sample into a row. Changes the row."""
        bits = row.view(_BITS)
        bits ^= (bits ^ values.view(_BITS)) & self._bits

    def fill(self, row: Float32Array) -> None:
        """Fill missing samples of a row [N] with the placeholders for medians. Changes the row."""
        bits = row.view(_BITS)
        np.bitwise_and(bits, self._bits, out=bits)
        np.bitwise_or(bits, self._instead, out=bits)


class ValidityMasks:
    """Cache of recent validity masks. Most features of an evaluation share one."""

    MOST = 8

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._whole = ValidityMask(np.ones(len(grouping.of), np.bool_), grouping)
        self._met: list[ValidityMask] = []

    def of(self, row: Float32Array) -> ValidityMask:
        """Return the mask of a row [N], N >= 1."""
        if not np.isnan(row.min()):
            return self._whole
        known = ~np.isnan(row)
        for one in self._met:
            if np.array_equal(one.of, known):
                return one
        self._met = [ValidityMask(known, self._grouping), *self._met[: self.MOST - 1]]
        return self._met[0]
