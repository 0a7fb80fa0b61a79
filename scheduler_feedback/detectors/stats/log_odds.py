"""From evidence to confidence: a prior and bounded log-likelihood ratios, added up.

Every constant here is a DEVELOPMENT VALUE, set by hand on synthetic gangs so that a clean fault is near certain and a
borderline one is not. They are to be fitted to judged verdicts (``gangwatch verdict confirm | reject``) once there are
some; until then the confidence orders verdicts rightly and is not a frequency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.counters.cause_attribution import CONTESTED_HINT, Attribution

PRIOR = -2.0
"""Of alarms that pass every gate about one in eight would be a straggler if nothing more were known."""

LEAST_CONFIDENCE = 0.5
"""Less likely than not is no verdict but an abstention."""

BOUND = 5.0
"""No single fact decides alone."""

SUSPENDED_SEEN = 2.0
CAUSE_CLEAR = 0.75
CAUSE_UNKNOWN = -1.0
COUNTERS_MISSING = -1.5
ROLE_UNKNOWN = -5.0
"""Slow from the start with no earlier attempt to compare: its part of the work may simply be larger. With this, no
verdict of that sort reaches the confidence that an action on a running job needs, unless the rank was seen stopped."""

ROLE_LAID_OUT = -2.0
"""The same where the job's layout says that its peers do the same work: uneven data is left as an explanation."""


def bounded(value: float, low: float = -BOUND, high: float = BOUND) -> float:
    """The value within bounds; 0 where it is not a number."""
    return 0.0 if math.isnan(value) else min(max(value, low), high)


def confidence(evidence: Iterable[Evidence], prior: float = PRIOR) -> float:
    """Probability that the verdict is right, given the evidence: in 0..1."""
    return 1.0 / (1.0 + math.exp(-(prior + sum(item.log_likelihood_ratio for item in evidence))))


def of_residual(sigmas: float) -> float:
    """Mean excess of the alarm interval in standard deviations: nothing below one, three from seven on."""
    return bounded(0.5 * (sigmas - 1.0), -1.0, 3.0)


def of_slowdown(slowdown: float) -> float:
    """What the job loses: against at the gate's 5 %, where chance reaches; two from 30 % on."""
    return bounded((slowdown - 1.10) * 10.0, -0.5, 2.0)


def of_waits(held: float, excess: float) -> float:
    """Whether the others wait longer for the suspect's excess: fully in a synchronous gang."""
    return bounded(2.0 * held / excess - 0.5, -2.0, 1.5) if excess > 0 else -2.0


def of_persistence(hits: int, windows: int) -> float:
    """Slow windows in the interval: more of them, and the larger their share."""
    return bounded(0.25 * (hits - 3) + 2.0 * hits / max(windows, 1) - 1.0, -1.0, 1.5)


def of_margin(gain: float, next_gain: float) -> float:
    """What the steps would gain without the suspect against the next best explanation."""
    if gain <= 0:
        return -2.0
    return bounded(math.log(gain / max(next_gain, 0.05 * gain)) - math.log(3.0), -2.0, 1.0)


def of_unrest(now: float, usual: float) -> float:
    """Peers that disagree far more than they used to: something else is going on."""
    return bounded(-0.75 * math.log(now / (2.0 * usual)), -1.5, 0.0) if now > 0 and usual > 0 else 0.0


def of_cause(attribution: Attribution, shared_machine: bool, from_start: bool) -> float:
    """How well the counters explain the excess. More work and slower work look alike from the start."""
    if not attribution.known:
        return COUNTERS_MISSING
    if attribution.cause is Cause.UNKNOWN:
        return 0.0 if attribution.on_device else CAUSE_UNKNOWN  # the device's counters are to say it
    if attribution.cause is Cause.SUSPENDED and attribution.stopped_again:
        return SUSPENDED_SEEN
    if from_start and attribution.cause is Cause.COMPUTE:
        return 0.0
    contested = attribution.contested_share
    doubt = 3.0 * (contested - CONTESTED_HINT) if shared_machine and contested > CONTESTED_HINT else 0.0
    return CAUSE_CLEAR - doubt
