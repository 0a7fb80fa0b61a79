"""Snapshots: what the cycle's thread publishes of its state for everybody who only reads.

A reader takes the newest snapshot and goes on with it on a thread of its own; it never waits for a cycle, and no cycle
waits for it. The cycle's thread makes a snapshot between two cycles, where the state has changed and somebody reads,
and spends at most a twentieth of its time on that, however many read.

A snapshot is never older than what has been answered: whoever was told that a request is in the journal, and asks then,
is shown a state that has taken it in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from agent.schema.clock import Clock
from scheduler_feedback.core.state import State
from scheduler_feedback.core.state_copy import frozen

PAUSE = 20
"""How many times as long as a snapshot took none is made again."""

READ_SECONDS = 2.0
"""After a read, for so long every changed state is published at once: the next read need not wait for it."""

_NONE_NS = -(1 << 62)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after one cycle. Readers must not change it."""

    version: int
    """Rises with every snapshot of a changed state; two of one version are the same object."""

    state: State
    """One thread alone may ask what its scheduling index answers (why a job waits): the index is built at the first
    question, and a question about room tries placements in it."""


class Snapshots:
    """The newest snapshot. ``changed`` and ``publish`` belong to the cycle's thread, all else to any thread."""

    def __init__(self, state: State, clock: Clock, wake: Callable[[], None]) -> None:
        """wake: has the cycle's thread call ``publish`` soon."""
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[Future[Snapshot]] = []
        self._version = 0
        self._due_ns = self._read_ns = _NONE_NS
        self._seconds = 0.0
        self.newest = Snapshot(0, frozen(state))

    @property
    def version(self) -> int:
        """The version that a snapshot of the present state has, or will have."""
        return self._version

    @property
    def seconds(self) -> float:
        """How long the newest snapshot took to make."""
        return self._seconds

    def fresh(self) -> Future[Snapshot]:
        """A snapshot that is no older than this call."""
        found: Future[Snapshot] = Future()
        with self._lock:
            self._read_ns = self._clock.monotonic_ns()
            newest = self.newest
            if newest.version < self._version:
                self._waiting.append(found)
                first = len(self._waiting) == 1
            else:
                first = False
                found.set_result(newest)
        if first:
            self._wake()
        return found

    # --- the cycle's thread ------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """The state is not what it was. To be called before anybody is told of what changed it."""
        with self._lock:
            self._version += 1

    def wait_seconds(self, most: float) -> float:
        """How long the thread may wait for something to do, at most so long, before it should call ``publish``."""
        if not self._waiting:
            return most
        return min(max(0.0, (self._due_ns - self._clock.monotonic_ns()) / 1e9), most)

    def publish(self, state: State, needed: bool = False) -> None:
        """Make a snapshot of the state, where it has changed, somebody reads, and the last one is long enough ago.

        needed: also where nobody reads now: what was changed has been answered, so the next reader must see it.
        """
        now_ns = self._clock.monotonic_ns()
        if self.newest.version == self._version or now_ns < self._due_ns:
            return
        if not (needed or self._waiting or now_ns - self._read_ns < READ_SECONDS * 1e9):
            return
        snapshot = Snapshot(self._version, frozen(state, self.newest.state))
        ended_ns = self._clock.monotonic_ns()
        self._seconds = (ended_ns - now_ns) / 1e9
        self._due_ns = ended_ns + (ended_ns - now_ns) * PAUSE
        with self._lock:
            self.newest = snapshot
            waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.set_running_or_notify_cancel():
                one.set_result(snapshot)

    def close(self) -> None:
        """No snapshot is made any more: who waits for one gets the newest."""
        with self._lock:
            self._version = self.newest.version
            waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.set_running_or_notify_cancel():
                one.set_result(self.newest)
