"""One collector, run against deadlines in a thread of its own.

A driver's call may block for long or for ever, so nobody waits for a collector: others read what its newest run gave.
Schedules are absolute: tick k is due at start + k x interval, and a tick that is missed is skipped, never made up for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from agent.collectors.block import Block, Collector, RecordSource
from agent.schema.clock import Clock
from agent.schema.errors import UnsupportedError
from agent.schema.frame import CounterArray, GaugeArray, Record, ValidArray

log = logging.getLogger(__name__)

STALE_INTERVALS = 3
STALE_SECONDS = 2.0
"""A sample is stale after STALE_INTERVALS of its collector's intervals, and not before STALE_SECONDS."""

REPEAT_LOG_NS = 600_000_000_000
"""An error that repeats is logged again after ten minutes; its count is in the failure metric all the while."""


@dataclass(frozen=True, slots=True)
class Sample:
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
    """One collector, run in one thread. What others read of it are single attributes, each replaced whole."""

    def __init__(self, collector: Collector, clock: Clock) -> None:
        self.collector = collector
        self.name = collector.name
        self.interval_ns = round(collector.interval_seconds * 1e9)
        self.stale_ns = max(STALE_INTERVALS * self.interval_ns, round(STALE_SECONDS * 1e9))
        self.records = collector if isinstance(collector, RecordSource) else None
        self.sample: Sample | None = None
        self.succeeded = False
        self.unsupported = False
        self.duration_seconds = float("nan")
        self.failures = 0
        self.errors = ErrorLog(collector.name)
        self._clock = clock

    def run_once(self) -> None:
        """Collect once. Whatever goes wrong in it is this collector's alone."""
        began_ns = self._clock.monotonic_ns()
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
        self.duration_seconds = (self._clock.monotonic_ns() - began_ns) / 1e9

    def run(self, stopping: threading.Event, first_ns: int) -> None:
        """Collect at every tick until told to stop; then give the collector's descriptors back."""
        try:
            for _ in ticks(stopping, self._clock, first_ns, self.interval_ns):
                self.run_once()
                if self.unsupported:
                    break
        finally:
            self.close()

    def close(self) -> None:
        try:
            self.collector.close()
        except Exception as error:
            self.errors.add(error, self._clock.monotonic_ns(), "close failed")

    def take_records(self) -> list[Record]:
        if self.records is None:
            return []
        try:
            return self.records.take_records()
        except Exception as error:
            self.errors.add(error, self._clock.monotonic_ns(), "taking records failed")
            return []

    def is_stale(self, sample: Sample | None, now_ns: int) -> bool:
        return sample is None or now_ns - sample.sampled_ns > self.stale_ns


def ticks(stopping: threading.Event, clock: Clock, due_ns: int, interval_ns: int) -> Iterator[None]:
    """Yield at every due instant until told to stop. Instants that have passed meanwhile are skipped."""
    while True:
        if stopping.wait(max(0, due_ns - clock.monotonic_ns()) / 1e9):
            return
        yield
        late_ns = clock.monotonic_ns() - due_ns
        due_ns += interval_ns * (1 + max(0, late_ns) // interval_ns)
