"""What befalls gangs of ordinary processes: load, pauses, stalls, unequal work, as delays by step and rank.

None of it is a fault of one member for its own reason, except where a name says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_feedback.sim.world.processes import Delay, FloatArray


def heavy_tailed(ranks: int, seconds: float, tail: float = 1.5) -> Delay:
    """Every step of every rank waits a Pareto-distributed time: a crowded machine."""

    def delay(_step: int, _now: float, random: np.random.Generator) -> FloatArray:
        return seconds * random.pareto(tail, ranks)

    return delay


def bursts(ranks: int, every: float, length: float, seconds: float, seed: int) -> Delay:
    """Bursts of load: now on this rank, then on that, of heavy-tailed length and strength; tens of seconds also."""
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
    """A lasting delay of one rank, exponential step by step, over a slight one of all."""

    def delay(_step: int, now: float, random: np.random.Generator) -> FloatArray:
        extra = 0.005 * random.exponential(size=ranks)
        if start <= now < end:
            extra[rank] += seconds * random.exponential()
        return extra

    return delay


def on_all(ranks: int, start: float, end: float, seconds: float) -> Delay:
    """Another job runs beside the gang: every rank is slower by about as much."""

    def delay(_step: int, now: float, random: np.random.Generator) -> FloatArray:
        return seconds * random.gamma(2.0, 0.5, ranks) if start <= now < end else np.zeros(ranks)

    return delay


def once(ranks: int, rank: int, at: float, seconds: float) -> Delay:
    """A single stall of one rank, at the first step after `at`. Good for one run."""
    left = [seconds]

    def delay(_step: int, now: float, _random: np.random.Generator) -> FloatArray:
        extra = np.zeros(ranks)
        if now >= at and left:
            extra[rank] = left.pop()
        return extra

    return delay


def saving(ranks: int, every_steps: int, seconds: float, who: Sequence[int] | None = None) -> Delay:
    """Every n-th step takes longer for all ranks, or for those that save."""
    savers = list(range(ranks)) if who is None else list(who)

    def delay(step: int, _now: float, random: np.random.Generator) -> FloatArray:
        extra = np.zeros(ranks)
        if step and step % every_steps == 0:
            extra[savers] = seconds * random.uniform(0.8, 1.2, len(savers))
        return extra

    return delay
