"""Limits on the pods of a node by CPU, memory and other resources than slots. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from scheduler_feedback.backends.kubernetes.objects.constraints import Constraint, room_for, share_of
from scheduler_feedback.core.cluster import Limit

Free = tuple[tuple[str, int], ...]
"""Free amount of each resource, sorted by name."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A constraint of pending or running gangs."""

    constraint: Constraint

    slots_a_pod: int
    """Slots of the smallest pod with this constraint. If its pods fit beside one another, larger ones do, too."""


def limits_of(
    wanted: Iterable[Wanted],
    accelerators: Collection[str],
    slots: int,
    free_slots: int,
    free: Mapping[str, int],
    emptied: Mapping[str, int],
) -> tuple[tuple[Limit, ...], Free]:
    """Return the limits of a node, sorted by constraint, and the free amount of each resource that constraints request.

    wanted: constraints of gangs. accelerators: resources whose units are the node's slots; if there are several, such
    as MIG profiles, the units of each one limit the pods that request it. free: resources that no pod requests now.
    emptied: the same if all gangs had ended. A constraint has a limit only if these resources limit it more than slots
    do. Without any limit no free amounts are returned: pods that fit alone then fit together. A node
    without free slots takes no pod, so its free amounts are neither compared nor returned, and their changes cause no
    reports.
    """
    limits, requested = [], set()
    for one in sorted(wanted, key=lambda one: one.constraint.name):
        constraint = one.constraint
        if constraint.resource not in accelerators:
            continue
        requested |= {constraint.resource, *(name for name, _ in constraint.requests)}
        most = room_for(constraint, emptied)
        if len(accelerators) > 1:
            most = min(most, max(emptied.get(constraint.resource, 0), 0) // one.slots_a_pod)
        now = room_for(constraint, free) if free_slots > 0 else most
        if len(accelerators) > 1:
            now = min(now, max(free.get(constraint.resource, 0), 0) // one.slots_a_pod)
        if now * one.slots_a_pod < free_slots or most * one.slots_a_pod < slots:
            share = share_of(constraint, emptied)
            limits.append(Limit(constraint.name, min(now, slots), min(most, slots), share))
    if not limits or free_slots <= 0:
        return tuple(limits), ()
    return tuple(limits), tuple((name, free.get(name, 0)) for name in sorted(requested))
