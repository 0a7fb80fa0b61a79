"""Profile of free slots over time for conservative backfill: a job starts early only if it delays no job ahead of it.

(Mu'alem, Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with
Backfilling", 2001.) Every job ahead has a reservation in the profile. The profile only counts slots; placement decides
whether a gang fits and where.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable

from scheduler_feedback.policies.index.runtime_estimate import Release

DEPTH = 100
"""Maximum number of jobs with a planned start. Later jobs may only use slots that no planned job needs. (Slurm's
bf_max_job_test was 100 until 20.02, slurm.conf(5).)"""


class Profile:
    """Expected number of free slots, as a step function of time."""

    __slots__ = ("_free", "_times")

    def __init__(self, now_ns: int, free: int, ends: Iterable[Release]) -> None:
        self._times, self._free = [now_ns], [free]
        for end in ends:
            if end.at_ns > self._times[-1]:
                self._times.append(end.at_ns)
                self._free.append(self._free[-1])
            self._free[-1] += len(end.slots)

    def free_for(self, length_ns: int) -> int:
        """Return the number of slots that are free from now on for at least length_ns."""
        last = bisect_right(self._times, self._times[0] + max(length_ns, 1) - 1)
        return min(self._free[:last])

    def earliest(self, ranks: int, length_ns: int, from_ns: int) -> int | None:
        """Return the first instant, from_ns or later, from which this many slots are free for length_ns; else None."""
        times, free = self._times, self._free
        at = max(bisect_right(times, from_ns) - 1, 0)
        start_ns = max(from_ns, times[0])
        step = at
        while True:
            if free[step] < ranks:
                step += 1
                if step == len(times):
                    return None
                start_ns = times[step]
            elif step + 1 == len(times) or times[step + 1] >= start_ns + length_ns:
                return start_ns
            else:
                step += 1

    def next_ns(self) -> int | None:
        """Return the first instant at which slots become free, or planned jobs take some; None if there is none."""
        return self._times[1] if len(self._times) > 1 else None

    def take(self, ranks: int, at_ns: int, length_ns: int) -> None:
        """Subtract this many slots from the free slots, from at_ns on for length_ns."""
        first, last = self._cut(at_ns), self._cut(at_ns + length_ns)
        for step in range(first, last):
            self._free[step] -= ranks

    def _cut(self, at_ns: int) -> int:
        """Return the index of the interval that begins at at_ns. If none does, split an interval there."""
        step = bisect_right(self._times, at_ns) - 1
        if self._times[step] == at_ns:
            return step
        insort(self._times, at_ns)
        self._free.insert(step + 1, self._free[step])
        return step + 1
