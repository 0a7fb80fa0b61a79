"""Choice of the power limits of running gangs within a budget: watts go where they give most speed.

Every gang gets one limit for all of its GPUs, because its slowest rank sets its speed. All begin with their lowest
limit. Then the limit of the gang is raised that gains most speed of all GPUs per watt, while that fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

STEPS = 8
"""Number of limits of a gang, evenly spaced from the lowest to the highest. Fewer steps than watts keep limits from
changing with every small change of the budget."""

WORTH = 1.01
"""Limits of other gangs are lowered for a gain only if all GPUs together become at least 1 % faster."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What one gang can do."""

    ranks: int
    """Number of its ranks: the weight of its speed."""
    limits: tuple[float, ...]
    """Its possible limits in watts, ascending."""
    watts: tuple[float, ...]
    """Sum of the limits of its GPUs with each of these, in watts."""
    speeds: tuple[float, ...]
    """Its speed with each of these, relative to the highest limit."""
    now: int | None = None
    """Number of its present limit; None if it has none yet."""
    floor: int = 0
    """Number of the lowest limit that it should have, because a lower one harms it."""
    may_rise: bool = True
    """Whether its limit may be raised now."""


def steps_of(least_watts: float, most_watts: float) -> tuple[float, ...]:
    """Return the possible limits of a gang in whole watts, ascending."""
    least, most = round(least_watts), round(max(least_watts, most_watts))
    return tuple(sorted({round(least + (most - least) * n / (STEPS - 1)) + 0.0 for n in range(STEPS)}))


def choose(gangs: Mapping[str, Choice], watts: float) -> dict[str, int]:
    """Return the number of each gang's limit, so that the limits add up to at most this many watts.

    If even the lowest limits need more, all get the lowest. Present limits are kept where other ones gain little.
    """
    best = _raised(gangs, dict.fromkeys(gangs, 0), watts)
    if best is None:
        return dict.fromkeys(gangs, 0)
    kept = _raised(gangs, {name: one.now or 0 for name, one in gangs.items()}, watts)
    if kept is None or any(kept[name] < min(one.floor, best[name]) for name, one in gangs.items()):
        return best
    return kept if _speed(gangs, best) < WORTH * _speed(gangs, kept) else best


def _raised(gangs: Mapping[str, Choice], at: dict[str, int], watts: float) -> dict[str, int] | None:
    """Raise these limits as far as the watts allow, first to the floors. None if already these need more."""
    left = watts - sum(gangs[name].watts[number] for name, number in at.items())
    if left < 0:
        return None
    for name, one in sorted(gangs.items()):
        for number in range(at[name] + 1, one.floor + 1):
            left = _rise(one, name, number, at, left)
    steps = [step for name, one in gangs.items() if (step := _step(one, name, at[name])) is not None]
    heapify(steps)
    while steps:
        _, name = heappop(steps)
        one, before = gangs[name], at[name]
        left = _rise(one, name, before + 1, at, left)
        if at[name] > before and (step := _step(one, name, at[name])) is not None:
            heappush(steps, step)
    return at


def _rise(one: Choice, name: str, number: int, at: dict[str, int], left: float) -> float:
    """Raise the gang to this limit if it is the next one and fits. Return the watts that are left."""
    more = one.watts[number] - one.watts[at[name]]
    if number != at[name] + 1 or more > left:
        return left
    at[name] = number
    return left - more


def _step(one: Choice, name: str, at: int) -> tuple[float, str] | None:
    """Return (minus the gained speed per watt, name) of the gang's next limit; None if it must not have one."""
    if at + 1 >= len(one.limits) or (not one.may_rise and one.now is not None and at >= one.now):
        return None
    gain = (one.speeds[at + 1] - one.speeds[at]) * one.ranks
    return (-gain / max(one.watts[at + 1] - one.watts[at], 1e-9), name) if gain > 0 else None


def _speed(gangs: Mapping[str, Choice], at: Mapping[str, int]) -> float:
    return sum(one.speeds[at[name]] * one.ranks for name, one in gangs.items())
