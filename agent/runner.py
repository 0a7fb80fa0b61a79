"""Execution of one collector: schedule, newest sample, cost and errors.

A driver call may block for a long time or forever. Therefore no other thread waits for a collector: other threads read
the sample of its last run. Schedules are absolute: run k is due at origin + phase + k x interval, and a missed run is
skipped. A collector that uses too much of its interval runs less often; its interval is published as a metric.
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
"""A sample is stale only if it is older than this time in seconds, and older than STALE_INTERVALS intervals of its
collector."""

STUCK_SECONDS = (1.0, 2.0)
"""A run counts as stuck once it has lasted as long as its collector's interval, but never before the first of these
times in seconds, and always after the second. With an interval of 1 s a stuck run is visible within two frames."""

PROCESSOR_SHARE = 0.10
"""A collector's interval is doubled if its runs use more than this share of the interval as CPU time."""

DURATION_SHARE = 0.5
"""A collector's interval is doubled if its runs last longer than this share of the interval. Time in which the run only
waits counts too: a driver call may hold a lock that the training needs. A program that read process lists was measured
to hold the lock 10 s of every 15 s."""

OVER_BUDGET_RUNS = 5
"""A collector's interval is doubled after this number of consecutive runs that exceed PROCESSOR_SHARE or
DURATION_SHARE. A doubled interval is halved after the same number of consecutive runs that use at most a quarter of
both shares."""

MOST_SLOWING = 16
"""The interval of a collector is never increased to more than this multiple of its configured interval."""

IDLE_INTERVALS = 2
"""Factor that multiplies the interval of an idle collector. Collectors of ranks run every half second, and many nodes
have no known ranks. The factor is below STALE_INTERVALS, so that the sample does not become stale."""

REPEAT_LOG_NS = 600_000_000_000
"""Time in ns after which a repeated error is logged again: ten minutes. The failure metric counts every occurrence."""


class Sample(NamedTuple):
    """Values that one run of a collector has read. ``sampled_ns``: monotonic time before the run."""

    block: Block
    gauges: GaugeArray
    counters: CounterArray
    counters_valid: ValidArray
    sampled_ns: int


def sample_of(block: Block, sampled_ns: int) -> Sample:
    """Return a sample with copies of the values. Empty arrays, which most blocks have, are not copied."""
    gauges, counters, valid = block.gauges, block.counters, block.counters_valid
    if block.gauge_columns:
        gauges = gauges.copy()
    if block.counter_columns:
        counters, valid = counters.copy(), valid.copy()
    return Sample(block, gauges, counters, valid, sampled_ns)


class ErrorLog:
    """Log of one collector's errors. Each distinct error is logged once, and again after REPEAT_LOG_NS."""

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
    """One collector with its schedule, newest sample, cost and errors. It runs in one thread at a time.

    Other threads may read its attributes, each of which is replaced as a whole.
    """

    def __init__(self, collector: Collector, clock: Clock) -> None:
        self.collector = collector
        self.name = collector.name
        self.worker: str = getattr(collector, "worker", collector.name)
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
        """Set the first due time, within `within_ns` of `origin_ns`, and the phase of the later due times.

        The phase is the position of a due time in its interval. default_phase_ns: phase of a collector that does not
        set one.
        """
        phase: float | None = getattr(self.collector, "phase", None)
        self._origin_ns = origin_ns
        self._phase_ns = (default_phase_ns if phase is None else round(phase * self.nominal_ns)) % self.nominal_ns
        self.due_ns = origin_ns + self._phase_ns % within_ns

    def phase_in(self, interval_seconds: float) -> float:
        """Return the position (0 to 1) of this collector's runs in an interval of `interval_seconds`."""
        return self._phase_ns / 1e9 / interval_seconds % 1

    def _plan(self, now_ns: int) -> None:
        """Set the next due time: the first scheduled time after `now_ns`."""
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
        """Run the collector once. An error of the collector does not affect other collectors."""
        began_ns = self._clock.monotonic_ns()
        processor_began_ns = time.thread_time_ns()
        self.running_since_ns = began_ns
        try:
            block = self.collector.collect()
            self.sample = sample_of(block, began_ns)
            self.succeeded = True
        except UnsupportedError as error:
            log.info("collector %s is not supported on this machine and was removed: %s", self.name, error)
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
        # A collector that ran early does not run again at the due time of that run.
        self._plan(max(began_ns + duration_ns, self.due_ns))

    def _keep_to_budget(self, duration_ns: int, processor_ns: int) -> None:
        """Double the interval of a collector whose runs take too long. Halve it again when the runs have become short
        enough."""
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
                    "collector %s is over budget: %.3g s per run, %.3g s of it CPU time. It now runs every %.3g s",
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
        """Close the collector, if it is not closed already."""
        if self.closed:
            return
        self.closed = True
        try:
            self.collector.close()
        except Exception as error:
            self.errors.add(error, self._clock.monotonic_ns(), "close failed")

    def release(self) -> None:
        """Release the collector's device. Its series are absent until ``acquire``."""
        if self.releasable is not None and not self.released:
            try:
                self.releasable.release()
            except Exception as error:
                self.errors.add(error, self._clock.monotonic_ns(), "release failed")
            self.sample = None
            self.succeeded = False
            self.released = True

    def acquire(self) -> None:
        """Allow the collector to open its device again, and schedule it to run at once."""
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
        """Return whether a sample of this collector is too old to be published."""
        return now_ns - sample.sampled_ns > self._stale_ns

    def is_stuck(self, now_ns: int) -> bool:
        """Return whether the current run has exceeded its time limit."""
        since_ns = self.running_since_ns
        return since_ns is not None and now_ns - since_ns > self._stuck_ns


def next_due_ns(due_ns: int, interval_ns: int, now_ns: int) -> int:
    """Return the next due time after `now_ns`: `due_ns` plus one or more intervals."""
    return due_ns + interval_ns * (1 + max(0, now_ns - due_ns) // interval_ns)
