"""Jobs for the tests of the world."""

from __future__ import annotations

import numpy as np

from scheduler_feedback.sim.world import clos_fabric, plan
from scheduler_feedback.sim.world.course import Course
from scheduler_feedback.sim.world.plan import Plan, Workload
from scheduler_feedback.sim.world.traits import NO_TRAITS, Traits


def job(
    gpus: int = 64,
    workload: Workload = "balanced",
    seconds: float = 2.0,
    traits: Traits = NO_TRAITS,
    made: Plan | None = None,
) -> Course:
    """Return a job that begins at time 0. made: its plan; None: one of this workload."""
    if made is None:
        made = plan.make("j", gpus, workload, seconds, np.random.default_rng(1))
    place = clos_fabric.place(np.arange(made.gpus // 8), made.gpus)
    return Course(made, place, np.random.default_rng(5), traits=traits)
