"""Row of PowerFlow: power limits of running gangs, chosen by the price of energy and by the jobs that wait.

PowerFlow's input is not public. The limits are those of Zeus's public measurements: speed and power of six trainings on
a V100 (``zeus_derive``). Jobs have 1, 2, 4 or 8 GPUs with equal chances, log-normal run times and Poisson arrivals. The
baseline is one limit for all GPUs; the price is chosen so that both use the same energy. Sizes are fixed, while
PowerFlow also chooses them. A study: no backend sets a power limit (decision 130).
"""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean

from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval
from benchmarks.survey.zeus_derive import POWER_FILE
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Estimates, Policy
from scheduler_feedback.sim.job_trace import Trace, TraceJob
from scheduler_feedback.sim.results import Report
from scheduler_feedback.sim.simulation import Simulation
from scheduler_feedback.sim.speeds.gpu_power import GpuModel
from scheduler_feedback.sim.studies.energy_study import (
    IDLE_WATTS,
    Chooser,
    EnergyJob,
    EnergyResult,
    Running,
    run,
    uniform,
)
from scheduler_feedback.sim.studies.power_caps import PowerPoint, cheapest, within_budget

SEEDS = range(10)
GPUS, JOBS = 64, 300
LOAD = 0.7
"""Requested GPU time without limits, relative to that of the cluster."""

SIZES = (1, 2, 4, 8)
MEDIAN_SECONDS, SIGMA = 1800.0, 1.2
LIMITS = (150, 200)
"""Limits of the baseline in watts; the first one is near the least energy of all."""

PRICES, STEPS = (1, 4), 16
"""Tried prices: logarithms to the base of 10 of the power that costs as much as one waiting job, and steps of each."""

PUBLISHED = 1.57
"""Lower end of PowerFlow's published gain: 1.57 to 3.39 at most, depending on the baseline."""


def rows() -> list[Row]:
    """Return the rows of this module."""
    source = "Gu et al., arXiv 2304.06381 (abstract)"
    return [
        Row("PowerFlow", "power limits by the price of energy and the queue",
            "average JCT with one power limit / with chosen limits, at equal energy, ten seeds", PUBLISHED, source,
            _at_equal_energy, slow=True),
        Row("PowerFlow", "power limits for a power budget of the cluster",
            "average JCT with one power limit / with chosen limits, at equal budget, ten seeds", None, source,
            _at_equal_budget),
        Row("PowerFlow", "power limits for a power budget of the cluster, through the scheduler",
            "average JCT with one power limit / with chosen limits, at equal budget, ten seeds", None, source,
            _through_the_scheduler, slow=True),
    ]  # fmt: skip


@cache
def points() -> dict[str, tuple[PowerPoint, ...]]:
    """Return the measured points of each training, by rising limit."""
    found: dict[str, list[PowerPoint]] = {}
    with POWER_FILE.open() as file:
        for row in csv.DictReader(file):
            one = PowerPoint(float(row["limit_watts"]), float(row["speed"]), float(row["watts"]))
            found.setdefault(row["workload"], []).append(one)
    return {name: tuple(sorted(one)) for name, one in found.items()}


@cache
def jobs(seed: int) -> tuple[EnergyJob, ...]:
    """Return the jobs of one seed."""
    chance = random.Random(f"energy {seed}")
    names = sorted(points())
    drawn = [
        (chance.choice(names), chance.choice(SIZES), MEDIAN_SECONDS * chance.lognormvariate(0.0, SIGMA))
        for _ in range(JOBS)
    ]
    gap = sum(size * seconds for _, size, seconds in drawn) / JOBS / (GPUS * LOAD)
    at, found = 0.0, []
    for name, size, seconds in drawn:
        at += chance.expovariate(1 / gap)
        found.append(EnergyJob(at, size, seconds, points()[name]))
    return tuple(found)


def priced(watts_per_job: float, queue: bool = True) -> Chooser:
    """Return a chooser by this price of energy. queue: whether jobs that wait count.

    Only power above that of an idle GPU has a price, because a job's end does not save the rest.
    """

    def choose(running: Running, waiting: Sequence[int]) -> Mapping[str, PowerPoint]:
        used = sum(gpus for _, gpus in running.values())
        behind = len(waiting) / used if queue else 0.0  # jobs that wait for each GPU in use
        found = {}
        for name, (of, gpus) in running.items():
            above = {one._replace(watts=one.watts - IDLE_WATTS): one for one in of}
            found[name] = above[cheapest(tuple(above), gpus, behind * gpus, watts_per_job)]
        return found

    return choose


def budgeted(budget_watts: float) -> Chooser:
    """Return a chooser that keeps the power of the cluster within a budget, with that of idle GPUs."""

    def choose(running: Running, _waiting: Sequence[int]) -> Mapping[str, PowerPoint]:
        idle = GPUS - sum(gpus for _, gpus in running.values())
        found = within_budget(running, budget_watts - idle * IDLE_WATTS)
        assert found is not None, "the lowest limits fit"
        return found

    return choose


@cache
def at_price(seed: int, step: int, queue: bool) -> EnergyResult:
    """Return the result of a price, by its number: a lower number makes energy dearer."""
    return run(jobs(seed), GPUS, priced(10 ** (step / STEPS), queue))


