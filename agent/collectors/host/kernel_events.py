"""Collector of events in the kernel log: XIDs, NICs, PCIe, machine checks, killed or hung processes, stalled storage.

It does not call a driver. If a driver hangs, the collector still reports the driver's messages. It also reads the
messages from before the agent's start that are still in the log.
"""

from __future__ import annotations

import threading
from collections import deque

from agent.collectors.block import Block
from agent.collectors.gpu.xid import XidHistory
from agent.schema.clock import Clock, SystemClock
from agent.schema.frame import Column, EventRecord, Record
from agent.sources.kernel.kernel_log import KernelLog, LogRecord
from agent.sources.kernel.kernel_messages import KINDS, Event, parse_message

MOST_A_RUN = 2000
"""Maximum number of log records that one run reads. A flood of messages therefore does not block the collector. A full
log of about ten thousand records takes a few seconds."""

MOST_EVENTS = 1024
"""Maximum number of events kept until the node takes them; the oldest are dropped."""


class KernelLogCollector:
    """Collector that follows the kernel log. It passes XIDs to `xids`, and makes a record of each other event."""

    name = "kernel_log"
    worker = "host"

    def __init__(
        self,
        path: str = "/dev/kmsg",
        xids: XidHistory | None = None,
        interval_seconds: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        """Raise UnsupportedError if there is no log at `path` or no permission to read it."""
        self.interval_seconds = interval_seconds
        self._xids = xids
        self._clock = clock or SystemClock()
        self._start_us = self._clock.monotonic_ns() // 1000
        self._log = KernelLog(path)
        self._lock = threading.Lock()
        self._records: deque[Record] = deque(maxlen=MOST_EVENTS)
        self._counts = dict.fromkeys(KINDS, 0)
        self._block = Block(
            (),
            [
                Column("gangwatch_kernel_log_lost_total"),
                *(Column("gangwatch_kernel_log_events_total", (("kind", kind),)) for kind in KINDS),
            ],
        )

    def collect(self) -> Block:
        # The log's clock starts with the monotonic clock and drifts by milliseconds per day.
        boot_ns = self._clock.wall_ns() - self._clock.monotonic_ns()
        for record in self._log.read(MOST_A_RUN):
            if record.from_kernel and (event := parse_message(record.text)) is not None:
                self._take(record, event, boot_ns + record.microseconds * 1000)
        self._block.set_counter(0, self._log.lost)
        for index, count in enumerate(self._counts.values(), 1):
            self._block.set_counter(index, count)
        return self._block

    def take_records(self) -> list[Record]:
        with self._lock:
            taken = list(self._records)
            self._records.clear()
        return taken

    def close(self) -> None:
        self._log.close()

    def _take(self, record: LogRecord, event: Event, time_ns: int) -> None:
        before = record.microseconds < self._start_us
        # Count only messages since the agent's start: older ones would be counted again at every start.
        if not before:
            self._counts[event.kind] += 1
        if event.kind == "xid" and self._xids is not None:
            self._xids.add(event.entity, int(event.detail["code"]), time_ns, "kernel_log", event.detail.get("rest", ""))
            return
        detail = {**event.detail, "before_start": "true"} if before else event.detail
        with self._lock:
            self._records.append(EventRecord(event.kind, event.entity, time_ns, detail))
