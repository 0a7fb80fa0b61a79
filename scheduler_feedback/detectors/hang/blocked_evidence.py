"""Reports of blocked ranks as evidence for a hang: which collective is incomplete, and where each rank is blocked.

An agent asks a rank that makes no progress where it is blocked (core/telemetry/steps/blocked_ranks.py). Two equal
answers of the culprit and of a waiting rank permit an early verdict. An early verdict only informs: a healthy job may
pause as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from agent.schema.process_state import ProcessState
from scheduler_feedback.core.telemetry.steps.blocked_ranks import Blocked
from scheduler_feedback.core.telemetry.steps.gang_attempts import IntArray
from scheduler_feedback.core.telemetry.telemetry import IndexArray, JobTelemetry
from scheduler_feedback.core.verdict import Evidence
from scheduler_feedback.core.verdict_text import spans_of
from scheduler_feedback.detectors.hang.process_evidence import is_idle
from scheduler_feedback.detectors.stats import log_odds

EARLY_SECONDS = 10.0
"""An early verdict is possible after this time in seconds without a step. The agent asks after 5 s and again after 9 s;
the sum of all delays must stay below 15 s."""

EARLY_CONFIDENCE = 0.85
"""Confidence of an early verdict: below Policy.minimum_confidence and hang.py's CONFIDENT, so that nothing acts on
it."""

SAME_REPORTS = 2
"""Number of equal reports after which a rank counts as blocked."""

PAIRWISE = ("send", "recv")
"""Parts of the names of operations between two ranks."""

MOST_PLACES = 4
"""Maximum number of places that a sentence lists."""


def current(job: JobTelemetry, finished_ns: int) -> Mapping[int, Blocked]:
    """Return the reports, by rank, that are newer than the job's newest finished step."""
    if job.blocked is None:
        return {}
    return {rank: report for rank, report in job.blocked().items() if report.at_ns > finished_ns}


def confirms(
    job: JobTelemetry, reports: Mapping[int, Blocked], suspects: Sequence[int], states: IntArray, now_ns: int
) -> bool:
    """Return whether the reports permit an early verdict on these ranks.

    Each suspect, and at least one rank in a collective, must have been at the same place twice. No suspect may seem to
    work: it must not use a CPU (unless it computes on a GPU) or wait for a disk.
    """
    shape = job.shape
    for rank in suspects:
        report = reports.get(rank)
        if report is None or report.reports < SAME_REPORTS:
            return False
        who = shape.place[rank]
        if states[who] == ProcessState.UNINTERRUPTIBLE:
            return False
        on_gpu = bool(shape.gpus and shape.gpus[who])
        if states[who] == ProcessState.RUNNING and not on_gpu and not is_idle(job, who, now_ns):
            return False
    others = (report for rank, report in reports.items() if rank not in suspects and rank in shape.place)
    return any(report.answered and report.reports >= SAME_REPORTS for report in others)


def capped(evidence: tuple[Evidence, ...], stalled_seconds: float, usual_wait_seconds: float) -> tuple[Evidence, ...]:
    """Return the evidence with a fact that lowers the confidence to at most EARLY_CONFIDENCE.

    usual_wait_seconds: time without a step after which the verdict is no longer early.
    """
    now, most = log_odds.confidence(evidence), EARLY_CONFIDENCE
    if now <= most:
        return evidence
    weight = float(np.log(most / (1 - most)) - np.log(now / (1 - now)))
    words = "time without a step after which the verdict may cause a restart"
    return (*evidence, Evidence("early", stalled_seconds, usual_wait_seconds, "seconds", words, weight))


def behind(reports: Mapping[int, Blocked], ranks: IntArray) -> IndexArray | None:
    """Return the indices of the ranks whose collective is earlier than the newest one of the same group.

    None if a rank has not reported its collective's group and number: then only the ranks' own numbers are known.
    """
    newest: dict[str, int] = {}
    places: list[tuple[str, int]] = []
    for rank in ranks.tolist():
        report = reports.get(rank)
        if report is None or report.sequence is None or not report.group:
            return None
        places.append((report.group, report.sequence))
        newest[report.group] = max(newest.get(report.group, 0), report.sequence)
    return np.array([k for k, (group, number) in enumerate(places) if number < newest[group]], np.intp)


