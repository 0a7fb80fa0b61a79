"""Priority classes of the network: which gang communicates first on a shared uplink, and why.

Crux (Cao et al., SIGCOMM'24) gives precedence to the traffic of gangs with much computation per time of communication,
because GPUs that wait for a short transfer lose more than others. A gang that crosses uplinks gets its class at the
start, in GANGWATCH_NETWORK_CLASS, and keeps it: a library such as NCCL reads its traffic class once. Running gangs
therefore keep their classes, and the new gang gets the class that orders it best among those on its uplinks.

Strict priority also moves the phases of two gangs apart: the one that had to wait communicates while the other one
computes, and the next steps do not collide if their steps take equally long. CASSINI (Rajasekaran et al., NSDI'24)
computes such shifts in advance, as ``policies.network.time_shifts`` does.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import structs

from scheduler_feedback.core.job import Job, JobSpec, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.index.slot_plan import Crossing, Plan
from scheduler_feedback.policies.index.uplink_loss import crossed, rails_of
from scheduler_feedback.policies.speeds.learnt_speeds import class_of

VARIABLE = "GANGWATCH_NETWORK_CLASS"
"""Environment variable with the number of the class, from 0. A higher number goes first."""

MOST_NETWORK_CLASSES = 8
"""Maximum number of classes: an Ethernet frame has a priority of three bits (IEEE 802.1Q)."""

LEAST_SHARE = 0.01
"""Least share of communication in the intensity of a gang, so that it stays finite."""

SAME = 0.01
"""Additional cost of two gangs in one class, as a share of the intensity."""

MOST_NAMED = 3
"""Maximum number of gangs that the reason names."""


def intensity(share: float, ranks: int) -> float:
    """Return how many slots compute per second of communication: Crux's GPU intensity, without units.

    share: of the gang's time, for which it communicates.
    """
    share = max(share, LEAST_SHARE)
    return ranks * (1 - share) / share


def best_class(own: float, others: list[tuple[float, int]], classes: int) -> int:
    """Return the class of a gang among running gangs: (intensity, class) of each on its uplinks.

    A pair in the wrong order costs the difference of its intensities. A pair in one class costs half of it, and a
    little more, because different classes move the phases of equal gangs apart. Ties go to the class nearest to the
    middle, so that later gangs find one on either side.
    """

    def cost(number: int) -> tuple[float, float, int]:
        wrong = 0.0
        for other, its_class in others:
            difference = abs(own - other)
            if number == its_class:
                wrong += difference / 2 + SAME * own
            elif (number > its_class) != (own > other):
                wrong += difference
        return wrong, abs(number - (classes - 1) / 2), number

    return min(range(classes), key=cost)


def _gang(job: Job, slots: Collection[Slot]) -> Crossing:
    return Crossing(class_of(job.job_id, job.spec), len(slots))


def _neighbours(plan: Plan, job: Job, slots: Collection[Slot]) -> dict[str, Crossing]:
    """Return the other gangs on the uplinks that the gang uses on these slots, by job id."""
    found = {
        name: one
        for domain, rails in rails_of(plan, slots).items()
        for name, one in plan.crossing.get(domain, {}).items()
        if one.rails & rails
    }
    found.pop(job.job_id, None)
    return dict(sorted(found.items()))


def chosen_class(state: State, plan: Plan, job: Job, slots: Collection[Slot]) -> int:
    """Return the class of the starting gang's traffic on these slots; -1 if it has none."""
    policy = state.policy
    if policy.network_classes < 2 or not policy.uplink_slowdown or not crossed(plan, slots):
        return -1
    known = [
        (intensity(plan.share(one.job_class), one.ranks), state.jobs[name].network_class)
        for name, one in _neighbours(plan, job, slots).items()
        if state.jobs[name].network_class >= 0
    ]
    gang = _gang(job, slots)
    return best_class(intensity(plan.share(gang.job_class), gang.ranks), known, policy.network_classes)


def in_words(state: State, plan: Plan, job: Job, slots: Collection[Slot]) -> str:
    """Return what the gang's uplinks are expected to cost on these slots, as a part of a sentence.

    '' if no other gang uses them, or if uplinks have no cost.
    """
    if not state.policy.uplink_slowdown or not (others := list(_neighbours(plan, job, slots))):
        return ""
    gang = _gang(job, slots)
    listed = ", ".join(others[:MOST_NAMED])
    if len(others) > MOST_NAMED:
        listed += f" and {len(others) - MOST_NAMED} more"
    how = f"waits for its network {plan.share(gang.job_class):.0%} of the time"
    if gang.job_class not in plan.traffic:
        how += ", which is assumed"
    loss = max(
        plan.uplink_cost(domain, gang._replace(rails=rails), job.job_id)
        for domain, rails in rails_of(plan, slots).items()
    )
    text = f"; it shares uplinks with {listed} and {how}"
    text += f"; together they are expected to lose {loss:.0%} of its slot time"
    if job.network_class >= 0:
        text += f"; network class {job.network_class} of 0 to {state.policy.network_classes - 1}"
    return text


def with_class(spec: JobSpec, number: int) -> JobSpec:
    """Return the specification with the number of the class in its environment; number -1: unchanged."""
    if number < 0:
        return spec
    return structs.replace(spec, environment={**spec.environment, VARIABLE: str(number)})
