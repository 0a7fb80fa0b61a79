"""Run-time history: the distribution of run times of similar jobs, and predictions for a job that has run for a while.

Run times vary over six orders of magnitude, so they are counted in bins of half an octave. Clusters differ in which
jobs have similar run times: for example jobs of one user and size, or all jobs. So run times are counted for several
groups of jobs in parallel (``KINDS``). Each group's prediction is weighted by how well it predicted recent jobs
(Bayesian mixture, weights by decayed log likelihood; Herbster, Warmuth, "Tracking the Best Expert", 1998).

``expense`` is the reciprocal of the Gittins index of a job. If only distributions are known and preemption is free,
the order by ``expense`` gives the least mean completion time (Gittins 1979; Aalto, Ayesta, Righter 2009). In this
order, jobs of known run time start shortest first. Jobs of uncertain run time run for a while and are then preempted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from scheduler_feedback.core.job import Job, JobSpec
from scheduler_feedback.core.state import Ended, State

BINS = 56
"""Number of bins of run times. Each bin is a factor of sqrt(2) wide; together they cover 1 s to 2^28 s (8 years)."""

Spread = Sequence[float]
"""Distribution of run times: the probability of each of the BINS bins."""

# Plain lists: numpy is slower for so few bins.
_EDGES: list[float] = [2.0 ** (number / 2) for number in range(BINS + 1)]
_WIDTHS = [high - low for low, high in pairwise(_EDGES)]
_MIDDLES = [math.sqrt(low * high) for low, high in pairwise(_EDGES)]
_NEVER = (0.0,) * BINS
_WEIGHT = 2.0
"""Weight of the run-time distribution of all jobs in the prediction for one kind of jobs. It counts like this number of
ended jobs of the kind, so a kind with few ended jobs is predicted mostly from all jobs."""

_SCORE_FADING = 0.995
"""Factor by which the score of a kind's past predictions decays with each ended job. So about the last 200 jobs decide
how much a kind is trusted."""

MOST_RECENT = 10_000
"""Maximum number of ended jobs that wait to be added to the history; above it, the oldest are dropped. They are added
every half hour (``preemption.RENEW_NS``). Only on the largest clusters do more jobs end in that time."""

KINDS = (("kind, recently", 0.8), ("kind", 0.98), ("who", 0.98), ("size", 0.995), ("all", 1.0))
"""Kinds of similar jobs: (name, factor by which older jobs of the kind count less with each new job)."""


def bin_of(seconds: float) -> int:
    """Return the number of the run-time bin that contains this run time."""
    squared = int(seconds * seconds)
    return min(max(squared.bit_length() - 1, 0), BINS - 1)


def kinds(spec: JobSpec | Ended) -> tuple[str, ...]:
    """Return the keys under which the run-time history counts this job, one for each of the KINDS."""
    who = f"{spec.queue}|{spec.user}|{spec.workload}"
    return (f"lately {who}|{spec.ranks}", f"{who}|{spec.ranks}", who, f"{spec.ranks}", "")


def learn(state: State, job: Job, seconds: float) -> None:
    """Record the run time of an ended job; ``count_ended_jobs`` adds it to the history later.

    At most MOST_RECENT jobs wait to be added; beyond that, the oldest are dropped.
    """
    spec, ended = job.spec, state.recently_ended
    ended.append(Ended(spec.queue, spec.user, spec.workload, spec.ranks, seconds))
    if len(ended) > MOST_RECENT:
        del ended[: MOST_RECENT // 10]


def count_ended_jobs(state: State) -> None:
    """Add the recently ended jobs to the history. Predictions change only here."""
    if len(state.trust) != len(KINDS):  # none yet, or written by another release
        state.trust = [0.0] * len(KINDS)
    for ended in state.recently_ended:
        number = bin_of(ended.seconds)
        own = kinds(ended)
        all_jobs = state.history.get("", _NEVER)
        likely = (all_jobs[number] + 1.0 / BINS) / (_total(all_jobs) + 1.0)  # ``_base`` of that bin
        for index, (kind, (_, fading)) in enumerate(zip(own, KINDS, strict=True)):
            counts = state.history.get(kind)
            if counts is None:
                counts = state.history[kind] = [0.0] * BINS
            predicted = (counts[number] + _WEIGHT * likely) / (_total(counts) + _WEIGHT)
            state.trust[index] = state.trust[index] * _SCORE_FADING + math.log(predicted)
            if fading < 1:
                for other, count in enumerate(counts):
                    if count:
                        counts[other] = count * fading
            counts[number] += 1.0
    state.recently_ended.clear()


def _base(state: State) -> Spread:
    """Return the run-time distribution of all ended jobs. One extra job, spread over all bins, keeps shares above 0."""
    counts = state.history.get("", _NEVER)
    total = _total(counts) + 1.0
    return [(count + 1.0 / BINS) / total for count in counts]


def _total(counts: Sequence[float]) -> float:
    """Return the sum, rounded in the same way by every Python version (from 3.12 on ``sum`` rounds differently)."""
    total = 0.0
    for count in counts:
        total += count
    return total


class Answers:
    """Cache of run-time predictions, valid until more ended jobs are added to the history."""

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
        """Return the predicted distribution of the job's total run time."""
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
        """Return ``expense`` for jobs like this one, in seconds, from a cache."""
        step, done = _step(done_seconds)
        kind = ((spec.queue, spec.user, spec.workload, spec.ranks), step, restart_seconds)
        found = self._expenses.get(kind)
        if found is None:
            found = self._expenses[kind] = expense(self.spread(spec), done, restart_seconds)
        return found

    def quantile(self, spec: JobSpec, done_seconds: float, share: float) -> float:
        """Return, from a cache, a quantile of the total run time of jobs like this one that have run for done_seconds.

        share: the quantile, for example 0.5 for the median. The result is in seconds, and at least done_seconds.
        """
        step, done = _step(done_seconds)
        kind = ((spec.queue, spec.user, spec.workload, spec.ranks), step, share)
        found = self._quantiles.get(kind)
        if found is None:
            found = self._quantiles[kind] = quantile(self.spread(spec), done, share)
        return max(found, done_seconds)

    def yet_within(self, spec: JobSpec, done_seconds: float, most_seconds: float) -> float:
        """Return the mean remaining run time of jobs like this one, in seconds. Longer times count as most_seconds."""
        return yet_within(self.spread(spec), done_seconds, most_seconds)


