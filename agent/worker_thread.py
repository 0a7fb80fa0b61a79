"""Worker threads: each runs several collectors one after another, each on its own schedule.

Collectors share a worker if a driver serialises their calls, or if their runs are cheaper than the wake-up of a
thread. If a call does not return, the other collectors of the worker continue in a new thread. The stuck collector
keeps the old thread until its call returns. Then the collector rejoins the worker, and the old thread ends.
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
"""Minimum duration, in seconds, of a call before the worker's other collectors move to a new thread."""

HAND_OVER_INTERVALS = 1.5
"""If a call lasts longer than this number of intervals, the worker's other collectors move to a new thread. The
interval is the shortest of these other collectors. Their samples are then 2.5 intervals old, and become stale only
after 3."""

EARLY_SHARE = 8
"""A collector may run early by its interval divided by this number, to share a wake-up of the thread with another
collector. A wake-up costs as much as reading a GPU. Rates stay exact, because every sample has its own time."""

MOST_ABANDONED = 8
"""Maximum number of stuck threads of one worker. If the driver hangs, every collector that calls the driver gets stuck.
At the limit the worker starts no further thread. Its samples are stale until one of the calls returns."""


_Task = tuple[Runner, Callable[[], None] | None]
"""A collector and the function to call for this collector. None means: run the collector."""