def at_energy(seed: int, joules: float, queue: bool = True) -> EnergyResult:
    """Return the result of the lowest price at which the chosen limits use at most this energy.

    If energy is too dear, jobs run so slowly that idle GPUs use more. So prices are tried from the lowest on. If none
    is enough, it is the result with the least energy.
    """
    tried: list[EnergyResult] = []
    for step in range(PRICES[1] * STEPS, PRICES[0] * STEPS, -1):
        tried.append(at_price(seed, step, queue))
        if tried[-1].joules <= joules:
            return tried[-1]
    return min(tried, key=lambda one: one.joules)


def _at_equal_energy() -> Outcome:
    gains: dict[str, tuple[float, ...]] = {}
    more: dict[str, float] = {}
    for limit in LIMITS:
        same = [run(jobs(seed), GPUS, uniform(limit)) for seed in SEEDS]
        for queue in (True, False):
            chosen = [at_energy(seed, one.joules, queue) for seed, one in zip(SEEDS, same, strict=True)]
            name = f"{limit} W" + ("" if queue else " without the queue")
            gains[name] = tuple(a.jct / b.jct for a, b in zip(same, chosen, strict=True))
            more[name] = fmean(b.joules / a.joules for a, b in zip(same, chosen, strict=True))
    text = "; ".join(
        f"beside {name}: {fmean(one):.3f} +-{interval(one):.3f}, energy x {more[name]:.3f}"
        for name, one in gains.items()
    )
    return Outcome(None, round(fmean(gains[f"{LIMITS[0]} W"]), 4), f"{text}; fixed sizes, see decision 130")


def _at_equal_budget() -> Outcome:
    texts, first = [], 0.0
    for limit in LIMITS:
        budget = float(limit * GPUS)
        same = [run(jobs(seed), GPUS, uniform(limit)) for seed in SEEDS]
        chosen = [run(jobs(seed), GPUS, budgeted(budget)) for seed in SEEDS]
        assert all(one.most_watts <= budget + 1e-3 for one in chosen), "the budget holds"
        gain = tuple(a.jct / b.jct for a, b in zip(same, chosen, strict=True))
        energy = tuple(b.joules / a.joules for a, b in zip(same, chosen, strict=True))
        first = first or fmean(gain)
        texts.append(f"{limit} W for each GPU: {fmean(gain):.3f} +-{interval(gain):.3f}, energy x {fmean(energy):.3f}")
    return Outcome(None, round(first, 4), f"{'; '.join(texts)}; a study, see decision 130")


NODES = 8
"""Number of nodes through the scheduler; each has the same share of the GPUs."""


def scheduled(seed: int, budget_watts: float, limit_watts: float | None) -> Report:
    """Return the result of the scheduler, with this power budget, or with one limit for all GPUs and no budget."""
    trace = tuple(
        TraceJob(
            f"j{number}", number, round(job.at * 1e9), job.seconds,
            JobSpec(f"j{number}", ("train",), job.gpus, user="ann", workload=name, exact_seconds=job.seconds),
        )
        for number, (job, name) in enumerate(zip(jobs(seed), workloads(seed), strict=True))
    )  # fmt: skip
    least, most = points_range() if limit_watts is None else (limit_watts, limit_watts)
    simulation = Simulation(
        trace=Trace("zeus", trace),
        nodes=tuple(NodeSeen(f"n{number}", GPUS // NODES) for number in range(NODES)),
        policy=Policy(estimates=Estimates.EXACT, power_budget_watts=budget_watts if limit_watts is None else 0.0),
        power=GpuModel(IDLE_WATTS, least, most, points()),
        seed=seed,
    )
    return simulation.run()


def workloads(seed: int) -> list[str]:
    """Return the workload of each of the seed's jobs."""
    names = {one: name for name, one in points().items()}
    return [names[job.points] for job in jobs(seed)]


def points_range() -> tuple[float, float]:
    """Return the lowest and the highest measured limit."""
    limits = [one.limit_watts for of in points().values() for one in of]
    return min(limits), max(limits)


def _through_the_scheduler() -> Outcome:
    texts, first = [], 0.0
    for limit in LIMITS:
        budget = float(limit * GPUS)
        same = [scheduled(seed, budget, limit) for seed in SEEDS]
        chosen = [scheduled(seed, budget, None) for seed in SEEDS]
        assert all(one.power is not None and one.power["most_watts"] <= budget + 1e-3 for one in chosen)
        gain = tuple((a.avg_jct_seconds or 0.0) / (b.avg_jct_seconds or 1.0) for a, b in zip(same, chosen, strict=True))
        energy = tuple(_kwh(b) / _kwh(a) for a, b in zip(same, chosen, strict=True))
        first = first or fmean(gain)
        texts.append(f"{limit} W for each GPU: {fmean(gain):.3f} +-{interval(gain):.3f}, energy x {fmean(energy):.3f}")
    return Outcome(None, round(first, 4), f"{'; '.join(texts)}; limits, not power, add up to the budget: decision 160")


def _kwh(one: Report) -> float:
    assert one.power is not None
    return one.power["energy_kwh"]