_Who = tuple[str, str, str, int]


def _step(seconds: float) -> tuple[int, float]:
    step = round(math.log2(seconds) * 8) if seconds > 1 else 0
    return step, 2.0 ** (step / 8) if step else 0.0


def answers_of(state: State) -> Answers:
    """Return the cache of predictions for the present run-time history of the state."""
    kept = state.__dict__.get("predictions")
    if not isinstance(kept, Answers) or kept.taken_in_ns != state.renewed_ns:
        kept = state.__dict__["predictions"] = Answers(state)
    return kept


def expense(spread: Spread, done_seconds: float, restart_seconds: float = 0.0) -> float:
    """Return the reciprocal of the Gittins index: the least expected run time per completed job, in seconds.

    Suppose that all jobs like this one are stopped after a time t. The run time of all of them, divided by the number
    that has completed, depends on t; the result is its least value.
    The fair order puts the job with the least value first.
    """
    likely, widths, alive = _ahead(spread, done_seconds)
    if alive <= 0:
        return max(done_seconds, 1.0) * 2 + restart_seconds
    best, ended, spent = math.inf, 0.0, 0.0
    least, restart = 1e-9 * alive, restart_seconds * alive
    for ending, width in zip(likely, widths, strict=True):
        ended += ending
        # Jobs that end in a bin spend half of its width on average; jobs that outlive it spend all of it.
        spent += (alive - ended + ending / 2) * width
        if ended > least and (each := (spent + restart) / ended) < best:
            best = each
    return best


def quantile(spread: Spread, done_seconds: float, share: float) -> float:
    """Return a quantile of the total run time, in seconds, of jobs that have run for done_seconds. share: the quantile,
    for example 0.5 for the median."""
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
    """Return the mean remaining run time in seconds. Longer times count as most_seconds.

    This limits the influence of jobs that run for weeks. Within a bin all run times are equally likely.
    """
    likely, widths, alive = _ahead(spread, done_seconds)
    if alive <= 0:
        return min(max(done_seconds, 1.0), most_seconds)
    counted, low, left = 0.0, 0.0, alive
    for ending, width in zip(likely, widths, strict=True):
        if low >= most_seconds:
            break
        inside = min(most_seconds - low, width)
        # Jobs that outlive this part count all of it; jobs that end in it, at an even rate, count half of it.
        ends = ending * inside / width if width > 0 else ending
        counted += (left - ends / 2) * inside
        left -= ending
        low += width
    return counted / alive


def outlives(spread: Spread, done_seconds: float, more_seconds: float) -> float:
    """Return the share of jobs that run at least more_seconds longer, among jobs that have run for done_seconds."""
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
    """Return (probabilities, widths in seconds, total probability) of the run-time bins from done_seconds on."""
    first = bin_of(done_seconds) if done_seconds >= 1 else 0
    likely, widths = list(spread[first:]), _WIDTHS[first:]
    low, high = _EDGES[first], _EDGES[first + 1]
    if done_seconds > low:
        likely[0] *= max((high - done_seconds) / (high - low), 0.0)
        widths[0] = high - min(done_seconds, high)
    return likely, widths, _total(likely)
