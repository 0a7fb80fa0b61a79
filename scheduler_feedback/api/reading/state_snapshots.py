"""Snapshots: copies of the state that the cycle's thread publishes for readers.

A reader uses the newest snapshot on its own thread. It never waits for a cycle, and no cycle waits for it. The cycle's
thread publishes a snapshot between two cycles, if the state has changed and there are readers. This takes at most a
twentieth of its time, for any number of readers.

A snapshot includes every answered request: a client that got a response to a request sees its effect in the next read.
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
"""Minimum interval of snapshots, as a multiple of the time that the last one took."""

READ_SECONDS = 2.0
"""For this long after a read, every changed state is published at once, so that the next read need not wait."""

_NONE_NS = -(1 << 62)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after a cycle. Readers must not change it."""

    version: int
    """Increases with every snapshot of a changed state; snapshots of one version are the same object."""

    state: State
    """Only one thread may use its scheduling index (why a job is pending): the first question builds the index, and
    questions about free slots try placements in it."""


class Snapshots:
    """The newest snapshot. Call ``changed`` and ``publish`` on the cycle's thread, other methods on any thread."""

    def __init__(self, state: State, clock: Clock, wake: Callable[[], None]) -> None:
        """wake: makes the cycle's thread call ``publish`` soon."""
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
        """The version of the current state, published or not."""
        return self._version

    @property
    def seconds(self) -> float:
        """Seconds that the newest snapshot took to make."""
        return self._seconds

    def fresh(self) -> Future[Snapshot]:
        """Return a snapshot that is no older than this call."""
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
        """Mark the state as changed. Call it before the response to the request that changed it."""
        with self._lock:
            self._version += 1

    def wait_seconds(self, most: float) -> float:
        """Return how many seconds the thread may wait before it should call ``publish``, at most `most`."""
        if not self._waiting:
            return most
        return min(max(0.0, (self._due_ns - self._clock.monotonic_ns()) / 1e9), most)

    def publish(self, state: State, needed: bool = False) -> None:
        """Publish a snapshot if the state has changed, there are readers, and the last one is old enough.

        needed: publish without readers too, because a change was answered and the next reader must see it.
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
        """Stop publishing. Waiting readers get the newest snapshot."""
        with self._lock:
            self._version = self.newest.version
            waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.set_running_or_notify_cancel():
                one.set_result(self.newest)
