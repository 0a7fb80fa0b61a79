"""Ring of one attempt's finished steps, with one row per step and one column per rank.

Steps of all ranks are aligned by STEP NUMBER, never by time. In synchronous training, only the aligned row shows which
rank the others waited for.

Finished steps are queued, and processed together before a caller reads the ring. The ranks of a job end a step at about
the same time, so a few array operations replace a dozen scalar operations per rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
IndexArray = npt.NDArray[np.intp]
GivenArray = npt.NDArray[np.float32]
T = TypeVar("T", np.float64, np.float32, np.int64)

FIRST_ROWS = 24
"""Number of rows (one per step) of a new ring: 16 for the steps over which the reported mean is taken, and 8 for steps
in progress. The number of rows doubles if a step would otherwise overwrite a step younger than RETAIN_NS."""

RETAIN_NS = 16_000_000_000
"""Minimum time for which steps are kept: the largest lag of a detector that runs every second."""

MOST_CELLS = 1 << 20
"""Maximum number of cells of a ring (rows x ranks; 25 MB). At the limit, the ring keeps a shorter history instead of
growing."""

MOST_ROWS = 1 << 14
"""Maximum number of rows of a ring: 16 s of steps of 1 ms. A step ring of 65,536 records that is read once a second
cannot hold shorter steps."""

STALE_NS = 60_000_000_000
"""A row of the ring that has not changed for this time has lost its writer. Any step with a lower number may then
replace the row."""

MOST_QUEUED = 8192
"""Maximum number of queued steps; at this number they are processed at once."""

FEW = 16
"""Number of queued steps below which each is processed alone, because array operations would take longer."""

CYCLE_SLACK = 0.99
"""The time from the previous step's end to a step's end is used if it is at least this share of the step's reported
duration. Rounding may make it slightly shorter than the duration."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that every known rank has finished, in order of completion: k steps, n ranks in the order of their
    numbers."""

    number: IntArray
    """int64 [k]: number of each step."""
    sequence: IntArray
    """int64 [k]: position of each step in the order of completion; never reused."""
    end_ns: IntArray
    """int64 [k, n]: end of each step, on the monotonic clock of the rank's host."""
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
class Requests:
    """Newest requests of a job that reports each request as a step: k requests of each of n ranks."""

    end_ns: IntArray
    """int64 [k, n]: end of each request, on the monotonic clock of the rank's host."""
    seconds: FloatArray
    """float64 [k, n]: time in which it was answered, without reported waits and without the time before it."""


