"""Confidence in a verdict: computed from the weights of its evidence, each of which is bounded.

The weights are DEVELOPMENT VALUES. They were set by hand on synthetic gangs, so that a clean fault is near certain and
a borderline fault is not. For slow ranks without counters, a line is fitted that turns the sum of the weights into the
log odds of a right verdict (WITHOUT_COUNTERS). Verdicts with counters use the sum itself: with them, the confidence
ranks verdicts correctly, but it is not a measured frequency. It will be fitted to confirmed and rejected verdicts
(``gangwatch verdict confirm | reject``) once there are enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from scheduler_feedback.core.verdict import Cause, Evidence
from scheduler_feedback.detectors.counters.cause_attribution import CONTESTED_HINT, Attribution

PRIOR = -2.0
"""Log odds that an accused rank is a straggler, before any evidence: it is in one of eight alarms that pass all
checks."""

LEAST_CONFIDENCE = 0.5
"""An alarm with a lower confidence becomes an abstention instead of a verdict."""

ACTING_CONFIDENCE = 0.9
"""Actions on running jobs need at least this confidence (core/state.py). A straggler verdict with less is reported
again when it reaches this value."""

BOUND = 5.0
"""Upper limit of the weight of a single fact, so that no fact decides alone."""

SUSPENDED_SEEN = 2.0
"""Weight of samples that found the process of the rank stopped."""

CAUSE_CLEAR = 0.75
"""Weight of process counters that show a clear cause of the slowness."""

CAUSE_UNKNOWN = -1.0
"""Weight of process counters that show no clear cause. It is negative: the verdict becomes less certain."""

COUNTERS_MISSING = -1.5
"""Weight if process counters are missing. It is negative: the verdict becomes less certain."""

ROLE_UNKNOWN = -5.0
"""Weight against a rank that was slow from the start, if no earlier attempt shows its share of the work. It prevents
actions on a running job, unless samples found the rank stopped."""

ROLE_LAID_OUT = -2.0
"""Used instead of ROLE_UNKNOWN if the known layout of the job gives the peers the same work: then only uneven data can
explain the slowness."""

ROLE_OUTLIER = 0.5
"""Used instead of ROLE_LAID_OUT if the rank differs from its role far more than any other rank does from its own. Set
by hand (decision 77). On seeds 36000 to 36199 of `benchmarks.traces`, all 93 confident accusations were right."""

HANG_ENDED = -0.5
"""Weight against a hang of a recorded job that went on. The state of the rank's process is not recorded. With it, a
hang has a confidence of .97: on seeds 36000 to 36159 of ``benchmarks.traces --classes hang,long-step --waits known``,
80 of 80 hangs were right, and none of 80 innocent pauses of up to an hour was accused."""

STAGE_IS_NODE = -2.0
"""Weight against more work of one stage, if the whole stage is on one node whose counters are missing: the node may be
slow."""

JOB_IS_NODE = -2.0
"""Weight against more work of the whole job, if the whole job is on one node whose counters do not show more work: the
node may be slow."""

STAGE_OF_ONE = 0.0
"""Weight for more work of a stage with one rank, where several equal ranks would give 2: a slower GPU looks the same.
Clear cases then get a confidence of .73. On seeds 35000 to 35159 of `benchmarks.traces --layout deep`, 20 of 28 of them
were right."""

ROUTED_IN_TURN = -2.0
"""Weight against pauses in turn if the job routes tokens to experts and does not report them."""

OFFSET_APART = -2.0
"""Weight against more work of a rank with a constant offset that is far from all other ranks: its hardware may be
slow."""

WITHOUT_COUNTERS = (3.040, 0.314)
"""Offset and slope of the log odds that a verdict on a slow rank without counters is right, given the sum of its
weights. Fitted by ``python -m benchmarks.traces.fit --results FILE`` to seeds 64000 to 78082 (the file traces-64000 of
docs/measurements): 2,753 of 2,766 verdicts were right. Two fault classes and the other generators are held out."""

WITHOUT_WAITS = (-3.179, 0.902)
"""Offset and slope of the log odds that an accusation by counters alone is right, in a job without waits.
Fitted by ``python -m benchmarks.traces.fit --results FILE`` to seeds 200000 to 200287, 220000 to 220228 and 221000 to
221055 (the files traces-200000, traces-220000 and traces-221000 of docs/measurements): 135 of 138 were right."""

LEAST_FITTED = 4.0
"""The fitted line is used from this sum of weights on. Only one of the 2,766 verdicts had less: below it, the weights
themselves give the confidence."""


def bounded(value: float, low: float = -BOUND, high: float = BOUND) -> float:
    """Return the value, limited to the range from `low` to `high`; 0 if it is NaN."""
    return 0.0 if math.isnan(value) else min(max(value, low), high)


def confidence(evidence: Iterable[Evidence], prior: float = PRIOR, slope: float = 1.0) -> float:
    """Return the probability, in 0..1, that the verdict is right, given the evidence.

    prior: log odds without any evidence. slope: factor of the sum of the weights.
    """
    return 1.0 / (1.0 + math.exp(-(prior + slope * sum(item.log_likelihood_ratio for item in evidence))))


def without_counters(evidence: Iterable[Evidence]) -> float:
    """Return the confidence of a verdict on a slow rank without counters, by the fitted line where it holds."""
    items = tuple(evidence)
    total = sum(item.log_likelihood_ratio for item in items)
    return confidence(items, *WITHOUT_COUNTERS) if total >= LEAST_FITTED else confidence(items)


def without_waits(evidence: Iterable[Evidence]) -> float:
    """Return the confidence of an accusation by counters alone, in a job that reports no waits, by the fitted line."""
    return confidence(evidence, *WITHOUT_WAITS)


def of_residual(sigmas: float) -> float:
    """Return the weight of the rank's mean excess. It is 0 at one standard deviation, and 3 at seven or more."""
    return bounded(0.5 * (sigmas - 1.0), -1.0, 3.0)


