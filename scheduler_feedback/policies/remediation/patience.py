"""Patience: whether a gang had better wait and see before it is moved, for what is slow may end by itself.

Most faults are over in minutes, some never. The longer one has lasted, the longer it is likely to last; so a costly
move is put off until it is likely enough that the rest would cost more. To wait for T and only then to move costs

    W(T) = r * (time until T in which fault and gang both go on) + P(both go on at T) * cost,    W(0) = cost

with r what is lost in a second. The gang moves once no T has a W(T) below W(0). (Optimal stopping; were nothing known
of how long faults last it would be ski rental, Karlin et al. 1994: to wait until as much is lost as the move costs.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Estimates, State
from scheduler_feedback.policies.index import runtime_history
from scheduler_feedback.policies.queue.order.fair import work_done

LIFE_SIGMA = 2.0
"""Of the natural logarithm of how long faults last. Published lives go from under a minute to ten hours (Greyhound,
Wu et al., ATC'25), and a bad node stays bad until it is repaired: about a mean of half an hour, 95 of 100 lie between 5
seconds and three and a half hours then, and one that has lasted for a day is expected to go on for another."""

_HORIZONS = tuple(2.0 ** (half / 2) for half in range(48))
"""Waits that are weighed, in seconds: half octaves up to four months."""

_LEAST_GAIN = 1e-6
"""A wait has to be cheaper by more than rounding."""

Course = tuple[tuple[float, float, float], ...]
"""(wall seconds from now on, how many of them pass while fault and gang both go on, probability that both still do)."""


def course(
    lasts_on: Callable[[float], float], runs_on: Callable[[float], float], slowdown: float, whole_seconds: float
) -> Course:
    """What is to be expected of the next seconds.

    lasts_on: probability that the fault goes on for so many seconds more. runs_on: the same of the gang, by seconds of
    its work; work goes slowdown times as slowly meanwhile. whole_seconds: no wait is longer.
    """
    found: list[tuple[float, float, float]] = []
    at, alive, hurt = 0.0, 1.0, 0.0
    for horizon in _HORIZONS:
        seconds = min(horizon, whole_seconds)
        both = lasts_on(seconds) * runs_on(seconds / slowdown)
        hurt += (seconds - at) * (alive + both) / 2
        at, alive = seconds, both
        found.append((at, hurt, alive))
        if at >= whole_seconds or alive <= 0:
            break
    return tuple(found)


def best_wait(expected: Course, lost_in_a_second: float, cost_seconds: float) -> tuple[float, float] | None:
    """The wait that is cheapest, and what it is expected to cost, in seconds; None where it is to move now."""
    cheapest = min(
        ((lost_in_a_second * hurt + alive * cost_seconds, seconds) for seconds, hurt, alive in expected),
        default=(math.inf, 0.0),
    )
    if cheapest[0] >= cost_seconds * (1 - _LEAST_GAIN):
        return None
    return cheapest[1], cheapest[0]


def fault_goes_on(age_seconds: float, mean_seconds: float) -> Callable[[float], float]:
    """Of a fault that has lasted so long: the probability that it goes on for so many seconds more."""
    middle = math.log(mean_seconds) - LIFE_SIGMA**2 / 2
    now = _outlasts(age_seconds, middle)
    return lambda seconds: _outlasts(age_seconds + seconds, middle) / now if now > 0 else 1.0


def known_to_go_on(seconds: float) -> float:  # noqa: ARG001 - one of those that ``course`` asks
    """Of a fault of which it was said how long it lasts: it goes on until then."""
    return 1.0


def _outlasts(seconds: float, middle: float) -> float:
    return math.erfc((math.log(seconds) - middle) / (LIFE_SIGMA * math.sqrt(2))) / 2 if seconds > 0 else 1.0


def gang_goes_on(state: State, job: Job, remaining_seconds: float, now_ns: int) -> Callable[[float], float]:
    """The probability that the gang still runs after so many seconds of its work."""
    if state.policy.estimates is not Estimates.HISTORY:
        return lambda seconds: float(seconds < remaining_seconds)
    done = work_done(job, now_ns)
    spread = runtime_history.answers_of(state).spread(job.spec)
    return lambda seconds: runtime_history.outlives(spread, done, seconds)
