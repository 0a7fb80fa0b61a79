"""Failing from the start: parts whose errors, or whose degraded link, the first windows of an attempt all show.

The usual state of such a part contains its fault, and the job was never faster. So neither its counters nor the job's
steps change. Healthy parts have no errors in window after window, and links at their full speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, JobTelemetry
from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.context import DetectionContext
from scheduler_feedback.detectors.health.apart_ranks import ALONE, ERROR_COUNTERS
from scheduler_feedback.detectors.health.device_outliers import PCIE_LEAST
from scheduler_feedback.detectors.health.suspicion import Suspicion

WINDOWS = 16
"""Number of first windows of an attempt that must all show it, as for failing memory (decision 136)."""

COUNTERS = (*(one for one in ERROR_COUNTERS if one[0] != "nic_pause_sent"), ("pcie_link", Cause.PCIE, "gpu", 0.0))
"""Counter, cause, level of the part, and the least rate of errors a second. Pause frames are no errors."""

ROWS = [FEATURE[name] for name, *_ in COUNTERS]
LINK = ROWS.index(FEATURE["pcie_link"])


@dataclass(slots=True)
class _First:
    """First windows of one attempt of a job with n ranks, [rows, n]."""

    attempt: int
    total: FloatArray
    lowest: FloatArray
    highest: FloatArray
    windows: int = 0


class FailingFromStart:
    """First windows of all jobs that report steps and waits. Owned by the health detector."""

    def __init__(self) -> None:
        self._first: dict[str, _First] = {}
        self._judged: dict[str, int] = {}
        """Attempt of each job whose first windows are complete."""

    def failing(self, context: DetectionContext) -> Iterator[Suspicion]:
        """Add new counters, and yield suspicions against the parts of jobs whose first windows are complete."""
        telemetry, counters = context.telemetry, context.telemetry.counters
        if not len(counters.at_ns):
            return
        present = {job.shape.job for job in telemetry.jobs}
        for known in (self._first, self._judged):
            for gone in known.keys() - present:
                del known[gone]
        for job, columns in zip(telemetry.jobs, telemetry.columns(), strict=True):
            name, attempt, count = job.shape.job, job.shape.attempt, len(job.shape)
            if self._judged.get(name) == attempt or job.steps is None or name in context.by_counters:
                continue
            first = self._first.get(name)
            if first is None or first.attempt != attempt or first.total.shape[1] != count:
                empty = np.zeros((len(ROWS), count))
                first = self._first[name] = _First(attempt, empty, empty + np.inf, empty - np.inf)
            for window in range(len(counters.at_ns)):
                values = counters.values[ROWS, window, columns].astype(np.float64)
                if first.windows == WINDOWS or not np.isfinite(values).any():
                    continue
                first.windows += 1
                first.total = first.total + values  # unknown in one window: unknown in all
                first.lowest = np.minimum(first.lowest, values)
                first.highest = np.maximum(first.highest, values)
            if first.windows == WINDOWS:
                self._judged[name] = attempt
                del self._first[name]
                for why in _suspects(job, first):
                    if (name, attempt, int(job.shape.ranks[why.index])) not in context.published.accused:
                        yield why


def _suspects(job: JobTelemetry, first: _First) -> Iterator[Suspicion]:
    shape, nodes = job.shape, np.asarray(job.shape.nodes)
    for row, (name, cause, level, least) in enumerate(COUNTERS):
        mean = first.total[row] / WINDOWS
        if row == LINK:
            failing = (first.highest[row] <= PCIE_LEAST) & (first.lowest[row] > 0)
            others = float(np.nanmedian(mean)) if np.isfinite(mean).any() else np.nan
            failing &= others > PCIE_LEAST
        else:
            failing = (first.lowest[row] > 0) & (mean >= least)
            rank = int(np.nan_to_num(mean).argmax())
            elsewhere = np.nan_to_num(mean[nodes != nodes[rank]])
            others = float(elsewhere.max(initial=0.0))
            failing &= (nodes == nodes[rank]) & (mean >= ALONE * others)
        found = np.flatnonzero(failing).tolist()
        if not found or len({shape.nodes[rank] for rank in found}) > 1:
            continue
        rank = max(found, key=lambda one: abs(float(mean[one]) - (others if row == LINK else 0.0)))
        names = {"gpu": shape.gpus, "nic": shape.nics}[level]
        device = names[rank] if names else ""
        unit = "ratio" if row == LINK else "1/s"
        evidence = (
            Evidence(name, float(mean[rank]), others, unit, "ranks on other nodes, since the start", 2.0),
            Evidence("windows_in_a_row", float(WINDOWS), float(WINDOWS), "windows", "all since the start", 1.0),
        )
        yield Suspicion(
            shape.nodes[rank], level if device else "node", device or shape.nodes[rank], cause,
            f"its {name.replace('_', ' ')} differ from those of other nodes since the start", float(mean[rank]),
            evidence, job, rank,
        )  # fmt: skip
