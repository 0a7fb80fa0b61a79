"""Rotating slowness: refuses alarms in jobs whose ranks are slow one after the other.

Garbage collection stops each rank for a moment every few steps. A long document slows the rank that processes it. By
chance, one of sixteen ranks can then be slow in most of a few windows. A faulty rank is slow in nearly all windows, and
remains slow.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler_feedback.core.verdict import Cause
from scheduler_feedback.detectors.steps.shared_sequences import EXPLAINED_BY_WORK
from scheduler_feedback.detectors.straggler.alarm_case import Case, slow_windows
from scheduler_feedback.detectors.straggler.alarm_checks import Judgement

IN_TURN = {Cause.PAUSES: "pause in turn", Cause.SEQUENCE_LENGTH: "get longer sequences in turn"}
"""Causes within the job that slow its ranks one after the other, with the words that describe each cause."""

LEAST_WINDOWS = 12
"""In a job with rotating slowness, a rank is accused only after at least this many windows."""

NODE_WINDOWS = 2 * LEAST_WINDOWS
"""Used instead of LEAST_WINDOWS if all ranks of a node are slow and no counters are known. The ranks of a node share
its data loader, disks and caches, whose stalls last longer than work of single ranks."""

LEAST_SHARE = 0.9
"""In a job with rotating slowness, a rank is accused only if it is slow in at least this share of the windows. With
rotating slowness the slowest rank is slow in about a third of the windows; by chance it reaches this share in 5 of
100,000 alarms."""


def judged_by_rotation(judgement: Judgement, case: Case, turns: Cause | None) -> Judgement:
    """Return the judgement of an alarm, or a refusal if rotating slowness of the job can explain the alarm.

    turns: cause of the job's active verdict about rotating slowness; None if there is no such verdict.
    """
    if judgement.refusal or turns is None or judgement.cause not in EXPLAINED_BY_WORK:
        return judgement
    if turns is Cause.SEQUENCE_LENGTH and case.for_work:
        return judgement  # compute times are already normalised by work
    slow, windows = len(slow_windows(case.interval, case.rank)), len(case.interval)
    if windows >= LEAST_WINDOWS and slow >= LEAST_SHARE * windows:
        return judgement
    refusal = f"the job's ranks {IN_TURN[turns]}, and this rank was slow in only {slow} of {windows} windows"
    return replace(judgement, refusal=refusal, harmless=True)
