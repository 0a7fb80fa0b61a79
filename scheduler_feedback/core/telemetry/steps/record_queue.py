"""Queue of the usual frames' tables of records: their ranks are those of the node's last table, or nothing has changed.

The tables of up to MOST_QUEUED frames are processed together, in order, with the effect that each would have alone
(``Attempts._take_table``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from agent.schema.frame import ROW_BYTES, Frame, RecordTable
from agent.schema.record_table import FINISHED_STEP, OPEN_STEP
from scheduler_feedback.core.telemetry.fleet_nodes import KnownRanks, NodeView
from scheduler_feedback.core.telemetry.series.frame_batch import Failed
from scheduler_feedback.core.telemetry.steps.gang_attempts import Gang
from scheduler_feedback.core.telemetry.steps.open_table import IndexArray, IntArray, OpenTable, cells_of
from scheduler_feedback.core.telemetry.steps.record_checks import CLOCK_SLACK_NS, LARGEST_BITS, OLDEST_RECORD_NS

MOST_QUEUED = 256
"""Maximum number of queued frames."""

_Queued = tuple[NodeView, Frame, KnownRanks, RecordTable, int]
"""A node, its frame, the ranks of its table, the table, and the time of receipt."""

TakeAlone = Callable[[NodeView, Frame, RecordTable, int], None]


class RecordQueue:
    """Queued tables of records of all nodes.

    opened: open steps and collectives of all ranks. take_alone: processes a table row by row; called if the table has
    impossible values or the first step of a gang.
    failed: (node, error) of frames that could not be processed, until the caller clears the list.
    """

    def __init__(self, opened: OpenTable, take_alone: TakeAlone) -> None:
        self._opened, self._take_alone = opened, take_alone
        self._queue: list[_Queued] = []
        self._again: list[IndexArray] = []
        self._again_ns: list[int] = []
        self._batches = 0
        self.failed: list[Failed] = []

    def add(self, node: NodeView, frame: Frame, known: KnownRanks, table: RecordTable, received_ns: int) -> None:
        """Queue a table of the ranks `known`."""
        known.gang.queued = node._tables_queued = self._batches
        node._records, node._opened = (), ()  # known once the table is processed
        self._queue.append((node, frame, known, table, received_ns))
        if len(self._queue) >= MOST_QUEUED:
            self.settle()

    def add_again(self, node: NodeView, seen_ns: int, received_ns: int) -> None:
        """Queue the open steps and collectives of the node's last frame, which the next frame reports again.

        seen_ns: time of that frame on the host's clock. received_ns: time of its receipt.
        """
        for gang, cells in node._opened:
            gang.queued, gang.received_ns = self._batches, received_ns
            self._again.append(cells)
            self._again_ns.append(seen_ns)
        node._tables_queued = self._batches
        if len(self._again) >= MOST_QUEUED:
            self.settle()

    def settle_of(self, owner: Gang) -> None:
        """Process the queued tables if one of them may be of this gang."""
        if owner.queued == self._batches:
            self.settle()

    def settle_of_node(self, node: NodeView) -> None:
        """Process the queued tables if one of them may be of this node."""
        if node._tables_queued == self._batches:
            self.settle()

    def settle(self) -> None:
        """Process all queued tables."""
        if not self._queue and not self._again:
            return
        queue, again, again_ns = self._queue, self._again, self._again_ns
        self._queue, self._again, self._again_ns = [], [], []
        self._batches += 1
        # Until a queued table is processed, no later frame of its node is only a repetition. So repetitions come first.
        self._seen(again, again_ns)
        self._fold_apart(queue)

    def _seen(self, cells: list[IndexArray], seen_ns: list[int]) -> None:
        if cells:
            self._opened.seen(np.concatenate(cells), np.repeat(np.array(seen_ns, np.int64), list(map(len, cells))))

    def _fold_apart(self, queue: list[_Queued]) -> None:
        """Process tables. If that raises an exception, process each alone: a bug affects only the nodes that trigger
        it."""
        try:
            self._fold(queue)
        except Exception as error:
            if len(queue) == 1:
                self.failed.append((queue[0][0].name, error))
                return
            for one in queue:
                self._fold_apart([one])

    def _fold(self, queue: list[_Queued]) -> None:
        if not queue:
            return
        rows = _Rows(queue)
        if wrong := rows.wrong():
            begin = 0
            for place in wrong:
                self._fold(queue[begin:place])
                node, frame, _, table, received_ns = queue[place]
                self._take_alone(node, frame, table, received_ns)
                begin = place + 1
            self._fold(queue[begin:])
            return
        cells, counts = self._write_open(rows)
        steps = self._finish_steps(rows)
        pieces: list[IndexArray] = []
        seen_ns: list[int] = []
        begin = 0
        for (node, frame, known, table, received_ns), count, finished in zip(queue, counts, steps, strict=True):
            known.gang.received_ns = max(known.gang.received_ns, received_ns)  # of a table with accepted rows only
            new = cells[begin : begin + count]
            begin += count
            if finished:
                node._records, node._opened = (), ()
            else:
                new = new.copy()  # a part of an array would keep the whole array
                node._records, node._opened = table, ((known.gang, new),)
            pieces.append(new)
            seen_ns.append(frame.monotonic_ns)
        self._seen(pieces, seen_ns)

    def _write_open(self, rows: _Rows) -> tuple[IndexArray, list[int]]:
        """Write open steps and collectives. Return their cells, and the number of cells of each frame, in order."""
        opened = self._opened
        opened.reported_ns[rows.slots] = np.repeat(rows.received_ns, rows.sizes)
        chosen = np.flatnonzero(rows.kind != FINISHED_STEP)
        cells = cells_of(rows.slots[rows.rank[chosen]], rows.kind[chosen] - OPEN_STEP)
        opened.write(cells, rows.number[chosen], rows.start_ns[chosen])
        return cells, np.bincount(rows.frame[chosen], minlength=rows.frames).tolist()

    def _finish_steps(self, rows: _Rows) -> list[int]:
        """Add finished steps to their gangs; return their number in each frame."""
        chosen = np.flatnonzero(rows.kind == FINISHED_STEP)
        counts: list[int] = np.bincount(rows.frame[chosen], minlength=rows.frames).tolist()
        if not len(chosen):
            return counts
        steps = np.empty((len(chosen), 8), np.int64)
        columns = (rows.columns[rows.rank], rows.number, rows.end_ns, rows.duration_ns, rows.received_ns[rows.frame],
                   rows.wait_ns, rows.tokens, rows.squares)  # fmt: skip
        for index, values in enumerate(columns):
            steps[:, index] = values[chosen]
        begin = 0
        for known, count in zip(rows.known, counts, strict=True):
            if count:
                known.gang.finish_all(steps[begin : begin + count])
                begin += count
        return counts


class _Rows:
    """Rows of all tables of a queue, one after the other.

    frame: [r], place of each row's frame in the queue. rank: [r], index of each row's rank in `slots` and `columns`,
    which contain the ranks of all tables (`sizes` of each). The other arrays have the numbers of the rows.
    """

    def __init__(self, queue: Sequence[_Queued]) -> None:
        tables = [one[3].rows for one in queue]
        table = np.frombuffer(b"".join(tables), np.dtype("<i8")).reshape(-1, ROW_BYTES // 8)
        (
            self.kind, self._place, self.number, self.start_ns, self.duration_ns, self.wait_ns, self.tokens,
            self.squares,
        ) = np.ascontiguousarray(table.T)  # fmt: skip
        self.frames = len(queue)
        self.known = [one[2] for one in queue]
        self.received_ns: IntArray = np.array([one[4] for one in queue], np.int64)
        self._stepped = np.array([one.gang.stepped for one in self.known], np.bool_)
        self._now_ns: IntArray = np.array([one[1].monotonic_ns for one in queue], np.int64)
        self.frame: IndexArray = np.repeat(np.arange(len(queue)), [len(rows) // ROW_BYTES for rows in tables])
        self.sizes: IndexArray = np.array([len(one.slots) for one in self.known], np.intp)
        self.slots: IndexArray = np.concatenate([one.slots for one in self.known])
        self.columns: IndexArray = np.concatenate([one.columns for one in self.known])
        self.rank: IndexArray = (np.cumsum(self.sizes) - self.sizes)[self.frame] + self._place
        self.end_ns = self.start_ns + self.duration_ns

    def wrong(self) -> list[int]:
        """Return the places of frames that have an impossible value or the first finished step of a gang, in order."""
        now_ns = self._now_ns[self.frame]
        # A sum that overflows is negative, so that it is found too.
        odd = ((self._place | self.number | self.start_ns) >> LARGEST_BITS != 0) | (self.kind >> 1 != 0)
        odd_step = (self._place | self.number | self.start_ns | self.wait_ns + 1 | self.tokens + 1) >> LARGEST_BITS != 0
        odd_step |= ((self.squares + 1) >> LARGEST_BITS != 0) | (self.wait_ns > self.duration_ns)
        odd_step |= (self.duration_ns <= 0) | (self.end_ns < now_ns - OLDEST_RECORD_NS)
        odd_step |= (self.end_ns > now_ns + CLOCK_SLACK_NS) | ~self._stepped[self.frame]
        wrong = np.where(self.kind == FINISHED_STEP, odd_step, odd) | (self._place >= self.sizes[self.frame])
        return np.unique(self.frame[wrong]).tolist() if wrong.any() else []
