"""Analysis of a recording: the detectors' verdicts, and the step time that the job would have without the suspects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from agent.schema.verdicts.causes import Cause
from agent.schema.verdicts.kinds import ACCUSING
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import Shape, StepTable
from scheduler_feedback.core.verdict import Abstention, Cleared, Evidence, Finding, Kind, Verdict
from scheduler_feedback.detectors import make_detection
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.stats.log_odds import ACTING_CONFIDENCE
from scheduler_feedback.step_traces import Recording
from scheduler_feedback.step_traces.counterfactual import longest_of, slowdown_to_equal_peers, without_seconds
from scheduler_feedback.step_traces.operation_replay import Replay
from scheduler_feedback.step_traces.step_trace import Trace

IN_DOUBT = "windows_of_slowness"
"""Measure in the evidence of a rank that may still be healthy."""

SHORT = "the slowdown was short, and work of its own, such as a recompilation or a checkpoint, looks the same"
"""Reason to report an ended slowdown as unknown."""


@dataclass(slots=True)
class JobReport:
    """Verdicts and figures of one job of a recording with k steps of n ranks."""

    name: str
    """Name of the job in the recording."""
    shape: Shape
    """Ranks of the job, with their nodes and roles."""
    worker: bool = False
    """Whether the trace calls the members of the job workers instead of ranks."""
    notes: tuple[str, ...] = ()
    """Remarks of the reader, for example about ignored data."""
    verdicts: list[Verdict] = field(default_factory=list)
    """All verdicts, each as reported at its detected_step: when it was first reported, or, if its confidence was then
    too low to act on, when it first was high enough. A recording that ends at this step has the same verdict. Verdicts
    that a better verdict replaced, and those that ended unconfirmed, are not included."""
    latest: dict[str, Verdict] = field(default_factory=dict)
    """Newest version of each verdict, by id."""
    cleared: set[str] = field(default_factory=set)
    """Ids of the verdicts that ended within the recording."""
    unknown: list[Verdict] = field(default_factory=list)
    """Abstentions of the detectors, and verdicts that ended unconfirmed, as verdicts of kind UNKNOWN."""
    number: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Number of each step: int64 [k]."""
    seconds: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    """Length of each step on each rank: float64 [k, n]. The unit is that of the recording: seconds, or unknown. NaN if
    the length is unknown."""
    own_seconds: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    """Own part of each step on each rank (without the time spent waiting for others): float64 [k, n]. The unit is that
    of the recording: seconds, or unknown. NaN if the time is unknown."""
    slowdown: float = float("nan")
    """Mean step time divided by the mean step time that the job would have if all peers were equally fast."""
    step_seconds: float = float("nan")
    """Mean step time, in the unit of the recording."""
    without_suspects_seconds: float = float("nan")
    """Mean step time if each suspect had been as fast as the median of its peers for as long as it was accused."""


def judge(
    recording: Recording, switches: Switches | None = None, progress: Callable[[], None] = lambda: None
) -> list[JobReport]:
    """Replay the recording to the detectors, step by step, and return a report for each job.

    progress: called after each step, or after each second of recorded frames.
    """
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
        progress()
    for name, report in reports.items():
        report.unknown = [note for note in report.unknown if not _is_answered(note, report.verdicts)]
        _join_tables(report, tables.get(name, []))
        _close(report)
        _account(report, traces.get(name))
    return list(reports.values())


def _newest(tables: list[tuple[Shape, StepTable]] | None) -> int:
    return int(tables[-1][1].number[-1]) if tables else -1


def _take(report: JobReport, finding: Finding, step: int) -> None:
    """Add a result that was reported when `step` was the newest step."""
    if isinstance(finding, Verdict):
        _take_verdict(report, finding, step)
    elif isinstance(finding, Cleared):
        _take_cleared(report, finding, step)
    else:
        report.unknown.append(_as_verdict(finding, step))


def _take_verdict(report: JobReport, newer: Verdict, step: int) -> None:
    known = report.latest.get(newer.verdict_id)
    if known is None:
        detected = step if newer.detected_step < 0 else newer.detected_step
        report.latest[newer.verdict_id] = replace(newer, detected_step=detected)
        report.verdicts.append(report.latest[newer.verdict_id])
        return
    newer = replace(newer, first_step=min(known.first_step, newer.first_step))
    report.latest[newer.verdict_id] = replace(newer, detected_step=known.detected_step)
    index = next(i for i, one in enumerate(report.verdicts) if one.verdict_id == newer.verdict_id)
    reported = report.verdicts[index]
    if reported.confidence < ACTING_CONFIDENCE <= newer.confidence:
        report.verdicts[index] = replace(newer, detected_step=step)
    else:
        report.verdicts[index] = replace(reported, first_step=newer.first_step, last_step=newer.last_step)


