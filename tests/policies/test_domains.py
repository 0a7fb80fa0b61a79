"""Network domains, islands and node masks: nesting, repeated names, and unknown levels."""

from __future__ import annotations

import pytest

from scheduler_feedback.core.cluster import Level, Node, Tier
from scheduler_feedback.core.job import Slot
from scheduler_feedback.policies.index.domains import Topology, lowest, numbers
from scheduler_feedback.policies.index.slot_plan import NOWHERE, Plan


def names_in(topology: Topology, domain: int) -> set[str]:
    return {topology.names[number] for number in numbers(topology.domains[domain].nodes)}


def test_domain_names_are_unique_only_inside_the_wider_domain() -> None:
    """Two spines may each have a rack 'r1', and two racks may each have a rail of the same number."""
    nodes = [Node(f"{s}{r}", 1, spine=s, rack=r, rail="0") for s in ("a", "b") for r in ("r1", "r2")]
    topology = Topology(nodes)
    racks = [names_in(topology, domain) for domain in topology.by_level[Level.RACK]]
    assert racks == [{"ar1"}, {"ar2"}, {"br1"}, {"br2"}]
    assert [names_in(topology, domain) for domain in topology.by_level[Level.SPINE]] == [{"ar1", "ar2"}, {"br1", "br2"}]
    assert len(topology.by_level[Level.RAIL]) == 4
    spine = topology.domains[topology.by_level[Level.SPINE][0]]
    assert [topology.domains[child].name for child in spine.children] == ["r1", "r2"]
    assert names_in(topology, 0) == {node.name for node in nodes}, "number 0 is the whole cluster"


def test_unknown_level_falls_back_to_the_widest_below() -> None:
    nodes = [
        Node("in-rack-1", 1, rack="r"), Node("in-rack-2", 1, rack="r", island="i"), Node("alone-1", 1, island="j"),
        Node("alone-2", 1, island="j"), Node("nowhere", 1),
    ]  # fmt: skip
    topology = Topology(nodes)
    found = [names_in(topology, domain) for domain in topology.narrow(Level.RACK)]
    assert sorted(map(sorted, found)) == [["alone-1", "alone-2"], ["in-rack-1", "in-rack-2"]], (
        "no node is in two of them"
    )
    assert [names_in(topology, domain) for domain in topology.narrow(Level.ISLAND)] == [
        {"alone-1", "alone-2"}, {"in-rack-2"},
    ]  # fmt: skip
    assert topology.narrow(Level.NODE) == topology.narrow(Level.ISLAND)


def test_refused_constraints_are_known_for_all_nodes() -> None:
    topology = Topology([Node("a", 1, refuses=("big", "fast")), Node("b", 1), Node("c", 1, refuses=("big",))])
    assert {name: numbers(bits) for name, bits in topology.refused.items()} == {"big": [0, 2], "fast": [0]}
    assert numbers(topology.bits_of(["c", "unknown", "a"])) == [0, 2]


@pytest.mark.parametrize(
    ("bits", "first", "all_of_them"), [(0b1, 0, [0]), (0b1101000, 3, [3, 5, 6]), (1 << 90, 90, [90])]
)
def test_bits_are_numbers(bits: int, first: int, all_of_them: list[int]) -> None:
    assert lowest(bits) == first
    assert numbers(bits) == all_of_them
    assert numbers(0) == []


# --- plans -----------------------------------------------------------------------------------------------------------


def test_slots_come_from_the_fullest_island_that_fits() -> None:
    plan = Plan([Node("a", 12, island_slots=4)], [Slot("a", 0), *(Slot("a", slot) for slot in (8, 9))])
    assert [slot.slot for slot in plan.take("a", 2)] == [10, 11], "two are free there, three and four elsewhere"
    assert [slot.slot for slot in plan.take("a", 2)] == [1, 2]
    assert [slot.slot for slot in plan.take("a", 4)] == [4, 5, 6, 7]
    assert [slot.slot for slot in plan.take("a", 1)] == [3]
    across = Plan([Node("a", 8, island_slots=4)], [Slot("a", 0), Slot("a", 4)])
    assert [slot.slot for slot in across.take("a", 4)] == [1, 2, 3, 5], (
        "no island has four free slots: the lowest is used"
    )


def test_equal_nodes_are_taken_from_the_fullest_domain() -> None:
    nodes = [Node(f"{rack}-{n}", 4, rack=rack) for rack in ("r0", "r1") for n in range(2)]
    plan = Plan(nodes, [Slot("r1-1", 0), Slot("r1-1", 1), Slot("r1-1", 2)])
    assert plan.topology.names[plan.tightest(Tier.HEALTHY, 4)] == "r1-0", "the empty rack stays whole"
    assert plan.topology.names[plan.tightest(Tier.HEALTHY, 1)] == "r1-1"
    barred = plan.topology.bits_of(["r1-0"])
    assert plan.topology.names[plan.tightest(Tier.HEALTHY, 4, barred)] == "r0-0"
    of_r1 = plan.topology.by_level[Level.RACK][1]
    assert plan.tightest(Tier.HEALTHY, 4, barred, of_r1) == NOWHERE
    assert plan.topology.names[plan.emptiest(Tier.HEALTHY, 0, of_r1)] == "r1-0"
