"""Devices whose counters stand away from their peers', on jobs that are slower for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, JobTelemetry, Telemetry
from scheduler_feedback.core.verdict import Cause, Evidence, Kind
from scheduler_feedback.detectors.counters.cause_signatures import evidence
from scheduler_feedback.detectors.counters.counter_statistics import ALARM, Panel
from scheduler_feedback.detectors.counters.peer_outlier import kept_from_working, many, works_longer
from scheduler_feedback.detectors.health.job_speed import Speeds
from scheduler_feedback.detectors.health.suspicion import Suspicion

WITNESSED = ALARM / 2
"""The steps are a second witness: a device whose counters stand away from its peers' while its job is slower needs half
of the sum that alarms by itself. That is two windows of a second, or one of five and more."""

AGAIN_TICKS, AGAIN_TICKS_UNREPORTED = 6, 2
"""A suspicion that was refused is looked at again so much later. Where steps are not reported sooner: that a rank works
apart from its peers shows a window after what it would be slow for."""

HURT = 1.05
PCIE_LEAST = 0.75
"""A PCIe link at three quarters of its generation times width or less has lost a lane pair or a generation."""

FEATURES_OF: tuple[tuple[Cause, str, tuple[str, ...]], ...] = (
    (Cause.PCIE, "gpu", ("pcie_link", "pcie_errors")),
    (Cause.NIC, "nic", ("nic_physical_errors",)),
    (Cause.NIC, "nic", ("nic_sequence_errors",)),
    (Cause.NIC, "nic", ("nic_pause_sent",)),
    (Cause.NVLINK, "gpu", ("nvlink_errors",)),
    (Cause.MEMORY, "gpu", ("memory_errors",)),
)
"""What accuses which device: cause, level, and the counters any of which must stand above the peers. A NIC that pauses
its switch without end makes a storm of it: who sends the pauses is the culprit. Throttling is no fault by itself (a
power cap is set on purpose): it explains a slow rank, and that is the straggler detector's."""

FEATURES_OF_SLOW: tuple[tuple[Cause, str, tuple[str, ...]], ...] = (
    (Cause.THERMAL, "gpu", ("thermal_throttle",)),
    (Cause.POWER, "gpu", ("power_throttle",)),
    (Cause.GPU, "gpu", ("sm_clock",)),
    (Cause.CPU_CONTENTION, "node", ("cpu_waiting",)),
    (Cause.STORAGE, "node", ("io_waiting",)),
)
"""Where a job reports no steps, these tell why a rank is slow, if by its traffic the job is slower than it was, and the
rank works apart from its peers (apart.py)."""

BoolArray = npt.NDArray[np.bool_]

ROWS = sorted({FEATURE[name] for _, _, names in (*FEATURES_OF, *FEATURES_OF_SLOW) for name in names})


class Counted:
    """Ranks whose counters stand away: (job, attempt, rank) -> for how many ticks."""

    def __init__(self, panel: Panel) -> None:
        self._panel = panel
        self._counted: dict[tuple[str, int, int], int] = {}

    def failing(self, telemetry: Telemetry, speeds: Speeds) -> Iterator[Suspicion]:
        """Error counters and degraded links that stand above the peers', on a job that is slower."""
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
            if slower < HURT:  # then only what is plainly degraded is told
                columns = np.asarray(columns)[self._degraded(columns)].tolist()
            for column in columns:
                key = (name, job.shape.attempt, int(job.shape.ranks[column - first]))
                seen.add(key)
                before = self._counted.get(key, 0)
                self._counted[key] = before + 1
                silent = name in speeds.gates
                if before % (AGAIN_TICKS_UNREPORTED if silent else AGAIN_TICKS) == 0 and key not in panel.accused:
                    beside = silent and _has_neighbours(job.shape.nodes[column - first], telemetry)
                    yield from self._suspect(job, column, first, slower, silent, beside)
        for key in self._counted.keys() - seen:
            del self._counted[key]

    def _degraded(self, columns: list[int]) -> BoolArray:
        """Whether the PCIe link of each is narrower or slower than it could be, beyond doubt."""
        row = FEATURE["pcie_link"]
        found: BoolArray = (self._panel.newest[row, columns] <= PCIE_LEAST) & (self._panel.score[row, columns] >= ALARM)
        return found

    def _suspect(
        self, job: JobTelemetry, column: int, first: int, slower: float, silent: bool, beside: bool
    ) -> Iterator[Suspicion]:
        """What speaks against the rank of this column. silent: whether its job reports no steps; beside: whether it
        does so on a node that another job has ranks on as well."""
        panel, shape, rank = self._panel, job.shape, column - first
        least = WITNESSED if slower >= HURT and not silent else ALARM  # the steps are what bears witness
        # What only explains a slow rank accuses none of a job that is slow for another reason.
        telling = (*FEATURES_OF, *FEATURES_OF_SLOW) if silent and shape.job not in panel.disturbed else FEATURES_OF
        for cause, level, names in telling:
            if beside and level == "node":
                continue  # whether the node is slow or the other job burdens it is told by what that one does there
            name = max(names, key=lambda one: float(panel.score[FEATURE[one], column]))
            score = float(panel.score[FEATURE[name], column])
            if score < least or (FEATURES[FEATURE[name]].unit == "1/s" and not panel.newest[FEATURE[name], column] > 0):
                continue  # a sum runs down slowly: what has stopped is no reason any more
            degraded = cause is Cause.PCIE and bool(self._degraded([column])[0])
            if not degraded and slower < HURT:
                continue  # errors that cost nothing are a matter for maintenance, not for a verdict
            of_slow = (cause, level, names) in FEATURES_OF_SLOW
            stands_apart = kept_from_working if level == "node" else works_longer
            if of_slow and not stands_apart(panel, shape, rank, slower):
                continue
            if many(np.flatnonzero(panel.score[FEATURE[name], panel.of(shape.job)] >= least), shape):
                continue  # many devices alike: what they share is at fault
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
    """Whether two jobs or more have ranks on the node's host."""
    return sum(("host", node) in job.shape.resources or node in job.shape.nodes for job in telemetry.jobs) > 1
