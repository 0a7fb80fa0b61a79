"""Snapshots: copies of the state that the cycle's thread publishes for readers.

A reader uses the newest snapshot on its own thread. It never waits for a cycle, and no cycle waits for it. The cycle's
thread publishes a snapshot between two cycles, if the state has changed and there are readers. This takes at most a
twentieth of its time, for any number of readers. Until the next one may be made, readers get the newest: with 12,500
nodes it is up to a second old, with a few hundred some milliseconds.

Every read includes every answered request: a client that got a response to a request sees its effect in the next read.
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
"""Minimum time between two snapshots, as a multiple of the time that the last snapshot took to make."""

RECENT_SECONDS = 1.0
"""Age in seconds up to which a snapshot is recent: the cycle runs at least once a second."""

READ_SECONDS = 2.0
"""Seconds after a read in which every changed state is published, so that the next read need not wait."""

_NONE_NS = -(1 << 62)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the state after a cycle. Readers must not change it."""

    version: int
    """Version of the state: a number that increases with every snapshot of a changed state."""

    state: State
    """The copied state. Only one thread may use its scheduling index, because reads of the index also change it."""


class Snapshots:
    """Publisher of the newest snapshot. Only the cycle's thread may call ``changed`` and ``publish``."""

    def __init__(self, state: State, clock: Clock, wake: Callable[[], None]) -> None:
        """Start with this state. wake: function that makes the cycle's thread call ``publish`` soon."""
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[Future[Snapshot]] = []
        self._version = self._answered = 0
        self._due_ns = self._read_ns = self._made_ns = _NONE_NS
        self._seconds = 0.0
        self.newest = Snapshot(0, frozen(state))

    @property
    def version(self) -> int:
        """Version of the current state, even if it is not published yet."""
        return self._version

    @property
    def seconds(self) -> float:
        """Seconds that the newest snapshot took to make."""
        return self._seconds

    def fresh(self) -> Future[Snapshot]:
        """Return a future with a snapshot that has all answered requests, and is the newest that may be made now."""
        found: Future[Snapshot] = Future()
        with self._lock:
            self._read_ns = self._clock.monotonic_ns()
            newest = self.newest
            if newest.version < self._answered or (newest.version < self._version and self._read_ns >= self._due_ns):
                self._waiting.append(found)
                first = len(self._waiting) == 1
            else:
                first = False
                found.set_result(newest)
        if first:
            self._wake()
        return found

    def recent(self) -> Snapshot | None:
        """Return the newest snapshot if it has all answered requests and is at most RECENT_SECONDS old, else None."""
        with self._lock:
            is_recent = self._clock.monotonic_ns() - self._made_ns <= RECENT_SECONDS * 1e9
            return self.newest if is_recent and self.newest.version >= self._answered else None

    # --- the cycle's thread ------------------------------------------------------------------------------------------

    def changed(self, answered: bool = False) -> None:
        """Record that the state has changed. Call it before the response to the request that made the change.

        answered: whether a request made the change, so that the next read must include it.
        """
        with self._lock:
            self._version += 1
            if answered:
                self._answered = self._version

    def wait_seconds(self, most: float) -> float:
        """Return how many seconds the cycle's thread may wait before it calls ``publish``, at most `most`."""
        if not self._waiting:
            return most
        return min(max(0.0, (self._due_ns - self._clock.monotonic_ns()) / 1e9), most)

    def publish(self, state: State, needed: bool = False) -> None:
        """Publish a snapshot if the state has changed, there are readers, and the last snapshot is old enough.

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
            self._made_ns = ended_ns
            waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.set_running_or_notify_cancel():
                one.set_result(snapshot)

    def close(self) -> None:
        """Stop publishing. Waiting readers get the newest snapshot."""
        with self._lock:
            self._version = self._answered = self.newest.version
            waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.set_running_or_notify_cancel():
                one.set_result(self.newest)
