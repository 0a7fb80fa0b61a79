"""Samples of what the ranks' processes have consumed, for all ranks of all gangs in one set of arrays.

The frames of 256 nodes belong to dozens of gangs. With one set of arrays they are added at once, not gang by gang.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
IndexArray = npt.NDArray[np.intp]

CONSUMED = (
    "gangwatch_rank_cpu_seconds_total",
    "gangwatch_rank_runqueue_wait_seconds_total",
    "gangwatch_rank_block_io_seconds_total",
    "gangwatch_rank_stopped_samples_total",
    "gangwatch_rank_samples_total",
    "gangwatch_rank_major_page_faults_total",
)
"""Counters of each rank's processes, in the order of an array's last axis: three times in nanoseconds, then three
counts."""

CPU, RUNQUEUE, BLOCK_IO, STOPPED, SAMPLES, MAJOR_FAULTS = range(len(CONSUMED))

TRAIL = 16
"""Number of samples of the consumed counters that are kept per rank: with TRAIL_SPACING_NS, at least eight seconds."""

TRAIL_SPACING_NS = 500_000_000
"""Minimum time between two kept samples. If the newest kept sample is closer to the one before, the next sample
replaces it instead of the oldest."""

LEAST_SLOTS = 64

NO_OWNER = -1

NEVER_NS = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Consumed:
    """Cumulative counters of n ranks at requested times."""

    values: FloatArray
    """float64 [n, 6]: counters in the order of CONSUMED; NaN if unknown."""
    at_ns: IntArray
    """int64 [n]: time of each value: the requested time, or the nearest sample if that time is outside the kept
    range."""


class Trails:
    """Kept samples of many ranks. Each rank has a slot, which its gang reserves and frees."""

    def __init__(self) -> None:
        self._slots = 0
        self._free: list[IndexArray] = []
        self._total = np.zeros((0, len(CONSUMED)))
        self.sampled_ns = np.full((0, TRAIL), -1, np.int64)
        """int64 [slots, TRAIL]: time of each kept sample; -1 for none."""
        self._values = np.full((0, TRAIL, len(CONSUMED)), np.nan)
        self._newest = np.full(0, -1, np.int64)
        self.owner = np.full(0, NO_OWNER, np.int64)
        """int64 [slots]: owner of each slot, as given to `reserve`; NO_OWNER for none."""

    def reserve(self, count: int, owner: int = 0) -> IndexArray:
        """Return `count` slots without samples, which belong to `owner`."""
        found: list[IndexArray] = []
        left = count
        while left and self._free:
            free = self._free.pop()
            found.append(free[:left])
            if len(free) > left:
                self._free.append(free[left:])
            left -= len(found[-1])
        if left:
            found.append(np.arange(self._slots, self._slots + left))
            self._slots += left
            if self._slots > len(self._total):
                self._widen(self._slots + max(LEAST_SLOTS, self._slots // 8))
        slots: IndexArray = np.concatenate(found) if found else np.zeros(0, np.intp)
        self.forget(slots)
        self.owner[slots] = owner
        return slots

    def free(self, slots: IndexArray) -> None:
        """Free slots that `reserve` returned. Another gang may get them."""
        if len(slots):
            self._free.append(slots)
            self.owner[slots] = NO_OWNER

    def consume(self, slots: IndexArray, advance: FloatArray, at_ns: int | IntArray) -> None:
        """Add the consumption of m ranks up to `at_ns` (host clock; one time for all ranks, or [m]).

        advance: [m, 6], increase of each counter of CONSUMED; NaN if unknown.
        """
        total = self._total[slots] + advance
        newest = self._newest[slots]
        one_before = self.sampled_ns[slots, newest - 1]
        spacing = self.sampled_ns[slots, newest] - one_before
        push = (newest < 0) | (one_before < 0) | (spacing >= TRAIL_SPACING_NS)
        head = np.where(push, (newest + 1) % TRAIL, newest)
        self._total[slots] = total
        self.sampled_ns[slots, head] = at_ns
        self._values[slots, head] = total
        self._newest[slots] = head

    def forget(self, slots: IndexArray) -> None:
        """Delete the samples of ranks whose counters were reset, because later samples cannot be compared with them."""
        self._total[slots] = 0.0
        self.sampled_ns[slots] = -1
        self._values[slots] = np.nan
        self._newest[slots] = -1

    def consumed(self, slots: IndexArray, at_ns: IntArray) -> Consumed:
        """Return the cumulative counters of n ranks at the times `at_ns` (int64 [n], on each rank's host clock).

        Values between two samples are interpolated.
        """
        times = self.sampled_ns[slots]
        here = np.arange(len(slots))
        at = np.maximum(at_ns, 0)[:, None]  # no sample: -1, which is before any time
        before = np.where(times <= at_ns[:, None], times, -1)
        after = np.where(times >= at, times, NEVER_NS)
        low, high = before.argmax(axis=1), after.argmin(axis=1)
        has_low, has_high = before[here, low] >= 0, after[here, high] < NEVER_NS
        low, high = np.where(has_low, low, high), np.where(has_high, high, low)
        low_ns, high_ns = times[here, low], times[here, high]
        actual_ns = np.minimum(np.maximum(at_ns, low_ns), high_ns)
        share = (actual_ns - low_ns) / np.maximum(high_ns - low_ns, 1)
        values_low, values_high = self._values[slots, low], self._values[slots, high]
        between = values_low + share[:, None] * (values_high - values_low)
        return Consumed(np.where((has_low | has_high)[:, None], between, np.nan), actual_ns)

    def _widen(self, slots: int) -> None:
        for name in ("_total", "sampled_ns", "_values", "_newest", "owner"):
            old = getattr(self, name)
            new = np.empty((slots, *old.shape[1:]), old.dtype)  # `reserve` sets the slots that it returns
            new[: len(old)] = old
            setattr(self, name, new)
