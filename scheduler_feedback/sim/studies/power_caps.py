"""Choice of power limits for running gangs: by the price of energy, or for a power budget of the cluster.

A GPU with a lower power limit is slower, but the last watts give little speed. PowerFlow (Gu et al., 2023) reduces the
average completion time at equal energy with such choices. Here a gang saves energy while no job waits for its slots,
and runs fast while jobs wait, because its end is then the start of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class PowerPoint(NamedTuple):
    """What a job does with one power limit of its GPUs."""

    limit_watts: float
    """Power limit of each GPU."""
    speed: float
    """Speed, relative to that with the highest limit."""
    watts: float
    """Mean power that each GPU draws."""


def cheapest(points: Sequence[PowerPoint], gpus: int, waiting: float, watts_per_job: float) -> PowerPoint:
    """Return the limit with the least cost until the gang's end; of equal ones that with the highest speed.

    A second of the gang's run time costs one second for the gang, and one for each job that waits for its slots.
    Energy has a price.

    waiting: number of jobs that wait for these slots. watts_per_job: power that costs as much as one job's waiting. An
    infinite number makes energy free. Raises ValueError if there are no points.
    """
    if not points:
        raise ValueError("a gang needs at least one power limit")
    return min(points, key=lambda one: ((1 + waiting + gpus * one.watts / watts_per_job) / one.speed, -one.speed))


def within_budget(
    gangs: Mapping[str, tuple[Sequence[PowerPoint], int]], budget_watts: float
) -> dict[str, PowerPoint] | None:
    """Return the limit of each gang, so that the GPUs together draw at most the budget; None if the lowest draw more.

    It begins with the lowest power of all, and then raises the limit that gives most speed of all GPUs per watt, while
    that fits. gangs: (points, number of GPUs) by name. Points that cost more power for no more speed are not used.
    """
    ladders = {name: _useful(points) for name, (points, _) in sorted(gangs.items())}
    at = dict.fromkeys(ladders, 0)
    left = budget_watts - sum(ladders[name][0].watts * gangs[name][1] for name in ladders)
    if left < 0:
        return None
    while True:
        best: tuple[float, str, int] | None = None
        for name, ladder in ladders.items():
            gpus, now = gangs[name][1], ladder[at[name]]
            for number in range(at[name] + 1, len(ladder)):
                more_watts = (ladder[number].watts - now.watts) * gpus
                gain = (ladder[number].speed - now.speed) * gpus / more_watts
                if more_watts <= left and (best is None or gain > best[0]):
                    best = gain, name, number
        if best is None:
            return {name: ladder[at[name]] for name, ladder in ladders.items()}
        _, name, number = best
        left -= (ladders[name][number].watts - ladders[name][at[name]].watts) * gangs[name][1]
        at[name] = number


def _useful(points: Sequence[PowerPoint]) -> list[PowerPoint]:
    """Return the points by power, without those that draw more than another one that is as fast."""
    found: list[PowerPoint] = []
    for one in sorted(points, key=lambda one: (one.watts, -one.speed)):
        if not found or one.speed > found[-1].speed:
            found.append(one)
    return found
