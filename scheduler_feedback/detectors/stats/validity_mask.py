"""Which of all columns hold a sample, and what follows from it: worked out once for all features that miss the same.

A look comes when some nodes' frames have come and others' have not. To copy or clear the one by a mask of booleans
takes numpy five to fifty times as long as to add two rows; a mask of bits takes as long.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.telemetry import Float32Array, Grouping, IndexArray

BoolArray = npt.NDArray[np.bool_]

_BITS = np.dtype(np.uint32)


class Known:
    """Which of the N columns of a grouping hold a sample. of: bool [N]. whole: all do; any: one of them does."""

    def __init__(self, of: BoolArray, grouping: Grouping) -> None:
        self.of = of
        self._grouping = grouping
        count = int(np.count_nonzero(of))
        self.whole, self.any = count == len(of), count > 0

    @cached_property
    def first(self) -> int:
        """The first column that holds one."""
        return int(self.of.argmax())

    @cached_property
    def sizes(self) -> IndexArray:
        """[groups]: how many members of each group hold one."""
        groups = self._grouping
        return groups.sizes if self.whole else np.bincount(groups.of[self.of], minlength=len(groups))

    @cached_property
    def _bits(self) -> npt.NDArray[np.uint32]:
        """[N]: all bits set where there is a sample, none else."""
        return np.negative(self.of.astype(np.int32)).view(_BITS)

    @cached_property
    def _instead(self) -> npt.NDArray[np.uint32]:
        """[N], as bits: what stands instead of a sample that is missing: just so many of each group's are below all
        values that the lower median of its known members stands where that of all of them would."""
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
        """Zero in a row [N] where there is no sample. Changes the row."""
        bits = row.view(_BITS)
        np.bitwise_and(bits, self._bits, out=bits)

    def put(self, row: Float32Array, values: Float32Array) -> None:
        """The values [N] into a row where they hold a sample; else it stays as it is. Changes the row."""
        bits = row.view(_BITS)
        bits ^= (bits ^ values.view(_BITS)) & self._bits

    def fill(self, row: Float32Array) -> None:
        """Into a row [N] what stands instead of samples that are missing, for medians. Changes the row."""
        bits = row.view(_BITS)
        np.bitwise_and(bits, self._bits, out=bits)
        np.bitwise_or(bits, self._instead, out=bits)


class Knowns:
    """The patterns of one set of columns that were met lately. Most features of a look share one."""

    MOST = 8

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._whole = Known(np.ones(len(grouping.of), np.bool_), grouping)
        self._met: list[Known] = []

    def of(self, row: Float32Array) -> Known:
        """That of a row [N], N >= 1."""
        if not np.isnan(row.min()):
            return self._whole
        known = ~np.isnan(row)
        for one in self._met:
            if np.array_equal(one.of, known):
                return one
        self._met = [Known(known, self._grouping), *self._met[: self.MOST - 1]]
        return self._met[0]