def _take_cleared(report: JobReport, finding: Cleared, step: int) -> None:
    """End a verdict. Remove it if a better verdict explains the slowdown, or if it was never confirmed: then it is
    reported as unknown."""
    report.cleared.add(finding.verdict_id)
    if finding.last_step >= 0:
        _set_last_step(report, finding.verdict_id, finding.last_step)
    over = report.latest.get(finding.verdict_id)
    if over is None or (finding.confirmed and not finding.explained_by):
        return
    del report.latest[finding.verdict_id]
    report.verdicts = [one for one in report.verdicts if one.verdict_id != finding.verdict_id]
    if not finding.explained_by:
        ended = Evidence("reason", float("nan"), float("nan"), "", f"{finding.reason}: {SHORT}")
        evidence = (ended, *over.evidence)
        report.unknown.append(
            replace(over, kind=Kind.UNKNOWN, confidence=0.0, evidence=evidence, suspects=(), detected_step=step)
        )


def _is_answered(note: Verdict, verdicts: Sequence[Verdict]) -> bool:
    """Return whether a doubt about a rank ended with a verdict that names the rank and includes the doubt's step."""
    doubted = any(one.measure == IN_DOUBT for one in note.evidence)
    return doubted and any(
        note.rank in (verdict.rank, *verdict.ranks)
        and verdict.first_step <= note.detected_step <= verdict.detected_step
        for verdict in verdicts
    )


def _set_last_step(report: JobReport, verdict_id: str, step: int) -> None:
    if verdict_id in report.latest:
        report.latest[verdict_id] = replace(report.latest[verdict_id], last_step=step)
        report.verdicts = [
            replace(one, last_step=step) if one.verdict_id == verdict_id else one for one in report.verdicts
        ]


def _as_verdict(one: Abstention, step: int) -> Verdict:
    reason = Evidence("reason", float("nan"), float("nan"), "", one.reason)
    rank = -1 if one.rank is None else one.rank
    return Verdict(
        f"{one.gang}.{one.attempt}.unknown.{rank}.{step}", Kind.UNKNOWN, one.gang, one.attempt, rank, "",
        Cause.UNKNOWN, 0.0, 1.0, float("nan"), float("nan"), one.wall_ns, one.wall_ns, (reason, *one.evidence), (),
        one.detector, first_step=step, last_step=step, detected_step=step,
    )  # fmt: skip


def _join_tables(report: JobReport, tables: Sequence[tuple[Shape, StepTable]]) -> None:
    """Join the tables of a job's steps into one table, for the ranks that the job had at the end of the recording."""
    fitting = [table for shape, table in tables if (shape.ranks.tolist() == report.shape.ranks.tolist())]
    if not fitting:
        report.seconds = report.own_seconds = np.zeros((0, len(report.shape)))
        return
    report.number = np.concatenate([table.number for table in fitting])
    report.seconds = np.concatenate([table.seconds for table in fitting])
    report.own_seconds = report.seconds - np.concatenate([table.wait_seconds for table in fitting])


def _close(report: JobReport) -> None:
    """Set the last step of verdicts that were never cleared to the last step of the recording."""
    if len(report.number):
        for name, one in list(report.latest.items()):
            if name not in report.cleared and one.last_step >= 0:
                _set_last_step(report, name, int(report.number[-1]))


def _account(report: JobReport, trace: Trace | None) -> None:
    """Compute the job's loss: by replay if the trace contains operations; otherwise from each rank's time without
    waits."""
    longest = longest_of(report.seconds)
    if not np.isfinite(longest).any():
        return
    report.step_seconds = float(np.nanmean(longest))
    accused = _accused(report)
    if trace is not None and trace.operations is not None:
        replay = Replay(trace.operations)
        report.verdicts = [_with_cost_of_stage(one, report, replay) for one in report.verdicts]
        report.slowdown = report.step_seconds / replay.ideal_seconds()
        report.without_suspects_seconds = replay.without_seconds(accused) if accused else report.step_seconds
        return
    own = report.own_seconds
    report.slowdown = slowdown_to_equal_peers(report.seconds, own)
    report.without_suspects_seconds = without_seconds(report.shape, report.number, report.seconds, own, accused)


def _with_cost_of_stage(verdict: Verdict, report: JobReport, replay: Replay) -> Verdict:
    """Return a verdict about one unequal stage with the slowdown by replay; other verdicts unchanged.

    The longest own time underestimates it: a slow stage also delays the microbatches of the other stages.
    """
    places = [report.shape.place[rank] for rank in verdict.ranks if rank in report.shape.place]
    stages = set(report.shape.coordinate("stage")[places].tolist())
    if verdict.cause is not Cause.STAGE_PARTITION or len(stages) != 1:
        return verdict
    slowdown = replay.slowdown_by_stage(stages.pop())
    against = "if the computations of the stage took the usual time of their kind, by replay of all operations"
    evidence = Evidence("step_seconds_to_equal_stage", slowdown, 1.0, "ratio", against)
    return replace(verdict, slowdown=max(slowdown, 1.0), evidence=(*verdict.evidence, evidence))


def _accused(report: JobReport) -> dict[int, list[tuple[int, int]]]:
    """Return the first and last step of each accusation, by index of the accused rank."""
    place = report.shape.place
    found: dict[int, list[tuple[int, int]]] = {}
    for verdict in report.latest.values():
        if verdict.kind in ACCUSING:
            for rank in verdict.ranks or (verdict.rank,):
                if rank in place:
                    found.setdefault(place[rank], []).append((verdict.first_step, verdict.last_step))
    return found
