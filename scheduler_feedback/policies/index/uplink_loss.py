"""Uplink costs: the expected slowdown of a gang that spans several domains.

A gang within one rack does not use the rack's uplinks. A gang in several racks shares their uplinks with every other
gang that uses them. Two gangs communicate at once for the product of their shares of the time, and then each is half as
fast. So each loses that product of its time, and the cost of an uplink is

    sum over gangs that use it: share x its share x (1 + its ranks / ranks)
    + (slowdown - 1) of the worst active interference verdict between two gangs that use it

of the new gang's slot time. In a rail-optimised network each rail of a rack has an uplink of its own
(``Policy.uplink_rails``), and only gangs with a common rail share one. The loss of both gangs counts, in proportion to
their ranks: Crux (Cao et al., SIGCOMM'24) and its goal, GPUs that compute. Shares are learnt (``learnt_traffic``);
unknown ones follow from ``Policy.uplink_slowdown``. Phases of the two gangs are not known here (``policies.network``
shifts them).

A gang that does not fit into one domain gets the domains whose worst uplink costs least; ties go to the fewest domains.
Without ``uplink_slowdown`` and interference verdicts, uplinks cost nothing and do not affect placement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from scheduler_feedback.core.job import Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.index.slot_plan import Crossing, Plan


def crossed(plan: Plan, slots: Iterable[Slot]) -> list[int]:
    """Return the domains whose uplinks a gang on these slots uses: those with some of its nodes, but not all."""
    number, above = plan.topology.number, plan.topology.above
    inside = [above[index] for name in {slot.node for slot in slots} if (index := number.get(name)) is not None]
    if len(inside) < 2:
        return []
    common = set(inside[0]).intersection(*inside[1:])
    return sorted({domain for path in inside for domain in path if domain not in common})


def rails_of(plan: Plan, slots: Collection[Slot]) -> dict[int, int]:
    """Return the rails (bit mask) that a gang on these slots uses in each domain whose uplinks it uses."""
    domains = crossed(plan, slots)
    if not domains or plan.rails < 2:
        return dict.fromkeys(domains, 1)
    found = dict.fromkeys(domains, 0)
    number, above = plan.topology.number, plan.topology.above
    for slot in slots:
        if (index := number.get(slot.node)) is not None:
            rail = 1 << plan.rail_of(index, slot.slot)
            for domain in above[index]:
                if domain in found:
                    found[domain] |= rail
    return found


def congested(state: State, plan: Plan) -> dict[int, float]:
    """Return the slowdown, minus 1, that active interference verdicts report for the uplinks of each domain."""
    found: dict[int, float] = {}
    for verdict in state.verdicts.values():
        if not verdict.aggressor:
            continue
        pair = [state.jobs.get(verdict.gang), state.jobs.get(verdict.aggressor)]
        both = [
            rails_of(plan, [rank.slot for rank in job.ranks])
            for job in pair
            if job is not None and job.state.holds_slots
        ]
        for domain in both[0].keys() & both[1].keys() if len(both) == 2 else ():
            if not both[0][domain] & both[1][domain]:
                continue
            found[domain] = max(found.get(domain, 0.0), verdict.slowdown - 1)
    return found


def least_burdened(plan: Plan, holes: list[tuple[int, int]], ranks: int, gang: Crossing) -> list[tuple[int, int]]:
    """Return the domains with the least costly uplinks that together have enough free slots for the gang.

    holes: (number of free slots, number of the domain) of each possible domain; the result has the same form. ranks:
    those to place here, some or all of the gang's.
    """
    if not (plan.crossing and plan.uplink_slowdown) and not plan.congested:
        return holes
    cost = {domain: plan.uplink_cost(domain, gang) for _, domain in holes}
    for most in sorted(set(cost.values())):
        light = [hole for hole in holes if cost[hole[1]] <= most]
        if sum(free for free, _ in light) >= ranks:
            return light
    return holes