def of_slowdown(slowdown: float) -> float:
    """Return the weight of the job's slowdown. It is negative near 5 %, which can be chance, and 2 at 30 % or more."""
    return bounded((slowdown - 1.10) * 10.0, -0.5, 2.0)


def of_waits(held: float, excess: float) -> float:
    """Return the weight of the other ranks' waits. In a synchronous gang the others wait for the suspect's whole excess
    time.

    held: time that the others wait because of the suspect. excess: excess time of the suspect.
    """
    return bounded(2.0 * held / excess - 0.5, -2.0, 1.5) if excess > 0 else -2.0


def of_persistence(hits: int, windows: int, own_past: bool) -> float:
    """Return the weight of the slow windows since the alarm began, by their number and their share of all windows.

    own_past: whether the rank is compared with its own healthy past. If not, the rank may always have more work, and
    many slow windows prove no more than a few.
    """
    return bounded(0.25 * (hits - 3) + 2.0 * hits / max(windows, 1) - 1.0, -1.0, 3.0 if own_past else 1.5)


def of_margin(gain: float, next_gain: float) -> float:
    """Return the weight of the time that steps would save without the suspect, compared with the next best suspect."""
    if gain <= 0:
        return -2.0
    return bounded(math.log(gain / max(next_gain, 0.05 * gain)) - math.log(3.0), -2.0, 1.0)


def of_spread(now: float, usual: float) -> float:
    """Return the weight of the spread among the peers. It is negative if the spread is much larger than usual, which
    indicates another problem."""
    return bounded(-0.75 * math.log(now / (2.0 * usual)), -1.5, 0.0) if now > 0 and usual > 0 else 0.0


def of_cause(attribution: Attribution, shared_machine: bool, from_start: bool) -> float:
    """Return the weight of how well the counters explain the excess. For a rank that was slow from the start, more work
    and a slower machine look the same."""
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
