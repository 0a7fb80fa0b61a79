"""History: how long jobs alike have run, and what that says of one that has run so long already.

Run times spread over six decades, so they are counted in bins of half an octave. Which jobs are alike is not given: in
one cluster the last job of the same queue and size says most, in another nothing but all jobs together says anything.
So several kinds are counted side by side, narrow and wide, fast and slow to forget, and each is believed by how well it
foretold those that have ended since (Bayesian mixture, weights by faded log likelihood; Herbster, Warmuth, "Tracking
the Best Expert", 1998).

``expense`` is what to expect to spend on a job for it to end: GPU-seconds for each end, over the best stretch of time
that it could be given (the reciprocal of the Gittins index, the order without preemption cost that gives the least mean
completion time where only distributions are known; Gittins 1979; Aalto, Ayesta, Righter 2009). A kind of known length
is served shortest first by it; one of wide spread is tried for a while, and then stands back.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.job import Job, JobSpec
from scheduler_feedback.core.state import Ended, State

BINS = 56
"""Half octaves from 1 s on: up to 2^28 s, eight years."""

Spread = npt.NDArray[np.float64]
"""How likely each bin is."""

_EDGES: Spread = 2.0 ** (np.arange(BINS + 1) / 2)
_MIDDLES: Spread = np.sqrt(_EDGES[:-1] * _EDGES[1:])
_NEVER = (0.0,) * BINS
_WEIGHT = 2.0
"""A kind is believed as if all jobs together had been seen so many times in it: the first few of a kind say little."""

_SCORE_FADING = 0.995
"""Of a log likelihood, for each later job: the last 200 decide whom to believe."""

KINDS = (("kind, lately", 0.8), ("kind", 0.98), ("who", 0.98), ("size", 0.995), ("all", 1.0))
"""(what is alike, how much of a count is left for each later one)."""


def bin_of(seconds: float) -> int:
    """The bin of a run time."""
    squared = int(seconds * seconds)
    return min(max(squared.bit_length() - 1, 0), BINS - 1)


def kinds(spec: JobSpec | Ended) -> tuple[str, ...]:
    """The job's kinds, in the order of KINDS."""
    who = f"{spec.queue}|{spec.user}|{spec.workload}"
    return (f"lately {who}|{spec.ranks}", f"{who}|{spec.ranks}", who, f"{spec.ranks}", "")


def learn(state: State, job: Job, seconds: float) -> None:
    """The job has ended after so much work; it counts from the next ``take_in`` on."""
    spec = job.spec
    state.lately.append(Ended(spec.queue, spec.user, spec.workload, spec.ranks, seconds))


def take_in(state: State) -> None:
    """Count those that have ended lately. Between two calls every answer about the same job is the same."""
    if not state.trust:
        state.trust = [0.0] * len(KINDS)
    for ended in state.lately:
        number = bin_of(ended.seconds)
        own = kinds(ended)
        base = _base(state)
        for index, (kind, (_, fading)) in enumerate(zip(own, KINDS, strict=True)):
            counts = state.history.get(kind)
            if counts is None:
                counts = state.history[kind] = [0.0] * BINS
            foretold = (counts[number] + _WEIGHT * float(base[number])) / (sum(counts) + _WEIGHT)
            state.trust[index] = state.trust[index] * _SCORE_FADING + math.log(foretold)
            if fading < 1:
                for other, count in enumerate(counts):
                    if count:
                        counts[other] = count * fading
            counts[number] += 1.0
    state.lately.clear()


def _base(state: State) -> Spread:
    """How likely each bin is for any job: all that ever ended, and one more that could have been of any length."""
    counts = np.array(state.history.get("", _NEVER))
    return (counts + 1.0 / BINS) / (_total(counts) + 1.0)


def _total(counts: Spread) -> float:
    """The sum, added up in order: alike on every machine."""
    return float(np.cumsum(counts)[-1])


