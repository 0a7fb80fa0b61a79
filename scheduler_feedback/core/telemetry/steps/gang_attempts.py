"""Telemetry of one attempt of a gang: finished steps (step_ring.py), open steps and collectives, and consumption of
ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.series.consumption_trail import (
    CONSUMED,
    Consumed,
    Trails,
)
from scheduler_feedback.core.telemetry.steps.open_table import OpenTable, cells_of, slots_of
from scheduler_feedback.core.telemetry.steps.step_ring import Requests, StepRing, Steps

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

LEAST_GROWTH = 8
"""Least number of columns by which the arrays grow: the usual number of ranks on a node."""


_numbers = count()


class Gang:
    """One attempt of a gang. Internal columns are in the order of the ranks' first reports. All results are ordered by
    rank.

    number: identifies the attempt; never used again. trails: samples of consumption of all gangs. opened: open steps
    and collectives of all gangs. None: own ones.
    left: whether the attempt has ended, or its data was deleted. stepped: whether the first finished step need not be
    reported any more. queued: number of batches of tables that were processed before the gang's newest one was queued.
    """

    def __init__(self, name: str, attempt: int, trails: Trails | None = None, opened: OpenTable | None = None) -> None:
        self.name = name
        self.attempt = attempt
        self.number = next(_numbers)
        self.received_ns = 0
        self._column: dict[int, int] = {}
        self._ranks: tuple[int, ...] = ()
        self._order = np.zeros(0, np.intp)
        self._nodes: list[str] = []
        self.placed = True
        self.stepped = False
        self.queued = -1
        self._mean: tuple[int, int, float | None] = (0, 0, None)  # number of steps, newest sequence, result
        self.changes = 0
        columns = 4
        self._steps = StepRing(columns)
        self._trails = Trails() if trails is None else trails
        self._opened = OpenTable() if opened is None else opened
        self._slots = self._reserve(columns)
        self.left = False

    # --- ranks --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._column)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Known ranks in increasing order."""
        self._by_rank()
        return self._ranks

    @property
    def nodes(self) -> tuple[str, ...]:
        """Node of each known rank, in the order of `ranks`."""
        return tuple(self._nodes[column] for column in self._by_rank())

    def node_of(self, rank: int) -> str:
        """Return the node of a rank. Raises KeyError if the rank is unknown."""
        return self._nodes[self._column[rank]]

    def is_on(self, rank: int, node: str) -> bool:
        """Return whether the rank is known and this is its node."""
        column = self._column.get(rank)
        return column is not None and self._nodes[column] == node

    def _by_rank(self) -> npt.NDArray[np.intp]:
        if len(self._ranks) != len(self._column):
            self._ranks = tuple(sorted(self._column))
            self._order = np.array([self._column[rank] for rank in self._ranks], np.intp)
        return self._order

    def column(self, rank: int, node: str) -> int:
        """Return the rank's column; create the column at the first report. The last reporting node becomes the rank's
        node."""
        column = self._column.get(rank)
        if column is None:
            column = len(self._column)
            if column == len(self._slots):
                self._widen(column + max(LEAST_GROWTH, column // 8))
            self._column[rank] = column
            self.changes += 1
            self._nodes.append(node)
            self._steps.add_rank()
        elif self._nodes[column] != node:
            self._nodes[column] = node
            self.changes += 1
        self._opened.reported_ns[self._slots[column]] = self.received_ns
        return column

    def reported_again(self, rank: int, node: str) -> int:
        """Return the rank's column if this node was also the last one to report the rank; otherwise -1."""
        column = self._column.get(rank, -1)
        if column < 0 or self._nodes[column] != node:
            return -1
        self._opened.reported_ns[self._slots[column]] = self.received_ns
        return column

    def columns_on(self, ranks: Sequence[int], node: str) -> list[int]:
        """Return the columns of these ranks; an empty list if one of them is unknown or on another node."""
        columns = [self._column.get(rank, -1) for rank in ranks]
        return [] if any(column < 0 or self._nodes[column] != node for column in columns) else columns

    def holder(self, rank: int) -> tuple[str, int] | None:
        """Return the node that reports the rank and the time of its last report; None if no node has reported it."""
        column = self._column.get(rank)
        return None if column is None else (self._nodes[column], int(self._opened.reported_ns[self._slots[column]]))

    # --- steps --------------------------------------------------------------------------------------------------------

    @property
    def late(self) -> int:
        """Number of steps that were reported too late to be kept."""
        return self._steps.late

    @property
    def repeated(self) -> int:
        """Number of steps that were reported again."""
        return self._steps.repeated

    def finish(
        self, column: int, step: int, start_ns: int, duration_ns: int, wait_ns: int | None, received_ns: int,
        tokens: int | None = None, squares: int | None = None,
    ) -> None:  # fmt: skip
        """Add a finished step of the rank in `column`. Repeated steps are ignored; late reports are counted."""
        self.received_ns = received_ns
        self._steps.finish(column, step, start_ns, duration_ns, wait_ns, received_ns, tokens, squares)

    def finish_all(self, steps: IntArray) -> None:
        """Add finished steps, in order, each as in ``StepRing.finish_all``."""
        self._steps.finish_all(steps)

    def completed(self, after: int = 0) -> Steps | None:
        """Return the steps that every known rank has completed since sequence `after`; None if there are none."""
        return self._steps.completed(self._by_rank(), after)

    def newest_requests(self, newest: int = 256) -> Requests | None:
        """Return the newest steps of each rank as requests; None before the first."""
        return self._steps.requests(self._by_rank(), newest)

    def newest_steps(self) -> IntArray:
        """Return int64 [n], ordered by rank: number of the rank's last finished step; -1 for none."""
        return self._steps.newest()[self._by_rank()]

    @property
    def newest_sequence(self) -> int:
        """Sequence number of the newest completed step; 0 before the first."""
        return self._steps.sequence

    def step_seconds(self, newest: int = 16) -> float | None:
        """Return the mean time of the newest completed steps over all ranks; None before the first."""
        sequence = self.newest_sequence
        if newest != self._mean[0] or sequence != self._mean[1]:
            steps = self.completed(max(0, sequence - newest))
            self._mean = newest, sequence, None if steps is None else float(steps.seconds.mean())
        return self._mean[2]

    # --- open steps and collectives -----------------------------------------------------------------------------------

    def opened(self, column: int, what: str, number: int, since_ns: int, seen_ns: int) -> None:
        """Record a rank's open step or collective as of a frame (`seen_ns`, host clock)."""
        self.opened_all([int(what != "step"), column, number, since_ns], seen_ns)

    def opened_all(self, cells: Sequence[int], seen_ns: int) -> npt.NDArray[np.intp]:
        """Record k open steps or collectives; return their cells in the table of all gangs.

        cells: four numbers for each, one after the other: 0 for a step or 1 for a collective, column of the rank,
        number, start.
        """
        kind, column, number, start_ns = np.array(cells, np.int64).reshape(-1, 4).T
        found = cells_of(self._slots[column], kind)
        self._opened.write(found, number, start_ns)
        self._opened.seen(found, seen_ns)
        return found

    def has_cell(self, column: int, cells: npt.NDArray[np.intp]) -> bool:
        """Return whether one of the cells belongs to the rank in `column`."""
        return bool((slots_of(cells) == self._slots[column]).any())

    def open_steps(self) -> IntArray:
        """Return int64 [n, 3], ordered by rank: number of the open step, its start, and its last report (host clock);
        -1 for never."""
        return self._open_cells(0)

    def open_collectives(self) -> IntArray:
        """Return int64 [n, 3], ordered by rank: number of the open collective, its start, and its last report (host
        clock); -1 for never."""
        return self._open_cells(1)

    def _open_cells(self, kind: int) -> IntArray:
        slots = self._slots[self._by_rank()]
        if self.left:  # another gang may have the slots
            return np.full((len(slots), 3), -1, np.int64)
        return self._opened.cells[cells_of(slots, kind)]

    # --- consumption --------------------------------------------------------------------------------------------------

    def consume(self, columns: npt.NDArray[np.intp], advance: FloatArray, at_ns: int | IntArray) -> None:
        """Add the consumption of m ranks in `columns`, as ``Trails.consume`` does for their slots."""
        self._trails.consume(self._slots[columns], advance, at_ns)

    def slots_of(self, columns: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return the slots of the ranks in `columns`, where their consumption is added. They do not change."""
        return self._slots[columns]

    def forget_consumed(self, columns: npt.NDArray[np.intp]) -> None:
        """Delete the samples of ranks whose counters were reset, because later samples cannot be compared with them."""
        self._trails.forget(self._slots[columns])

    def consumed(self, at_ns: IntArray) -> Consumed:
        """Return the ranks' cumulative counters at the times `at_ns` (int64 [n], on each rank's host clock, ordered by
        rank). Values between two samples are interpolated. NaN for a gang that has left."""
        if self.left:
            return Consumed(np.full((len(at_ns), len(CONSUMED)), np.nan), at_ns)
        return self._trails.consumed(self._slots[self._by_rank()], at_ns)

    def leave(self) -> None:
        """Free the samples of consumption. The attempt has ended; reports about it are not read any more."""
        self.left = True
        self._trails.free(self._slots)

    # --- growth -------------------------------------------------------------------------------------------------------

    def _reserve(self, ranks: int) -> npt.NDArray[np.intp]:
        slots = self._trails.reserve(ranks, self.number)
        self._opened.reset(slots)
        return slots

    def _widen(self, columns: int) -> None:
        add = columns - len(self._slots)
        self._steps.widen(add)
        self._slots = np.concatenate((self._slots, self._reserve(add)))


# --- consumption of several gangs -------------------------------------------------------------------------------------

ConsumedAt = Callable[[IntArray], Consumed]
"""Returns what a gang's ranks had consumed at the given times [n]."""


class GangConsumed:
    """A function that returns what a gang's ranks had consumed at times of their nodes' wall clocks."""

    __slots__ = ("gang", "offset_ns")

    def __init__(self, gang: Gang, offset_ns: IntArray) -> None:
        """offset_ns: int64 [n], offset from each rank's host clock to wall time, in nanoseconds."""
        self.gang, self.offset_ns = gang, offset_ns

    def __call__(self, at_ns: IntArray) -> Consumed:
        found = self.gang.consumed(at_ns - self.offset_ns)
        return Consumed(found.values, found.at_ns + self.offset_ns)


def consumed_together(asked: Sequence[tuple[ConsumedAt, IntArray]]) -> list[Consumed]:
    """Return the result of each function for its times [n].

    Gangs of one fleet are read together: for the 8 to 32 ranks of most gangs, calling numpy takes longer than its work.
    """
    together = [
        (place, of, at_ns)
        for place, (of, at_ns) in enumerate(asked)
        if isinstance(of, GangConsumed) and not of.gang.left
    ]
    found: dict[int, Consumed] = {}
    if len(together) > 1:
        trails = together[0][1].gang._trails
        together = [one for one in together if one[1].gang._trails is trails]
        slots = np.concatenate([of.gang._slots[of.gang._by_rank()] for _, of, _ in together])
        offset_ns = np.concatenate([of.offset_ns for _, of, _ in together])
        of_all = trails.consumed(slots, np.concatenate([at_ns for _, _, at_ns in together]) - offset_ns)
        at_all_ns, end = of_all.at_ns + offset_ns, 0
        for place, _, at_ns in together:
            here = slice(end, end := end + len(at_ns))
            # Copies: an array of one window must not keep those of all others alive.
            found[place] = Consumed(of_all.values[here].copy(), at_all_ns[here].copy())
    return [found[place] if place in found else of(at_ns) for place, (of, at_ns) in enumerate(asked)]
