"""One collector: its schedule, its newest sample, what it costs and how it fails.

A driver's call may block for long or for ever, so nobody waits for a collector: others read what its newest run gave.
Schedules are absolute: run k is due at origin + phase + k x interval, and one that is missed is skipped, never made up
for. A collector that costs too much of its interval is run less often, and that is shown.
"""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from agent.collectors.block import Block, Collector, Parent, RecordSource, Releasable
from agent.schema.clock import Clock
from agent.schema.errors import UnsupportedError
from agent.schema.frame import CounterArray, GaugeArray, Record, ValidArray

log = logging.getLogger(__name__)

STALE_INTERVALS = 3
STALE_SECONDS = 2.0
"""A sample is stale after STALE_INTERVALS of its collector's intervals, and not before STALE_SECONDS."""

STUCK_SECONDS = (1.0, 2.0)
"""A run is stuck once it has taken longer than its collector's interval, which counts as no less than the first and no
more than the second: at 1 Hz that shows within two frames."""

PROCESSOR_SHARE = 0.10
DURATION_SHARE = 0.5
"""What a collector may take of its interval, on a processor and altogether (a call that waits holds a driver's lock,
and with it the application). A process-list poller was seen to hold it 10 s of every 15."""

OVER_BUDGET_RUNS = 5
"""So many runs in a row make the interval twice as long; as many at half of what would then be allowed, half."""

MOST_SLOWING = 16

IDLE_INTERVALS = 2
"""A collector that says it is idle is run so much less often: what is sampled every half a second are ranks, and many
nodes have none that are known. Its sample is not stale then (STALE_INTERVALS)."""

REPEAT_LOG_NS = 600_000_000_000
"""An error that repeats is logged again after ten minutes; its count is in the failure metric all the while."""


class Sample(NamedTuple):
    """What one run of a collector gave, copied, and the monotonic instant before it began to read."""

    block: Block
    gauges: GaugeArray
    counters: CounterArray
    counters_valid: ValidArray
    sampled_ns: int


class ErrorLog:
    """Logs each distinct error of one collector once, and again after REPEAT_LOG_NS."""

    __slots__ = ("_collector", "_logged_ns")

    MOST = 64

    def __init__(self, collector: str) -> None:
        self._collector = collector
        self._logged_ns: dict[str, int] = {}

    def add(self, error: BaseException, now_ns: int, what: str) -> None:
        text = f"{type(error).__name__}: {error}"
        logged_ns = self._logged_ns.get(text)
        if logged_ns is not None and now_ns - logged_ns < REPEAT_LOG_NS:
            return
        if len(self._logged_ns) >= self.MOST:
            self._logged_ns.pop(next(iter(self._logged_ns)))
        self._logged_ns[text] = now_ns
        log.warning("collector %s: %s: %s", self._collector, what, text)


