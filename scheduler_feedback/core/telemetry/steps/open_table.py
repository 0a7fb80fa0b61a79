"""Open steps and collectives of all ranks of all gangs, and when each rank was last reported, in one set of arrays.

The frames of 256 nodes belong to dozens of gangs. With one set of arrays they are added at once, not gang by gang. The
slots of the ranks are those of ``Trails`` (consumption_trail.py).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
IndexArray = npt.NDArray[np.intp]

LEAST_SLOTS = 64


def cells_of(slots: IndexArray, kinds: IntArray | int) -> IndexArray:
    """Return the cells of open steps (kind 0) and collectives (kind 1) of the ranks with these slots."""
    return 2 * slots + kinds


def slots_of(cells: IndexArray) -> IndexArray:
    """Return the slots of the ranks to which the cells belong."""
    return cells >> 1


class OpenTable:
    """Newest open step and open collective of each slot. Each has a cell (``cells_of``).

    cells: int64 [2 * slots, 3]: number, start, and last report (host clock) of a step or collective; -1 for never.
    reported_ns: int64 [slots], receipt of the last report of each rank that was not a repetition of open records.
    """

    def __init__(self) -> None:
        self.cells = np.full((0, 3), -1, np.int64)
        self.reported_ns = np.zeros(0, np.int64)

    def reset(self, slots: IndexArray) -> None:
        """Make room for these slots, and delete what earlier owners have left in them."""
        if not len(slots):
            return
        need, have = int(slots.max()) + 1, len(self.reported_ns)
        if need > have:
            more = max(LEAST_SLOTS, need - have, have // 8)
            self.cells = np.concatenate((self.cells, np.full((2 * more, 3), -1, np.int64)))
            self.reported_ns = np.concatenate((self.reported_ns, np.zeros(more, np.int64)))
        for kind in (0, 1):
            self.cells[cells_of(slots, kind)] = -1
        self.reported_ns[slots] = 0

    def write(self, cells: IndexArray, numbers: IntArray, starts_ns: IntArray) -> None:
        """Set the number and the start of these steps and collectives. Of repeated cells the last one counts."""
        self.cells[cells, 0] = numbers
        self.cells[cells, 1] = starts_ns

    def seen(self, cells: IndexArray, seen_ns: IntArray | int) -> None:
        """Set the time of the last report. Of repeated cells the last one counts."""
        self.cells[cells, 2] = seen_ns
