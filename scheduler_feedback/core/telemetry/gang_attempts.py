"""Telemetry of one attempt of a gang: finished steps (step_ring.py), open steps and collectives, and consumption of
ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.step_ring import StepRing, Steps

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
T = TypeVar("T", np.float64, np.int64)

CONSUMED = (
    "gangwatch_rank_cpu_seconds_total",
    "gangwatch_rank_runqueue_wait_seconds_total",
    "gangwatch_rank_block_io_seconds_total",
    "gangwatch_rank_stopped_samples_total",
    "gangwatch_rank_samples_total",
)
"""Counters of each rank's processes, in the order of an array's last axis: three times in nanoseconds, then two
counts."""

CPU, RUNQUEUE, BLOCK_IO, STOPPED, SAMPLES = range(len(CONSUMED))

TRAIL = 16
"""Number of samples of the consumed counters that are kept per rank: with TRAIL_SPACING_NS, at least eight seconds."""

TRAIL_SPACING_NS = 500_000_000
"""Minimum time between two kept samples. If the newest kept sample is closer to the one before, the next sample
replaces it instead of the oldest."""

LEAST_GROWTH = 8
"""Least number of columns by which the arrays grow: the usual number of ranks on a node."""

MOST_OPENING = 64
"""Open steps and open collectives (begun, not ended) are queued, and processed together when they are read. They are
also processed when this number and one for every two ranks are queued: about four tables for each node."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """Cumulative counters of n ranks at requested times."""

    values: FloatArray
    """float64 [n, 5]: counters in the order of CONSUMED; NaN if unknown."""
    at_ns: IntArray
    """int64 [n]: time of each value: the requested time, or the nearest sample if that time is outside the kept
    range."""


class Gang:
    """One attempt of a gang. Internal columns are in the order of the ranks' first reports. All results are ordered by
    rank."""

    def __init__(self, name: str, attempt: int) -> None:
        self.name = name
        self.attempt = attempt
        self.received_ns = 0
        self._column: dict[int, int] = {}
        self._ranks: tuple[int, ...] = ()
        self._order = np.zeros(0, np.intp)
        self._nodes: list[str] = []
        self._reported_ns: list[int] = []
        self.placed = True
        self._opening: dict[int, tuple[Sequence[int], int]] = {}
        self._mean: tuple[int, int, float | None] = (0, 0, None)  # number of steps, newest sequence, result
        self.changes = 0
        columns = 4
        self._steps = StepRing(columns)
        self._open_step = np.full((columns, 3), -1, np.int64)
        self._open_collective = np.full((columns, 3), -1, np.int64)
        self._total = np.zeros((columns, len(CONSUMED)))
        self._trail_ns = np.full((columns, TRAIL), -1, np.int64)
        self._trail = np.full((columns, TRAIL, len(CONSUMED)), np.nan)
        self._trail_head = np.full(columns, -1, np.int64)

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
            if column == len(self._total):
                self._widen(column + max(LEAST_GROWTH, column // 8))
            self._column[rank] = column
            self.changes += 1
            self._nodes.append(node)
            self._reported_ns.append(self.received_ns)
            self._steps.add_rank()
        elif self._nodes[column] != node:
            self._nodes[column] = node
            self.changes += 1
        self._reported_ns[column] = self.received_ns
        return column

    def reported_again(self, rank: int, node: str) -> int:
        """Return the rank's column if this node was also the last one to report the rank; otherwise -1."""
        column = self._column.get(rank, -1)
        if column < 0 or self._nodes[column] != node:
            return -1
        self._reported_ns[column] = self.received_ns
        return column

    def holder(self, rank: int) -> tuple[str, int] | None:
        """Return the node that reports the rank and the time of its last report; None if no node has reported it."""
        column = self._column.get(rank)
        return None if column is None else (self._nodes[column], self._reported_ns[column])

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

    def finish_all(self, steps: Sequence[tuple[int, ...]]) -> None:
        """Add finished steps, in order, each as in ``StepRing.finish_all``."""
        self._steps.finish_all(steps)

    def completed(self, after: int = 0) -> Steps | None:
        """Return the steps that every known rank has completed since sequence `after`; None if there are none."""
        return self._steps.completed(self._by_rank(), after)

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

    def opened_all(self, cells: Sequence[int], seen_ns: int) -> None:
        """Record k open steps or collectives.

        cells: four numbers for each, one after the other: 0 for a step or 1 for a collective, column of the rank,
        number, start. The caller must not change the sequence afterwards, and may pass it again for a later frame.
        """
        # Cells that are reported again replace themselves, at the end of the queue.
        key = id(cells)
        self._opening.pop(key, None)
        self._opening[key] = cells, seen_ns
        if len(self._opening) > MOST_OPENING + len(self._column) // 2:
            self._settle_opened()

    def _settle_opened(self) -> None:
        if not self._opening:
            return
        every = list(self._opening.values())
        self._opening.clear()
        counts = [len(cells) // 4 for cells, _ in every]
        flat = chain.from_iterable([cells for cells, _ in every])
        table = np.fromiter(flat, np.int64, 4 * sum(counts)).reshape(-1, 4)
        seen_ns = np.repeat([seen_ns for _, seen_ns in every], counts)
        for kind, target in enumerate((self._open_step, self._open_collective)):
            chosen = table[:, 0] == kind
            target[table[chosen, 1]] = np.column_stack((table[chosen, 2:], seen_ns[chosen]))

    def open_steps(self) -> IntArray:
        """Return int64 [n, 3], ordered by rank: number of the open step, its start, and its last report (host clock);
        -1 for never."""
        self._settle_opened()
        return self._open_step[self._by_rank()]

    def open_collectives(self) -> IntArray:
        """Return int64 [n, 3], ordered by rank: number of the open collective, its start, and its last report (host
        clock); -1 for never."""
        self._settle_opened()
        return self._open_collective[self._by_rank()]

    # --- consumption --------------------------------------------------------------------------------------------------

    def consume(self, columns: npt.NDArray[np.intp], advance: FloatArray, at_ns: int | IntArray) -> None:
        """Add the consumption of m ranks in `columns` up to `at_ns` (host clock; one time for all ranks, or [m]).

        advance: [m, 5], increase of each counter of CONSUMED; NaN if unknown.
        """
        total = self._total[columns] + advance
        newest = self._trail_head[columns]
        one_before = self._trail_ns[columns, newest - 1]
        spacing = self._trail_ns[columns, newest] - one_before
        push = (newest < 0) | (one_before < 0) | (spacing >= TRAIL_SPACING_NS)
        head = np.where(push, (newest + 1) % TRAIL, newest)
        self._total[columns] = total
        self._trail_ns[columns, head] = at_ns
        self._trail[columns, head] = total
        self._trail_head[columns] = head

    def forget_consumed(self, columns: npt.NDArray[np.intp]) -> None:
        """Delete the samples of ranks whose counters were reset, because later samples cannot be compared with them."""
        self._total[columns] = 0.0
        self._trail_ns[columns] = -1
        self._trail[columns] = np.nan
        self._trail_head[columns] = -1

    def consumed(self, at_ns: IntArray) -> Consumed:
        """Return the ranks' cumulative counters at the times `at_ns` (int64 [n], on each rank's host clock, ordered by
        rank). Values between two samples are interpolated."""
        columns = self._by_rank()
        times = self._trail_ns[columns]
        here = np.arange(len(columns))
        kept = times >= 0
        before = np.where(kept & (times <= at_ns[:, None]), times, -1)
        after = np.where(kept & (times >= at_ns[:, None]), times, np.iinfo(np.int64).max)
        low, high = before.argmax(axis=1), after.argmin(axis=1)
        has_low, has_high = before[here, low] >= 0, after[here, high] < np.iinfo(np.int64).max
        low, high = np.where(has_low, low, high), np.where(has_high, high, low)
        low_ns, high_ns = times[here, low], times[here, high]
        actual_ns = np.clip(at_ns, low_ns, high_ns)
        share = (actual_ns - low_ns) / np.maximum(high_ns - low_ns, 1)
        values_low, values_high = self._trail[columns, low], self._trail[columns, high]
        between = values_low + share[:, None] * (values_high - values_low)
        return Consumed(np.where((has_low | has_high)[:, None], between, np.nan), actual_ns)

    # --- growth -------------------------------------------------------------------------------------------------------

    def _widen(self, columns: int) -> None:
        self._settle_opened()
        add = columns - len(self._total)

        def wider(array: npt.NDArray[T], empty: float) -> npt.NDArray[T]:
            result = np.full((columns, *array.shape[1:]), empty, array.dtype)
            result[: len(array)] = array
            return result

        self._steps.widen(add)
        self._open_step = wider(self._open_step, -1)
        self._open_collective = wider(self._open_collective, -1)
        self._total = wider(self._total, 0)
        self._trail_ns = wider(self._trail_ns, -1)
        self._trail = wider(self._trail, np.nan)
        self._trail_head = wider(self._trail_head, -1)
