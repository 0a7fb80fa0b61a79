"""Progress of the cycle's thread, for readiness, liveness, the lease and the watchdog.

A cycle finishes at least once a second. While the journal is not writable no cycle finishes, but the thread's passes
continue. A restart would not help then, and would make the page unavailable. A thread that finishes no pass either is
stuck, usually in the kernel, on a disk that does not respond.
"""

from __future__ import annotations

from agent.schema.clock import Clock

LATE_SECONDS = 10.0
"""A controller without a finished cycle for this long is not ready: ten times the usual longest interval. The leaders
of Kubernetes' own controllers have the same time to renew their lease (renewDeadline)."""

STUCK_SECONDS = 60.0
"""A controller without a finished pass for this long must be restarted. A disk or an array that fails over takes up to
half a minute (Linux's SCSI command timeout is 30 s), and waiting for it costs less than a restart."""


class Progress:
    """Times of the last finished pass and cycle, and the current activity.

    Written by the cycle's thread only, read by any thread. Attributes: `passes` and `cycles`, the numbers of passes and
    cycles finished so far.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pass_ns = self._cycle_ns = clock.monotonic_ns()
        self._doing = "starting"
        self.passes = 0
        self.cycles = 0

    # --- the cycle's thread -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start to measure the time since the last pass and cycle.

        Earlier work, such as reading the journal, does not count.
        """
        self._pass_ns = self._cycle_ns = self._clock.monotonic_ns()

    def doing(self, what: str) -> None:
        """Set the current activity, as the end of the sentence "it is ..."."""
        self._doing = what

    def pass_finished(self) -> None:
        self.passes += 1
        self._pass_ns = self._clock.monotonic_ns()

    def cycle_finished(self) -> None:
        self.cycles += 1
        self._cycle_ns = self._clock.monotonic_ns()

    # --- any thread ---------------------------------------------------------------------------------------------------

    def cycle_age_seconds(self) -> float:
        """Return the seconds since a cycle finished."""
        return (self._clock.monotonic_ns() - self._cycle_ns) / 1e9

    def late(self) -> str:
        """Return why the controller is not ready; '' if a cycle finished recently."""
        age_seconds = self.cycle_age_seconds()
        if age_seconds < LATE_SECONDS:
            return ""
        return f"no scheduling cycle has finished for {age_seconds:.0f} s: it is {self._doing}"

    def stuck(self) -> str:
        """Return why the controller must be restarted; '' if passes finish."""
        age_seconds = (self._clock.monotonic_ns() - self._pass_ns) / 1e9
        if age_seconds < STUCK_SECONDS:
            return ""
        return f"the scheduler's thread has been stuck for {age_seconds:.0f} s: it is {self._doing}"
