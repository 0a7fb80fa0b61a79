"""Own level: compares a rank that was slow from the start, and was never accused, with its own past.

Ranks of another GPU model, or with more work, are slower than their peers for the whole run. Compared with their
peers, their alarm would never end: they would count as slow ranks in the checks of every other alarm, and a fault of
their own would be part of the old alarm.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from scheduler_feedback.detectors.steps.baseline import SPREAD_FLOOR, Baseline, log_compute
from scheduler_feedback.detectors.steps.places import middle_of_others
from scheduler_feedback.detectors.straggler.gang_state import INTERVAL_WINDOWS, GangState


def note_refusal(watched: GangState, baseline: Baseline, rank: int, refused: bool) -> None:
    """Record since when the checks have refused the alarm of a rank that was slow from the start.

    refused: whether they refuse it in this window. A doubt that only time removes is not a refusal.
    """
    if baseline.from_start[rank] and refused:
        watched.refused_since.setdefault(rank, watched.counted)
    else:
        watched.refused_since.pop(rank, None)


def learn_levels(watched: GangState, baseline: Baseline, raised: Collection[int]) -> None:
    """Learn the own level of each rank whose alarm the checks have refused for INTERVAL_WINDOWS windows, and end the
    alarm.

    The level must be steady: the means of the first and the second half of these windows differ by less than the rank's
    usual spread. So a fault that grows stays an alarm. raised: indices of the alarmed ranks.
    """
    for rank in watched.refused_since.keys() - set(raised):
        del watched.refused_since[rank]
    old = [rank for rank, since in watched.refused_since.items() if watched.counted - since >= INTERVAL_WINDOWS]
    if not old or not baseline.final:
        return
    old = [rank for rank in old if rank not in watched.accused]
    newest = [judged.window.compute for judged in list(watched.history)[-INTERVAL_WINDOWS:]]
    if not old or len(newest) < INTERVAL_WINDOWS or any(not len(one) for one in newest):
        return
    logs = log_compute(np.array(newest), baseline.step_seconds)
    half = len(logs) // 2
    usual = log_compute(baseline.compute, baseline.step_seconds)
    shifts = [part.mean(axis=0) - usual for part in (logs[:half], logs[half:])]
    before, now = (shift - middle_of_others(shift, watched.where) for shift in shifts)
    steady = np.abs(now - before) < np.maximum(baseline.own_spread, SPREAD_FLOOR)
    known = [rank for rank in old if steady[rank]]
    if not known:
        return
    from_start, compute, reference = baseline.from_start.copy(), baseline.compute.copy(), baseline.reference.copy()
    from_start[known] = False
    compute[known] *= np.exp((before[known] + now[known]) / 2)
    change = np.zeros(len(compute))
    change[known] = np.log(compute[known] / reference[known])
    reference[known] = compute[known]
    watched.baseline = replace(baseline, from_start=from_start, compute=compute, reference=reference)
    watched.score[known] = 0.0
    watched.since[known] = -1
    watched.refused[known] = 0
    shifts = [shift - change for shift in watched.shifts]
    watched.shifts.clear()
    watched.middles.clear()
    for shift in shifts:
        watched.add_shift(shift)
    for judged in watched.history:
        judged.sigmas[known] = 0.0  # they compared the rank with its peers
    for rank in known:
        del watched.refused_since[rank]
