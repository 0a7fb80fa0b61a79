"""Conservative backfill: all before a job have a reservation, and it starts early only where it delays none of them.

(Mu'alem, Feitelson, "Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with
Backfilling", 2001.) The reservations lie in a profile: how many slots are free from when to when, by what is expected.
It counts slots; where a gang that may start now lies, and whether it finds a place at all, its placement says.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable

from scheduler_feedback.policies.index.runtime_estimate import Release

DEPTH = 100
"""Jobs that are given reservations; those behind them may only use what is left now. (Slurm's bf_max_job_test was 100
until 20.02, slurm.conf(5).)"""


class Profile:
    """Slots that are expected to be free, from each instant to the next; from the last on for ever."""

    __slots__ = ("_free", "_times")

    def __init__(self, now_ns: int, free: int, ends: Iterable[Release]) -> None:
        self._times, self._free = [now_ns], [free]
        for end in ends:
            if end.at_ns > self._times[-1]:
                self._times.append(end.at_ns)
                self._free.append(self._free[-1])
            self._free[-1] += len(end.slots)

    def free_for(self, length_ns: int) -> int:
        """Slots that are free from now on for so long."""
        last = bisect_right(self._times, self._times[0] + length_ns - 1)
        return min(self._free[:last])

    def earliest(self, ranks: int, length_ns: int, from_ns: int) -> int | None:
        """The first instant from which so many slots are free for so long; None where there never is one."""
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

    def take(self, ranks: int, at_ns: int, length_ns: int) -> None:
        """So many slots are used from an instant on for so long."""
        first, last = self._cut(at_ns), self._cut(at_ns + length_ns)
        for step in range(first, last):
            self._free[step] -= ranks

    def _cut(self, at_ns: int) -> int:
        """The number of the step that begins at the instant, made where there is none."""
        step = bisect_right(self._times, at_ns) - 1
        if self._times[step] == at_ns:
            return step
        insort(self._times, at_ns)
        self._free.insert(step + 1, self._free[step])
        return step + 1
