"""Throttled group: finds ranks on several nodes whose GPUs are held back together, such as a rack under a power cap.

If the group contains whole stages of a job, its ranks have no peers of their role elsewhere. Neither their step times
nor their counters then differ from those of peers, and the stages look as if they had more work. The share of time for
which their clocks are throttled shows the cause.
"""

from __future__ import annotations

import math

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, Shape
from scheduler_feedback.core.verdict import Cause, Evidence, Kind
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.stats.medians import median
from scheduler_feedback.detectors.steps.places import LEAST_PEERS, Places
from scheduler_feedback.detectors.workload.attempt_history import Usual
from scheduler_feedback.detectors.workload.workload_claim import LEAST_SLOWDOWN, Claim

GROUP = "throttled"
"""Key of a claim (a suspected cause) about a throttled group."""

THROTTLED = 0.2
"""A GPU is held back if its clock is throttled for at least this share of the time more than those of the least
throttled quarter of the job, and lower than their clocks by LEAST_SLOWDOWN."""

NEARLY_ALL = 0.9
"""The group explains the slowness if at least this share of its ranks take longer, and of the other ranks do not."""

APART = 3.0
"""The group takes longer if its compute time grew at least this many times as much as that of the other ranks."""

CLOCK_SHARE = 0.5
"""Lower clocks must explain at least this share of the growth, as logarithms."""

CAUSES = {"power_throttle": Cause.POWER, "thermal_throttle": Cause.THERMAL}


def throttled_group(
    shape: Shape, where: Places, usual: Usual, shift: FloatArray, least: float, newest: Float32Array
) -> Claim | None:
    """Return a claim about the ranks whose GPUs are throttled, if they, and no other ranks, take longer; else None.

    They must be on several nodes, and other ranks must not be throttled: a single node is judged by other rules.
    usual: the job when it was new. shift: [n], increase of each rank's compute time in log seconds. least: smallest
    increase beyond chance. newest: [features, n], newest counters.
    """
    clocks = newest[FEATURE["sm_clock"]]
    for name, cause in CAUSES.items():
        shares = newest[FEATURE[name]]
        if not (np.isfinite(shares) & np.isfinite(clocks)).all():
            continue
        least_shares = float(np.quantile(shares, 0.25))
        free = float(median(clocks[shares <= least_shares]))
        inside = (shares >= least_shares + THROTTLED) & (clocks * LEAST_SLOWDOWN <= free)
        if int(inside.sum()) < LEAST_PEERS or len(set(where.index[inside].tolist())) < 2 or inside.all():
            continue
        grown, others = median(shift[inside]), abs(median(shift[~inside]))
        if grown < max(least, APART * others):
            continue
        if min((shift[inside] >= grown / 2).mean(), (shift[~inside] < grown / 2).mean()) < NEARLY_ALL:
            continue
        if math.log(free / median(clocks[inside])) < CLOCK_SHARE * grown:
            continue
        inside &= shift >= grown / 2  # others are throttled by chance
        ranks = tuple(shape.ranks[inside].tolist())
        evidence = (
            Evidence("compute_to_usual", math.exp(grown), math.exp(others), "ratio",
                     "growth since warm-up; the ranks that are not throttled have this",
                     log_odds.of_residual(grown / usual.sway)),
            Evidence(name, float(median(shares[inside])), float(median(shares[~inside])), "ratio",
                     "share of the time for which the clocks of the other ranks are throttled", 2.0),
            Evidence("sm_clock", float(median(clocks[inside])), free, "hertz",
                     "clocks of GPUs that are not throttled", 1.0),
        )  # fmt: skip
        return Claim(GROUP, Kind.STRAGGLER, cause, ranks[0], ranks, usual.seconds, evidence)
    return None
