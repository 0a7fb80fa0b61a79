"""Spare nodes: each domain reserves nodes for gangs that a verdict moves, and lends them out meanwhile.

A spare accepts preemptible gangs, and gangs that are moved away from a bad node. If a move needs lent slots, their
borrowers are stopped (``mitigation_options``). Each unavailable node replaces one spare: while it is unavailable, the
domain reserves one spare fewer. So bad nodes first use up the spares, and only then reduce the slots of the queue.

The number of spares is ``spare_nodes`` of each domain of ``spare_level``. If the failure rate is configured, it is at
least the smallest k for which the probability that more than k of the domain's n nodes are unavailable is below
``spare_risk_fraction``. The number of unavailable nodes is Poisson distributed with mean n x failures a day x days of
repair (Palm's theorem).
"""

from __future__ import annotations

import math

from scheduler_feedback.core.cluster import Level, Node, NodeState, tier_of
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.queue.placement import may_borrow

SECONDS_A_DAY = 86400.0


def appoint(context: CycleContext) -> None:
    """Choose the spare nodes of each domain again after a change of nodes. Present spares are kept where possible."""
    index = context.index
    if index.appointed:
        return
    index.appointed = True
    policy, nodes = context.state.policy, context.state.nodes
    if not _wanted(policy) and not any(node.spare for node in nodes.values()):
        return
    domains: dict[tuple[str, ...], list[Node]] = {}
    for node in nodes.values():
        domains.setdefault(_domain(policy.spare_level, node), []).append(node)
    lent = _holders(context.state, index)
    for domain in sorted(domains):
        members = domains[domain]
        out = sum(tier_of(node) is None for node in members)
        wanted = min(max(count(policy, len(members)) - out, 0), len(members) - 1)
        for node in members:
            if node.spare and node.state is not NodeState.HEALTHY:
                _set_spare(context, node, False, "it is no longer healthy")
        now = [node for node in members if node.spare]
        # First to be released: nodes with gangs that may not be preempted. First to be chosen: free nodes.
        for node in sorted(now, key=lambda node: (-lent.get(node.name, 0), node.name))[: max(len(now) - wanted, 0)]:
            why = f"it replaces one of {out} unavailable nodes of its domain" if out else "fewer spares are needed"
            _set_spare(context, node, False, why)
        fit = [node for node in members if node.present and node.state is NodeState.HEALTHY and not node.spare]
        fit.sort(key=lambda node: node.name, reverse=True)
        fit.sort(key=lambda node: lent.get(node.name, 0))
        for node in fit[: max(wanted - len(now), 0)]:
            why = "reserved for gangs that leave a bad node; preemptible gangs may use it meanwhile"
            _set_spare(context, node, True, why)
    index.appointed = True


def _wanted(policy: Policy) -> bool:
    return policy.spare_nodes > 0 or policy.spare_failures_per_day > 0


def count(policy: Policy, nodes: int) -> int:
    """Return the number of spare nodes for a network domain with this many nodes."""
    mean = nodes * policy.spare_failures_per_day * policy.spare_repair_seconds / SECONDS_A_DAY
    spares, beyond, term = 0, 1.0 - math.exp(-mean), math.exp(-mean)
    while mean > 0 and beyond > max(policy.spare_risk_fraction, 1e-9) and spares < nodes:
        spares += 1
        term *= mean / spares
        beyond -= term
    return max(policy.spare_nodes, spares)


def _domain(level: Level, node: Node) -> tuple[str, ...]:
    """Return the names of the network domains that contain the node, from its spine down to this level."""
    path = {
        Level.SPINE: (node.spine,),
        Level.RACK: (node.spine, node.rack),
        Level.RAIL: (node.spine, node.rack, node.rail),
        Level.ISLAND: (node.spine, node.rack, node.rail, node.island),
    }
    return path.get(level, (node.spine, node.rack, node.rail, node.island, node.name))


def _holders(state: State, index: SchedulingIndex) -> dict[str, int]:
    """Return for each node in use, by name: 1 if all gangs on the node may be preempted, 2 if one may not."""
    found: dict[str, int] = {}
    for job_id, slots in (*index.held.items(), *index.claims.items()):
        bound = 1 if may_borrow(state.jobs[job_id].spec) else 2
        for slot in slots:
            found[slot.node] = max(found.get(slot.node, 0), bound)
    return found


def _set_spare(context: CycleContext, node: Node, spare: bool, why: str) -> None:
    context.index.set_spare(node, spare)
    what = "now a spare node" if spare else "no longer a spare node"
    context.record(f"node:{node.name}", "spare" if spare else "no-spare", f"{what}: {why}")


def borrowers(state: State, index: SchedulingIndex) -> list[str]:
    """Return the ids of running gangs that may be preempted and hold slots of spare nodes."""
    spares = {node.name for node in state.nodes.values() if node.spare}
    return sorted(
        job_id
        for job_id in index.running
        if state.jobs[job_id].stop_reason is None
        and may_borrow(state.jobs[job_id].spec)
        and any(slot.node in spares for slot in index.held[job_id])
    )
