"""Analysis of a recording: the detectors' verdicts on its stream, and the job's step time without the suspects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from agent.schema.verdicts.causes import Cause
from agent.schema.verdicts.kinds import ACCUSING
from scheduler_feedback.core.telemetry.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import Shape, StepTable
from scheduler_feedback.core.verdict import Abstention, Cleared, Evidence, Finding, Kind, Verdict
from scheduler_feedback.detectors import make_detection
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.steps.places import places
from scheduler_feedback.step_traces import Recording
from scheduler_feedback.step_traces.operation_replay import Replay
from scheduler_feedback.step_traces.step_trace import Trace


@dataclass(slots=True)
class JobReport:
    """Verdicts and figures of one job of a recording with k steps of n ranks."""

    name: str
    """Name of the job."""
    shape: Shape
    """Ranks of the job."""
    worker: bool = False
    """Whether the trace calls its members workers."""
    notes: tuple[str, ...] = ()
    """Remarks of the reader."""
    verdicts: list[Verdict] = field(default_factory=list)
    """All verdicts, with their last values. Each was first reported at its detected_step."""
    cleared: set[str] = field(default_factory=set)
    """Ids of the verdicts that ended within the recording."""
    unknown: list[Verdict] = field(default_factory=list)
    """Abstentions of the detectors, as verdicts of kind UNKNOWN."""
    number: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64 [k]: step numbers."""
    seconds: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    """float64 [k, n]: step times; NaN if unknown."""
    own_seconds: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    """float64 [k, n]: step times without waits; NaN if unknown."""
    slowdown: float = float("nan")
    """Mean step time divided by the step time if all peers were equally fast."""
    step_seconds: float = float("nan")
    """Mean step time, in the unit of the recording."""
    without_suspects_seconds: float = float("nan")
    """Mean step time if the suspects were as fast as the median of their peers while they are accused."""


def judge(recording: Recording, switches: Switches | None = None) -> list[JobReport]:
    """Replay the recording to the detectors, step by step, and return a report for each job."""
    reports: dict[str, JobReport] = {}
    traces = {trace.name: trace for trace in recording.traces}
    tables: dict[str, list[tuple[Shape, StepTable]]] = {}
    detection = make_detection(recording.timed, switches)
    for telemetry in recording.stream():
        for job in telemetry.jobs:
            report = reports.get(job.shape.job)
            if report is None:
                trace = traces.get(job.shape.job)
                report = reports[job.shape.job] = JobReport(job.shape.job, job.shape)
                if trace is not None:
                    report.worker, report.notes = trace.worker, trace.notes
            report.shape = job.shape
            if job.steps is not None and len(job.steps):
                tables.setdefault(job.shape.job, []).append((job.shape, job.steps))
        for finding in detection.tick(telemetry):
            if finding.gang in reports:
                _take(reports[finding.gang], finding, _newest(tables.get(finding.gang)))
    for name, report in reports.items():
        _join_tables(report, tables.get(name, []))
        _close(report)
        _account(report, traces.get(name))
    return list(reports.values())


def _newest(tables: list[tuple[Shape, StepTable]] | None) -> int:
    return int(tables[-1][1].number[-1]) if tables else -1


def _take(report: JobReport, finding: Finding, step: int) -> None:
    if isinstance(finding, Verdict):
        for index, known in enumerate(report.verdicts):
            if known.verdict_id == finding.verdict_id:  # an update of a known verdict
                first = min(known.first_step, finding.first_step)
                report.verdicts[index] = replace(finding, detected_step=known.detected_step, first_step=first)
                return
        report.verdicts.append(
            replace(finding, detected_step=step if finding.detected_step < 0 else finding.detected_step)
        )
    elif isinstance(finding, Cleared):
        report.cleared.add(finding.verdict_id)
        report.verdicts = [
            replace(one, last_step=finding.last_step)
            if one.verdict_id == finding.verdict_id and finding.last_step >= 0 else one
            for one in report.verdicts
        ]  # fmt: skip
    else:
        report.unknown.append(_as_verdict(finding, step))


def _as_verdict(one: Abstention, step: int) -> Verdict:
    reason = Evidence("reason", float("nan"), float("nan"), "", one.reason)
    rank = -1 if one.rank is None else one.rank
    return Verdict(
        f"{one.gang}.{one.attempt}.unknown.{rank}.{step}", Kind.UNKNOWN, one.gang, one.attempt, rank, "",
        Cause.UNKNOWN, 0.0, 1.0, float("nan"), float("nan"), one.wall_ns, one.wall_ns, (reason, *one.evidence), (),
        one.detector, first_step=step, last_step=step, detected_step=step,
    )  # fmt: skip


def _join_tables(report: JobReport, tables: Sequence[tuple[Shape, StepTable]]) -> None:
    """Join the steps of the ranks that the job ended with into one table."""
    fitting = [table for shape, table in tables if (shape.ranks.tolist() == report.shape.ranks.tolist())]
    if not fitting:
        report.seconds = report.own_seconds = np.zeros((0, len(report.shape)))
        return
    report.number = np.concatenate([table.number for table in fitting])
    report.seconds = np.concatenate([table.seconds for table in fitting])
    report.own_seconds = report.seconds - np.concatenate([table.wait_seconds for table in fitting])


def _close(report: JobReport) -> None:
    """Extend verdicts that were never cleared to the last step."""
    if len(report.number):
        last = int(report.number[-1])
        report.verdicts = [
            one if one.verdict_id in report.cleared or one.last_step < 0 else replace(one, last_step=last)
            for one in report.verdicts
        ]


def _account(report: JobReport, trace: Trace | None) -> None:
    """Compute the job's loss: by replay if the trace contains operations, else from the ranks' own times."""
    seconds = report.seconds
    known = np.isfinite(seconds)
    if not known.any():
        return
    longest = np.where(known, seconds, -np.inf).max(axis=1)
    report.step_seconds = float(longest[np.isfinite(longest)].mean())
    suspects = dict(_suspects(report))
    if trace is not None and trace.operations is not None:
        replay = Replay(trace.operations)
        report.slowdown = report.step_seconds / replay.ideal_seconds()
        report.without_suspects_seconds = replay.without_seconds(suspects) if suspects else report.step_seconds
        return
    own = report.own_seconds
    whole = np.isfinite(own).all(axis=1)
    if not whole.any():
        return
    own, steps = own[whole], longest[whole]
    shared = np.maximum(steps - own.max(axis=1), 0.0)
    report.slowdown = float(steps.mean() / max((shared + own.mean(axis=1)).mean(), 1e-12))
    without = own.copy()
    where = places(report.shape)
    number = report.number[whole]
    for rank, (first, last) in suspects.items():
        rows = (number >= first) & (number <= last)
        peers = [r for r in where.roles[where.role[rank]].tolist() if r not in suspects]
        peers = peers or [r for r in range(own.shape[1]) if r not in suspects] or [rank]
        middle = np.median(own[:, peers], axis=1)
        without[rows, rank] = np.minimum(without[rows, rank], middle[rows])
    report.without_suspects_seconds = float((shared + without.max(axis=1)).mean())


def _suspects(report: JobReport) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the index of each accused rank, and the first and last step of the accusation."""
    place = {int(rank): index for index, rank in enumerate(report.shape.ranks.tolist())}
    for verdict in report.verdicts:
        if verdict.kind in ACCUSING:
            for rank in verdict.ranks or (verdict.rank,):
                if rank in place:
                    yield place[rank], (verdict.first_step, verdict.last_step)
