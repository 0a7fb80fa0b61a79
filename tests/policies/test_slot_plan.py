"""Slot plan (a transaction on free slots), compared with a plain set."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_feedback.core.cluster import Node, NodeState, Tier, tier_of
from scheduler_feedback.core.job import Slot
from scheduler_feedback.core.state import MeasuredTraffic
from scheduler_feedback.policies.index.slot_plan import NOWHERE, Crossing, Plan


def test_rollback_undoes_changes_and_commit_keeps_them() -> None:
    plan = Plan([Node("n1", 4), Node("n2", 4)], [Slot("n2", 0)])
    outer = plan.checkpoint()
    assert plan.take("n1", 3) == (Slot("n1", 0), Slot("n1", 1), Slot("n1", 2))
    inner = plan.checkpoint()
    plan.take("n1", 1)
    plan.give([Slot("n2", 0)])
    assert (plan.free_on("n1"), plan.free_on("n2"), plan.free(Tier.HEALTHY)) == (0, 4, 4)
    plan.rollback(inner)
    assert (plan.free_on("n1"), plan.free_on("n2")) == (1, 3)
    plan.rollback(outer)
    assert (plan.free_on("n1"), plan.free_on("n2"), plan.free(Tier.HEALTHY)) == (4, 3, 7)
    plan.take("n2", 3)
    plan.commit()
    plan.rollback(0)
    assert plan.free_on("n2") == 0


def test_a_request_for_more_than_is_free_is_refused_and_takes_nothing() -> None:
    plan = Plan([Node("n1", 2)])
    with pytest.raises(ValueError, match="3 slots of n1 wanted, 2 are free"):
        plan.take("n1", 3)
    assert plan.free_on("n1") == 2


def test_nodes_out_of_use_are_in_no_tier() -> None:
    nodes = [
        Node("a", 2, state=NodeState.QUARANTINE),
        Node("b", 2, state=NodeState.MAINTENANCE),
        Node("c", 2, present=False),
        Node("s", 2, present=False, spare=True),
        Node("d", 2, state=NodeState.SUSPECT),
        Node("e", 2, state=NodeState.PROBATION),
    ]
    assert [tier_of(node) for node in nodes] == [None, None, None, None, Tier.SUSPECT, Tier.PROBATION]
    plan = Plan(nodes)
    assert {tier: plan.free(tier) for tier in Tier if plan.free(tier)} == {Tier.SUSPECT: 2, Tier.PROBATION: 2}
    assert plan.tightest(Tier.HEALTHY, 1) == NOWHERE
    assert plan.free_on("a") == 2, "its slots are still known, for a probe"


def test_slots_that_the_cluster_does_not_have_are_ignored() -> None:
    plan = Plan([Node("n1", 2)], [Slot("gone", 0), Slot("n1", 7)])
    plan.give([Slot("gone", 0), Slot("n1", 7)])
    plan.hold([Slot("gone", 0), Slot("n1", 7), Slot("n1", 0)])
    assert plan.free_on("n1") == 1
    assert plan.free_of([Slot("n1", 0)]) == 0


def test_a_copy_is_independent() -> None:
    plan = Plan([Node("n1", 4), Node("n2", 2, state=NodeState.SUSPECT, slowdown=2.0)])
    copy = plan.copy()
    copy.take("n1", 3)
    copy.change(Node("n2", 2))
    assert (plan.free_on("n1"), plan.free(Tier.HEALTHY), plan.free(Tier.SUSPECT)) == (4, 4, 2)
    assert plan.slowdown and plan.free_of([Slot("n1", 0)]) == 1 and plan.tightest(Tier.HEALTHY, 4) == 0
    assert (copy.free_on("n1"), copy.free(Tier.HEALTHY), copy.free(Tier.SUSPECT)) == (1, 3, 0)
    assert not copy.slowdown
    copy.rollback(0)
    assert copy.free_on("n1") == 4, "the copy has its own journal"


def test_a_node_whose_state_changes_leaves_its_pool_completely() -> None:
    nodes = [Node("n1", 4), Node("n2", 4, spare=True), Node("n3", 4, state=NodeState.SUSPECT, slowdown=3.0)]
    plan = Plan(nodes, [Slot("n2", 1)])
    assert plan.has_spares() and plan.slots_in[Tier.SPARE] == 4
    plan.change(Node("n2", 4))
    assert not plan.has_spares()
    assert (plan.free(Tier.SPARE), plan.free(Tier.HEALTHY), plan.slots_in[Tier.HEALTHY]) == (0, 7, 8)
    assert plan.tightest(Tier.SPARE, 1) == NOWHERE
    assert plan.slowdown == {2: 3.0}
    plan.change(Node("n3", 4, state=NodeState.SUSPECT, slowdown=1.5))
    assert plan.slowdown == {2: 1.5}, "slower or faster, it is in the same pool"
    plan.change(Node("n3", 4, state=NodeState.QUARANTINE, slowdown=1.5))
    assert plan.slowdown == {} and not plan.usable("n3"), "the slowdown of a node out of use does not matter"
    plan.change(Node("n3", 4, slowdown=1.5))
    assert plan.slowdown == {} and plan.usable("n3")
    plan.change(Node("n2", 4, present=False))
    assert (plan.free(Tier.HEALTHY), plan.slots_in[Tier.HEALTHY], plan.free_on("n2")) == (8, 8, 3)


def test_holes_are_listed_in_their_order_of_use() -> None:
    nodes = [Node("a", 2, state=NodeState.SUSPECT), Node("b", 4), Node("c", 4), Node("d", 2, gpu_type="old")]
    plan = Plan(nodes, [Slot("c", 0), Slot("c", 1), Slot("c", 2)])
    found = plan.tight_holes(100)
    assert found[0] == Slot("c", 3), "the fullest node first"
    assert [slot.node for slot in found[-2:]] == ["a", "a"], "suspect nodes last"
    assert len(found) == len(set(found)) == 9
    assert plan.tight_holes(3) == found[:3]
    assert plan.tight_holes(0) == []
    assert plan.free_of([*found, Slot("c", 0), Slot("gone", 1)]) == 9, "the holes are not taken"


def test_uplink_costs_add_up() -> None:
    plan = Plan([Node("a", 1, rack="r")])
    gang = Crossing("g", 4)
    assert plan.uplink_cost(1, gang) == 0.0
    plan.uplink_slowdown, plan.congested = 0.1, {1: 0.5}
    plan.crossing = {1: {"small": Crossing("a", 2), "large": Crossing("b", 8)}}
    assert plan.uplink_cost(1, gang) == pytest.approx(0.5 + 0.1 * 1.5 + 0.1 * 3)
    assert plan.uplink_cost(2, gang) == 0.0
    plan.traffic = {"g": MeasuredTraffic(0.4, 1.0), "b": MeasuredTraffic(0.0, 1.0)}
    assert plan.uplink_cost(1, gang) == pytest.approx(0.5 + 0.4 * 0.1**0.5 * 1.5), "b does not communicate"


_NODES = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(list(NodeState)), st.booleans()), min_size=1, max_size=6
).map(lambda rows: [Node(f"n{i}", n, state=state, present=here) for i, (n, state, here) in enumerate(rows)])
_STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "give", "hold", "mark", "rollback"]), st.integers(0, 5), st.integers(0, 5)),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(_NODES, _STEPS)
def test_the_index_always_equals_a_plain_set(nodes: list[Node], steps: list[tuple[str, int, int]]) -> None:
    plan = Plan(nodes)
    free = {Slot(node.name, slot) for node in nodes for slot in range(node.slots)}
    marks: list[tuple[int, set[Slot]]] = []
    for what, first, second in steps:
        node = nodes[first % len(nodes)]
        slot = Slot(node.name, second)
        mine = sorted(s for s in free if s.node == node.name)
        if what == "take" and second <= len(mine):
            assert list(plan.take(node.name, second)) == mine[:second]
            free -= set(mine[:second])
        elif what == "give":
            plan.give([slot])
            free |= {slot} if second < node.slots else set()
        elif what == "hold":
            plan.hold([slot])
            free.discard(slot)
        elif what == "mark":
            marks.append((plan.checkpoint(), set(free)))
        elif what == "rollback" and marks:
            mark, free = marks.pop()
            plan.rollback(mark)
        for copy in (plan, plan.copy()):
            _agrees(copy, nodes, free)


def _name(plan: Plan, number: int) -> str | None:
    return None if number == NOWHERE else plan.topology.names[number]


def _agrees(plan: Plan, nodes: list[Node], free: set[Slot]) -> None:
    count = {node.name: sum(slot.node == node.name for slot in free) for node in nodes}
    for tier in Tier:
        members = {node.name: count[node.name] for node in nodes if tier_of(node) is tier}
        for excluded in ((), ("n0",), ("n1", "n2")):
            left = {name: n for name, n in members.items() if name not in excluded}
            assert plan.free(tier, excluded) == sum(left.values())
            fits = sorted((n, name) for name, n in left.items() if n >= 2)
            barred = plan.topology.bits_of(excluded)
            assert _name(plan, plan.tightest(tier, 2, barred)) == (fits[0][1] if fits else None)
            largest = sorted((-n, name) for name, n in left.items() if n)
            assert _name(plan, plan.emptiest(tier, barred)) == (largest[0][1] if largest else None)
    assert all(plan.free_on(name) == n for name, n in count.items())


def test_pods_that_start_later_count_in_a_copy_that_is_apart_only_there() -> None:
    plan = Plan([Node("n0", 4, free=(("cpu", 4000),))])
    shared, apart = plan.copy(), plan.copy(apart=True)
    one_cpu = (("cpu", 1000),)
    plan.note_start("a", 0, 3, one_cpu)
    assert [one.pods_left(0, one_cpu) for one in (plan, apart)] == [1, 4]
    apart.note_start("b", 0, 2, one_cpu)
    assert [one.pods_left(0, one_cpu) for one in (plan, shared, apart)] == [1, 1, 2]