class Answers:
    """What the history says, kept until more is taken in."""

    __slots__ = ("_base", "_expenses", "_quantiles", "_spreads", "_state", "_trust", "taken_in_ns")

    def __init__(self, state: State) -> None:
        self._state = state
        self.taken_in_ns = state.renewed_ns
        self._spreads: dict[str, Spread] = {}
        self._expenses: dict[tuple[str, int, float], float] = {}
        self._quantiles: dict[tuple[str, int, float], float] = {}
        self._base = _base(state)
        scores = state.trust or [0.0] * len(KINDS)
        weights = [math.exp(score - max(scores)) for score in scores]
        self._trust = [weight / sum(weights) for weight in weights]

    def spread(self, spec: JobSpec) -> Spread:
        """How likely each bin is for the job's whole run time."""
        own = kinds(spec)
        found = self._spreads.get(own[0])
        if found is None:
            found = np.zeros(BINS)
            for kind, trust in zip(own, self._trust, strict=True):
                counts = np.array(self._state.history.get(kind, _NEVER))
                found += trust / (_total(counts) + _WEIGHT) * (counts + _WEIGHT * self._base)
            self._spreads[own[0]] = found
        return found

    def expense(self, spec: JobSpec, done_seconds: float, restart_seconds: float) -> float:
        """``expense`` of the job; what is done is taken in steps of an eighth of an octave."""
        step, done = _step(done_seconds)
        kind = (kinds(spec)[0], step, restart_seconds)
        found = self._expenses.get(kind)
        if found is None:
            found = self._expenses[kind] = expense(self.spread(spec), done, restart_seconds)
        return found

    def quantile(self, spec: JobSpec, done_seconds: float, share: float) -> float:
        """``quantile`` of the job; what is done is taken in steps of an eighth of an octave."""
        step, done = _step(done_seconds)
        kind = (kinds(spec)[0], step, share)
        found = self._quantiles.get(kind)
        if found is None:
            found = self._quantiles[kind] = quantile(self.spread(spec), done, share)
        return max(found, done_seconds)


def _step(seconds: float) -> tuple[int, float]:
    step = round(math.log2(seconds) * 8) if seconds > 1 else 0
    return step, 2.0 ** (step / 8) if step else 0.0


def answers_of(state: State) -> Answers:
    """The answers for the state's history as it was last taken in."""
    kept = getattr(state, "remembered", None)
    if not isinstance(kept, Answers) or kept.taken_in_ns != state.renewed_ns:
        kept = state.remembered = Answers(state)
    return kept


def expense(spread: Spread, done_seconds: float, restart_seconds: float = 0.0) -> float:
    """Seconds to be spent for each end, over the best stretch from here on. restart_seconds: spent before any work."""
    likely, widths, alive = _ahead(spread, done_seconds)
    if alive <= 0:
        return max(done_seconds, 1.0) * 2 + restart_seconds
    ended = np.cumsum(likely)
    # Those that end in a bin spend half of it on the average, those that outlive it all of it.
    spent = np.cumsum((alive - ended + likely / 2) * widths)
    worth = ended > 1e-9 * alive
    return float(np.min((spent[worth] + restart_seconds * alive) / ended[worth]))


def quantile(spread: Spread, done_seconds: float, share: float) -> float:
    """The run time in all that this share of those who have run so long already does not pass, in seconds."""
    likely, _, alive = _ahead(spread, done_seconds)
    if alive <= 0:
        return max(done_seconds, 1.0) * 2
    number = BINS - len(likely) + int(np.searchsorted(np.cumsum(likely), share * alive))
    number = min(number, BINS - 1)
    return max(float(_MIDDLES[number]), (done_seconds + float(_EDGES[number + 1])) / 2)


def _ahead(spread: Spread, done_seconds: float) -> tuple[Spread, Spread, float]:
    """Of the bins from what is done on: how likely, how wide, and how likely all together."""
    first = bin_of(done_seconds) if done_seconds >= 1 else 0
    likely = spread[first:].copy()
    lows = _EDGES[first:-1].copy()
    if done_seconds > lows[0]:
        likely[0] *= max((_EDGES[first + 1] - done_seconds) / (_EDGES[first + 1] - lows[0]), 0.0)
        lows[0] = min(done_seconds, _EDGES[first + 1])
    return likely, _EDGES[first + 1 :] - lows, _total(likely)
