"""Telemetry of one attempt of a gang: finished steps by number, open steps and collectives, and consumption of ranks.

Steps of all ranks are aligned by STEP NUMBER, never by time, in a ring with one row per step and one column per rank.
In synchronous training, only the aligned row shows which rank the others waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
GivenArray = npt.NDArray[np.float32]
T = TypeVar("T", np.float64, np.float32, np.int64)

CONSUMED = (
    "gangwatch_rank_cpu_seconds_total",
    "gangwatch_rank_runqueue_wait_seconds_total",
    "gangwatch_rank_block_io_seconds_total",
    "gangwatch_rank_stopped_samples_total",
    "gangwatch_rank_samples_total",
)
"""Counters of each rank's processes, in the order of the last axis: three times in nanoseconds, then two counts."""

CPU, RUNQUEUE, BLOCK_IO, STOPPED, SAMPLES = range(len(CONSUMED))

FIRST_ROWS = 24
"""Rows of a new ring: 16 for the steps of the reported mean, and 8 for steps in progress. The number of rows doubles if
a step would otherwise overwrite a step younger than RETAIN_NS."""

RETAIN_NS = 16_000_000_000
"""Minimum time for which steps are kept: the largest lag of a detector that runs every second."""

MOST_CELLS = 1 << 20
"""Maximum number of cells of a ring (rows x ranks; 25 MB). At the limit, the ring keeps a shorter history instead of
growing."""

MOST_ROWS = 1 << 14
"""Maximum number of rows of a ring: 16 s of steps of 1 ms. A step ring of 65,536 records that is read once a second
cannot hold shorter steps."""

STALE_NS = 60_000_000_000
"""If a row has not changed for this time, its writer is gone. A step with a lower number may then replace the row."""

TRAIL = 16
"""Number of samples of the consumed counters that are kept per rank: with TRAIL_SPACING_NS, at least eight seconds."""

TRAIL_SPACING_NS = 500_000_000
"""Minimum time between two kept samples. If the newest kept sample is closer to the one before, the next sample
replaces it instead of the oldest."""

MOST_OPENING = 4096
"""Maximum number of frames whose open steps and collectives are queued before they are processed."""

