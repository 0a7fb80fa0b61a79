"""The kernel's log as events: XIDs, NICs, PCIe, machine checks, processes killed or hung, storage that stalls.

It is read in a thread of its own and asks no driver for anything, so that what a driver says as it hangs is not lost;
nor is what was said before the agent's start, as far back as the log reaches.
"""

from __future__ import annotations

import threading
from collections import deque

from agent.collectors.block import Block
from agent.collectors.gpu.xid import XidLedger
from agent.schema.clock import Clock, SystemClock
from agent.schema.frame import Column, EventRecord, Record
from agent.sources.kernel.kernel_log import KernelLog, LogRecord
from agent.sources.kernel.kernel_messages import KINDS, Event, parse_message

MOST_A_RUN = 2000
"""Records read in one run: a full log of some ten thousand is through in a few seconds, and a flood stalls nothing."""

MOST_EVENTS = 1024
"""Events kept until the node takes them; a flood loses the oldest."""


class KernelLogCollector:
    """Follows the log. An XID is given to `xids`, which makes its record once; everything else is a record here."""

    name = "kernel_log"
    lane = "host"

    def __init__(
        self,
        path: str = "/dev/kmsg",
        xids: XidLedger | None = None,
        interval_seconds: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        """Raises UnsupportedError where there is no log at `path`, or no right to read it."""
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
        # The kernel's clock is not quite the monotonic one, but starts with it and is milliseconds off in a day.
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
        # Counters tell of the agent's own time: what the log remembers would be counted anew at every start.
        if not before:
            self._counts[event.kind] += 1
        if event.kind == "xid" and self._xids is not None:
            self._xids.add(event.entity, int(event.detail["code"]), time_ns, "kernel_log", event.detail.get("rest", ""))
            return
        detail = {**event.detail, "before_start": "true"} if before else event.detail
        with self._lock:
            self._records.append(EventRecord(event.kind, event.entity, time_ns, detail))
