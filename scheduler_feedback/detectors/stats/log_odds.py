"""Confidence from evidence: the sum of a prior and bounded log-likelihood ratios.

Every constant here is a DEVELOPMENT VALUE, set by hand on synthetic gangs so that a clean fault is near certain and a
borderline fault is not. The constants will be fitted to confirmed and rejected verdicts (``gangwatch verdict confirm |
reject``) once there are enough. Until then the confidence ranks verdicts correctly but is not a frequency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.counters.cause_attribution import CONTESTED_HINT, Attribution

PRIOR = -2.0
"""Without further evidence, about one in eight alarms that pass all checks is a straggler."""

LEAST_CONFIDENCE = 0.5
"""Minimum confidence of a verdict. Below it the detector reports an abstention."""

ACTING_CONFIDENCE = 0.9
"""Least confidence for actions on running jobs (core/state.py). A straggler verdict with less is reported again when it
reaches this."""

BOUND = 5.0
"""Maximum log-likelihood ratio of a single fact, so that none decides alone."""

SUSPENDED_SEEN = 2.0
CAUSE_CLEAR = 0.75
CAUSE_UNKNOWN = -1.0
COUNTERS_MISSING = -1.5
ROLE_UNKNOWN = -5.0
"""Slow from the start, without an earlier attempt to compare with: the rank's share of the work may be larger. With
this, no such verdict reaches the confidence for actions on a running job, unless samples found the rank stopped."""

ROLE_LAID_OUT = -2.0
"""As ROLE_UNKNOWN, for a known layout in which the peers do the same work: only uneven data may explain it."""


def bounded(value: float, low: float = -BOUND, high: float = BOUND) -> float:
    """Return the value within bounds; 0 if it is NaN."""
    return 0.0 if math.isnan(value) else min(max(value, low), high)


def confidence(evidence: Iterable[Evidence], prior: float = PRIOR) -> float:
    """Return the probability, in 0..1, that the verdict is right, given the evidence."""
    return 1.0 / (1.0 + math.exp(-(prior + sum(item.log_likelihood_ratio for item in evidence))))


def of_residual(sigmas: float) -> float:
    """Weigh the mean excess of the alarm interval, in standard deviations: zero at one, three from seven on."""
    return bounded(0.5 * (sigmas - 1.0), -1.0, 3.0)


def of_slowdown(slowdown: float) -> float:
    """Weigh the job's slowdown: negative at the least slowdown of 5 %, which chance can reach; two from 30 % on."""
    return bounded((slowdown - 1.10) * 10.0, -0.5, 2.0)


def of_waits(held: float, excess: float) -> float:
    """Weigh whether the other ranks wait longer because of the suspect's excess. In a synchronous gang the other ranks
    wait for the whole excess."""
    return bounded(2.0 * held / excess - 0.5, -2.0, 1.5) if excess > 0 else -2.0


def of_persistence(hits: int, windows: int) -> float:
    """Weigh the slow windows of the interval, by their number and their share."""
    return bounded(0.25 * (hits - 3) + 2.0 * hits / max(windows, 1) - 1.0, -1.0, 1.5)


def of_margin(gain: float, next_gain: float) -> float:
    """Weigh the gain of the steps without the suspect against the next best explanation."""
    if gain <= 0:
        return -2.0
    return bounded(math.log(gain / max(next_gain, 0.05 * gain)) - math.log(3.0), -2.0, 1.0)


def of_spread(now: float, usual: float) -> float:
    """Weigh a spread of the peers that is much larger than usual: it indicates another problem."""
    return bounded(-0.75 * math.log(now / (2.0 * usual)), -1.5, 0.0) if now > 0 and usual > 0 else 0.0


def of_cause(attribution: Attribution, shared_machine: bool, from_start: bool) -> float:
    """Weigh how well the counters explain the excess. From the start, more work and slower work look the same."""
    if not attribution.known:
        return COUNTERS_MISSING
    if attribution.cause is Cause.UNKNOWN:
        return 0.0 if attribution.on_device else CAUSE_UNKNOWN  # the GPU counters show the cause
    if attribution.cause is Cause.SUSPENDED and attribution.stopped_again:
        return SUSPENDED_SEEN
    if from_start and attribution.cause is Cause.COMPUTE:
        return 0.0
    contested = attribution.contested_share
    doubt = 3.0 * (contested - CONTESTED_HINT) if shared_machine and contested > CONTESTED_HINT else 0.0
    return CAUSE_CLEAR - doubt
