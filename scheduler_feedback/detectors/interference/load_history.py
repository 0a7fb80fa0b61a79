"""History of the load of each job on each shared resource, in one array: a deque for each would need eight times the
memory, and a Python call for each value."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import Float32Array
from scheduler_feedback.detectors.interference.shared_resources import NO_RANKS, Resources
from scheduler_feedback.detectors.resource_users import Resource

HOLD_WINDOWS = 60
"""Number of windows for which the history of a resource is kept after a job has stopped sharing it: some minutes, so
that a short gap in the telemetry deletes nothing. When jobs follow each other on their nodes, the old and the new one
share each of these nodes for seconds. Kept for longer, such histories would take most of the detector's memory."""

LEAST_GROWTH = 64
"""Least number of columns that are added at once; more for a large array, an eighth of it."""


class LoadHistory:
    """Newest loads of each job on each resource that it shares, one value for each window. Owned by one thread.

    kept: number of windows that are kept. hold: number of windows for which a load is kept that is not shared any more.
    """

    def __init__(self, kept: int, hold: int = HOLD_WINDOWS) -> None:
        self._kept = kept
        self._hold = min(hold, kept)
        self._count = 0  # windows so far
        self._swept = 0  # their number when unused columns were last looked for
        self._used: IntArray = np.zeros(0, np.int64)  # number of windows when a column was last shared
        self._loads: Float32Array = np.zeros((kept, 0), np.float32)
        self._columns: dict[str, dict[Resource, int]] = {}
        self._free: list[int] = []
        self._order = NO_RANKS
        self._of: Resources = {}

    def __len__(self) -> int:
        """Return the number of windows that are kept now."""
        return min(self._count, self._kept)

    def take(self, loads: FloatArray, resources: Resources) -> None:
        """Add one window.

        loads: float64 [pairs], load of each job on each resource, in the order of `resources`; NaN if unknown. A load
        that is unknown stays as it was. A job has no load on a resource before it shares it, and while it does not.
        """
        if resources is not self._of:
            self._used[self._order] = self._count
            self._of = resources
            if self._count - self._swept >= self._hold:
                self._sweep(resources)
            self._order = np.fromiter(self._find(resources), np.int64)
        place, before = self._count % self._kept, (self._count - 1) % self._kept
        last = self._loads[before, self._order] if self._count else np.full(len(loads), np.nan, np.float32)
        self._loads[place] = 0.0
        self._loads[place, self._order] = np.where(np.isnan(loads), last, loads)
        self._count += 1

    def of(self, job: str, resource: Resource) -> FloatArray:
        """Return the job's load on the resource: float64, one value for each kept window, newest last. Zeros if it
        never shared the resource."""
        column = self._columns.get(job, {}).get(resource)
        if column is None:
            return np.zeros(len(self))
        ring = self._loads[:, column].astype(np.float64)
        if self._count <= self._kept:
            return ring[: self._count]
        return np.roll(ring, -(self._count % self._kept))

    def forget(self, job: str) -> None:
        """Delete the history of a job that has ended or restarted."""
        self._used[self._order] = self._count
        columns = list(self._columns.pop(job, {}).values())
        self._loads[:, columns] = 0.0
        self._free += columns
        self._of = {}  # the job may get other columns
        self._order = NO_RANKS

    def _find(self, resources: Resources) -> Iterator[int]:
        """Yield the column of each job and resource, in the order of `resources`."""
        for resource, members in resources.items():
            for job in members:
                columns = self._columns.setdefault(job, {})
                column = columns.get(resource)
                if column is None:
                    if not self._free:
                        self._widen()
                    column = columns[resource] = self._free.pop()
                yield column

    def _sweep(self, resources: Resources) -> None:
        """Free the columns of jobs that have not shared the resource for the hold time."""
        self._swept = self._count
        old = self._used <= self._count - self._hold
        freed: list[int] = []
        for job, columns in self._columns.items():
            for resource, column in list(columns.items()):
                if old[column] and job not in resources.get(resource, ()):
                    del columns[resource]
                    freed.append(column)
        self._loads[:, freed] = 0.0
        self._free += freed

    def _widen(self) -> None:
        width = self._loads.shape[1]
        add = max(LEAST_GROWTH, width // 8)
        wider = np.zeros((self._kept, width + add), np.float32)
        wider[:, :width] = self._loads
        self._loads = wider
        self._used = np.concatenate([self._used, np.zeros(add, np.int64)])
        self._free += range(width + add - 1, width - 1, -1)


class BlockHistory:
    """Loads as means over blocks of windows, so that the kept values cover a longer time. Owned by one thread.

    kept: number of blocks that are kept. windows: number of windows of one block.
    """

    def __init__(self, kept: int, windows: int) -> None:
        self.loads = LoadHistory(kept, -(-HOLD_WINDOWS // windows))
        self._ends_ns: IntArray = np.zeros(kept, np.int64)
        self._windows = windows
        self._of: Resources = {}
        self._sums: FloatArray = np.zeros(0)
        self._counts: FloatArray = np.zeros(0)
        self._taken = 0
        self._blocks = 0

    @property
    def ends_ns(self) -> IntArray:
        """End of each kept block in nanoseconds, newest last."""
        kept = len(self._ends_ns)
        return np.roll(self._ends_ns, -(self._blocks % kept)) if self._blocks > kept else self._ends_ns[: self._blocks]

    def take(self, end_ns: int, loads: FloatArray, resources: Resources) -> bool:
        """Add one window. Return whether the window completes a block.

        end_ns: end of the window. loads: as for ``LoadHistory.take``.
        """
        if resources is not self._of:  # the rest of the block is for the new resources
            self._of, self._sums, self._counts = resources, np.zeros(len(loads)), np.zeros(len(loads))
        known = np.isfinite(loads)
        self._sums += np.where(known, loads, 0.0)
        self._counts += known
        self._taken += 1
        if self._taken < self._windows:
            return False
        with np.errstate(invalid="ignore"):
            self.loads.take(self._sums / self._counts, resources)
        self._ends_ns[self._blocks % len(self._ends_ns)] = end_ns
        self._blocks += 1
        self._taken = 0
        self._sums[:], self._counts[:] = 0.0, 0.0
        return True
