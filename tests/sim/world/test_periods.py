"""Iteration time inferred from counters, for jobs that report no steps, compared with the simulated truth."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.detectors import Detection
from scheduler_feedback.sim.world import clos_fabric, plan
from scheduler_feedback.sim.world.course import Course
from scheduler_feedback.sim.world.outputs.array_output import Delivery, World

SECONDS = 330.0
JOBS: tuple[tuple[plan.Workload, float], ...] = (
    ("balanced", 0.6), ("balanced", 1.7), ("moe", 1.5), ("balanced", 6.1), ("moe", 14.2), ("balanced", 9.3),
)  # fmt: skip


@pytest.fixture(scope="module")
def inferred() -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return {job: inferred period} and {job: seconds of each step}. The detector does not get the steps."""
    random = np.random.default_rng(11)
    courses = []
    for number, (workload, step_seconds) in enumerate(JOBS):
        place = clos_fabric.place(
            np.arange(number * clos_fabric.NODES_PER_POD, number * clos_fabric.NODES_PER_POD + 2), 16
        )
        made = plan.make(f"{workload}-{step_seconds}", 16, workload, step_seconds, random)
        courses.append(Course(made, place, np.random.default_rng(number), 0.0, adaptive=True))
    world, detector = World(courses, 3, 1.0, Delivery(), True), Detection(())
    steps: dict[str, list[float]] = {course.plan.name: [] for course in courses}
    while world.now < SECONDS:
        telemetry = world.tick(5.0)
        silent = []
        for job in telemetry.jobs:
            if job.steps is not None:
                steps[job.shape.job] += np.nanmedian(job.steps.seconds, axis=1).tolist()
            silent.append(type(job)(job.shape))
        detector.tick(type(telemetry)(telemetry.now_ns, tuple(silent), telemetry.counters))
    assert dict(detector.shared.speeds.periods()) == {labels[0][1]: value for _, labels, value in detector.measures()}
    return dict(detector.shared.speeds.periods()), steps


VISIBLE = ("balanced-1.7", "balanced-6.1", "moe-14.2", "balanced-9.3")
"""Jobs with detectable iterations. Two nodes must sample at different moments to detect the shortest; two nodes are not
enough for iterations of 0.6 s, or of 1.5 s with experts."""


@pytest.mark.parametrize("job", VISIBLE)
def test_the_inferred_iteration_is_within_two_per_cent_of_the_true_one(
    job: str, inferred: tuple[dict[str, float], dict[str, list[float]]]
) -> None:
    periods, steps = inferred
    assert periods[job] == pytest.approx(np.mean(steps[job]), rel=0.02)


def test_no_period_is_reported_for_invisible_iterations(
    inferred: tuple[dict[str, float], dict[str, list[float]]],
) -> None:
    assert inferred[0].keys() == set(VISIBLE)