def all_wait(reports: Mapping[int, Blocked], ranks: IntArray) -> bool:
    """Return whether each rank was twice at the same place in a collective. No rank then works outside of collectives,
    so that no pause of a healthy job explains it."""
    found = [reports.get(rank) for rank in ranks.tolist()]
    return all(one is not None and one.answered and one.in_collective and one.reports >= SAME_REPORTS for one in found)


def in_another_operation(reports: Mapping[int, Blocked], ranks: IntArray) -> IndexArray:
    """Return the indices of the ranks that called another operation than most ranks of their group, with the same
    number; empty if no group has a majority, or a rank's operation is unknown. Pairs that send and receive differ
    anyway."""
    calls: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for index, rank in enumerate(ranks.tolist()):
        one = reports.get(rank)
        if one is None or one.sequence is None or not one.group or any(word in one.operation for word in PAIRWISE):
            return np.zeros(0, np.intp)
        calls.setdefault((one.group, one.sequence), []).append((one.operation, index))
    found: list[int] = []
    for called in calls.values():
        usual, count = Counter(operation for operation, _ in called).most_common(1)[0]
        if 2 * count > len(called):
            found += [index for operation, index in called if operation != usual]
    return np.array(sorted(found), np.intp)


def blocked_at(job: JobTelemetry, reports: Mapping[int, Blocked], suspects: Sequence[int]) -> tuple[Evidence, ...]:
    """Return where the ranks are blocked as evidence without weight, the suspects first; empty without reports."""
    known = {rank: report for rank, report in reports.items() if rank in job.shape.place}
    if not known:
        return ()
    words = "; ".join([in_words(known, suspects), *_communicators(known)])
    return (Evidence("blocked_at", float(len(known)), float(len(job.shape)), "ranks", words),)


def _communicators(reports: Mapping[int, Blocked]) -> list[str]:
    """Return what NCCL's RAS reports, of the first rank that has it. Every rank's RAS collects the state of all."""
    found = (report.communicators for _, report in sorted(reports.items()) if report.communicators)
    return [f"NCCL reports: {words}" for words in list(found)[:1]]


def in_words(reports: Mapping[int, Blocked], suspects: Sequence[int]) -> str:
    """Return one sentence: where the suspects and the other ranks are blocked.

    Example: "rank 1 is blocked at train.py:42 in load; ranks 0,2-3 wait in allreduce number 17 of group 0 (ranks 0-3),
    at train.py:50 in main".
    """
    by_place: dict[tuple[bool, tuple[str, str]], list[int]] = {}
    for rank, report in sorted(reports.items()):
        by_place.setdefault((rank not in suspects, _place(report)), []).append(rank)
    order = sorted(by_place.items(), key=lambda entry: (entry[0][0], -len(entry[1]), entry[1]))
    parts = [
        f"rank{'s' if len(ranks) > 1 else ''} {spans_of(ranks)} {place[len(ranks) > 1]}"
        for (_, place), ranks in order[:MOST_PLACES]
    ]
    rest = sum(len(ranks) for _, ranks in order[MOST_PLACES:])
    return "; ".join([*parts, f"{rest} other ranks elsewhere"] if rest else parts)


def _place(report: Blocked) -> tuple[str, str]:
    """Return where a rank is, as a predicate in singular and in plural."""
    if not report.answered:
        words = "not answer (stopped, or a C call holds Python's interpreter lock)"
        return f"does {words}", f"do {words}"
    at = f" at {report.where}" if report.where else ""
    if not report.in_collective:
        return f"is blocked{at}", f"are blocked{at}"
    number = "" if report.sequence is None else f" number {report.sequence}"
    group = f" of group {report.group}" if report.group else ""
    members = f" (ranks {report.group_ranks})" if report.group_ranks else ""
    words = f"in {report.operation}{number}{group}{members}{',' if at else ''}{at}"
    return f"waits {words}", f"wait {words}"
