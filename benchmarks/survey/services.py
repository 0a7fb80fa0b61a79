"""Row of MuxFlow: offline training jobs share the GPUs of online services, which keep their latency objective.

MuxFlow (Zhao et al., 2023) has no public trace, and its figures are of its production clusters. Input, made from its
description: services with one GPU each, of which requests use about a quarter on average (published GPU utilisation
before sharing: 26 %), and offline jobs with one GPU, drawn as in Gavel's traces. The true speeds of a pair are those
that Gavel measured for two trainings on one v100: no public file has services. A guest with a part p of the GPU runs
at p times its speed of the pair, and slows the service by p times what it would without a limit.

The load of each service has a daily course, noise, and two surges a day of a fifth of what it can answer. The objective
is kept in a minute if 95 % of the requests are answered in time in each window of ten seconds. A guest that is recalled
needs ten seconds to save, and each restart costs 300 s.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from benchmarks.policies import RESTART_COST_SECONDS
from benchmarks.survey.gavel_data import read_simulation, static_jobs
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shared_slots import FIFO, GPU_TYPE, pair_speeds
from benchmarks.survey.shares import SEEDS, interval
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Policy, Sharing
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation
from scheduler_feedback.sim.speeds.co_location import of_pairs
from scheduler_feedback.sim.speeds.services import DAY_SECONDS, Load, Services, latency_seconds

NODES, SERVICES = 3, 16
"""Nodes of eight GPUs, and services of one GPU: our choice."""

JOBS, LONGEST_SECONDS = 75, 12 * 3600
"""Number and longest run time of the offline jobs: our choice. Longer ones of the distribution are left out."""

LOAD = 2.0
"""Work of the offline jobs while they arrive, as a multiple of what the GPUs without services can do."""

DAYS = 4
"""Run time of the services, longer than that of all offline jobs."""

LOW, HIGH, NOISE = 0.1, 0.45, 0.02
"""Daily course of the load, as a part of what one GPU can answer, and the standard deviation around it: our choice. The
mean is 0.275; MuxFlow's GPU utilisation before sharing is 0.26."""

SURGES_A_DAY, SURGE, SURGE_SECONDS = 2, 0.2, 300.0
"""Surges of a service: number a day, additional load and duration. Our choice."""

REQUEST_SECONDS = 0.01
"""Mean time to answer a request alone: our choice. Only its ratio to the objective matters."""

OBJECTIVE_LOAD = 0.8
"""Load at which a service alone just keeps its objective: our choice."""

SAVE_SECONDS = 10.0
"""Time that a recalled guest needs to save: our choice."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Results of one simulation."""

    kept: float
    """Share of the minutes of all services in which the objective was kept."""
    jct: float
    """Average completion time of the offline jobs, in seconds."""
    lent: float
    """Work of guests on the services' GPUs, as a share of the time of these GPUs until the last offline job ended."""
    recalls: int
    """Number of guests that were stopped for a service."""


POLICIES = {
    "none": FIFO,
    "muxflow": replace(FIFO, sharing=Sharing.MUXFLOW),
    "blind": replace(FIFO, sharing=Sharing.MUXFLOW),
    "antman": replace(FIFO, sharing=Sharing.ANTMAN),
}
"""Policies by name. In `blind`, services report no latency."""


def rows() -> list[Row]:
    """Return the rows of this module."""
    return [
        Row("MuxFlow", "online and training jobs share a GPU",
            "minutes in which the latency objective is kept, per cent, ten seeds (99.9 asked)", None,
            "Zhao et al., 2023 (production: GPU utilisation 26 % -> 76 %, not comparable)", _muxflow, slow=True),
        Row("MuxFlow", "online and training jobs share a GPU",
            "average JCT of offline jobs, on their own GPUs only = 1, ten seeds", None, "Zhao et al., 2023",
            _offline, slow=True),
    ]  # fmt: skip


def objective() -> float:
    """Return the latency objective, in seconds."""
    return latency_seconds(REQUEST_SECONDS, OBJECTIVE_LOAD, 1.0)


def load_of(chance: random.Random) -> Load:
    """Return the load of one service."""
    surges = tuple(
        (chance.uniform(0, DAYS * DAY_SECONDS), SURGE_SECONDS, SURGE) for _ in range(round(SURGES_A_DAY * DAYS))
    )
    return Load(LOW, HIGH, chance.uniform(0, DAY_SECONDS), NOISE, surges)


