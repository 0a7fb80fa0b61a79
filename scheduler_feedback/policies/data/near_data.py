"""Placement of a gang on nodes that have its dataset in their caches, if that costs nothing else.

A gang starts when its slowest rank has read its data, so only a placement on nodes that all have the dataset is
better. It is used if it needs no more nodes and uplinks than the placement without regard to data, has as many ranks
and the same GPU type, and is on no worse tier of nodes. A gang never waits for such nodes.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler_feedback.core.job import Slot
from scheduler_feedback.policies.index.slot_plan import Plan
from scheduler_feedback.policies.index.uplink_loss import crossed

Place = Callable[[tuple[str, ...]], tuple[Slot, ...] | None]
"""Takes slots from the plan without these nodes, or returns None."""


def nearer_to_data(plan: Plan, dataset: str, slots: tuple[Slot, ...], mark: int, place: Place) -> tuple[Slot, ...]:
    """Return slots on nodes with the dataset instead of `slots`, if there are as good ones; else `slots`.

    The plan has `slots` taken since `mark`, and then the slots that are returned.
    """
    warm = plan.datasets.get(dataset)
    if not warm or all(slot.node in warm for slot in slots):
        return slots
    plan.rollback(mark)
    found = place(tuple(name for name in plan.topology.names if name not in warm))
    if found is not None and _as_good(plan, found, slots):
        return found
    plan.rollback(mark)
    again = place(())
    assert again == slots, "placement depends on the plan and the job only"
    return again


def _as_good(plan: Plan, found: tuple[Slot, ...], slots: tuple[Slot, ...]) -> bool:
    if len(found) < len(slots) or not _pools(plan, found) <= _pools(plan, slots):
        return False
    return _nodes(found) <= _nodes(slots) and len(crossed(plan, found)) <= len(crossed(plan, slots))


def _nodes(slots: tuple[Slot, ...]) -> int:
    return len({slot.node for slot in slots})


def _pools(plan: Plan, slots: tuple[Slot, ...]) -> set[int]:
    """Return the GPU types and tiers of the nodes, as numbers of pools."""
    return {plan.pool[plan.topology.number[slot.node]] for slot in slots}
