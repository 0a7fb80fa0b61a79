"""Devices whose counters differ from their peers', on jobs that are slower because of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, JobTelemetry, Telemetry
from scheduler_feedback.core.verdict import Cause, Evidence, Kind
from scheduler_feedback.detectors.counters.cause_signatures import evidence
from scheduler_feedback.detectors.counters.counter_statistics import ALARM, CounterStatistics
from scheduler_feedback.detectors.counters.peer_outlier import kept_from_working, many, works_longer
from scheduler_feedback.detectors.health.job_speed import Speeds
from scheduler_feedback.detectors.health.suspicion import Suspicion

WITNESSED = ALARM / 2
"""Alarm threshold for a device of a job that is slower: half of ALARM, because the steps are a second source of
evidence. It is reached in two windows of a second, or in one of five seconds or more."""

AGAIN_TICKS, AGAIN_TICKS_UNREPORTED = 6, 2
"""Number of ticks after which a refused suspicion is evaluated again. Fewer for jobs without step reports: a peer
outlier shows one window later than the cause of its slowness."""

HURT = 1.05
PCIE_LEAST = 0.75
"""A PCIe link at or below three quarters of its generation times width has lost a lane pair or a generation."""

FEATURES_OF: tuple[tuple[Cause, str, tuple[str, ...]], ...] = (
    (Cause.PCIE, "gpu", ("pcie_link", "pcie_errors")),
    (Cause.NIC, "nic", ("nic_physical_errors",)),
    (Cause.NIC, "nic", ("nic_sequence_errors",)),
    (Cause.NIC, "nic", ("nic_pause_sent",)),
    (Cause.NVLINK, "gpu", ("nvlink_errors",)),
    (Cause.MEMORY, "gpu", ("memory_errors",)),
)
"""Evidence against each device: cause, level, and counters any of which must exceed the peers. A NIC that sends pause
frames without end causes a storm: the sender is the culprit. Throttling is not a fault (a power cap is set on purpose).
It explains a slow rank, which the straggler detector reports."""

FEATURES_OF_SLOW: tuple[tuple[Cause, str, tuple[str, ...]], ...] = (
    (Cause.THERMAL, "gpu", ("thermal_throttle",)),
    (Cause.POWER, "gpu", ("power_throttle",)),
    (Cause.GPU, "gpu", ("sm_clock",)),
    (Cause.CPU_CONTENTION, "node", ("cpu_waiting",)),
    (Cause.STORAGE, "node", ("io_waiting",)),
)
"""For jobs without step reports: counters that explain a slow rank, if the job's traffic shows that it is slower, and
the rank is a peer outlier (peer_outlier.py)."""

BoolArray = npt.NDArray[np.bool_]

ROWS = sorted({FEATURE[name] for _, _, names in (*FEATURES_OF, *FEATURES_OF_SLOW) for name in names})


class DifferingCounters:
    """Number of ticks for which each rank's counters have differed: (job, attempt, rank) -> ticks."""

    def __init__(self, panel: CounterStatistics) -> None:
        self._panel = panel
        self._counted: dict[tuple[str, int, int], int] = {}

    def failing(self, telemetry: Telemetry, speeds: Speeds) -> Iterator[Suspicion]:
        """Yield suspicions for error counters and degraded links that exceed the peers', on slower jobs."""
        panel = self._panel
        if not telemetry.counters.values.shape[1]:
            return
        alarmed = np.flatnonzero((panel.score[ROWS] >= WITNESSED).any(axis=0))
        by_job: dict[str, list[int]] = {}
        names, starts = list(panel.columns), [columns.start for columns in panel.columns.values()]
        for column, place in zip(
            alarmed.tolist(), np.searchsorted(starts, alarmed, side="right").tolist(), strict=True
        ):
            by_job.setdefault(names[place - 1], []).append(column)
        jobs = {job.shape.job: job for job in telemetry.jobs}
        seen = set()
        for name, columns in by_job.items():
            job, first = jobs[name], panel.of(name).start
            slower = speeds.slower(name)
            if slower < HURT:  # then report only clearly degraded links
                columns = np.asarray(columns)[self._degraded(columns)].tolist()
            for column in columns:
                key = (name, job.shape.attempt, int(job.shape.ranks[column - first]))
                seen.add(key)
                before = self._counted.get(key, 0)
                self._counted[key] = before + 1
                silent = name in speeds.slowdown_tests
                if before % (AGAIN_TICKS_UNREPORTED if silent else AGAIN_TICKS) == 0 and key not in panel.accused:
                    beside = silent and _has_neighbours(job.shape.nodes[column - first], telemetry)
                    yield from self._suspect(job, column, first, slower, silent, beside)
        for key in self._counted.keys() - seen:
            del self._counted[key]

    def _degraded(self, columns: list[int]) -> BoolArray:
        """Return whether the PCIe link of each column is clearly narrower or slower than it could be."""
        row = FEATURE["pcie_link"]
        found: BoolArray = (self._panel.newest[row, columns] <= PCIE_LEAST) & (self._panel.score[row, columns] >= ALARM)
        return found

    def _suspect(
        self, job: JobTelemetry, column: int, first: int, slower: float, silent: bool, beside: bool
    ) -> Iterator[Suspicion]:
        """Yield the suspicion against the rank of this column, if there is one.

        silent: whether its job reports no steps. beside: whether, in addition, another job has ranks on the same node.
        """
        panel, shape, rank = self._panel, job.shape, column - first
        least = (
            WITNESSED if slower >= HURT and not silent else ALARM
        )  # only reported steps are a second source of evidence
        # Explanations of a slow rank do not apply to a job that another job slows down.
        candidates = (*FEATURES_OF, *FEATURES_OF_SLOW) if silent and shape.job not in panel.disturbed else FEATURES_OF
        for cause, level, names in candidates:
            if beside and level == "node":
                continue  # the interference detector separates a slow node from a busy other job
            name = max(names, key=lambda one: float(panel.score[FEATURE[one], column]))
            score = float(panel.score[FEATURE[name], column])
            if score < least or (FEATURES[FEATURE[name]].unit == "1/s" and not panel.newest[FEATURE[name], column] > 0):
                continue  # a CUSUM falls slowly: ignore errors that have stopped
            degraded = cause is Cause.PCIE and bool(self._degraded([column])[0])
            if not degraded and slower < HURT:
                continue  # errors without a slowdown are left to maintenance
            of_slow = (cause, level, names) in FEATURES_OF_SLOW
            stands_apart = kept_from_working if level == "node" else works_longer
            if of_slow and not stands_apart(panel, shape, rank, slower):
                continue
            if many(np.flatnonzero(panel.score[FEATURE[name], panel.of(shape.job)] >= least), shape):
                continue  # many devices are affected: the cause is something that they share
            names_of = {"nic": shape.nics, "gpu": shape.gpus}.get(level, ())
            device = names_of[rank] if names_of else ""
            more = (
                Evidence(name, float(panel.newest[FEATURE[name], column]), 0.0, "", "its peers", 2.0),
                Evidence("excess_over_peers", score, least, "sigma", "alarm threshold of the CUSUM", 1.0),
                Evidence(
                    "step_seconds_to_best", slower, HURT, "ratio", "least slowdown", 2.0 if slower >= HURT else 0.0
                ),
                *evidence(panel, column),
            )
            yield Suspicion(
                shape.nodes[rank],
                level if device else "node",
                device or shape.nodes[rank],
                cause,
                f"{name.replace('_', ' ')} differs from its peers",
                score,
                more,
                job,
                rank,
                slower,
                Kind.STRAGGLER if of_slow else Kind.HEALTH,
            )
            return


def _has_neighbours(node: str, telemetry: Telemetry) -> bool:
    """Return whether two or more jobs have ranks on the node's host."""
    return sum(("host", node) in job.shape.resources or node in job.shape.nodes for job in telemetry.jobs) > 1
