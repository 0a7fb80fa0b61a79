"""Rotating slowness: refuses alarms in jobs whose ranks are slow one after the other.

Garbage collection stops each rank for a moment every few steps, each rank in different steps. A long document slows the
rank that processes it. By chance, one of sixteen ranks is then slow in most of a few windows. A faulty rank is slow in
nearly all windows, and stays slow.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler_feedback.core.verdict import Cause
from scheduler_feedback.detectors.straggler.alarm_case import Case, slow_windows
from scheduler_feedback.detectors.straggler.alarm_checks import Judgement

IN_TURN = {Cause.PAUSES: "pause in turn", Cause.SEQUENCE_LENGTH: "get longer sequences in turn"}
"""Causes within the job that slow its ranks one after the other, with the words that describe each cause."""

LEAST_WINDOWS = 12
LEAST_SHARE = 0.9
"""The slowest rank of such a job is slow in a third of the windows (ROTATING_SHARE allows a half). Eleven slow windows
of twelve occur by chance in 0.3 % of all intervals at a half, and in 5 of 100,000 at a third."""


def judged_by_rotation(judgement: Judgement, case: Case, turns: Cause | None) -> Judgement:
    """Refuse the judgement if rotating slowness can explain it.

    turns: cause of the job's active verdict about rotating slowness; None without such a verdict.
    """
    if judgement.refusal or turns is None or judgement.cause is not Cause.UNKNOWN:
        return judgement
    if turns is Cause.SEQUENCE_LENGTH and case.for_work:
        return judgement  # compute times are already normalised by work
    slow, windows = len(slow_windows(case.interval, case.rank)), len(case.interval)
    if windows >= LEAST_WINDOWS and slow >= LEAST_SHARE * windows:
        return judgement
    refusal = f"the job's ranks {IN_TURN[turns]}, and this rank was slow in only {slow} of {windows} windows"
    return replace(judgement, refusal=refusal, harmless=True)
