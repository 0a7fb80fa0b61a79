"""Judging a recording: what the detectors say, read as a stream, and what the job would be without the suspects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import Shape, StepTable
from scheduler_feedback.core.verdict import OF_HARDWARE, Abstention, Cleared, Finding, Kind, Verdict
from scheduler_feedback.detectors import make_all
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.steps.windows import places
from scheduler_feedback.step_traces import Recording
from scheduler_feedback.step_traces.operation_replay import Replay
from scheduler_feedback.step_traces.trace import Trace


@dataclass(slots=True)
class JobReport:
    """One job of a recording.

    verdicts: as they stood at the end, each told first at its detected_step; cleared: ids of those that ended within
    the recording. unknown: what a detector saw and could not explain, as verdicts of kind UNKNOWN.
    number: int64 [k]; seconds, own_seconds: float64 [k, n], NaN where unknown.
    slowdown: mean step over the step in which all peers take equal time. without_suspects_seconds: mean step with the
    suspects at their peers' median, in the steps in which they are suspected.
    """

    name: str
    shape: Shape
    worker: bool = False
    notes: tuple[str, ...] = ()
    verdicts: list[Verdict] = field(default_factory=list)
    cleared: set[str] = field(default_factory=set)
    unknown: list[Verdict] = field(default_factory=list)
    number: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    seconds: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    own_seconds: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    slowdown: float = float("nan")
    step_seconds: float = float("nan")
    without_suspects_seconds: float = float("nan")


def judge(recording: Recording, switches: Switches | None = None) -> list[JobReport]:
    """Show the recording to the detectors, step by step, and report on each job in it."""
    reports: dict[str, JobReport] = {}
    traces = {trace.name: trace for trace in recording.traces}
    tables: dict[str, list[tuple[Shape, StepTable]]] = {}
    detectors = make_all(recording.timed, switches)
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
        for detector in detectors:
            for finding in detector.tick(telemetry):
                if finding.gang in reports:
                    _take(reports[finding.gang], finding, _newest(tables.get(finding.gang)))
    for name, report in reports.items():
        _lay_out(report, tables.get(name, []))
        _close(report)
        _account(report, traces.get(name))
    return list(reports.values())


def _newest(tables: list[tuple[Shape, StepTable]] | None) -> int:
    return int(tables[-1][1].number[-1]) if tables else -1


def _take(report: JobReport, finding: Finding, step: int) -> None:
    if isinstance(finding, Verdict):
        for index, known in enumerate(report.verdicts):
            if known.verdict_id == finding.verdict_id:  # told again, with more
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


def _as_verdict(told: Abstention, step: int) -> Verdict:
    from scheduler_feedback.core.verdict import Cause, Evidence

    reason = Evidence("reason", float("nan"), float("nan"), "", told.reason)
    rank = -1 if told.rank is None else told.rank
    return Verdict(
        f"{told.gang}.{told.attempt}.unknown.{rank}.{step}", Kind.UNKNOWN, told.gang, told.attempt, rank, "",
        Cause.UNKNOWN, 0.0, 1.0, float("nan"), float("nan"), told.wall_ns, told.wall_ns, (reason, *told.evidence), (),
        told.detector, first_step=step, last_step=step, detected_step=step,
    )  # fmt: skip


def _lay_out(report: JobReport, tables: Sequence[tuple[Shape, StepTable]]) -> None:
    """All steps of the ranks that the job ended with, in one table."""
    fitting = [table for shape, table in tables if (shape.ranks.tolist() == report.shape.ranks.tolist())]
    if not fitting:
        report.seconds = report.own_seconds = np.zeros((0, len(report.shape)))
        return
    report.number = np.concatenate([table.number for table in fitting])
    report.seconds = np.concatenate([table.seconds for table in fitting])
    report.own_seconds = report.seconds - np.concatenate([table.wait_seconds for table in fitting])


def _close(report: JobReport) -> None:
    """A verdict that was never cleared lasts to the end."""
    if len(report.number):
        last = int(report.number[-1])
        report.verdicts = [
            one if one.verdict_id in report.cleared or one.last_step < 0 else replace(one, last_step=last)
            for one in report.verdicts
        ]


def _account(report: JobReport, trace: Trace | None) -> None:
    """What the job lost: by replay where operations were traced, else by the ranks' own times."""
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
    """Index of each accused rank, and the steps in which it is accused."""
    place = {int(rank): index for index, rank in enumerate(report.shape.ranks.tolist())}
    for verdict in report.verdicts:
        if verdict.kind in OF_HARDWARE:
            for rank in verdict.ranks or (verdict.rank,):
                if rank in place:
                    yield place[rank], (verdict.first_step, verdict.last_step)
