"""CPU, memory and other resources that nodes must keep for the head of the queue.

A reservation holds slots. A job on the other slots of the same nodes could take the CPU that the head needs. Each
constraint has a share of a node: the largest part of any resource that one pod requests. If the shares of all pods on
a node sum up to 1 at most, all of them fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler_feedback.core.job import Job, JobSpec, Slot
from scheduler_feedback.policies.index.domains import Topology
from scheduler_feedback.policies.index.runtime_estimate import Release
from scheduler_feedback.policies.index.slot_plan import Plan

_ROUNDING = 1e-9


class ReservedRoom:
    """Share of each node that is left at the head's expected start, beside the head and the gangs that still run then.

    slots: the head's reserved slots. lasting: slots of gangs that run beyond the head's start, with their jobs.
    """

    __slots__ = ("_head", "_left", "_topology")

    def __init__(
        self,
        topology: Topology,
        head: JobSpec,
        slots: Iterable[Slot],
        lasting: Iterable[tuple[JobSpec, Iterable[Slot]]],
    ) -> None:
        self._topology, self._head = topology, head
        self._left = {
            number: 1.0 - count * share_of_slot(topology, head, number)
            for number, count in _by_number(topology, slots).items()
        }
        for spec, held in lasting:
            self.take(spec, held)

    def take(self, spec: JobSpec, slots: Iterable[Slot]) -> None:
        """Subtract a gang that runs beyond the head's start."""
        for number, count in _by_number(self._topology, slots).items():
            if number in self._left:
                self._left[number] -= count * share_of_slot(self._topology, spec, number)

    def beyond(self, plan: Plan, spec: JobSpec) -> list[Slot]:
        """Take the free slots that a gang which runs beyond the head's start must leave unused. Return them."""
        limits = self._topology.limits
        own, of_head = limits.get(spec.constraint, {}), limits.get(self._head.constraint, {})
        held: list[Slot] = []
        for number, left in self._left.items():
            if number not in own and number not in of_head:  # slots are the tighter limit for both
                continue
            slots_a_pod = _slots_of_pod(spec)
            pods = int(max(left + _ROUNDING, 0.0) / (share_of_slot(self._topology, spec, number) * slots_a_pod))
            if (more := plan.count[number] - pods * slots_a_pod) > 0:
                held += plan.take_from(number, more)
        return held


def share_of_slot(topology: Topology, spec: JobSpec, number: int) -> float:
    """Return the part (0 to 1) of the node that a rank of the job uses at most, of any resource.

    Without a limit by other resources, or with one of a journal that lacks the share, it is what the number of pods
    that fit implies.
    """
    slots_a_pod = _slots_of_pod(spec)
    limit = topology.limits.get(spec.constraint, {}).get(number)
    if limit is not None and limit.share:
        return limit.share / slots_a_pod
    pods = limit.most_pods if limit is not None else topology.sizes[number] // slots_a_pod
    return 1.0 / (max(pods, 1) * slots_a_pod)


def lasting(ends: Iterable[Release], from_ns: int, jobs: Mapping[str, Job]) -> Iterable[tuple[JobSpec, Iterable[Slot]]]:
    """Yield each gang that is expected to run at from_ns and later, with its slots."""
    return ((jobs[end.job_id].spec, end.slots) for end in ends if end.at_ns > from_ns and end.job_id in jobs)


def _slots_of_pod(spec: JobSpec) -> int:
    return min((group.ranks for group in spec.groups if group.same_node), default=1)


def _by_number(topology: Topology, slots: Iterable[Slot]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for slot in slots:
        if (number := topology.number.get(slot.node)) is not None:
            counts[number] = counts.get(number, 0) + 1
    return counts
