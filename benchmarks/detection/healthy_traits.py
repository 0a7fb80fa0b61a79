"""Properties of healthy jobs from the added classes: each job gets a random choice of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.detection.classes import BACK_STEPS, DOWN_SECONDS, ranks_at_fault, traits_of
from scheduler_feedback.sim.world.clos_fabric import Place
from scheduler_feedback.sim.world.fault import DISORDERS, Fault
from scheduler_feedback.sim.world.layouts import LAYOUTS
from scheduler_feedback.sim.world.plan import Plan
from scheduler_feedback.sim.world.traits import Restart, Traits

SHARES = {"spread": 0.5, "drift": 0.5, "wrong_clocks": 0.2, "other_model": 0.1}
"""Share of the jobs with each property."""

HABIT_SHARE = 0.6
"""Share of the jobs with work of single ranks."""

HABITS = ("rank-recompiles", "loader-stalls", "async-saves", "hot-expert")

HOT_EXPERT = 0.5
"""Additional load of a popular expert's rank (0.5: 50 %)."""

LAYOUT_SHARE = 0.5
"""Share of the balanced jobs with another parallel layout."""

MOST_STAGES_GPUS = 128
"""Maximum number of GPUs of a job with one pipeline stage a node."""

CRASH_DAYS = 0.3
"""Mean time in days between two crashes of a job. Llama 3's training had one interruption in three hours on 16,384
GPUs; smaller jobs crash less often by hardware, and more often by their own errors."""


def with_traits(
    plan: Plan, place: Place, begin: float, seconds: float, step_seconds: float, seed: Sequence[int]
) -> tuple[Plan, Traits]:
    """Return a plan and the properties of a job that runs for `seconds` from `begin` on. seed: of the job."""
    random = np.random.default_rng([*seed, 43])
    if plan.workload == "balanced" and random.random() < LAYOUT_SHARE:
        names = [name for name in LAYOUTS if name != "stage-a-node" or 32 <= plan.gpus <= MOST_STAGES_GPUS]
        plan = LAYOUTS[names[int(random.integers(len(names)))]](plan.name, plan.gpus, step_seconds, random)
    names = [name for name, share in SHARES.items() if random.random() < share]
    of_traits = int(random.integers(2**31))
    traits = traits_of(names, of_traits, step_seconds, begin, begin + seconds)
    habits: tuple[Fault, ...] = ()
    if random.random() < HABIT_SHARE:
        possible = HABITS if plan.expert > 1 else HABITS[:-1]
        name = possible[int(random.integers(len(possible)))]
        ranks = ranks_at_fault(DISORDERS[name], plan, place, random)
        habits = (Fault(name, plan.name, ranks, begin, seconds + 1e6, magnitude=HOT_EXPERT),)
    crashes = _crashes(begin, seconds, step_seconds, random)
    return plan, replace(traits, seed=of_traits, habits=habits, restarts=crashes)


def names_of(plan: Plan, traits: Traits) -> list[str]:
    """Return the names of the properties that a job has; 'none' if it has none."""
    found = [habit.disorder for habit in traits.habits]
    layouts = {
        "interleaved": plan.chunks > 1,
        "sharded": plan.sharded,
        "local-sgd": plan.sync_steps > 1,
        "contention": plan.contention > 0 and not plan.sharded,
    }
    properties = {
        "gpu-spread": traits.spread,
        "drift": traits.drift,
        "mixed-gpus": traits.other_model is not None,
        "wrong-clocks": traits.wrong_clocks,
        "restarts": bool(traits.restarts),
    }
    return found + [name for name, has in (layouts | properties).items() if has] or ["none"]


def _crashes(begin: float, seconds: float, step_seconds: float, random: np.random.Generator) -> tuple[Restart, ...]:
    found, at = list[Restart](), begin
    while True:
        at += 20.0 * step_seconds + float(random.exponential(CRASH_DAYS * 86_400.0))
        if at > begin + seconds:
            return tuple(found)
        down = float(random.uniform(*DOWN_SECONDS))
        found.append(Restart(at, down, int(random.integers(*BACK_STEPS))))
        at += down
