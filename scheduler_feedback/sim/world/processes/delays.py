"""Delays of gangs of ordinary processes by step and rank: load, pauses, stalls, unequal work.

Except for ``on_one``, these delays are not faults of one member.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_feedback.sim.world.processes.gang import Delay, FloatArray


def heavy_tailed(ranks: int, seconds: float, tail: float = 1.5) -> Delay:
    """Return Pareto-distributed delays of every step of every rank, as on a crowded machine."""

    def delay(_step: int, _now: float, random: np.random.Generator) -> FloatArray:
        return seconds * random.pareto(tail, ranks)

    return delay


def bursts(ranks: int, every: float, length: float, seconds: float, seed: int) -> Delay:
    """Return bursts of load on changing ranks, with heavy-tailed length (up to tens of seconds) and strength."""
    random = np.random.default_rng([seed, 99])
    events: list[tuple[int, float, float, float]] = []
    at = 0.0
    while at < 1000.0:
        at += float(random.exponential(every))
        until = at + length * (float(random.pareto(1.5)) + 0.2)
        events.append((int(random.integers(ranks)), at, until, seconds * (float(random.pareto(1.7)) + 0.2)))

    def delay(_step: int, now: float, source: np.random.Generator) -> FloatArray:
        extra = np.zeros(ranks)
        for rank, start, end, strength in events:
            if start <= now < end:
                extra[rank] += strength * source.exponential()
        return extra

    return delay


def on_one(ranks: int, rank: int, start: float, end: float, seconds: float) -> Delay:
    """Return a lasting delay of one rank, exponentially distributed per step, and a slight delay of all ranks."""

    def delay(_step: int, now: float, random: np.random.Generator) -> FloatArray:
        extra = 0.005 * random.exponential(size=ranks)
        if start <= now < end:
            extra[rank] += seconds * random.exponential()
        return extra

    return delay


def on_all(ranks: int, start: float, end: float, seconds: float) -> Delay:
    """Return similar delays of all ranks, as from another job on the same machine."""

    def delay(_step: int, now: float, random: np.random.Generator) -> FloatArray:
        return seconds * random.gamma(2.0, 0.5, ranks) if start <= now < end else np.zeros(ranks)

    return delay


def once(ranks: int, rank: int, at: float, seconds: float) -> Delay:
    """Return a single stall of one rank, at the first step after `at`. Use the returned delay in one run only."""
    left = [seconds]

    def delay(_step: int, now: float, _random: np.random.Generator) -> FloatArray:
        extra = np.zeros(ranks)
        if now >= at and left:
            extra[rank] = left.pop()
        return extra

    return delay


def saving(ranks: int, every_steps: int, seconds: float, who: Sequence[int] | None = None) -> Delay:
    """Return a delay in every n-th step of all ranks, or of the ranks in `who`."""
    savers = list(range(ranks)) if who is None else list(who)

    def delay(step: int, _now: float, random: np.random.Generator) -> FloatArray:
        extra = np.zeros(ranks)
        if step and step % every_steps == 0:
            extra[savers] = seconds * random.uniform(0.8, 1.2, len(savers))
        return extra

    return delay