CYCLE_SLACK = 0.99
"""Minimum ratio of a step's end-to-end time to its reported duration. Only rounding may make the ratio smaller than
1."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that every known rank has finished, in order of completion: k steps, n ranks by increasing rank."""

    number: IntArray
    """int64 [k]: step numbers."""
    sequence: IntArray
    """int64 [k]: increases with completion and is never reused."""
    end_ns: IntArray
    """int64 [k, n]: end of each step, on its host's monotonic clock."""
    seconds: FloatArray
    """float64 [k, n]: time from the end of the rank's previous step to the end of this one, because time between steps
    (loading data, saving) counts too. If the previous step is unknown: the reported duration."""
    wait_seconds: FloatArray
    """float64 [k, n]: time spent waiting; NaN if unknown."""
    tokens: FloatArray | None = None
    """float64 [k, n]: tokens of each rank; NaN if it did not report them, None if no rank ever did."""
    squares: FloatArray | None = None
    """float64 [k, n]: sum of squared sequence lengths; NaN and None as in `tokens`."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """Cumulative counters of n ranks at requested times."""

    values: FloatArray
    """float64 [n, 5]: counters in the order of CONSUMED; NaN if unknown."""
    at_ns: IntArray
    """int64 [n]: time of each value: the requested time, or the nearest sample if that time is outside the kept
    range."""


class Gang:
    """One attempt of a gang. Internal columns are in order of first report; all results are by increasing rank."""

    def __init__(self, name: str, attempt: int) -> None:
        self.name = name
        self.attempt = attempt
        self.received_ns = 0
        self.late = 0
        self.repeated = 0
        self._column: dict[int, int] = {}
        self._ranks: tuple[int, ...] = ()
        self._order = np.zeros(0, np.intp)
        self._nodes: list[str] = []
        self._reported_ns: list[int] = []
        self.placed = True
        self._sequence = 0
        self._opening: list[tuple[IntArray, int]] = []
        self._mean: tuple[int, int, float | None] = (0, 0, None)  # number of steps, newest sequence, result
        self.changes = 0
        self._shape(FIRST_ROWS, 4)

    def _shape(self, rows: int, columns: int) -> None:
        self._number = np.full(rows, -1, np.int64)
        self._done = np.zeros(rows, np.int64)
        self._filled = np.zeros(rows, np.int64)
        self._touched = np.zeros(rows, np.int64)
        self._end = np.zeros((rows, columns), np.int64)
        self._duration = np.full((rows, columns), np.nan)
        self._wait = np.full((rows, columns), np.nan)
        # Created when a rank first reports it. float32 is precise enough: step times are only known to a thousandth.
        self._tokens: GivenArray | None = None
        self._squares: GivenArray | None = None
        self._newest = np.full(columns, -1, np.int64)
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
                self._widen(column + max(4, column // 8))
            self._column[rank] = column
            self.changes += 1
            self._nodes.append(node)
            self._reported_ns.append(self.received_ns)
            self._done[:] = 0  # no row is complete without the new rank
        elif self._nodes[column] != node:
            self._nodes[column] = node
            self.changes += 1
        self._reported_ns[column] = self.received_ns
        return column

    def holder(self, rank: int) -> tuple[str, int] | None:
        """Return the node that reports the rank and the time of its last report; None if no node has reported it."""
        column = self._column.get(rank)
        return None if column is None else (self._nodes[column], self._reported_ns[column])

    # --- steps --------------------------------------------------------------------------------------------------------

    def finish(
        self, column: int, step: int, start_ns: int, duration_ns: int, wait_ns: int | None, received_ns: int,
        tokens: int | None = None, squares: int | None = None,
    ) -> None:  # fmt: skip
        """Add a finished step of the rank in `column`. Repeated steps are ignored; late reports are counted."""
        row = step % len(self._number)
        end_ns = start_ns + duration_ns
        number = int(self._number[row])
        if number != step:
            if number >= 0:
                # The rank finished the higher step earlier: it has restarted from a checkpoint.
                fell_back = self._is_filled(row, column) and int(self._end[row, column]) < end_ns
                if step < number and not fell_back and received_ns - int(self._touched[row]) < STALE_NS:
                    self.late += 1
                    return
                if step > number and received_ns - int(self._touched[row]) < RETAIN_NS and self._lengthen():
                    self.finish(column, step, start_ns, duration_ns, wait_ns, received_ns, tokens, squares)
                    return
            self._clear(row, step)
        elif self._is_filled(row, column):
            self.repeated += 1
            if int(self._end[row, column]) == end_ns:
                return
            self._clear(row, step)  # the rank repeats the step after a restart from a checkpoint
        self._end[row, column] = end_ns
        self._newest[column] = step
        self._duration[row, column] = duration_ns * 1e-9
        if wait_ns is not None:
            self._wait[row, column] = wait_ns * 1e-9
        if tokens is not None:
            if self._tokens is None:
                self._tokens = np.full(self._end.shape, np.nan, np.float32)
            self._tokens[row, column] = tokens
        if squares is not None:
            if self._squares is None:
                self._squares = np.full(self._end.shape, np.nan, np.float32)
            self._squares[row, column] = squares
        self._touched[row] = self.received_ns = received_ns
        filled = int(self._filled[row]) + 1
        self._filled[row] = filled
        if filled == len(self._column):
            self._sequence += 1
            self._done[row] = self._sequence

    def _is_filled(self, row: int, column: int) -> bool:
        duration = self._duration[row, column]
        return bool(duration == duration)  # not NaN; numpy's isnan takes five times as long

    def _clear(self, row: int, step: int) -> None:
        self._number[row] = step
        self._done[row] = 0
        self._filled[row] = 0
        self._duration[row] = np.nan
        self._wait[row] = np.nan
        if self._tokens is not None:
            self._tokens[row] = np.nan
        if self._squares is not None:
            self._squares[row] = np.nan

    def completed(self, after: int = 0) -> Steps | None:
        """Return the steps that every known rank has completed since sequence `after`; None if there are none."""
        rows = np.flatnonzero(self._done > after)
        if not len(rows):
            return None
        rows = rows[np.argsort(self._done[rows])]
        columns = self._by_rank()
        cells = np.ix_(rows, columns)
        number, end, duration = self._number[rows], self._end[cells], self._duration[cells]
        previous = (number - 1) % len(self._number)
        known = (self._number[previous] == number - 1) & (self._done[previous] > 0)
        between = (end - self._end[np.ix_(previous, columns)]) * 1e-9
        seconds = np.where(known[:, None] & (between >= CYCLE_SLACK * duration), between, duration)
        tokens, squares = (
            None if given is None else given[cells].astype(np.float64) for given in (self._tokens, self._squares)
        )
        return Steps(number, self._done[rows], end, seconds, self._wait[cells], tokens, squares)

    def newest_steps(self) -> IntArray:
        """Return int64 [n] by increasing rank: number of the last finished step; -1 for none."""
        return self._newest[self._by_rank()]

    @property
    def newest_sequence(self) -> int:
        """Sequence number of the newest completed step; 0 before the first."""
        return self._sequence

    def step_seconds(self, newest: int = 16) -> float | None:
        """Return the mean time of the newest completed steps over all ranks; None before the first."""
        if newest != self._mean[0] or self._sequence != self._mean[1]:
            steps = self.completed(max(0, self._sequence - newest))
            self._mean = newest, self._sequence, None if steps is None else float(steps.seconds.mean())
        return self._mean[2]

    # --- open steps and collectives -----------------------------------------------------------------------------------

    def opened(self, column: int, what: str, number: int, since_ns: int, seen_ns: int) -> None:
        """Record a rank's open step or collective as of a frame (`seen_ns`, host clock)."""
        self.opened_all(np.array([[what != "step", column, number, since_ns]], np.int64), seen_ns)

    def opened_all(self, table: IntArray, seen_ns: int) -> None:
        """Record k open steps or collectives from `table`, int64 [k, 4].

        The columns of `table`: 0 for a step or 1 for a collective, column of the rank, number, start.
        """
        self._opening.append((table, seen_ns))
        if len(self._opening) > MOST_OPENING:
            self._settle_opened()

    def _settle_opened(self) -> None:
        if not self._opening:
            return
        table = np.concatenate([one for one, _ in self._opening])
        seen_ns = np.repeat([seen_ns for _, seen_ns in self._opening], [len(one) for one, _ in self._opening])
        self._opening.clear()
        for kind, target in enumerate((self._open_step, self._open_collective)):
            chosen = table[:, 0] == kind
            target[table[chosen, 1]] = np.column_stack((table[chosen, 2:], seen_ns[chosen]))

    def open_steps(self) -> IntArray:
        """Return int64 [n, 3] by increasing rank: open step, start, last report (host clock); -1 for never."""
        self._settle_opened()
        return self._open_step[self._by_rank()]

    def open_collectives(self) -> IntArray:
        """Return int64 [n, 3] by increasing rank: open collective, start, last report (host clock); -1 for never."""
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
        """Return the cumulative counters at `at_ns` [n] (host clocks, by increasing rank), linear between samples."""
        columns = self._by_rank()
        times, values = self._trail_ns[columns], self._trail[columns]
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
        between = values[here, low] + share[:, None] * (values[here, high] - values[here, low])
        return Consumed(np.where((has_low | has_high)[:, None], between, np.nan), actual_ns)

    # --- growth -------------------------------------------------------------------------------------------------------

    def _lengthen(self) -> bool:
        rows, columns = self._end.shape
        if 2 * rows > MOST_ROWS or 2 * rows * columns > MOST_CELLS:
            return False
        kept = np.flatnonzero(self._number >= 0)
        place = self._number[kept] % (2 * rows)  # numbers that differ modulo `rows` differ modulo twice as many

        def longer(array: npt.NDArray[T], empty: float) -> npt.NDArray[T]:
            result = np.full((2 * rows, *array.shape[1:]), empty, array.dtype)
            result[place] = array[kept]
            return result

        self._done = longer(self._done, 0)
        self._filled = longer(self._filled, 0)
        self._touched = longer(self._touched, 0)
        self._end = longer(self._end, 0)
        self._duration = longer(self._duration, np.nan)
        self._wait = longer(self._wait, np.nan)
        self._tokens = None if self._tokens is None else longer(self._tokens, np.nan)
        self._squares = None if self._squares is None else longer(self._squares, np.nan)
        self._number = longer(self._number, -1)
        return True

    def _widen(self, columns: int) -> None:
        self._settle_opened()
        add = columns - len(self._total)

        def wider(array: npt.NDArray[T], axis: int, empty: float) -> npt.NDArray[T]:
            padding = [(0, 0)] * array.ndim
            padding[axis] = (0, add)
            return np.pad(array, padding, constant_values=empty)

        self._end = wider(self._end, 1, 0)
        self._duration = wider(self._duration, 1, np.nan)
        self._wait = wider(self._wait, 1, np.nan)
        self._tokens = None if self._tokens is None else wider(self._tokens, 1, np.nan)
        self._squares = None if self._squares is None else wider(self._squares, 1, np.nan)
        self._newest = wider(self._newest, 0, -1)
        self._open_step = wider(self._open_step, 0, -1)
        self._open_collective = wider(self._open_collective, 0, -1)
        self._total = wider(self._total, 0, 0)
        self._trail_ns = wider(self._trail_ns, 0, -1)
        self._trail = wider(self._trail, 0, np.nan)
        self._trail_head = wider(self._trail_head, 0, -1)