class Runner:
    """One collector, run in one thread at a time. What others read of it are single attributes, each replaced whole."""

    def __init__(self, collector: Collector, clock: Clock) -> None:
        self.collector = collector
        self.name = collector.name
        self.lane: str = getattr(collector, "lane", collector.name)
        self.nominal_ns = round(collector.interval_seconds * 1e9)
        self.parent = collector if isinstance(collector, Parent) else None
        self.records = collector if isinstance(collector, RecordSource) else None
        self.releasable = collector if isinstance(collector, Releasable) else None
        self.members: tuple[Runner, ...] = ()
        self.sample: Sample | None = None
        self.succeeded = False
        self.unsupported = False
        self.running_since_ns: int | None = None
        self.released = False
        self.leaving = False
        self.closed = False
        self.duration_seconds = float("nan")
        self.processor_ns = 0
        self.failures = 0
        self.errors = ErrorLog(collector.name)
        self.due_ns = 0
        self._clock = clock
        self._origin_ns = 0
        self._phase_ns = 0
        least, most = STUCK_SECONDS
        self._stuck_ns = min(max(self.nominal_ns, round(least * 1e9)), round(most * 1e9))
        self._set_interval(self.nominal_ns)
        self._over_runs = self._under_runs = 0

    # --- schedule ----------------------------------------------------------------------------------------------------

    def schedule(self, origin_ns: int, default_phase_ns: int, within_ns: int) -> None:
        """Take a place in time: the first run is due within `within_ns` of the origin, the others on the grid."""
        phase: float | None = getattr(self.collector, "phase", None)
        self._origin_ns = origin_ns
        self._phase_ns = (default_phase_ns if phase is None else round(phase * self.nominal_ns)) % self.nominal_ns
        self.due_ns = origin_ns + self._phase_ns % within_ns

    def phase_in(self, interval_seconds: float) -> float:
        """Where in an interval of that length this collector is run, 0 to 1."""
        return self._phase_ns / 1e9 / interval_seconds % 1

    def _plan(self, now_ns: int) -> None:
        """Set the next due instant: the first of the grid that lies ahead."""
        first_ns = self._origin_ns + self._phase_ns
        interval_ns = self.interval_ns
        if getattr(self.collector, "idle", False):
            interval_ns *= IDLE_INTERVALS
        self.due_ns = next_due_ns(first_ns - interval_ns, interval_ns, now_ns)

    def _set_interval(self, interval_ns: int) -> None:
        self.interval_ns = interval_ns
        self._stale_ns = max(STALE_INTERVALS * interval_ns, round(STALE_SECONDS * 1e9))

    # --- a run -------------------------------------------------------------------------------------------------------

    def run_once(self) -> None:
        """Collect once. Whatever goes wrong in it is this collector's alone."""
        began_ns = self._clock.monotonic_ns()
        processor_began_ns = time.thread_time_ns()
        self.running_since_ns = began_ns
        try:
            block = self.collector.collect()
            self.sample = Sample(
                block, block.gauges.copy(), block.counters.copy(), block.counters_valid.copy(), began_ns
            )
            self.succeeded = True
        except UnsupportedError as error:
            log.info("collector %s is left out: %s", self.name, error)
            self.unsupported = True
        except Exception as error:
            self.succeeded = False
            self.failures += 1
            self.errors.add(error, began_ns, "run failed")
        self.running_since_ns = None
        duration_ns = self._clock.monotonic_ns() - began_ns
        processor_ns = time.thread_time_ns() - processor_began_ns
        self.duration_seconds = duration_ns / 1e9
        self.processor_ns += processor_ns
        self._keep_to_budget(duration_ns, processor_ns)
        # One that was run early is not due again at the instant that it was run for.
        self._plan(max(began_ns + duration_ns, self.due_ns))

    def _keep_to_budget(self, duration_ns: int, processor_ns: int) -> None:
        """Lengthen the interval of a collector that takes too much of it, shorten it once the cost has fallen."""
        needed_ns = max(processor_ns / PROCESSOR_SHARE, duration_ns / DURATION_SHARE)
        if needed_ns <= self.interval_ns == self.nominal_ns:
            self._over_runs = 0
        elif needed_ns > self.interval_ns:
            self._under_runs = 0
            self._over_runs += 1
            if self._over_runs >= OVER_BUDGET_RUNS and self.interval_ns < MOST_SLOWING * self.nominal_ns:
                self._over_runs = 0
                self._set_interval(2 * self.interval_ns)
                log.warning(
                    "collector %s takes %.3g s a run, %.3g s of them on a processor: it now runs every %.3g s",
                    self.name,
                    duration_ns / 1e9,
                    processor_ns / 1e9,
                    self.interval_ns / 1e9,
                )
        elif needed_ns <= self.interval_ns / 4:
            self._over_runs = 0
            self._under_runs += 1
            if self._under_runs >= OVER_BUDGET_RUNS:
                self._under_runs = 0
                self._set_interval(self.interval_ns // 2)
        else:
            self._over_runs = self._under_runs = 0

    def close(self) -> None:
        """Let the collector give everything back; once."""
        if self.closed:
            return
        self.closed = True
        try:
            self.collector.close()
        except Exception as error:
            self.errors.add(error, self._clock.monotonic_ns(), "close failed")

    def release(self) -> None:
        """Let the collector give its device back; its series are absent from now on."""
        if self.releasable is not None and not self.released:
            try:
                self.releasable.release()
            except Exception as error:
                self.errors.add(error, self._clock.monotonic_ns(), "release failed")
            self.sample = None
            self.succeeded = False
            self.released = True

    def acquire(self) -> None:
        """Let the collector take its device again; it is run at once."""
        if self.releasable is not None and self.released:
            try:
                self.releasable.acquire()
            except Exception as error:
                self.errors.add(error, self._clock.monotonic_ns(), "acquire failed")
            self.released = False
            self.due_ns = 0

    # --- readers -----------------------------------------------------------------------------------------------------

    def take_records(self) -> list[Record]:
        if self.records is None:
            return []
        try:
            return self.records.take_records()
        except Exception as error:
            self.errors.add(error, self._clock.monotonic_ns(), "taking records failed")
            return []

    def is_stale(self, sample: Sample, now_ns: int) -> bool:
        """Whether a sample of this collector's is too old to be shown."""
        return now_ns - sample.sampled_ns > self._stale_ns

    def is_stuck(self, now_ns: int) -> bool:
        """Whether the present run has taken too long."""
        since_ns = self.running_since_ns
        return since_ns is not None and now_ns - since_ns > self._stuck_ns


def next_due_ns(due_ns: int, interval_ns: int, now_ns: int) -> int:
    """The first instant of the schedule through `due_ns` that lies ahead of `now_ns`, and after `due_ns`."""
    return due_ns + interval_ns * (1 + max(0, now_ns - due_ns) // interval_ns)
