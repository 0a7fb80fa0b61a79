"""Resource usage of the agent's process: CPU time, resident memory, open file descriptors and threads."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

from agent.schema.errors import SourceError
from agent.sources.files import KeptFile
from agent.sources.proc.proc import parse_statm

DESCRIPTORS_EVERY_NS = 10_000_000_000
"""Interval in ns at which open file descriptors are counted. A count lists a directory, which costs more CPU time than
the other values, and the result changes rarely."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Resource usage of this process at one time. A value is None if this kernel does not report it."""

    processor_ns: int
    resident_bytes: int | None
    descriptors: int | None
    threads: int


class Meter:
    """Reader of this process's resource usage from /proc/self, regardless of the configured root of /proc."""

    def __init__(self) -> None:
        self._statm = KeptFile("/proc/self/statm")
        self._descriptors: int | None = None
        self._counted_ns: int | None = None

    def read(self, now_ns: int) -> Cost:
        """Return the resource usage at `now_ns` (monotonic clock). Count descriptors every DESCRIPTORS_EVERY_NS."""
        if self._counted_ns is None or now_ns - self._counted_ns >= DESCRIPTORS_EVERY_NS:
            self._counted_ns = now_ns
            try:
                # One of them belongs to the listing.
                self._descriptors = len(os.listdir("/proc/self/fd")) - 1
            except OSError:
                self._descriptors = None
        try:
            resident = parse_statm(self._statm.read())
        except SourceError:
            resident = None
        return Cost(time.process_time_ns(), resident, self._descriptors, threading.active_count())

    def close(self) -> None:
        self._statm.close()
