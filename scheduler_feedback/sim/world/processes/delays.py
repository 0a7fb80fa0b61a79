"""Delays of gangs of ordinary processes by step and rank: load, pauses, stalls, unequal work.

Only ``on_one`` is a fault of one rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_feedback.sim.world.processes.gang import Delay, FloatArray


def heavy_tailed(ranks: int, seconds: float, tail: float = 1.5) -> Delay:
    """Return random delays of every rank in every step, as on a crowded machine. They have a Pareto distribution."""

    def delay(_step: int, _now: float, random: np.random.Generator) -> FloatArray:
        return seconds * random.pareto(tail, ranks)

    return delay


def bursts(ranks: int, every: float, length: float, seconds: float, seed: int) -> Delay:
    """Return delays by bursts of load, each on a random rank. A burst can last up to tens of seconds."""
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
    """Return a lasting delay of one rank and a slight delay of all ranks; both are random in each step."""

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
    """Return a single stall of one rank, at the first step after `at`. The returned function stalls the rank only once,
    so each simulation needs a new one."""
    left = [seconds]

    def delay(_step: int, now: float, _random: np.random.Generator) -> FloatArray:
        extra = np.zeros(ranks)
        if now >= at and left:
            extra[rank] = left.pop()
        return extra

    return delay


def saving(ranks: int, every_steps: int, seconds: float, who: Sequence[int] | None = None) -> Delay:
    """Return a delay in every `every_steps`-th step of all ranks, or of the ranks in `who`."""
    savers = list(range(ranks)) if who is None else list(who)

    def delay(step: int, _now: float, random: np.random.Generator) -> FloatArray:
        extra = np.zeros(ranks)
        if step and step % every_steps == 0:
            extra[savers] = seconds * random.uniform(0.8, 1.2, len(savers))
        return extra

    return delay
