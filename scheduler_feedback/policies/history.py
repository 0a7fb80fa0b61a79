"""History: how long jobs alike have run, and what that says of one that has run so long already.

Run times spread over six decades, so they are counted in bins of half an octave. What is known of jobs alike in queue,
user, workload and size is mixed with what is known of wider and wider kinds, the more the fewer there were: as if each
wider kind had been seen _WEIGHT times. Old ones fade: people train in bursts of the like.

``expense`` is what to expect to spend on a job for it to end: GPU-seconds for each end, over the best stretch of time
that it could be given (the reciprocal of the Gittins index, the order without preemption cost that gives the least mean
completion time where only distributions are known; Gittins 1979; Aalto, Ayesta, Righter 2009). A kind of known length
is served shortest first by it; one of wide spread is tried for a while, and then stands back.
"""

from __future__ import annotations

import math
from itertools import pairwise

from scheduler_feedback.core.job import Job, JobSpec
from scheduler_feedback.core.state import Ended, State

BINS = 56
"""Half octaves from 1 s on: up to 2^28 s, eight years."""

_EDGES: tuple[float, ...] = tuple(2.0 ** (number / 2) for number in range(BINS + 1))
_MIDDLES = tuple((low * high) ** 0.5 for low, high in pairwise(_EDGES))
_WEIGHT = 4.0
_FADING = 0.97
"""Of a count, for each later one of its kind: the last 33 make up two thirds of it."""

Spread = tuple[float, ...]


def bin_of(seconds: float) -> int:
    """The bin of a run time."""
    squared = int(seconds * seconds)
    return min(max(squared.bit_length() - 1, 0), BINS - 1)


def kinds(spec: JobSpec | Ended) -> tuple[str, ...]:
    """The kinds that the job is of, from the narrowest to all."""
    alike = f"{spec.queue}|{spec.user}|{spec.workload}"
    return (f"{alike}|{spec.ranks}", alike, f"|||{spec.ranks}", "")


def learn(state: State, job: Job, seconds: float) -> None:
    """The job has ended after so much work; it counts from the next ``take_in`` on."""
    spec = job.spec
    state.lately.append(Ended(spec.queue, spec.user, spec.workload, spec.ranks, seconds))


def take_in(state: State) -> None:
    """Count those that have ended lately. Between two calls every answer about the same job is the same."""
    for ended in state.lately:
        number = bin_of(ended.seconds)
        for kind in kinds(ended):
            counts = state.history.get(kind)
            if counts is None:
                counts = state.history[kind] = [0.0] * BINS
            if kind:
                for index, count in enumerate(counts):
                    if count:
                        counts[index] = count * _FADING
            counts[number] += 1.0
    state.lately.clear()


class Answers:
    """What the history says, kept until more is taken in."""

    __slots__ = ("_expenses", "_spreads", "_state", "taken_in_ns")

    def __init__(self, state: State) -> None:
        self._state = state
        self.taken_in_ns = state.renewed_ns
        self._spreads: dict[str, Spread] = {}
        self._expenses: dict[tuple[str, int, float], float] = {}

    def spread(self, spec: JobSpec) -> Spread:
        """How likely each bin is for the job's whole run time."""
        own = kinds(spec)
        found = self._spreads.get(own[0])
        if found is None:
            likely = [1.0 / BINS] * BINS
            for kind in reversed(own):
                counts = self._state.history.get(kind)
                if counts is not None:
                    total = sum(counts) + _WEIGHT
                    likely = [(count + _WEIGHT * p) / total for count, p in zip(counts, likely, strict=True)]
            found = self._spreads[own[0]] = tuple(likely)
        return found

    def expense(self, spec: JobSpec, done_seconds: float, restart_seconds: float) -> float:
        """``expense`` of the job, what is done taken in steps of an eighth of an octave."""
        step = round(math.log2(done_seconds) * 8) if done_seconds > 1 else 0
        kind = (kinds(spec)[0], step, restart_seconds)
        found = self._expenses.get(kind)
        if found is None:
            done = 2.0 ** (step / 8) if step else 0.0
            found = self._expenses[kind] = expense(self.spread(spec), done, restart_seconds)
        return found


def answers_of(state: State) -> Answers:
    """The answers for the state's history as it was last taken in."""
    kept = getattr(state, "remembered", None)
    if not isinstance(kept, Answers) or kept.taken_in_ns != state.renewed_ns:
        kept = state.remembered = Answers(state)
    return kept


def expense(spread: Spread, done_seconds: float, restart_seconds: float = 0.0) -> float:
    """Seconds to be spent for each end, over the best stretch from here on. restart_seconds: spent before any work."""
    best = float("inf")
    ended = spent = 0.0
    alive, first = _alive(spread, done_seconds)
    if alive <= 0:
        return max(done_seconds, 1.0) * 2 + restart_seconds
    for number in range(first, BINS):
        likely = spread[number]
        low = max(_EDGES[number], done_seconds)
        if number == first and done_seconds > _EDGES[number]:
            likely *= (_EDGES[number + 1] - done_seconds) / (_EDGES[number + 1] - _EDGES[number])
        # Those that end in this bin spend half of it, those that outlive it all of it.
        width = _EDGES[number + 1] - low
        spent += likely * width / 2 + (alive - ended - likely) * width
        ended += likely
        if ended > 1e-9 * alive:
            best = min(best, (spent + restart_seconds * alive) / ended)
    return best


def _alive(spread: Spread, done_seconds: float) -> tuple[float, int]:
    """How likely a run time above what is done is, and the first bin of it."""
    first = bin_of(done_seconds) if done_seconds >= 1 else 0
    alive = sum(spread[first + 1 :])
    low, high = _EDGES[first], _EDGES[first + 1]
    return alive + spread[first] * min((high - done_seconds) / (high - low), 1.0), first


def quantile(spread: Spread, done_seconds: float, share: float) -> float:
    """The run time in all that this share of those who have run so long already does not pass, in seconds."""
    alive, first = _alive(spread, done_seconds)
    if alive <= 0:
        return max(done_seconds, 1.0) * 2
    passed = 0.0
    for number in range(first, BINS):
        likely = spread[number]
        if number == first and done_seconds > _EDGES[number]:
            likely *= (_EDGES[number + 1] - done_seconds) / (_EDGES[number + 1] - _EDGES[number])
        passed += likely
        if passed >= share * alive:
            return max(_MIDDLES[number], (done_seconds + _EDGES[number + 1]) / 2)
    return _EDGES[BINS]
