"""Whether the cycle's thread does its work, for those who would otherwise see only that a port is open.

Readiness, liveness, the lease and the watchdog all ask here. A cycle finishes at least once a second. While the journal
can't be written none does, and the thread's turns go on all the same: to start such a controller anew would only take
the page away. A thread that finishes no turn either is stuck: mostly in the kernel, on a disk that does not answer.
"""

from __future__ import annotations

from agent.schema.clock import Clock

LATE_SECONDS = 10.0
"""Without a finished cycle for so long a controller is not ready: ten times the longest pause between two. Leaders of
Kubernetes' own controllers have as long to renew their lease (renewDeadline)."""

STUCK_SECONDS = 60.0
"""Without a finished turn for so long it is to be started anew. A disk or an array that fails over takes up to half a
minute (SCSI's command timeout in Linux is 30 s); to wait for it costs less than a start."""


class Progress:
    """When the thread last finished a turn and a cycle, and what it does now.

    Written by the cycle's thread alone, read by any. Attributes: `turns` and `cycles` finished so far.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turned_ns = self._cycled_ns = clock.monotonic_ns()
        self._doing = "starting"
        self.turns = 0
        self.cycles = 0

    # --- the cycle's thread -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The thread starts now: what came before it, such as reading the journal, does not count."""
        self._turned_ns = self._cycled_ns = self._clock.monotonic_ns()

    def doing(self, what: str) -> None:
        """What it does from now on, as the end of "it is ..."."""
        self._doing = what

    def turned(self) -> None:
        self.turns += 1
        self._turned_ns = self._clock.monotonic_ns()

    def cycled(self) -> None:
        self.cycles += 1
        self._cycled_ns = self._clock.monotonic_ns()

    # --- any thread ---------------------------------------------------------------------------------------------------

    def cycle_age_seconds(self) -> float:
        """Seconds since a cycle finished."""
        return (self._clock.monotonic_ns() - self._cycled_ns) / 1e9

    def late(self) -> str:
        """Why it is not ready; '' where a cycle finished lately."""
        age_seconds = self.cycle_age_seconds()
        if age_seconds < LATE_SECONDS:
            return ""
        return f"no scheduling cycle has finished for {age_seconds:.0f} s: it is {self._doing}"

    def stuck(self) -> str:
        """Why it is to be started anew; '' where it takes its turns."""
        age_seconds = (self._clock.monotonic_ns() - self._turned_ns) / 1e9
        if age_seconds < STUCK_SECONDS:
            return ""
        return f"the scheduler's thread has been stuck for {age_seconds:.0f} s: it is {self._doing}"
