"""Waits of ranks that report steps without waits: whether they follow from the step times, or are unknown.

Ranks of FSDP or DeepSpeed jobs often report how long a step took, but not how long they waited in it. There are two
cases. If a step ends in a collective, all ranks have the same step time: it shows how slow the job is, but not which
rank is the cause, and counters must judge the ranks. If a step contains no collective, its time is the rank's own time:
the ranks' times then differ in each step, and the differences do not cancel out over several steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, StepTable, Telemetry

NEWEST_STEPS = 16
"""Number of newest steps of a job that decide whether its waits are known."""

COMPARED_STEPS = 24
"""Number of steps from which it is decided whether step times contain waits. The decision lasts for the attempt."""

LEAST_REPORTED = 15 / 16
"""A step is compared if at least this share of the ranks reported it: with 256 ranks and one sample in a hundred lost,
nearly no step is complete. With fewer ranks the sums of a step show too little: one lost sample of eight ranks a step
can give times between two collectives a ratio above LEAST_GROWTH."""

LEAST_APART = 0.003
"""Step times may be the ranks' own times only if the ranks differ by at least this share of a step in the median
step."""

LEAST_GROWTH = 6.0
"""Step times are the ranks' own times only if the variance among ranks of their sum over COMPARED_STEPS steps is at
least this many times the variance in one step. Times between two collectives cannot drift apart: there the ratio is at
most two. For independent times it is COMPARED_STEPS."""


@dataclass(slots=True)
class _Attempt:
    number: int
    """Number of the attempt."""
    unknown: deque[bool] = field(default_factory=lambda: deque(maxlen=NEWEST_STEPS))
    """For each of the newest steps, whether a rank reported the step without its wait."""
    compared: list[FloatArray] = field(default_factory=list)
    """Step times of the first steps without waits that nearly all ranks reported, one row [n] per step, NaN if lost."""
    is_own: bool | None = None
    """Whether step times are the ranks' own times; None if that is not decided."""


class ReportedWaits:
    """Whether each job's waits are known, and the waits that follow from step times without a collective."""

    def __init__(self) -> None:
        self._attempts: dict[str, _Attempt] = {}

    def take(self, telemetry: Telemetry) -> tuple[Telemetry, frozenset[str]]:
        """Add new steps. Return the telemetry with inferred waits, and the names of the jobs whose ranks counters must
        judge."""
        for gone in self._attempts.keys() - {job.shape.job for job in telemetry.jobs}:
            del self._attempts[gone]
        by_counters = set()
        inferred: dict[str, JobTelemetry] = {}
        for job in telemetry.jobs:
            name = job.shape.job
            if job.steps is None:
                by_counters.add(name)
                continue
            attempt = self._attempts.get(name)
            if attempt is None or attempt.number != job.shape.attempt:
                attempt = self._attempts[name] = _Attempt(job.shape.attempt)
            if len(job.steps):
                attempt.unknown.extend(_without_waits(job.steps))
            if 2 * sum(attempt.unknown) <= len(attempt.unknown):
                continue
            _compare(attempt, job.steps)
            if not attempt.is_own:
                by_counters.add(name)
            elif len(job.steps):
                inferred[name] = replace(job, steps=_with_waits(job.steps))
        if inferred:
            telemetry = replace(telemetry, jobs=tuple(inferred.get(job.shape.job, job) for job in telemetry.jobs))
        return telemetry, frozenset(by_counters)


def _without_waits(steps: StepTable) -> list[bool]:
    """Return whether a rank reported the step without its wait, for each of the newest steps."""
    seconds, waits = steps.seconds[-NEWEST_STEPS:], steps.wait_seconds[-NEWEST_STEPS:]
    unknown = np.isfinite(seconds) & ~np.isfinite(waits)
    without: list[bool] = np.any(unknown, axis=1).tolist()
    return without


def _compare(attempt: _Attempt, steps: StepTable) -> None:
    """Decide whether step times are own times, once there are enough steps that nearly all ranks reported without
    waits."""
    if attempt.is_own is not None or steps.seconds.shape[1] < 2:
        return
    if attempt.compared and len(attempt.compared[0]) != steps.seconds.shape[1]:
        attempt.compared.clear()
    reported = np.isfinite(steps.seconds).mean(axis=1) >= LEAST_REPORTED
    whole = reported & ~np.isfinite(steps.wait_seconds).any(axis=1)
    attempt.compared.extend(steps.seconds[whole][: COMPARED_STEPS - len(attempt.compared)])
    if len(attempt.compared) == COMPARED_STEPS:
        attempt.is_own = _drift_apart(np.array(attempt.compared))
        attempt.compared.clear()


def _drift_apart(seconds: FloatArray) -> bool:
    """Return whether the ranks differ in most steps, and their sums differ more: float64 [k, n], NaN if lost."""
    apart = seconds / np.nanmedian(seconds, axis=1)[:, None] - 1.0
    in_one = float(np.median(np.nanstd(apart, axis=1)))
    lost = float(np.isnan(apart).sum(axis=0).mean())  # each lost sample leaves one difference that does not cancel
    growth = float(np.nansum(apart, axis=0).var())
    return in_one >= LEAST_APART and growth >= (LEAST_GROWTH + lost) * in_one**2


def _with_waits(steps: StepTable) -> StepTable:
    """Return the steps with the waits of ranks that meet after each step: they wait for the slowest rank."""
    known = np.isfinite(steps.seconds)
    longest = np.where(known, steps.seconds, 0.0).max(axis=1, keepdims=True)
    lengths = np.where(known, longest, np.nan)
    return replace(steps, seconds=lengths, wait_seconds=lengths - steps.seconds)
