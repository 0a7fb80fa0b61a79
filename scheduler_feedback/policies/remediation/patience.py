"""Patience: whether a gang should wait before it is moved, because the fault may end soon.

Most faults end within minutes, some never. The longer a fault has lasted, the longer it is likely to last. So a costly
move is delayed until the rest of the fault is likely to cost more than the move. To wait for T and then move costs

    W(T) = r * (time until T in which fault and gang both continue) + P(both continue at T) * cost,    W(0) = cost

where r is the loss per second. The gang moves once no T has a W(T) below W(0). (This is a problem of optimal stopping.
If nothing were known about the duration of faults, the best rule would be to wait until the loss equals the cost of the
move: the ski rental problem, Karlin et al. 1994.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Estimates, State
from scheduler_feedback.policies.index import runtime_history
from scheduler_feedback.policies.index.runtime_estimate import work_done

LIFE_SIGMA = 2.0
"""Standard deviation of the natural logarithm of a fault's duration. Published durations range from under a minute to
ten hours (Greyhound, Wu et al., ATC'25), and a bad node stays bad until it is repaired. With a mean of half an hour, 95
of 100 faults last between 5 seconds and three and a half hours. A fault of a day is expected to last another day."""

_HORIZONS = tuple(2.0 ** (half / 2) for half in range(48))
"""Waits before a move that are compared, in seconds: from 1 s to four months, each sqrt(2) times the one before."""

_LEAST_GAIN = 1e-6
"""A gang waits before a move only if the wait is expected to save at least this share of the cost of moving now. A
smaller saving may be a rounding error."""

Course = tuple[tuple[float, float, float], ...]
"""Expected course of a fault and its gang, as one tuple for each possible wait before a move: (wait in seconds,
expected part of the wait in which both continue, in seconds, probability that both still continue at its end)."""


def course(
    lasts_on: Callable[[float], float], runs_on: Callable[[float], float], slowdown: float, whole_seconds: float
) -> Course:
    """Return the probabilities that fault and gang still continue after each of several waits.

    lasts_on: returns the probability that the fault continues for this many seconds. runs_on: returns the same for the
    gang, for this many seconds of its work at full speed. whole_seconds: maximum wait.
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
    """Return the best wait before a move and its expected cost, both in seconds; None if the gang should move now.

    lost_in_a_second: seconds that the gang loses in each second of the fault. cost_seconds: cost of the move.
    """
    cheapest = min(
        ((lost_in_a_second * hurt + alive * cost_seconds, seconds) for seconds, hurt, alive in expected),
        default=(math.inf, 0.0),
    )
    if cheapest[0] >= cost_seconds * (1 - _LEAST_GAIN):
        return None
    return cheapest[1], cheapest[0]


def fault_goes_on(age_seconds: float, mean_seconds: float) -> Callable[[float], float]:
    """Return a function that gives the probability that a fault of this age continues for a number of seconds."""
    middle = math.log(mean_seconds) - LIFE_SIGMA**2 / 2
    now = _outlasts(age_seconds, middle)
    return lambda seconds: _outlasts(age_seconds + seconds, middle) / now if now > 0 else 1.0


def known_to_go_on(seconds: float) -> float:  # noqa: ARG001 - signature of ``course``
    """Return 1.0, because a fault of known duration continues until its known end."""
    return 1.0


def _outlasts(seconds: float, middle: float) -> float:
    return math.erfc((math.log(seconds) - middle) / (LIFE_SIGMA * math.sqrt(2))) / 2 if seconds > 0 else 1.0


def gang_goes_on(state: State, job: Job, remaining_seconds: float, now_ns: int) -> Callable[[float], float]:
    """Return a function that gives the probability that the gang still runs after a number of seconds of its work."""
    if state.policy.estimates is not Estimates.HISTORY:
        return lambda seconds: float(seconds < remaining_seconds)
    done = work_done(job, now_ns)
    spread = runtime_history.answers_of(state).spread(job.spec)
    return lambda seconds: runtime_history.outlives(spread, done, seconds)
