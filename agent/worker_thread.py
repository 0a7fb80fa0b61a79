"""A lane: collectors that run one after another in one thread, each at its own instants.

Collectors that would only wait for one another (a driver serialises its callers) share a lane, and so do those too
cheap for a thread each: a wake-up costs more than many of them do. A call that does not return must not cost the
lane's others their samples: they go on in a fresh thread, and the one that is stuck keeps the old thread until its call
returns. Then it comes back to the lane, and the old thread ends.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from agent.runner import Runner
from agent.schema.clock import Clock

log = logging.getLogger(__name__)

HAND_OVER_SECONDS = 1.0
HAND_OVER_INTERVALS = 1.5
"""The lane's others are moved once a call has kept them waiting for so long: one and a half of the shortest of their
intervals, and not before a second. Their samples are then two and a half intervals old, and go stale after three."""

EARLY_SHARE = 8
"""A collector that is due within an eighth of its interval is run with the one that the lane woke up for: to wake up
costs as much as to read a GPU. Rates don't suffer, every sample has its time."""

MOST_ABANDONED = 8
"""Threads of one lane that may be stuck at once. Where the whole driver hangs, each collector that tries it gets stuck
in its turn: beyond these the lane waits, and all that it reads is stale until one of the calls returns."""


_Task = tuple[Runner, Callable[[], None] | None]
"""A collector and what is to be done with it; None is a run."""


class _Bell:
    """Wakes one sleeper. A condition variable would do, at half as much again for each wake-up."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """End the present wait, or the next."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it rings already

    def wait(self, seconds: float) -> None:
        """Sleep until it rings, or so long; negative is until it rings."""
        self._lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


