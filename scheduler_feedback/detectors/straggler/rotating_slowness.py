"""Turns: in a job whose ranks are slow one after the other, one that had its turn oftener is not at fault.

Collecting garbage stops a rank for a moment every so many steps, each in steps of its own; so does a long document,
whoever gets it. In some stretch of a few windows one of sixteen ranks is slow in most, by chance. A rank that is at
fault is slow in nearly all, and goes on.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler_feedback.core.verdict import Cause
from scheduler_feedback.detectors.straggler.alarm_checks import Case, Judgement, slow_windows

IN_TURN = {Cause.PAUSES: "pause in turn", Cause.SEQUENCE_LENGTH: "get longer sequences in turn"}
"""What a job does to itself that makes its ranks slow in turn."""

LEAST_WINDOWS = 12
LEAST_SHARE = 0.9
"""The slowest rank of such a job has a turn in a third of the windows (ROTATING_SHARE allows a half). Eleven slow ones
of twelve come by chance in 0.3 % of all stretches at a half, and in 5 of 100,000 at a third."""


def judged_by_turns(judgement: Judgement, case: Case, turns: Cause | None) -> Judgement:
    """The judgement, refused where a rank's turn may be all that it is. turns: what stands that makes the job's ranks
    slow in turn; None for nothing."""
    if judgement.refusal or turns is None or judgement.cause is not Cause.UNKNOWN:
        return judgement
    if turns is Cause.SEQUENCE_LENGTH and case.for_work:
        return judgement  # what it was given is taken into account
    slow, windows = len(slow_windows(case.interval, case.rank)), len(case.interval)
    if windows >= LEAST_WINDOWS and slow >= LEAST_SHARE * windows:
        return judgement
    refusal = f"the job's ranks {IN_TURN[turns]}, and this rank was slow in only {slow} of {windows} windows"
    return replace(judgement, refusal=refusal, harmless=True)
