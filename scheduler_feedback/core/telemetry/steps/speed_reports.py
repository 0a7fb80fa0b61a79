"""Reports of the speed of running attempts, from their steps, from which the scheduler learns.

The first steps of an attempt do not count, because they contain compilation and warm-up. The first report follows after
FIRST_SECONDS, the next ones every NEXT_SECONDS. The unit is tokens (or samples) if every rank reports them with every
step, else steps. An elastic job should report tokens: its steps say nothing about its speed if the global batch grows
with the ranks.

A report also has the share of the time for which all ranks waited in collectives, from which the traffic is learnt.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.events import SpeedMeasured
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, Telemetry

WARM_STEPS = 5
"""Number of the first steps of an attempt that do not count."""

LEAST_STEPS = 10
"""Least number of steps of a report."""

NEWEST_STEPS = 512
"""Number of newest steps in which the steps with least wait are searched."""

LEAST_WAIT = 0.1
"""Quantile of the waits of all ranks that counts as the time of the collectives without other traffic."""

FIRST_SECONDS, NEXT_SECONDS = 15.0, 600.0
"""Time over which the first and each later report of an attempt is measured."""


@dataclass(slots=True)
class _Window:
    """Steps of an attempt since its last report."""

    attempt: int
    """Number of the attempt."""
    warm: int = WARM_STEPS
    """Number of steps that are still to be ignored."""
    begun_ns: int = 0
    """Time at which the last step before the window ended."""
    steps: int = 0
    """Number of steps in the window."""
    tokens: float = 0.0
    """Tokens of all ranks; NaN if a rank did not report them."""
    wait_seconds: float = 0.0
    """Time for which all ranks waited in collectives, in seconds; NaN if a rank did not report its waits."""
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST_STEPS))
    """Time for which all ranks waited in collectives in each of the newest steps, in seconds."""
    wanted_seconds: float = FIRST_SECONDS
    """Length of the window."""


class SpeedReports:
    """Windows of all running attempts."""

    __slots__ = ("_windows",)

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}

    def restart(self, gang: str) -> None:
        """Begin a new short window for the gang, because its speed changes now."""
        if (window := self._windows.get(gang)) is not None:
            self._windows[gang] = _Window(window.attempt)

    def take(self, telemetry: Telemetry) -> list[SpeedMeasured]:
        """Add new steps, and return the reports that are due."""
        found = []
        for job in telemetry.jobs:
            if job.steps is not None and len(job.steps) and (report := self._take(job)) is not None:
                found.append(report)
        if len(self._windows) > len(telemetry.jobs):
            present = {job.shape.job for job in telemetry.jobs}
            self._windows = {name: one for name, one in self._windows.items() if name in present}
        return found

    def _take(self, job: JobTelemetry) -> SpeedMeasured | None:
        name, steps = job.shape.job, job.steps
        assert steps is not None
        window = self._windows.get(name)
        if window is None or window.attempt != job.shape.attempt:
            window = self._windows[name] = _Window(job.shape.attempt)
        ends = steps.end_ns.max(axis=1)
        skipped = min(window.warm, len(steps))
        window.warm -= skipped
        if skipped:
            window.begun_ns = int(ends[skipped - 1])
        if skipped == len(steps):
            return None
        window.steps += len(steps) - skipped
        window.tokens += float("nan") if steps.tokens is None else float(steps.tokens[skipped:].sum())
        # The rank that waits least arrives last, so all of its wait is communication, not a wait for other ranks.
        window.wait_seconds += float(steps.wait_seconds[skipped:].min(axis=1).sum())
        window.waits.extend(steps.wait_seconds[skipped:][-NEWEST_STEPS:].min(axis=1).tolist())
        seconds = (int(ends[-1]) - window.begun_ns) / 1e9
        if seconds < window.wanted_seconds or window.steps < LEAST_STEPS:
            return None
        counted = bool(np.isfinite(window.tokens)) and window.tokens > 0
        work, unit = (window.tokens, "tokens") if counted else (float(window.steps), "steps")
        self._windows[name] = _Window(window.attempt, 0, int(ends[-1]), wanted_seconds=NEXT_SECONDS)
        known = bool(np.isfinite(window.wait_seconds))
        share = min(window.wait_seconds / seconds, 1.0) if known else None
        least = float(np.quantile(np.array(window.waits), LEAST_WAIT)) if known else None
        interval = seconds / window.steps
        return SpeedMeasured(name, window.attempt, work / seconds, seconds, unit, share, interval, least)