class Lane:
    """Runs collectors in one thread. Every method may be called from any thread; none waits for a collector."""

    def __init__(self, name: str, thread_name: str, clock: Clock, ran: Callable[[Runner], object]) -> None:
        """`ran` is called after each run, in the thread that ran it and with no lock held."""
        self.name = name
        self.abandoned = 0
        self._thread_name = thread_name
        self._clock = clock
        self._ran = ran
        # Reentrant: a signal handler may ask for a release while its thread is in here.
        self._lock = threading.RLock()
        self._bell = _Bell()
        self._runners: list[Runner] = []
        # When each is due, and how much sooner it may be run; None where all have to be looked at anew. Numbers that
        # lie together: looking through the runners themselves costs a wake-up more than what it woke up for.
        self._due: list[tuple[int, int, Runner]] | None = None
        self._queue: deque[Runner] = deque()  # of them those that are due, as of the last look
        self._released = False
        self._busy: Runner | None = None
        self._busy_since_ns = 0
        self._turn = 0
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._old_threads: list[threading.Thread] = []

    # --- asked from outside ------------------------------------------------------------------------------------------

    def add(self, runner: Runner) -> None:
        """Run the collector from its next due instant on."""
        with self._lock:
            self._runners.append(runner)
            self._look_again()

    def remove(self, runner: Runner) -> None:
        """Run the collector no more, and close it in this lane's thread, or in the one that it is stuck in."""
        with self._lock:
            runner.leaving = True
            self._look_again()

    def set_released(self, released: bool) -> None:
        """Have every collector that can do so give its device back, or take it again."""
        with self._lock:
            self._released = released
            self._look_again()

    def _look_again(self) -> None:
        """Have the thread look at all collectors before it does anything more."""
        self._queue.clear()
        self._due = None
        self._bell.ring()

    def start(self) -> None:
        with self._lock:
            self._start_thread()

    def _start_thread(self) -> None:
        name = self._thread_name if not self._turn else f"{self._thread_name}/{self._turn}"
        self._thread = threading.Thread(target=self._run, args=(self._turn,), name=name, daemon=True)
        self._thread.start()

    def hand_over_ns(self) -> int | None:
        """When the lane's others will have waited for too long if the present call does not return; None for never."""
        with self._lock:
            busy = self._busy
            if busy is None or self._stopping or self.abandoned >= MOST_ABANDONED:
                return None
            shortest_ns = min((one.interval_ns for one in self._runners if one is not busy), default=None)
            if shortest_ns is None:
                return None
            return self._busy_since_ns + max(round(HAND_OVER_INTERVALS * shortest_ns), round(HAND_OVER_SECONDS * 1e9))

    def hand_over(self, now_ns: int) -> None:
        """Move the lane's others to a fresh thread where one has kept them waiting for too long."""
        with self._lock:
            busy, due_ns = self._busy, self.hand_over_ns()
            if busy is None or due_ns is None or now_ns < due_ns:
                return
            log.warning("collector %s is stuck: the others of lane %s go on without it", busy.name, self.name)
            self.abandoned += 1
            if busy in self._runners:
                self._runners.remove(busy)
            self._queue.clear()
            self._due = None
            self._busy = None
            self._turn += 1
            assert self._thread is not None
            self._old_threads = [*(thread for thread in self._old_threads if thread.is_alive()), self._thread]
            self._start_thread()

    def left_behind(self) -> int:
        """Threads that are stuck and that nothing waits for any more."""
        with self._lock:
            return self.abandoned + (self._stopping and self._busy is not None)

    def stop(self) -> None:
        """Run nothing more; the collectors are closed in the lane's thread."""
        with self._lock:
            self._stopping = True
            self._look_again()

    def join(self, deadline_ns: int) -> None:
        """Wait for the lane's threads to end, until the deadline; one that is stuck in a call is left behind."""
        with self._lock:
            threads = [*self._old_threads, *([self._thread] if self._thread is not None else [])]
        for thread in threads:
            thread.join(max(0, deadline_ns - self._clock.monotonic_ns()) / 1e9)
            if thread.is_alive():
                log.warning("%s does not end and is left behind", thread.name)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self, turn: int) -> None:
        while (task := self._next_task()) is not None:
            runner, act = task
            if act is None:
                runner.run_once()
                self._ran(runner)
            else:
                act()
            if not self._done(turn, runner):
                return
        with self._lock:
            closing = list(self._runners)
            self._runners.clear()
        # Members stand after their parents, whose library they may still need.
        for runner in reversed(closing):
            runner.close()

    def _next_task(self) -> _Task | None:
        """What is to be done now, waited for; None when the lane stops."""
        awake = True
        while True:
            with self._lock:
                if self._stopping:
                    return None
                now_ns = self._clock.monotonic_ns()
                task, next_ns = self._due_task(now_ns, awake)
                if task is not None:
                    self._busy = task[0]
                    self._busy_since_ns = now_ns
                    return task
            awake = False
            self._bell.wait(-1 if next_ns is None else max(0, next_ns - now_ns) / 1e9)

    def _due_task(self, now_ns: int, awake: bool) -> tuple[_Task | None, int | None]:
        """What is to be done now, or when something will be; neither where there is nothing to wait for.

        awake: whether something was done just now, so that what is due soon may be done as well. Who is due is looked
        for only when those that were due at the last look have been run.
        """
        if not self._queue:
            if self._due is None and (change := self._survey()) is not None:
                return change, None
            assert self._due is not None
            due, later = [], []
            for one in self._due:
                due_ns, early_ns, runner = one
                if due_ns - now_ns <= (early_ns if awake else 0):
                    due.append(runner)
                else:
                    later.append(one)
            if not due:
                return None, min((due_ns for due_ns, _, _ in later), default=None)
            self._due = later
            self._queue.extend(sorted(due, key=self._turn_of))
        return (self._queue.popleft(), None), None

    def _survey(self) -> _Task | None:
        """Look at every collector: one that is to be closed, released or taken up comes first; else note who is due."""
        for runner in reversed(self._runners):  # members, which are released first, stand after their parents
            if runner.leaving:
                self._runners.remove(runner)
                return runner, runner.close
            if runner.releasable is not None and runner.released is not self._released:
                return runner, runner.release if self._released else runner.acquire
        self._due = []
        for runner in self._runners:
            self._put_back(runner)
        return None

    def _put_back(self, runner: Runner) -> None:
        """Note when the collector is due next."""
        if self._due is not None and not runner.released:
            self._due.append((runner.due_ns, runner.interval_ns // EARLY_SHARE, runner))

    def _turn_of(self, runner: Runner) -> tuple[int, int]:
        """Which of the collectors that are due is run first: what is smallest.

        While one is stuck, the next is likely to be of the same device: those who wait for a sample every second go
        first, so that two in a row don't cost them theirs.
        """
        return (runner.interval_ns if self.abandoned else 0, runner.due_ns)

    def _done(self, turn: int, runner: Runner) -> bool:
        """Put a collector back after what was done with it; whether this thread is still the lane's."""
        with self._lock:
            if turn == self._turn:
                self._busy = None
                self._put_back(runner)
                return True
            self.abandoned -= 1
            back = not (runner.closed or runner.leaving or self._stopping)
            if back:
                self._runners.append(runner)
                self._look_again()
        if back:
            log.warning("collector %s is back in lane %s", runner.name, self.name)
        else:
            runner.close()
        return False