class _Bell:
    """Signal that wakes one waiting thread. A condition variable would need 1.5 times the CPU time per wake-up."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Wake the waiting thread. If no thread is waiting, the next call of ``wait`` returns immediately."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # already set

    def wait(self, seconds: float) -> None:
        """Wait for ``ring``, at most `seconds`. A negative value means no time limit."""
        self._lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


class Worker:
    """Worker thread that runs several collectors.

    Methods may be called from any thread and do not wait for a collector.
    """

    def __init__(self, name: str, thread_name: str, clock: Clock, ran: Callable[[Runner], object]) -> None:
        """Make a worker. ran: function called after each run with the collector's runner, in the thread of the run."""
        self.name = name
        self.abandoned = 0
        self._thread_name = thread_name
        self._clock = clock
        self._ran = ran
        # Reentrant: a signal handler may request a release while its thread holds the lock.
        self._lock = threading.RLock()
        self._bell = _Bell()
        self._runners: list[Runner] = []
        # (due time, permitted earliness, runner); None if it must be rebuilt. Scanning these tuples is much cheaper
        # than scanning the runners, which would cost more than the collectors' work.
        self._due: list[tuple[int, int, Runner]] | None = None
        self._queue: deque[Runner] = deque()  # due collectors of the last scan
        self._released = False
        self._busy: Runner | None = None
        self._busy_since_ns = 0
        self._generation = 0
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._old_threads: list[threading.Thread] = []

    # --- called from other threads -----------------------------------------------------------------------------------

    def add(self, runner: Runner) -> None:
        """Add a collector. Its first run is at its next due time."""
        with self._lock:
            self._runners.append(runner)
            self._look_again()

    def remove(self, runner: Runner) -> None:
        """Remove the collector. The thread that runs it, or in which it is stuck, closes it."""
        with self._lock:
            runner.leaving = True
            self._look_again()

    def set_released(self, released: bool) -> None:
        """Request that every collector with a device releases it (True) or opens it again (False)."""
        with self._lock:
            self._released = released
            self._look_again()

    def _look_again(self) -> None:
        """Make the worker's thread scan all collectors before its next task."""
        self._queue.clear()
        self._due = None
        self._bell.ring()

    def start(self) -> None:
        with self._lock:
            self._start_thread()

    def _start_thread(self) -> None:
        name = self._thread_name if not self._generation else f"{self._thread_name}/{self._generation}"
        self._thread = threading.Thread(target=self._run, args=(self._generation,), name=name, daemon=True)
        self._thread.start()

    def hand_over_ns(self) -> int | None:
        """Return the time (monotonic ns) at which other collectors stop waiting for the current call and get a new
        thread.

        Return None if no call is running, there is no other collector, or too many threads are stuck.
        """
        with self._lock:
            busy = self._busy
            if busy is None or self._stopping or self.abandoned >= MOST_ABANDONED:
                return None
            shortest_ns = min((one.interval_ns for one in self._runners if one is not busy), default=None)
            if shortest_ns is None:
                return None
            return self._busy_since_ns + max(round(HAND_OVER_INTERVALS * shortest_ns), round(HAND_OVER_SECONDS * 1e9))

    def hand_over(self, now_ns: int) -> None:
        """Move the other collectors to a new thread if the current call has run for too long."""
        with self._lock:
            busy, due_ns = self._busy, self.hand_over_ns()
            if busy is None or due_ns is None or now_ns < due_ns:
                return
            log.warning(
                "collector %s is stuck in a call: the other collectors of worker %s continue in a new thread",
                busy.name,
                self.name,
            )
            self.abandoned += 1
            if busy in self._runners:
                self._runners.remove(busy)
            self._queue.clear()
            self._due = None
            self._busy = None
            self._generation += 1
            assert self._thread is not None
            self._old_threads = [*(thread for thread in self._old_threads if thread.is_alive()), self._thread]
            self._start_thread()

    def left_behind(self) -> int:
        """Return the number of threads that were abandoned because a collector is stuck in them."""
        with self._lock:
            return self.abandoned + (self._stopping and self._busy is not None)

    def stop(self) -> None:
        """Stop running collectors. The worker's thread closes them."""
        with self._lock:
            self._stopping = True
            self._look_again()

    def join(self, deadline_ns: int) -> None:
        """Wait for the end of the worker's threads until the deadline. A thread that is still stuck in a call is
        abandoned."""
        with self._lock:
            threads = [*self._old_threads, *([self._thread] if self._thread is not None else [])]
        for thread in threads:
            thread.join(max(0, deadline_ns - self._clock.monotonic_ns()) / 1e9)
            if thread.is_alive():
                log.warning("thread %s is stuck in a call and was abandoned at shutdown", thread.name)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self, generation: int) -> None:
        while (task := self._next_task()) is not None:
            runner, act = task
            if act is None:
                runner.run_once()
                self._ran(runner)
            else:
                act()
            if not self._done(generation, runner):
                return
        with self._lock:
            closing = list(self._runners)
            self._runners.clear()
        # Members are listed after their parents and may still need the parent's library: close them first.
        for runner in reversed(closing):
            runner.close()

    def _next_task(self) -> _Task | None:
        """Wait for the next task and return it; None when the worker stops."""
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
        """Return (task, None) if a task is due at `now_ns`, else (None, due time of the next task).

        The due time is None without collectors. awake: whether the thread has just run a task; then collectors that
        are due soon may run early.
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
        """Return the first collector to close, release or reopen, with the function to call.

        If there is none, return None and queue all collectors by due time.
        """
        for runner in reversed(self._runners):  # members come after their parents and are released first
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
        """Queue the collector for its next due time."""
        if self._due is not None and not runner.released:
            self._due.append((runner.due_ns, runner.interval_ns // EARLY_SHARE, runner))

    def _turn_of(self, runner: Runner) -> tuple[int, int]:
        """Return the sort key of a due collector. The collector with the smallest key runs first.

        While a collector is stuck, others may get stuck on the same device. Then collectors with short intervals run
        first, since they would miss more samples.
        """
        return (runner.interval_ns if self.abandoned else 0, runner.due_ns)

    def _done(self, generation: int, runner: Runner) -> bool:
        """Queue a collector again after its task. Return False if this thread was abandoned meanwhile.

        generation: number of the thread; the worker's current thread has the highest.
        """
        with self._lock:
            if generation == self._generation:
                self._busy = None
                self._put_back(runner)
                return True
            self.abandoned -= 1
            back = not (runner.closed or runner.leaving or self._stopping)
            if back:
                self._runners.append(runner)
                self._look_again()
        if back:
            log.warning("collector %s is no longer stuck and rejoined worker %s", runner.name, self.name)
        else:
            runner.close()
        return False
