"""Options of a job: the numbers of ranks and the GPU types with which it may run, and its speed with each."""

from __future__ import annotations

from typing import NamedTuple

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Policy
from scheduler_feedback.policies.index.slot_plan import Plan
from scheduler_feedback.policies.queue.placement import attempt_speed, types_for
from scheduler_feedback.policies.speeds.learnt_speeds import WORTH


class Option(NamedTuple):
    """One number of ranks on one GPU type."""

    type_number: int
    """Number of the GPU type in the topology."""
    ranks: int
    """Number of ranks."""
    speed: float
    """Expected speed; 1 is the speed that the job's run time estimate assumes."""
    value: float = 0.0
    """Worth of the option; only differences between options of one job, and sums over jobs, have a meaning."""


def sizes_of(job: Job, largest: int) -> list[int]:
    """Return the numbers of ranks to compare, ascending, in whole units: powers of 2, their multiples by 1.5, and
    multiples of the largest node. Steps of a third cost little of the gain, and keep the choice short.

    The least, the requested, the greatest and the present number are always included. largest: slots of that node.
    """
    spec = job.spec
    least, most = spec.min_ranks or spec.ranks, spec.max_ranks or spec.ranks
    if spec.sizes:
        return list(spec.sizes)
    found = {least, spec.ranks, most, len(job.ranks)}
    size = spec.unit
    while size <= most:
        found.update((size, size * 3))
        size *= 2
    found.update(range(largest, most + 1, max(largest, 1)))
    return sorted(size for size in found if least <= size <= most and size % spec.unit == 0)


def options_of(plan: Plan, job: Job, policy: Policy) -> list[Option]:
    """Return the options of the job, the fastest GPU type first, then by number of ranks.

    A number of ranks that is hardly faster than a smaller one is left out, unless the job has it now.
    """
    names = plan.topology.type_names
    found = []
    for number in types_for(plan, job, policy):
        fastest = 0.0
        for ranks in sizes_of(job, plan.topology.largest):
            speed = max(attempt_speed(policy, job, names[number], ranks, plan.learnt), SLOWEST)
            if speed > WORTH * fastest or ranks == len(job.ranks):
                found.append(Option(number, ranks, speed))
            fastest = max(fastest, speed)
    return found


SLOWEST = 1e-9
"""Least speed of an option, so that no value is infinite."""
