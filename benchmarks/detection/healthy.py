"""Healthy jobs for many GPU-days. Every accusation about them is wrong.

Jobs arrive, run for hours to days, save checkpoints, evaluate, collect garbage, have short stalls, drift, lose samples
and agents, and end. With the added properties, GPUs are unequal and drift, single ranks have work of their own, hosts'
clocks are wrong, processes crash and restart, and some jobs have other parallel layouts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from agent.schema.verdicts.kinds import BLAMING
from benchmarks.detection.baselines import BASELINES, Panel
from benchmarks.detection.claims import Claim, ClaimLog
from benchmarks.detection.healthy_traits import names_of, with_traits
from benchmarks.detection.ours import Ours
from scheduler_feedback.core.state import Policy
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.sim.world import clos_fabric, plan
from scheduler_feedback.sim.world.clos_fabric import NODES_PER_POD
from scheduler_feedback.sim.world.course import Course
from scheduler_feedback.sim.world.outputs.array_output import ROUGH, Delivery, World
from scheduler_feedback.sim.world.plan import MOST_DP2_GPUS, Workload
from scheduler_feedback.sim.world.traits import NO_TRAITS

DAY_SECONDS = 86_400.0
TICK_SECONDS = 60.0
SHORTEST_DAYS = 0.1
SMALL_SHARE, SMALL_DAYS = 0.3, (SHORTEST_DAYS, 0.3)
"""Share of small jobs, and the range of their durations in days. One GPU-day of a small job costs as much to simulate
as a hundred of a large job."""

SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
SMALL = 256
SHORTEST_STEP = {1024: 1.0, 2048: 2.0, 4096: 2.0}
"""Shortest step in seconds, by minimum number of GPUs; 0.3 s for smaller jobs. Shorter steps of large jobs would cost
too much to simulate."""


@dataclass(frozen=True, slots=True)
class Health:
    """Healthy jobs of one kind on one simulated cluster, with `gpu_days` in total. long: one small job for many days.

    added: whether the jobs have the properties of the added classes (healthy_traits.py).
    switches: detector parts that are turned off for an ablation. sampling_seconds: interval of counters.
    """

    workload: Workload
    gpu_days: float
    seed: int
    baselines: bool = False
    reports: bool = True
    rough: bool = False
    long: bool = False
    added: bool = False
    switches: Switches | None = None
    sampling_seconds: float = 30.0


@dataclass(slots=True)
class Alarms:
    """Claims about healthy jobs. by_method: number of wrong accusations of each method.

    wrong_actions: our claims that allow our scheduler to move a running job. sure: our claims with enough confidence
    for a move, regardless of their cause. of_workload: our false claims about jobs' own behaviour, which accuse
    nothing. by_property: numbers of jobs with each property (healthy_traits.py), and of those that were accused.
    """

    workload: str
    gpu_days: float
    jobs: int
    by_method: dict[str, int]
    kinds: dict[str, int] = field(default_factory=dict)
    wrong_actions: int = 0
    sure: int = 0
    of_workload: dict[str, int] = field(default_factory=dict)
    by_property: dict[str, tuple[int, int]] = field(default_factory=dict)


def jobs(health: Health) -> list[Course]:
    """Return jobs that begin one after the other. In total they last for the requested GPU-days."""
    random = np.random.default_rng([health.seed, 41])
    sizes = [s for s in SIZES if health.workload != "dp2" or s <= MOST_DP2_GPUS]
    left, number, node, found = health.gpu_days, 0, 0, list[Course]()
    while left > 0:
        # A job lasts for hours at least: the smaller the remainder, the smaller the job.
        fitting = [s for s in sizes if s * SHORTEST_DAYS <= left] or sizes[:1]
        small = random.random() < SMALL_SHARE
        gpus = int(random.choice([s for s in fitting if s <= SMALL])) if small else fitting[-1]
        days = min(left / gpus, float(random.uniform(*SMALL_DAYS)) if small else float(random.uniform(0.25, 3.0)))
        if health.long:
            gpus, days = 64, health.gpu_days / 64
        shortest = SHORTEST_STEP.get(gpus, 0.3)
        step_seconds = float(np.exp(random.uniform(np.log(shortest), np.log(45.0))))
        made = plan.make(f"h-{health.seed:08d}-{number}", gpus, health.workload, step_seconds, random)
        place = clos_fabric.place(np.arange(node, node + gpus // 8), gpus)
        begin = float(random.uniform(0.0, 600.0)) if number else 0.0
        adaptive = bool(random.random() < 0.5)
        traits = NO_TRAITS
        if health.added:
            made, traits = with_traits(made, place, begin, days * DAY_SECONDS, step_seconds, [health.seed, number])
        of_job = np.random.default_rng([health.seed, number])
        course = Course(made, place, of_job, begin, adaptive, traits=traits)
        course.block_seconds = TICK_SECONDS
        course.reports = health.reports
        course.finish = begin + days * DAY_SECONDS
        found.append(course)
        left -= gpus * max(days, 1e-3)
        number += 1
        node += -(-gpus // 8 // NODES_PER_POD) * NODES_PER_POD
    return found


def run(health: Health, ours: Ours | None = None) -> Alarms:
    """Run the jobs and count the accusations of each method. ours: detectors to use; None: new ones with the switches
    of `health`."""
    courses = jobs(health)
    world = World(courses, health.seed, health.sampling_seconds, ROUGH if health.rough else Delivery())
    ours = Ours(health.switches) if ours is None else ours
    panel = Panel([rule() for rule in BASELINES] if health.baselines else [])
    by_method = {"ours": ClaimLog()} | {rule.name: ClaimLog() for rule in panel.rules}
    until = max(course.finish for course in courses)
    while world.now < until:
        telemetry = world.tick(TICK_SECONDS)
        by_method["ours"].add(ours.look(telemetry))
        for name, claims in panel.look(telemetry).items():
            by_method[name].add(claims)
    gpu_days = sum(c.plan.gpus * (c.finish - c.begin) for c in courses) / DAY_SECONDS
    reported = list(by_method["ours"].claims.values())
    false = [claim for claim in reported if accuses(claim)]
    return Alarms(
        health.workload,
        gpu_days,
        len(courses),
        {name: sum(accuses(claim) for claim in one.claims.values()) for name, one in by_method.items()},
        dict(Counter(f"{claim.kind}/{claim.cause}" for claim in false)),
        sum(claim.key in by_method["ours"].moves for claim in reported),
        sum(claim.confidence >= Policy().minimum_confidence for claim in false),
        dict(Counter(f"{claim.kind}/{claim.cause}" for claim in reported if not accuses(claim))),
        _by_property(courses, {claim.job for claim in false}),
    )


def _by_property(courses: list[Course], accused: set[str]) -> dict[str, tuple[int, int]]:
    """Return the numbers of jobs with each property, and of those that are in `accused`."""
    named = [(course.plan.name, name) for course in courses for name in names_of(course.plan, course.traits)]
    jobs, wrong = Counter(name for _, name in named), Counter(name for job, name in named if job in accused)
    return {name: (count, wrong[name]) for name, count in jobs.items()}


def accuses(claim: Claim) -> bool:
    """Return whether the claim accuses hardware or another job, or makes the controller freeze all actions."""
    return claim.kind in {*BLAMING, "freeze"}
