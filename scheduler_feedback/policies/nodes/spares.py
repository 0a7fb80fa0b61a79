"""Spares: in each domain so many nodes are kept for gangs that a verdict moves, and lent out meanwhile.

A spare takes gangs that may be stopped (``preemptible``), and gangs that are moved away from a bad node. Where a move
needs what is lent, the borrowers are stopped for it (``answers``). A node that is out of use counts as a spare in use:
as long as it is out, one fewer is kept. So bad nodes take slots from the spares first, and from the queue only after.

How many: ``spare_nodes`` of each domain of ``spare_level``; or, where it is known how often nodes fail, the fewest k
for which more than k of the domain's n nodes are out at once with a probability below ``spare_risk_fraction``: nodes
that are out are Poisson with a mean of n x failures a day x days of repair (Palm's theorem; the same sum sizes stocks
of parts). Where the settings name both, the larger.
"""

from __future__ import annotations

import math

from scheduler_feedback.core.cluster import Level, Node, NodeState
from scheduler_feedback.core.cycle_context import Turn
from scheduler_feedback.core.slot_plan import tier_of
from scheduler_feedback.core.state import Policy, State
from scheduler_feedback.policies.index.scheduling_index import Ledger
from scheduler_feedback.policies.queue.placement import may_borrow

SECONDS_A_DAY = 86400.0


def appoint(turn: Turn, ledger: Ledger) -> None:
    """Name the spares anew where nodes have changed; those that stand stay as long as they can."""
    if ledger.appointed:
        return
    ledger.appointed = True
    policy, nodes = turn.state.policy, turn.state.nodes
    if not _wanted(policy) and not any(node.spare for node in nodes.values()):
        return
    domains: dict[tuple[str, ...], list[Node]] = {}
    for node in nodes.values():
        domains.setdefault(_domain(policy.spare_level, node), []).append(node)
    lent = _holders(turn.state, ledger)
    for domain in sorted(domains):
        members = domains[domain]
        out = sum(tier_of(node) is None for node in members)
        wanted = min(max(count(policy, len(members)) - out, 0), len(members) - 1)
        for node in members:
            if node.spare and node.state is not NodeState.HEALTHY:
                _let(turn, ledger, node, False, "it is no longer healthy")
        now = [node for node in members if node.spare]
        # The first to be given up is one that is used by a gang that may not be stopped; the first to be named is free.
        for node in sorted(now, key=lambda node: (-lent.get(node.name, 0), node.name))[: max(len(now) - wanted, 0)]:
            _let(turn, ledger, node, False, f"{out} nodes of its domain are out of use" if out else "fewer are wanted")
        fit = [node for node in members if node.present and node.state is NodeState.HEALTHY and not node.spare]
        fit.sort(key=lambda node: node.name, reverse=True)
        fit.sort(key=lambda node: lent.get(node.name, 0))
        for node in fit[: max(wanted - len(now), 0)]:
            _let(turn, ledger, node, True, "kept for gangs that leave a bad node; lent to those that may be stopped")
    ledger.appointed = True


def _wanted(policy: Policy) -> bool:
    return policy.spare_nodes > 0 or policy.spare_failures_per_day > 0


def count(policy: Policy, nodes: int) -> int:
    """Spares for a domain of so many nodes."""
    mean = nodes * policy.spare_failures_per_day * policy.spare_repair_seconds / SECONDS_A_DAY
    spares, beyond, term = 0, 1.0 - math.exp(-mean), math.exp(-mean)
    while mean > 0 and beyond > max(policy.spare_risk_fraction, 1e-9) and spares < nodes:
        spares += 1
        term *= mean / spares
        beyond -= term
    return max(policy.spare_nodes, spares)


def _domain(level: Level, node: Node) -> tuple[str, ...]:
    """The node's domain of that level; narrower ones lie in the wider."""
    path = {
        Level.SPINE: (node.spine,),
        Level.RACK: (node.spine, node.rack),
        Level.RAIL: (node.spine, node.rack, node.rail),
        Level.ISLAND: (node.spine, node.rack, node.rail, node.island),
    }
    return path.get(level, (node.spine, node.rack, node.rail, node.island, node.name))


def _holders(state: State, ledger: Ledger) -> dict[str, int]:
    """Of each node that is in use: 1 where all on it may be stopped, 2 where one may not."""
    found: dict[str, int] = {}
    for job_id, slots in (*ledger.held.items(), *ledger.claims.items()):
        bound = 1 if may_borrow(state.jobs[job_id].spec) else 2
        for slot in slots:
            found[slot.node] = max(found.get(slot.node, 0), bound)
    return found


def _let(turn: Turn, ledger: Ledger, node: Node, spare: bool, why: str) -> None:
    node.spare = spare
    ledger.node_changed(node)
    ledger.appointed = True  # what has changed is the spares themselves
    turn.tell(f"node:{node.name}", "spare" if spare else "no-spare", f"{'a spare' if spare else 'no spare now'}: {why}")


def borrowers(state: State, ledger: Ledger) -> list[str]:
    """Running gangs that hold slots of spares and may be stopped, by id."""
    spares = {node.name for node in state.nodes.values() if node.spare}
    return sorted(
        job_id
        for job_id in ledger.running
        if state.jobs[job_id].stop_reason is None
        and may_borrow(state.jobs[job_id].spec)
        and any(slot.node in spares for slot in ledger.held[job_id])
    )