class StepRing:
    """Finished steps of an attempt. The caller numbers the ranks (columns) in the order of their first reports."""

    def __init__(self, columns: int) -> None:
        self._queued: list[IntArray] = []
        self._queued_steps = 0
        self._late = self._repeated = self._sequence = 0
        self._ranks = self._most_filled = 0
        self._number = np.full(FIRST_ROWS, -1, np.int64)
        self._done = np.zeros(FIRST_ROWS, np.int64)
        self._filled = np.zeros(FIRST_ROWS, np.int64)
        self._touched = np.zeros(FIRST_ROWS, np.int64)
        self._end = np.zeros((FIRST_ROWS, columns), np.int64)
        self._duration = np.full((FIRST_ROWS, columns), np.nan)
        self._wait = np.full((FIRST_ROWS, columns), np.nan)
        # Created when a rank first reports it. float32 is precise enough: step times are only known to a thousandth.
        self._tokens: GivenArray | None = None
        self._squares: GivenArray | None = None
        self._newest = np.full(columns, -1, np.int64)

    @property
    def late(self) -> int:
        """Number of steps that were reported after their row was reused."""
        self._settle()
        return self._late

    @property
    def repeated(self) -> int:
        """Number of steps that were reported again."""
        self._settle()
        return self._repeated

    @property
    def sequence(self) -> int:
        """Sequence number of the newest completed step; 0 before the first.

        Queued steps are left in the queue while they are too few to complete a step.
        """
        if self._queued_steps + self._most_filled >= self._ranks:
            self._settle()
        return self._sequence

    def newest(self) -> IntArray:
        """Return int64 [columns]: number of the last finished step of each column; -1 for none."""
        self._settle()
        return self._newest

    def add_rank(self) -> None:
        """Take the next column into use. No row is complete without the new rank."""
        self._settle()
        self._ranks += 1
        self._done[:] = 0

    def finish(
        self, column: int, step: int, start_ns: int, duration_ns: int, wait_ns: int | None, received_ns: int,
        tokens: int | None, squares: int | None,
    ) -> None:  # fmt: skip
        """Add a finished step of the rank in `column`. Repeated steps are ignored; late reports are counted."""
        given = (-1 if value is None else value for value in (wait_ns, tokens, squares))
        self.finish_all(np.array([[column, step, start_ns + duration_ns, duration_ns, received_ns, *given]], np.int64))

    def finish_all(self, steps: IntArray) -> None:
        """Add finished steps, in order.

        steps: int64 [k, 8]: column, step, end, duration, time of receipt, wait, tokens, squares. Times are in
        nanoseconds. A wait, tokens or squares of -1 was not reported.
        """
        self._queued.append(steps)
        self._queued_steps += len(steps)
        if self._queued_steps >= MOST_QUEUED:
            self._settle()

    # --- queued steps -------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Process the queued steps, in order."""
        if not self._queued:
            return
        queued = self._queued[0] if len(self._queued) == 1 else np.concatenate(self._queued)
        self._queued, self._queued_steps = [], 0
        if len(queued) < FEW or not self._finish_together(queued):
            for one in queued.tolist():
                self._finish(*one)
        self._most_filled = int(self._filled[self._done == 0].max(initial=0))

    def _finish_together(self, queued: IntArray) -> bool:
        """Process all queued steps at once, if each fills an empty cell of the newest steps. Return False without any
        change if one of them is late or repeated, or if the ring may have to grow."""
        column, step, end_ns, duration_ns, received_ns, wait_ns, tokens, squares = np.ascontiguousarray(queued.T)
        rows = len(self._number)
        is_one_step = bool((step == step[0]).all())  # the usual case: all ranks have finished the same step
        if is_one_step:
            numbers, first, of_number = step[:1], np.zeros(1, np.intp), np.zeros(len(step), np.intp)
        else:
            numbers, first, of_number = np.unique(step, return_index=True, return_inverse=True)
            if numbers[-1] - numbers[0] >= rows:
                return False
        places = numbers % rows
        before = self._number[places]
        new = before != numbers
        overwrites = new & (before >= 0)
        if overwrites.any() and (
            (before > numbers).any() or (received_ns[first] - self._touched[places] < RETAIN_NS)[overwrites].any()
        ):
            return False
        row = places[of_number]
        cell = row * len(self._newest) + column
        in_use = ~new[of_number] & ~np.isnan(self._duration[row, column])
        if in_use.any() or _repeats(column if is_one_step else cell):
            return False
        for place, number in zip(places[new].tolist(), numbers[new].tolist(), strict=True):
            self._clear(place, number)
        self._end[row, column] = end_ns
        self._newest[column] = step
        self._duration[row, column] = duration_ns * 1e-9
        self._wait[row, column] = np.where(wait_ns < 0, np.nan, wait_ns * 1e-9)
        self._tokens = self._given(self._tokens, row, column, tokens)
        self._squares = self._given(self._squares, row, column, squares)
        self._touched[row] = received_ns
        self._filled[places] += np.bincount(of_number)
        last = np.zeros(len(numbers), np.intp)
        last[of_number] = np.arange(len(queued))  # of repeated indices, the last value counts
        complete = np.flatnonzero(self._filled[places] == self._ranks)
        for index in complete[np.argsort(last[complete])].tolist():
            self._sequence += 1
            self._done[places[index]] = self._sequence
        return True

    def _given(
        self, table: GivenArray | None, row: IndexArray, column: IntArray, values: IntArray
    ) -> GivenArray | None:
        """Write the given (not negative) values into `table`, which is created for the first of them."""
        given = values >= 0
        if not given.any():
            return table
        if table is None:
            table = np.full(self._end.shape, np.nan, np.float32)
        table[row[given], column[given]] = values[given]
        return table

    def _finish(
        self, column: int, step: int, end_ns: int, duration_ns: int, received_ns: int, wait_ns: int, tokens: int,
        squares: int,
    ) -> None:  # fmt: skip
        """Process one queued step; -1: the value was not reported."""
        row = step % len(self._number)
        number = int(self._number[row])
        if number != step:
            if number >= 0:
                # The rank finished the higher step earlier: it has restarted from a checkpoint.
                fell_back = self._is_filled(row, column) and int(self._end[row, column]) < end_ns
                if step < number and not fell_back and received_ns - int(self._touched[row]) < STALE_NS:
                    self._late += 1
                    return
                if step > number and received_ns - int(self._touched[row]) < RETAIN_NS and self._lengthen():
                    self._finish(column, step, end_ns, duration_ns, received_ns, wait_ns, tokens, squares)
                    return
            self._clear(row, step)
        elif self._is_filled(row, column):
            self._repeated += 1
            if int(self._end[row, column]) == end_ns:
                return
            self._clear(row, step)  # the rank repeats the step after a restart from a checkpoint
        self._end[row, column] = end_ns
        self._newest[column] = step
        self._duration[row, column] = duration_ns * 1e-9
        if wait_ns >= 0:
            self._wait[row, column] = wait_ns * 1e-9
        if tokens >= 0:
            if self._tokens is None:
                self._tokens = np.full(self._end.shape, np.nan, np.float32)
            self._tokens[row, column] = tokens
        if squares >= 0:
            if self._squares is None:
                self._squares = np.full(self._end.shape, np.nan, np.float32)
            self._squares[row, column] = squares
        self._touched[row] = received_ns
        filled = int(self._filled[row]) + 1
        self._filled[row] = filled
        if filled == self._ranks:
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

    # --- reading ------------------------------------------------------------------------------------------------------

    def completed(self, columns: IndexArray, after: int = 0) -> Steps | None:
        """Return the steps that every rank has completed since sequence `after`; None if there are none.

        columns: columns in the order of the result.
        """
        if after >= self.sequence:
            return None
        self._settle()
        rows = np.flatnonzero(self._done > after)
        if not len(rows):
            return None
        rows = rows[np.argsort(self._done[rows])]
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

    def requests(self, columns: IndexArray, newest: int) -> Requests | None:
        """Return the newest steps that every rank has completed, as requests; None if there are none."""
        self._settle()
        rows = np.flatnonzero(self._done > max(0, self._sequence - newest))
        if not len(rows):
            return None
        cells = np.ix_(rows[np.argsort(self._done[rows])], columns)
        waits = np.nan_to_num(self._wait[cells], nan=0.0)
        return Requests(self._end[cells], np.maximum(self._duration[cells] - waits, 0.0))

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

    def widen(self, add: int) -> None:
        """Add columns for further ranks."""

        def wider(array: npt.NDArray[T], empty: float) -> npt.NDArray[T]:
            result = np.full((len(array), array.shape[1] + add), empty, array.dtype)
            result[:, : array.shape[1]] = array  # np.pad takes several times as long
            return result

        self._end = wider(self._end, 0)
        self._duration = wider(self._duration, np.nan)
        self._wait = wider(self._wait, np.nan)
        self._tokens = None if self._tokens is None else wider(self._tokens, np.nan)
        self._squares = None if self._squares is None else wider(self._squares, np.nan)
        self._newest = np.pad(self._newest, (0, add), constant_values=-1)


def _repeats(cells: IntArray) -> bool:
    """Return whether a number occurs twice."""
    ordered = np.sort(cells)  # np.unique takes three times as long for few numbers
    return bool((ordered[1:] == ordered[:-1]).any())
