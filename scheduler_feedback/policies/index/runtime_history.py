"""Run-time history: the distribution of run times of similar jobs, and predictions for a job that has run for a while.

Run times vary over six decades, so they are counted in bins of half an octave. Which jobs are similar differs between
clusters: in one, the last job of the same queue and size predicts best; in another, only all jobs together predict
anything. So several kinds are counted in parallel, narrow and wide, with fast and slow decay. Each kind is weighted by
how well it predicted the jobs that have ended since (Bayesian mixture, weights by decayed log likelihood; Herbster,
Warmuth, "Tracking the Best Expert", 1998).

``expense`` is the expected service for each completed job, over the best amount of service that the job could get. It
is the reciprocal of the Gittins index. If only distributions are known and preemption is free, that order gives the
least mean completion time (Gittins 1979; Aalto, Ayesta, Righter 2009). Jobs of known length are then served shortest
first; jobs of an uncertain kind are tried for a while and then yield to others.
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
"""Probability of each bin."""

# Plain lists: numpy is slower for so few bins.
_EDGES: list[float] = [2.0 ** (number / 2) for number in range(BINS + 1)]
_WIDTHS = [high - low for low, high in pairwise(_EDGES)]
_MIDDLES = [math.sqrt(low * high) for low, high in pairwise(_EDGES)]
_NEVER = (0.0,) * BINS
_WEIGHT = 2.0
"""Weight of the distribution of all jobs within each kind, in jobs. A kind with few jobs predicts little."""

_SCORE_FADING = 0.995
"""Decay of the log likelihood per later job: the last 200 jobs decide the weights of the kinds."""

MOST_RECENT = 10_000
"""Upper bound of ended jobs that are not counted yet; the oldest are dropped. They are counted every half hour
(``preemption.RENEW_NS``). Only on the largest clusters do more jobs end in that time."""

KINDS = (("kind, recently", 0.8), ("kind", 0.98), ("who", 0.98), ("size", 0.995), ("all", 1.0))
"""(kind of similarity, decay of a count per later job of the kind)."""


def bin_of(seconds: float) -> int:
    """Return the bin of a run time."""
    squared = int(seconds * seconds)
    return min(max(squared.bit_length() - 1, 0), BINS - 1)


def kinds(spec: JobSpec | Ended) -> tuple[str, ...]:
    """Return the keys of the job's kinds, in the order of KINDS."""
    who = f"{spec.queue}|{spec.user}|{spec.workload}"
    return (f"lately {who}|{spec.ranks}", f"{who}|{spec.ranks}", who, f"{spec.ranks}", "")


def learn(state: State, job: Job, seconds: float) -> None:
    """Record the work of an ended job; ``count_ended_jobs`` counts it later.

    If the policy does not use the history, nothing is counted: the newest jobs are kept until the policy changes.
    """
    spec, ended = job.spec, state.recently_ended
    ended.append(Ended(spec.queue, spec.user, spec.workload, spec.ranks, seconds))
    if len(ended) > MOST_RECENT:
        del ended[: MOST_RECENT // 10]


def count_ended_jobs(state: State) -> None:
    """Count the recently ended jobs. Predictions for the same job are constant between two calls."""
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
    """Return the probability of each bin over all jobs that ever ended, plus one job of unknown length."""
    counts = state.history.get("", _NEVER)
    total = _total(counts) + 1.0
    return [(count + 1.0 / BINS) / total for count in counts]


def _total(counts: Sequence[float]) -> float:
    """Sum in order, with equal results on every Python version (``sum`` compensates from 3.12 on)."""
    total = 0.0
    for count in counts:
        total += count
    return total


class Answers:
    """Cached predictions, valid until more jobs are counted."""

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
        """Return the probability of each bin for the job's total run time."""
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
        """Return ``expense`` of the job; the work done is rounded to an eighth of an octave."""
        step, done = _step(done_seconds)
        kind = ((spec.queue, spec.user, spec.workload, spec.ranks), step, restart_seconds)
        found = self._expenses.get(kind)
        if found is None:
            found = self._expenses[kind] = expense(self.spread(spec), done, restart_seconds)
        return found

    def quantile(self, spec: JobSpec, done_seconds: float, share: float) -> float:
        """Return ``quantile`` of the job; the work done is rounded to an eighth of an octave."""
        step, done = _step(done_seconds)
        kind = ((spec.queue, spec.user, spec.workload, spec.ranks), step, share)
        found = self._quantiles.get(kind)
        if found is None:
            found = self._quantiles[kind] = quantile(self.spread(spec), done, share)
        return max(found, done_seconds)

    def yet_within(self, spec: JobSpec, done_seconds: float, most_seconds: float) -> float:
        """Return ``yet_within`` of the job."""
        return yet_within(self.spread(spec), done_seconds, most_seconds)


_Who = tuple[str, str, str, int]


def _step(seconds: float) -> tuple[int, float]:
    step = round(math.log2(seconds) * 8) if seconds > 1 else 0
    return step, 2.0 ** (step / 8) if step else 0.0


def answers_of(state: State) -> Answers:
    """Return the predictions from the state's history as of its last count."""
    kept = state.__dict__.get("predictions")
    if not isinstance(kept, Answers) or kept.taken_in_ns != state.renewed_ns:
        kept = state.__dict__["predictions"] = Answers(state)
    return kept


def expense(spread: Spread, done_seconds: float, restart_seconds: float = 0.0) -> float:
    """Return the seconds per completed job over the best amount of service from now on, restart_seconds included."""
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
    """Return the total run time that this share of the jobs does not exceed, of jobs that have run for done_seconds."""
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
    """Return the mean remaining run time in seconds, with each job's remaining time cut at most_seconds.

    The cut limits the influence of jobs that run for weeks. Within a bin all lengths are equally likely.
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
    """Return the share of jobs that run for more_seconds longer, of jobs that have run for done_seconds."""
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
    """Return, for the bins from done_seconds on, their probabilities, their widths, and the sum of probabilities."""
    first = bin_of(done_seconds) if done_seconds >= 1 else 0
    likely, widths = list(spread[first:]), _WIDTHS[first:]
    low, high = _EDGES[first], _EDGES[first + 1]
    if done_seconds > low:
        likely[0] *= max((high - done_seconds) / (high - low), 0.0)
        widths[0] = high - min(done_seconds, high)
    return likely, widths, _total(likely)
