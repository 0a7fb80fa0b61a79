"""Worth of a job's options, by ``Policy.sizes``. Each function has the objective of a published scheduler.

speedup     requested ranks x speed: the GPUs' worth of work that the gang does. A gang that is proportional to its
            ranks is worth its ranks; one that scales badly is worth less. (Voda's FfDL optimiser and ONES maximise
            the sum of speed-ups over one GPU; times the requested ranks, so that a large job counts as much as the
            small ones in its place.)
remaining   minus the remaining run time in seconds, so that a rank goes where it saves most time (Optimus: Peng et
            al., EuroSys'18, section 4.1).
goodput     least ranks x -(speed / least speed)^-1/2, so that a slow job gains most (Sia: Jayaram Subramanya et al.,
            SOSP'23, section 3.4, with its p of -1/2; batch sizes are the job's own, so goodput is speed).
"""

from __future__ import annotations

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Sizes
from scheduler_feedback.policies.sizes.options import Option

FAIRNESS = -0.5
"""Sia's p: the exponent of normalised goodput (its section 3.4 and its artifact's default)."""


def valued(sizes: Sizes, job: Job, options: list[Option], left_seconds: float) -> list[Option]:
    """Return the options with their values. left_seconds: remaining run time of the job at speed 1."""
    match sizes:
        case Sizes.REMAINING:
            return [one._replace(value=-left_seconds / one.speed) for one in options]
        case Sizes.GOODPUT:
            least = min((one.speed for one in options), default=1.0)
            weight = job.spec.min_ranks or job.spec.ranks
            return [one._replace(value=-weight * (one.speed / least) ** FAIRNESS) for one in options]
    return [one._replace(value=job.spec.ranks * one.speed) for one in options]


def reduced(sizes: Sizes, option: Option, share: float) -> Option:
    """Return the option after the cost of a restart. share: part of the time ahead in which the gang makes progress."""
    if sizes is Sizes.SPEEDUP:
        return option._replace(value=option.value * share)
    if sizes is Sizes.REMAINING:
        return option._replace(value=option.value / share)
    return option._replace(value=option.value * share**FAIRNESS)
