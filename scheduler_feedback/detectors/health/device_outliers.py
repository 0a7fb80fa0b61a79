"""Suspected devices: their counters differ from those of their peers, and a job that uses them is slower."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, JobTelemetry, Telemetry
from scheduler_feedback.core.verdict import Cause, Evidence, Kind
from scheduler_feedback.detectors.context import DetectionContext
from scheduler_feedback.detectors.counters.cause_signatures import evidence
from scheduler_feedback.detectors.counters.counter_statistics import ALARM, CounterStatistics
from scheduler_feedback.detectors.counters.peer_outlier import kept_from_working, many, works_longer
from scheduler_feedback.detectors.health.suspicion import Suspicion

WITNESSED = ALARM / 2
"""Alarm threshold for the counters of a device whose job is slower: half of ALARM, because the slowdown is additional
evidence. It is reached in two windows of a second, or in one window of five seconds or more."""

AGAIN_TICKS, AGAIN_TICKS_UNREPORTED = 6, 2
"""While counters continue to differ, a suspicion is evaluated again after this number of ticks: AGAIN_TICKS for jobs
with step reports, AGAIN_TICKS_UNREPORTED for jobs without. The latter is lower, because a peer outlier shows one window
after its cause."""

HURT = 1.05
"""A job counts as slower, so that its devices can be suspected, if its slowdown is at least this."""

PCIE_LEAST = 0.75
"""A PCIe link is degraded if it has at most this share of its maximum speed (generation times width). It has then lost
lanes or a generation."""

Candidate = tuple[Cause, str, tuple[str, ...]]
"""A cause to test: the cause, the level of the device (gpu, nic, node), and its counters. One differing counter
suffices."""

FEATURES_OF: tuple[Candidate, ...] = (
    (Cause.PCIE, "gpu", ("pcie_link", "pcie_errors")),
    (Cause.NIC, "nic", ("nic_physical_errors",)),
    (Cause.NIC, "nic", ("nic_sequence_errors",)),
    (Cause.NIC, "nic", ("nic_pause_sent",)),
    (Cause.NVLINK, "gpu", ("nvlink_errors",)),
    (Cause.MEMORY, "gpu", ("memory_errors",)),
)
"""Causes that are tested for every job. A NIC that sends pause frames without end is a culprit. Throttling is not
tested: a power cap can be intended, and the straggler detector reports throttling where a rank is slow."""

FEATURES_OF_SLOW: tuple[Candidate, ...] = (
    (Cause.THERMAL, "gpu", ("thermal_throttle",)),
    (Cause.POWER, "gpu", ("power_throttle",)),
    (Cause.GPU, "gpu", ("sm_clock",)),
    (Cause.CPU_CONTENTION, "node", ("cpu_waiting",)),
    (Cause.STORAGE, "node", ("io_waiting",)),
)
"""Causes that are tested in addition for jobs without step reports. The job's traffic must show that it is slower, and
the rank must be a peer outlier (peer_outlier.py)."""

BoolArray = npt.NDArray[np.bool_]

ROWS = sorted({FEATURE[name] for _, _, names in (*FEATURES_OF, *FEATURES_OF_SLOW) for name in names})


class DifferingCounters:
    """Number of ticks for which the counters of each rank have differed from those of its peers: (job, attempt, rank)
    -> ticks."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, int, int], int] = {}

    def failing(self, context: DetectionContext) -> Iterator[Suspicion]:
        """Yield suspicions against devices with error counters above those of their peers, or with degraded links."""
        telemetry, counters, speeds, published = context.telemetry, context.counters, context.speeds, context.published
        if not telemetry.counters.values.shape[1]:
            return
        alarmed = np.flatnonzero((counters.score[ROWS] >= WITNESSED).any(axis=0))
        by_job: dict[str, list[int]] = {}
        names, starts = list(counters.columns), [columns.start for columns in counters.columns.values()]
        for column, place in zip(
            alarmed.tolist(), np.searchsorted(starts, alarmed, side="right").tolist(), strict=True
        ):
            by_job.setdefault(names[place - 1], []).append(column)
        jobs = {job.shape.job: job for job in telemetry.jobs}
        seen = set()
        for name, columns in by_job.items():
            job, first = jobs[name], counters.of(name).start
            slower = speeds.slower(name)
            by_blocks = name in context.by_counters and job.steps is not None  # see apart_ranks.py
            if slower < HURT or by_blocks:  # then report only clearly degraded links
                columns = np.asarray(columns)[_degraded(counters, columns)].tolist()
            for column in columns:
                key = (name, job.shape.attempt, int(job.shape.ranks[column - first]))
                seen.add(key)
                before = self._counted.get(key, 0)
                self._counted[key] = before + 1
                unreported = name in context.by_counters and job.steps is None
                if (
                    before % (AGAIN_TICKS_UNREPORTED if unreported else AGAIN_TICKS) == 0
                    and key not in published.accused
                ):
                    has_neighbours = unreported and _has_neighbours(job.shape.nodes[column - first], telemetry)
                    candidates = _candidates(unreported, name in published.disturbed, has_neighbours)
                    yield from _suspect(counters, job, column - first, slower, candidates)
        for key in self._counted.keys() - seen:
            del self._counted[key]