def trace_of(seed: int, opportunistic: bool) -> Trace:
    """Return the services and the offline jobs of one seed. opportunistic: whether the offline jobs are."""
    chance = random.Random(f"services {seed}")
    types = sorted(pair_speeds())
    jobs = []
    for number in range(SERVICES):
        spec = JobSpec(
            f"s{number}", SIMULATED_COMMAND, 1, workload=chance.choice(types), shareable=True,
            latency_objective_seconds=objective(),
        )  # fmt: skip
        jobs.append(TraceJob(spec.name, number + 1, 0, float(DAYS * DAY_SECONDS), spec))
    drawn = [one for one in static_jobs(read_simulation(), 20 * JOBS, seed) if one.seconds <= LONGEST_SECONDS]
    drawn = [one for one in drawn if one.gpus == 1][:JOBS]
    span = sum(one.seconds for one in drawn) / ((NODES * 8 - SERVICES) * LOAD)
    arrivals = sorted(chance.uniform(60, 60 + span) for _ in drawn)
    for number, (one, at_seconds) in enumerate(zip(drawn, arrivals, strict=True)):
        spec = JobSpec(
            f"j{number}", SIMULATED_COMMAND, 1, workload=one.job_type, restartable=True, preemptible=True,
            shareable=opportunistic, opportunistic=opportunistic, checkpoint_cost_seconds=SAVE_SECONDS,
        )  # fmt: skip
        jobs.append(TraceJob(spec.name, SERVICES + number + 1, round(at_seconds * 1e9), one.seconds, spec))
    return Trace(f"seed {seed}", tuple(jobs))


def run(seed: int, policy: Policy, reports: bool = True) -> Figures:
    """Simulate one seed. reports: whether the services report their latency."""
    shares = policy.sharing is not Sharing.NONE
    trace = trace_of(seed, shares)
    engine = Simulation(
        trace, grid(NODES, 8, gpu_type=GPU_TYPE, jobs_per_slot=2 if shares else 1), policy,
        restart_cost_seconds=RESTART_COST_SECONDS, co_speed=of_pairs({GPU_TYPE: pair_speeds()}),
    ).engine()  # fmt: skip
    chance = random.Random(f"loads {seed}")
    loads = {f"s{number}": load_of(chance) for number in range(SERVICES)}
    services = Services(loads, REQUEST_SECONDS, DAYS * DAY_SECONDS, seed, reports)
    services.begin(engine)
    engine.run()
    offline = [one for name, one in engine.courses.items() if name.startswith("j")]
    last_ns = max(one.ended_ns or 0 for one in offline) - engine.first_ns
    recalls = sum(one.starts - 1 for one in offline)
    return Figures(
        services.kept, fmean(((one.ended_ns or 0) - one.submitted_ns) / 1e9 for one in offline),
        services.guest_seconds / (SERVICES * last_ns / 1e9), recalls,
    )  # fmt: skip


@cache
def figures(name: str) -> tuple[Figures, ...]:
    """Return the figures of one policy, by seed."""
    return tuple(run(seed, POLICIES[name], name != "blind") for seed in SEEDS)


def _per_cent(values: tuple[float, ...], digits: int) -> str:
    return f"{100 * fmean(values):.{digits}f} +-{100 * interval(values):.{digits}f} %"


def _muxflow() -> Outcome:
    kept = {name: tuple(one.kept for one in figures(name)) for name in POLICIES}
    text = (
        f"no public trace: input made from the description; {_per_cent(kept['muxflow'], 3)}, worst seed "
        f"{100 * min(kept['muxflow']):.3f} %; without guests {_per_cent(kept['none'], 3)}; guests that are never "
        f"recalled {_per_cent(kept['blind'], 2)}; AntMan's rule {_per_cent(kept['antman'], 3)}; "
        f"{fmean(one.recalls for one in figures('muxflow')):.0f} recalls of {JOBS} offline jobs"
    )
    return Outcome(None, round(100 * fmean(kept["muxflow"]), 3), text)


def _ratio(name: str) -> tuple[float, ...]:
    return tuple(one.jct / other.jct for one, other in zip(figures(name), figures("none"), strict=True))


def _offline() -> Outcome:
    found = _ratio("muxflow")
    lent = tuple(one.lent for one in figures("muxflow"))
    antman = _ratio("antman")
    text = (
        f"{fmean(found):.3f} +-{interval(found):.3f}; guests do {_per_cent(lent, 1)} of what the services' GPUs can do "
        f"alone; AntMan's rule {fmean(antman):.3f} +-{interval(antman):.3f}"
    )
    return Outcome(None, round(fmean(found), 4), text)
