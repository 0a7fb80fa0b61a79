"""CPU time and I/O of the ranks' processes, computed from the nodes' cumulative counters and added to the ranks' gangs.

As in counter_features.py, frames are queued and processed together. Nodes whose layouts have the ranks' counters in the
same places share one set of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from agent.schema.frame import Frame
from agent.schema.rates import Change, difference, exact
from scheduler_feedback.core.telemetry.consumption_trail import Trails
from scheduler_feedback.core.telemetry.counter_features import Failed, fold_apart, rows_of
from scheduler_feedback.core.telemetry.gang_attempts import FloatArray, Gang

GAP_NS = 60_000_000_000
"""Longest gap between samples across which a 32-bit counter is trusted (no such counter exists today)."""

ROWS_AT_ONCE = 256


@dataclass(slots=True, eq=False)
class Group:
    """Ranks of one gang attempt on one node, whose layout contains their counters.

    row: the group's row in the arrays of `places`. slots: the ranks' slots in the samples of consumption.
    """

    name: str
    attempt: int
    ranks: tuple[int, ...]
    places: Places
    row: int
    gang: Gang | None = None
    slots: npt.NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))


_Queued = tuple[Group, Gang, npt.NDArray[np.intp], Frame, bool]


class Places:
    """Positions of the counters of m ranks in a frame, and their last values in all groups with these positions.

    index: [m, 6], position of each counter of CONSUMED; -1 for none. widths: [m, 6], bits of each counter.
    tier: index of the tier (collector with its interval) of all these counters. key: key of these positions in
    Consumption.
    trails: samples of consumption of all gangs. failed: receives (node, error) of frames that could not be processed.
    """

    def __init__(
        self, index: npt.NDArray[np.intp], widths: npt.NDArray[np.uint8], tier: int, key: bytes, trails: Trails,
        failed: list[Failed],
    ) -> None:  # fmt: skip
        self.index, self.widths, self.tier, self.key, self._trails = index, widths, tier, key, trails
        self._failed = failed
        self.queue: list[_Queued] = []
        self._rows = 0
        self._free: list[int] = []
        self._known = np.zeros(0, np.bool_)
        self._before = np.zeros((0, *index.shape), np.uint64)
        self._before_valid = np.zeros((0, *index.shape), np.bool_)
        self._before_ns = np.zeros(0, np.int64)

    def add(self, row_of: Group | None) -> int:
        """Add a row for a group, and return the row's index.

        row_of: the group's earlier row, perhaps in other `Places`; the new row starts with the values of that row.
        """
        row = self._free.pop() if self._free else self._rows
        self._rows = max(self._rows, row + 1)
        if row >= len(self._known):
            rows = max(4, 2 * len(self._known))
            for name in ("_known", "_before", "_before_valid", "_before_ns"):
                old = getattr(self, name)
                new = np.zeros((rows, *old.shape[1:]), old.dtype)
                new[: len(old)] = old
                setattr(self, name, new)
        self._known[row] = False
        if row_of is not None and np.array_equal(row_of.places.index >= 0, self.index >= 0):
            there = row_of.places
            self._known[row], self._before_ns[row] = there._known[row_of.row], there._before_ns[row_of.row]
            self._before[row], self._before_valid[row] = there._before[row_of.row], there._before_valid[row_of.row]
        return row

    def drop(self, row: int) -> None:
        """Remove the row of a group, and its queued frames."""
        self.queue = [one for one in self.queue if one[0].row != row]
        self._known[row] = False
        self._free.append(row)

    @property
    def empty(self) -> bool:
        """Whether no group has a row."""
        return len(self._free) == self._rows

    def settle(self) -> None:
        """Process the queued frames in order."""
        while self.queue:
            first = {one[0].row: one for one in reversed(self.queue)}
            if len(first) == len(self.queue):
                batch, self.queue = self.queue, []
            else:
                batch, later = list(first.values()), [one for one in self.queue if first[one[0].row] is not one]
                self.queue = later
            for start in range(0, len(batch), ROWS_AT_ONCE):
                fold_apart(self._fold, batch[start : start + ROWS_AT_ONCE], _node_of, self._failed)

    def _fold(self, batch: Sequence[_Queued]) -> None:
        rows = np.array([one[0].row for one in batch], np.intp)
        at_ns = rows_of([one[3].tier_ns for one in batch])[:, self.tier]
        continues = np.array([one[4] for one in batch], np.bool_)
        known = self._known[rows]
        elapsed_ns = at_ns - self._before_ns[rows]
        new = (at_ns > 0) & ~(known & continues & (elapsed_ns == 0))
        if not new.all():
            batch = [one for one, is_new in zip(batch, new.tolist(), strict=True) if is_new]
            if not batch:
                return
            rows, at_ns, continues, known, elapsed_ns = (
                array[new] for array in (rows, at_ns, continues, known, elapsed_ns)
            )
        flat = self.index.ravel()
        shape = (len(batch), *self.index.shape)
        now = rows_of([one[3].counters for one in batch]).take(flat, axis=1).reshape(shape)
        valid = rows_of([one[3].counters_valid for one in batch]).take(flat, axis=1).reshape(shape) & (self.index >= 0)
        before, before_valid = self._before[rows], self._before_valid[rows]
        advance = (now - before).astype(np.float64)
        plain = known & continues & (elapsed_ns > 0) & (elapsed_ns <= GAP_NS)
        plain &= ~(now < before).any(axis=(1, 2)) & (valid == before_valid).all(axis=(1, 2))
        restarted = np.zeros(shape[:2], np.bool_)
        for odd in np.flatnonzero(~plain).tolist():
            if not known[odd]:
                restarted[odd], advance[odd] = True, 0.0
                continue
            counts, change = difference(
                before[odd], before_valid[odd], now[odd], valid[odd], self.widths,
                np.full(self.index.shape, elapsed_ns[odd], np.int64), same_source=bool(continues[odd]), gap_ns=GAP_NS,
            )  # fmt: skip
            unsure = ~exact(change) & (change != Change.ABSENT) | (before_valid[odd] != valid[odd])
            restarted[odd], advance[odd] = unsure.any(axis=1), counts.astype(np.float64)
        self._known[rows], self._before_ns[rows] = True, at_ns
        self._before[rows], self._before_valid[rows] = now, valid
        advance[restarted] = 0.0
        advance[~valid] = np.nan
        _hand_over(self._trails, batch, restarted, advance, at_ns)


def _node_of(queued: _Queued) -> str:
    return queued[3].node


def _hand_over(
    trails: Trails, batch: Sequence[_Queued], restarted: npt.NDArray[np.bool_], advance: FloatArray,
    at_ns: npt.NDArray[np.int64],
) -> None:  # fmt: skip
    """Add the consumption of all ranks of the batch at once.

    restarted: ranks whose counters cannot be compared with earlier samples.
    """
    if any(one[1].left for one in batch):  # another attempt of the gang has begun
        kept = np.array([not one[1].left for one in batch])
        batch = [one for one in batch if not one[1].left]
        restarted, advance, at_ns = restarted[kept], advance[kept], at_ns[kept]
        if not batch:
            return
    slots = np.concatenate([one[2] for one in batch])
    if (begun := restarted.ravel()).any():
        trails.forget(slots[begun])
    trails.consume(slots, advance.reshape(len(slots), -1), np.repeat(at_ns, restarted.shape[1]))


class Consumption:
    """Counters of the CPU time and I/O of the ranks on all nodes."""

    def __init__(self, trails: Trails) -> None:
        self._trails = trails
        self._places: dict[bytes, Places] = {}
        self._queued: dict[int, Places] = {}
        self.failed: list[Failed] = []

    def group(
        self, name: str, attempt: int, ranks: tuple[int, ...], index: npt.NDArray[np.intp],
        widths: npt.NDArray[np.uint8], tier: int, sizes: tuple[int, int], old: Group | None,
    ) -> Group:  # fmt: skip
        """Return a new group of these ranks on a node.

        sizes: number of tiers and counters in the node's frames. Frames of different lengths cannot be stacked, so only
        groups with equal sizes share `Places`. old: the group of the same ranks in the node's last layout; the new
        group replaces it.
        """
        key = index.tobytes() + widths.tobytes() + repr((index.shape, tier, sizes)).encode()
        places = self._places.get(key)
        if places is None:
            places = self._places[key] = Places(index, widths, tier, key, self._trails, self.failed)
        return Group(name, attempt, ranks, places, places.add(old))

    def drop(self, groups: Sequence[Group]) -> None:
        """Remove these groups, and every `Places` that then has no group."""
        for group in groups:
            group.places.drop(group.row)
            if group.places.empty:
                del self._places[group.places.key]

    def take(self, group: Group, gang: Gang, frame: Frame, continues: bool) -> None:
        """Queue the group's part of a frame. `group.slots` are those of the group's ranks in the gang."""
        group.places.queue.append((group, gang, group.slots, frame, continues))
        self._queued[id(group.places)] = group.places
        if len(group.places.queue) >= ROWS_AT_ONCE:
            group.places.settle()

    def settle(self) -> None:
        """Process all queued frames."""
        while self._queued:
            self._queued.popitem()[1].settle()
