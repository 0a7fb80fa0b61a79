"""Rails: which slots of partly used nodes a gang gets, so that it uses the uplinks of no other gang's rails.

In a rail-optimised network, NIC i of every node connects to the leaf switch of rail i, and each of these switches has
uplinks of its own. A gang with four ranks on each of its nodes uses half of eight rails. If other gangs in its racks
use the other half, none of them slows another one down.
"""

from __future__ import annotations

from scheduler_feedback.core.job import Slot
from scheduler_feedback.policies.index.slot_plan import Crossing, Plan
from scheduler_feedback.policies.index.uplink_loss import crossed

MOST_RAILS = 64
"""Maximum number of rails of a node: four times the NICs of the largest nodes with one NIC per GPU (16)."""

Piece = tuple[int, tuple[Slot, ...]]
"""Taken slots of one node: (number of the node, slots)."""


def on_quiet_rails(plan: Plan, pieces: list[Piece], gang: Crossing) -> list[Piece]:
    """Exchange the gang's slots for free ones of the same nodes whose rails have the least costly uplinks.

    All nodes get slots of the same rails, if each has enough of them free. So a gang that fills a node, and uses all
    rails, keeps its slots. So does a gang on nodes with several NVLink islands: its ranks on a node must stay in one
    island.
    """
    if plan.rails < 2 or not (plan.crossing and plan.uplink_slowdown):
        return pieces
    if any(plan.topology.islands[number] for number, _ in pieces):
        return pieces
    domains = crossed(plan, [slots[0] for _, slots in pieces])
    costs = [
        max((plan.uplink_cost(domain, gang._replace(rails=1 << rail)) for domain in domains), default=0.0)
        for rail in range(plan.rails)
    ]
    for most in sorted(set(costs))[:-1]:
        light = {rail for rail, cost in enumerate(costs) if cost <= most}
        chosen = [_lightest(plan, piece, light) for piece in pieces]
        if all(len(now) == len(before) for now, (_, before) in zip(chosen, pieces, strict=True)):
            plan.give(slot for _, slots in pieces for slot in slots)
            plan.hold(slot for slots in chosen for slot in slots)
            return [(number, slots) for (number, _), slots in zip(pieces, chosen, strict=True)]
    return pieces


def _lightest(plan: Plan, piece: Piece, light: set[int]) -> tuple[Slot, ...]:
    """Return slots of these rails on the piece's node, its own or free ones: as many as the piece has, or fewer if
    there are not enough.
    """
    number, own = piece
    found = [
        slot
        for slot in plan.topology.slots[number]
        if (slot in own or plan.free_slots(number) >> slot.slot & 1) and plan.rail_of(number, slot.slot) in light
    ]
    return tuple(found[: len(own)])
