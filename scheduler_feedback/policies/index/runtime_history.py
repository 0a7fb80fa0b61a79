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
from collections.abc import Sequence
from itertools import pairwise

from scheduler_feedback.core.job import Job, JobSpec
from scheduler_feedback.core.state import Ended, State

BINS = 56
"""Half octaves from 1 s on: up to 2^28 s, eight years."""

Spread = Sequence[float]
"""How likely each bin is."""

# So few bins are worked through sooner than an array of them is made.
_EDGES: list[float] = [2.0 ** (number / 2) for number in range(BINS + 1)]
_WIDTHS = [high - low for low, high in pairwise(_EDGES)]
_MIDDLES = [math.sqrt(low * high) for low, high in pairwise(_EDGES)]
_NEVER = (0.0,) * BINS
_WEIGHT = 2.0
"""A kind is believed as if all jobs together had been seen so many times in it: the first few of a kind say little."""

_SCORE_FADING = 0.995
"""Of a log likelihood, for each later job: the last 200 decide whom to believe."""

MOST_LATELY = 10_000
"""Jobs that have ended and are not counted yet. They are counted each half hour (``preemption.RENEW_NS``), in which
fewer end on all but the largest clusters; there the newest of so many say enough."""

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
    """The job has ended after so much work; it counts from the next ``take_in`` on.

    Under settings that learn nothing that never comes: then the newest are kept for the day on which others are set.
    """
    spec, lately = job.spec, state.lately
    lately.append(Ended(spec.queue, spec.user, spec.workload, spec.ranks, seconds))
    if len(lately) > MOST_LATELY:
        del lately[: MOST_LATELY // 10]  # so that it is not done each time


def take_in(state: State) -> None:
    """Count those that have ended lately. Between two calls every answer about the same job is the same."""
    if len(state.trust) != len(KINDS):  # none yet, or as another release had them
        state.trust = [0.0] * len(KINDS)
    for ended in state.lately:
        number = bin_of(ended.seconds)
        own = kinds(ended)
        everybody = state.history.get("", _NEVER)
        likely = (everybody[number] + 1.0 / BINS) / (_total(everybody) + 1.0)  # ``_base`` of that bin
        for index, (kind, (_, fading)) in enumerate(zip(own, KINDS, strict=True)):
            counts = state.history.get(kind)
            if counts is None:
                counts = state.history[kind] = [0.0] * BINS
            foretold = (counts[number] + _WEIGHT * likely) / (_total(counts) + _WEIGHT)
            state.trust[index] = state.trust[index] * _SCORE_FADING + math.log(foretold)
            if fading < 1:
                for other, count in enumerate(counts):
                    if count:
                        counts[other] = count * fading
            counts[number] += 1.0
    state.lately.clear()


def _base(state: State) -> Spread:
    """How likely each bin is for any job: all that ever ended, and one more that could have been of any length."""
    counts = state.history.get("", _NEVER)
    total = _total(counts) + 1.0
    return [(count + 1.0 / BINS) / total for count in counts]


def _total(counts: Sequence[float]) -> float:
    """The sum, added up in order: alike on every machine and with every Python (from 3.12 on ``sum`` compensates)."""
    total = 0.0
    for count in counts:
        total += count
    return total


class Answers:
    """What the history says, kept until more is taken in."""

    __slots__ = ("_base", "_expenses", "_quantiles", "_spreads", "_state", "_trust", "taken_in_ns")

    def __init__(self, state: State) -> None:
        self._state = state
        self.taken_in_ns = state.renewed_ns
        self._spreads: dict[_Who, Spread] = {}
        self._expenses: dict[tuple[_Who, int, float], float] = {}
        self._quantiles: dict[tuple[_Who, int, float], float] = {}
        self._base = [_WEIGHT * likely for likely in _base(state)]
        scores = state.trust if len(state.trust) == len(KINDS) else [0.0] * len(KINDS)
        weights = [math.exp(score - max(scores)) for score in scores]
        total = _total(weights)
        self._trust = [weight / total for weight in weights]

    def spread(self, spec: JobSpec) -> Spread:
        """How likely each bin is for the job's whole run time."""
        who = (spec.queue, spec.user, spec.workload, spec.ranks)
        found = self._spreads.get(who)
        if found is None:
            mixed = [0.0] * BINS
            for kind, trust in zip(kinds(spec), self._trust, strict=True):
                counts = self._state.history.get(kind, _NEVER)
                share = trust / (_total(counts) + _WEIGHT)
                mixed = [
                    likely + share * (count + base)
                    for likely, count, base in zip(mixed, counts, self._base, strict=True)
                ]
            found = self._spreads[who] = mixed
        return found

    def expense(self, spec: JobSpec, done_seconds: float, restart_seconds: float) -> float:
        """``expense`` of the job; what is done is taken in steps of an eighth of an octave."""
        step, done = _step(done_seconds)
        kind = ((spec.queue, spec.user, spec.workload, spec.ranks), step, restart_seconds)
        found = self._expenses.get(kind)
        if found is None:
            found = self._expenses[kind] = expense(self.spread(spec), done, restart_seconds)
        return found

    def quantile(self, spec: JobSpec, done_seconds: float, share: float) -> float:
        """``quantile`` of the job; what is done is taken in steps of an eighth of an octave."""
        step, done = _step(done_seconds)
        kind = ((spec.queue, spec.user, spec.workload, spec.ranks), step, share)
        found = self._quantiles.get(kind)
        if found is None:
            found = self._quantiles[kind] = quantile(self.spread(spec), done, share)
        return max(found, done_seconds)

    def yet_within(self, spec: JobSpec, done_seconds: float, most_seconds: float) -> float:
        """``yet_within`` of the job."""
        return yet_within(self.spread(spec), done_seconds, most_seconds)


_Who = tuple[str, str, str, int]


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
    best, ended, spent = math.inf, 0.0, 0.0
    least, restart = 1e-9 * alive, restart_seconds * alive
    for ending, width in zip(likely, widths, strict=True):
        ended += ending
        # Those that end in a bin spend half of it on the average, those that outlive it all of it.
        spent += (alive - ended + ending / 2) * width
        if ended > least and (each := (spent + restart) / ended) < best:
            best = each
    return best


def quantile(spread: Spread, done_seconds: float, share: float) -> float:
    """The run time in all that this share of those who have run so long already does not pass, in seconds."""
    likely, _, alive = _ahead(spread, done_seconds)
    if alive <= 0:
        return max(done_seconds, 1.0) * 2
    number, ended, wanted = BINS - len(likely), 0.0, share * alive
    for ending in likely:
        ended += ending
        if ended >= wanted:
            break
        number += 1
    number = min(number, BINS - 1)
    return max(_MIDDLES[number], (done_seconds + _EDGES[number + 1]) / 2)


def yet_within(spread: Spread, done_seconds: float, most_seconds: float) -> float:
    """The mean of what a job that has run so long will yet run, no more than so much being counted of any; in seconds.

    Less than the same of a mean or a median length: of the jobs that go on for weeks no more counts than of others.
    Within a bin all lengths are taken as equally likely.
    """
    likely, widths, alive = _ahead(spread, done_seconds)
    if alive <= 0:
        return min(max(done_seconds, 1.0), most_seconds)
    counted, low, left = 0.0, 0.0, alive
    for ending, width in zip(likely, widths, strict=True):
        if low >= most_seconds:
            break
        inside = min(most_seconds - low, width)
        # What outlives the part counts all of it; what ends inside, at an even rate, half of it.
        ends = ending * inside / width if width > 0 else ending
        counted += (left - ends / 2) * inside
        left -= ending
        low += width
    return counted / alive


def outlives(spread: Spread, done_seconds: float, more_seconds: float) -> float:
    """The share of those that have run so long that will run for so many seconds more."""
    likely, widths, alive = _ahead(spread, done_seconds)
    if alive <= 0:
        return 1.0
    left, low = alive, 0.0
    for ending, width in zip(likely, widths, strict=True):
        if low + width > more_seconds:
            return max(left - (ending * (more_seconds - low) / width if width > 0 else ending), 0.0) / alive
        left -= ending
        low += width
    return max(left, 0.0) / alive


def _ahead(spread: Spread, done_seconds: float) -> tuple[Sequence[float], Sequence[float], float]:
    """Of the bins from what is done on: how likely, how wide, and how likely all together."""
    first = bin_of(done_seconds) if done_seconds >= 1 else 0
    likely, widths = list(spread[first:]), _WIDTHS[first:]
    low, high = _EDGES[first], _EDGES[first + 1]
    if done_seconds > low:
        likely[0] *= max((high - done_seconds) / (high - low), 0.0)
        widths[0] = high - min(done_seconds, high)
    return likely, widths, _total(likely)