def _degraded(counters: CounterStatistics, columns: list[int]) -> BoolArray:
    """Return whether the PCIe link of the rank in each column is clearly narrower or slower than its maximum."""
    row = FEATURE["pcie_link"]
    found: BoolArray = (counters.newest[row, columns] <= PCIE_LEAST) & (counters.score[row, columns] >= ALARM)
    return found


def _candidates(unreported: bool, disturbed: bool, has_neighbours: bool) -> Iterator[Candidate]:
    """Yield the causes that may be suspected, each with its level and counters.

    unreported: whether the job reports no steps. disturbed: whether another job slows it down. has_neighbours: whether
    another job has ranks on the same node.
    """
    yield from FEATURES_OF
    if unreported and not disturbed:  # explanations of a slow rank
        for candidate in FEATURES_OF_SLOW:
            if not (has_neighbours and candidate[1] == "node"):  # left to the interference detector
                yield candidate


def _suspect(
    counters: CounterStatistics, job: JobTelemetry, rank: int, slower: float, candidates: Iterable[Candidate]
) -> Iterator[Suspicion]:
    """Yield a suspicion if the counters of this rank (index) show one of the candidate causes.

    slower: slowdown of the job.
    """
    shape = job.shape
    columns = counters.of(shape.job)
    column = columns.start + rank
    # Only reported steps are a second source of evidence.
    least = WITNESSED if slower >= HURT and job.steps is not None else ALARM
    for cause, level, names in candidates:
        name = max(names, key=lambda one: float(counters.score[FEATURE[one], column]))
        score = float(counters.score[FEATURE[name], column])
        if score < least or (FEATURES[FEATURE[name]].unit == "1/s" and not counters.newest[FEATURE[name], column] > 0):
            continue  # a CUSUM falls slowly: ignore errors that have stopped
        degraded = cause is Cause.PCIE and bool(_degraded(counters, [column])[0])
        if not degraded and slower < HURT:
            continue  # errors without a slowdown are left to maintenance
        of_slow = (cause, level, names) in FEATURES_OF_SLOW
        stands_apart = kept_from_working if level == "node" else works_longer
        if of_slow and not stands_apart(counters, shape, rank, slower):
            continue
        if many(np.flatnonzero(counters.score[FEATURE[name], columns] >= least), shape):
            continue  # many devices are affected: the cause is something that they share
        names_of = {"nic": shape.nics, "gpu": shape.gpus}.get(level, ())
        device = names_of[rank] if names_of else ""
        more = (
            Evidence(name, float(counters.newest[FEATURE[name], column]), 0.0, "", "its peers", 2.0),
            Evidence("excess_over_peers", score, least, "sigma", "alarm threshold of the CUSUM", 1.0),
            Evidence("step_seconds_to_best", slower, HURT, "ratio", "least slowdown", 2.0 if slower >= HURT else 0.0),
            *evidence(counters, column),
        )
        words = f"{name.replace('_', ' ')} differs from its peers"
        kind = Kind.STRAGGLER if of_slow else Kind.HEALTH
        place = (shape.nodes[rank], level if device else "node", device or shape.nodes[rank])
        yield Suspicion(*place, cause, words, score, more, job, rank, slower, kind)
        return


def _has_neighbours(node: str, telemetry: Telemetry) -> bool:
    """Return whether two or more jobs have ranks on the node's host."""
    return sum(("host", node) in job.shape.resources or node in job.shape.nodes for job in telemetry.jobs) > 1
