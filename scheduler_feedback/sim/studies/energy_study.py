"""Study of power limits: average completion time and energy of a cluster whose GPUs have chosen power limits.

Jobs arrive over time and wait in order of arrival; a job that fits starts, also before an earlier one that does not.
At each start, end and arrival, the limits of all running jobs are chosen again. A change of a limit costs nothing. A
GPU without a job draws idle power.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scheduler_feedback.sim.studies.power_caps import PowerPoint

IDLE_WATTS = 30.0
"""Power of a GPU without a job: of a V100, from memory, not verified."""


@dataclass(frozen=True, slots=True)
class EnergyJob:
    """One job."""

    at: float
    """Time of arrival, in seconds."""
    gpus: int
    """Number of GPUs."""
    seconds: float
    """Run time with the highest power limit, in seconds."""
    points: tuple[PowerPoint, ...]
    """What it does with each power limit."""


@dataclass(slots=True)
class _Running:
    job: EnergyJob
    left: float
    point: PowerPoint


Running = Mapping[str, tuple[Sequence[PowerPoint], int]]
"""(Points, number of GPUs) of each running job."""

Chooser = Callable[[Running, Sequence[int]], Mapping[str, PowerPoint]]
"""Returns the limit of each running job. The second argument is the numbers of GPUs of the jobs that wait."""


@dataclass(frozen=True, slots=True)
class EnergyResult:
    """Figures of one run."""

    jct: float
    """Average completion time, in seconds."""
    joules: float
    """Energy of all GPUs from the first arrival to the last end."""
    most_watts: float
    """Highest power of all GPUs together."""


def run(jobs: Sequence[EnergyJob], gpus: int, choose: Chooser) -> EnergyResult:
    """Run the jobs, which are sorted by arrival. Raises ValueError if one needs more GPUs than there are."""
    if (large := max((job.gpus for job in jobs), default=0)) > gpus:
        raise ValueError(f"a job needs {large} GPUs, and there are {gpus}")
    now, free, number, joules, completion, most = jobs[0].at, gpus, 0, 0.0, 0.0, 0.0
    waiting: list[EnergyJob] = []
    running: dict[str, _Running] = {}
    while number < len(jobs) or running:
        ends = now + min((one.left / one.point.speed for one in running.values()), default=float("inf"))
        upto = min(ends, jobs[number].at if number < len(jobs) else float("inf"))
        watts = sum(one.job.gpus * one.point.watts for one in running.values()) + free * IDLE_WATTS
        joules, most = joules + watts * (upto - now), max(most, watts)
        for one in running.values():
            one.left -= (upto - now) * one.point.speed
        now = upto
        for name in [name for name, one in running.items() if one.left <= 1e-6]:
            ended = running.pop(name)
            free += ended.job.gpus
            completion += now - ended.job.at
        while number < len(jobs) and jobs[number].at <= now:
            waiting.append(jobs[number])
            number += 1
        left = []
        for job in waiting:
            if job.gpus <= free:
                free -= job.gpus
                running[f"{len(running)}@{now}/{id(job)}"] = _Running(job, job.seconds, job.points[-1])
            else:
                left.append(job)
        waiting = left
        if running:
            shape = {name: (one.job.points, one.job.gpus) for name, one in running.items()}
            for name, point in choose(shape, [job.gpus for job in waiting]).items():
                running[name].point = point
    return EnergyResult(completion / len(jobs), joules, most)


def uniform(limit_watts: float) -> Chooser:
    """Return a chooser with one limit for all GPUs."""

    def choose(running: Running, _waiting: Sequence[int]) -> Mapping[str, PowerPoint]:
        return {
            name: next(one for one in points if one.limit_watts == limit_watts)
            for name, (points, _) in running.items()
        }  # fmt: skip

    return choose
