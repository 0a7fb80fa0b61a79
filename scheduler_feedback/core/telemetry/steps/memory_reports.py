"""Reports of the device memory of running attempts, from which the scheduler learns how much a job needs.

The first steps of an attempt do not count, because a program allocates most of its memory in them. After that, each
report has the largest memory of a rank so far. There is another report only if that has grown by GROWTH, so an attempt
has few of them. A job whose ranks report no steps is not measured: its memory may still be growing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.events import MemoryMeasured
from scheduler_feedback.core.telemetry.steps.speed_reports import WARM_STEPS
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Telemetry

GROWTH = 1.05
"""Least growth of the largest memory between two reports of an attempt. From 64 MiB to 128 GiB, there are at most 157
of them."""

LEAST_MIB = 64
"""Least memory of a report, in MiB: less than the context of one process on a GPU."""

EVERY_NS = 15_000_000_000
"""Least time between two evaluations of an attempt, in ns: the interval at which agents measure."""

MIB = 1 << 20


@dataclass(slots=True)
class _Seen:
    """Memory of an attempt so far."""

    attempt: int
    """Number of the attempt."""
    warm: int = WARM_STEPS
    """Number of steps that are still to come before the first report."""
    reported_mib: int = 0
    """Memory in the newest report, in MiB; 0: none."""
    evaluated_ns: int = 0
    """Wall time of the newest evaluation."""


class MemoryReports:
    """Memory of all running attempts."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def take(self, telemetry: Telemetry) -> list[MemoryMeasured]:
        """Return the reports that are due."""
        found = [report for job in telemetry.jobs if (report := self._take(job, telemetry.now_ns)) is not None]
        if len(self._seen) > len(telemetry.jobs):
            present = {job.shape.job for job in telemetry.jobs}
            self._seen = {name: one for name, one in self._seen.items() if name in present}
        return found

    def _take(self, job: JobTelemetry, now_ns: int) -> MemoryMeasured | None:
        name = job.shape.job
        seen = self._seen.get(name)
        if seen is None or seen.attempt != job.shape.attempt:
            seen = self._seen[name] = _Seen(job.shape.attempt)
        if job.steps is not None:
            seen.warm -= min(seen.warm, len(job.steps))
        if seen.warm or job.device_memory is None or now_ns - seen.evaluated_ns < EVERY_NS:
            return None
        seen.evaluated_ns = now_ns
        used = job.device_memory()
        known = used[np.isfinite(used)]
        mib = -int(-float(known.max()) // MIB) if len(known) else 0
        if mib < max(LEAST_MIB, GROWTH * seen.reported_mib):
            return None
        seen.reported_mib = mib
        return MemoryMeasured(name, seen.attempt, mib)
