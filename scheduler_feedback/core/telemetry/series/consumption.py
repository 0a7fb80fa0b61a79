"""CPU time and I/O of the ranks' processes, computed from the nodes' cumulative counters and added to the ranks' gangs.

As in counter_features.py, frames are processed in batches. Nodes whose layouts have the ranks' counters in the
same places share one set of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agent.schema.rates import Change, difference, exact
from scheduler_feedback.core.telemetry.series.consumption_trail import CONSUMED, NO_OWNER, Trails
from scheduler_feedback.core.telemetry.series.frame_batch import Batch, Failed
from scheduler_feedback.core.telemetry.steps.gang_attempts import Gang

GAP_NS = 60_000_000_000
"""Longest gap between samples across which a 32-bit counter is trusted (no such counter exists today)."""


@dataclass(slots=True, eq=False)
class Group:
    """Ranks of one gang attempt on one node, whose layout contains their counters.

    row: the group's row in the arrays of `places`. gang: the attempt to which its consumption is added; None: it is not
    used.
    """

    name: str
    attempt: int
    ranks: tuple[int, ...]
    places: Places
    row: int
    gang: Gang | None = None


class Places:
    """Positions of the counters of m ranks in a frame, and their last values in all groups with these positions.

    index: [m, 6], position of each counter of CONSUMED; -1 for none. widths: [m, 6], bits of each counter.
    tier: index of the tier (collector with its interval) of all these counters. key: key of these positions in
    Consumption.
    trails: samples of consumption of all gangs. slots: [r, m], slots of each group's ranks in these samples. owners:
    [r], number of the attempt with these slots; NO_OWNER: the group is not used.
    """

    def __init__(
        self, index: npt.NDArray[np.intp], widths: npt.NDArray[np.uint8], tier: int, key: bytes, trails: Trails
    ) -> None:
        self.index, self.widths, self.tier, self.key, self._trails = index, widths, tier, key, trails
        self._flat, self._present = index.ravel(), index >= 0
        self._rows = 0
        self._free: list[int] = []
        self._known = np.zeros(0, np.bool_)
        self._before = np.zeros((0, *index.shape), np.uint64)
        self._before_valid = np.zeros((0, *index.shape), np.bool_)
        self._before_ns = np.zeros(0, np.int64)
        self.slots = np.zeros((0, len(index)), np.intp)
        self.owners = np.zeros(0, np.int64)

    def add(self, row_of: Group | None) -> int:
        """Add a row for a group, and return the row's index.

        row_of: the group's earlier row, perhaps in other `Places`; the new row starts with the values of that row.
        """
        row = self._free.pop() if self._free else self._rows
        self._rows = max(self._rows, row + 1)
        if row >= len(self._known):
            rows = max(4, 2 * len(self._known))
            for name in ("_known", "_before", "_before_valid", "_before_ns", "slots", "owners"):
                old = getattr(self, name)
                new = np.zeros((rows, *old.shape[1:]), old.dtype)
                new[: len(old)] = old
                setattr(self, name, new)
        self._known[row] = False
        self.owners[row] = NO_OWNER
        if row_of is not None and np.array_equal(row_of.places.index >= 0, self.index >= 0):
            there = row_of.places
            self._known[row], self._before_ns[row] = there._known[row_of.row], there._before_ns[row_of.row]
            self._before[row], self._before_valid[row] = there._before[row_of.row], there._before_valid[row_of.row]
        return row

    def drop(self, row: int) -> None:
        """Remove the row of a group."""
        self._known[row] = False
        self._free.append(row)

    @property
    def empty(self) -> bool:
        """Whether no group has a row."""
        return len(self._free) == self._rows

    def _fold(self, position: int, batch: Batch) -> None:
        """Add the consumption in these frames, of the group at `position` of each node."""
        rows = np.array([node._group_rows[position] for node in batch.nodes], np.intp)
        at_ns, continues = batch.tier_ns[:, self.tier], batch.continues
        counters, counters_valid = batch.counters, batch.valid
        used = self.owners[rows] != NO_OWNER
        if not used.all():
            rows, at_ns, continues = rows[used], at_ns[used], continues[used]
            counters, counters_valid = counters[used], counters_valid[used]
        known = self._known[rows]
        elapsed_ns = at_ns - self._before_ns[rows]
        new = (at_ns > 0) & ~(known & continues & (elapsed_ns == 0))
        if not new.all():
            rows, at_ns, elapsed_ns, counters = rows[new], at_ns[new], elapsed_ns[new], counters[new]
            continues, known, counters_valid = continues[new], known[new], counters_valid[new]
        if not len(rows):
            return
        shape = (len(rows), *self.index.shape)
        now = counters.take(self._flat, axis=1).reshape(shape)
        valid = counters_valid.take(self._flat, axis=1).reshape(shape) & self._present
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
        slots = self.slots[rows]
        # Another attempt of a gang may have begun since its frames were queued, with the same slots.
        kept = self._trails.owner[slots[:, 0]] == self.owners[rows]
        if not kept.all():
            slots, restarted, advance, at_ns = slots[kept], restarted[kept], advance[kept], at_ns[kept]
        flat = slots.ravel()
        if (begun := restarted.ravel()).any():
            self._trails.forget(flat[begun])
        self._trails.consume(flat, advance.reshape(len(flat), len(CONSUMED)), np.repeat(at_ns, slots.shape[1]))


class Consumption:
    """Counters of the CPU time and I/O of the ranks on all nodes."""

    def __init__(self, trails: Trails) -> None:
        self._trails = trails
        self._places: dict[bytes, Places] = {}
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
            places = self._places[key] = Places(index, widths, tier, key, self._trails)
        return Group(name, attempt, ranks, places, places.add(old))

    def drop(self, groups: Sequence[Group]) -> None:
        """Remove these groups, and every `Places` that then has no group."""
        for group in groups:
            group.places.drop(group.row)
            if group.places.empty:
                del self._places[group.places.key]
