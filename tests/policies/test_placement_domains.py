"""Placement in domains: islands, racks, node types, levels and slices."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_feedback import cycle
from scheduler_feedback.core.cluster import Level, Node, NodeState
from scheduler_feedback.core.events import NodeSeen, Submitted
from scheduler_feedback.core.job import Group, Job, JobSpec, JobState, Packing, Slot
from scheduler_feedback.core.state import Estimates, Policy, State
from scheduler_feedback.policies.index.domains import Topology
from scheduler_feedback.policies.index.runtime_estimate import Release
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.index.slot_plan import Plan
from scheduler_feedback.policies.queue.backfill import reserve
from scheduler_feedback.policies.queue.placement import attempt_speed, place, speed, where

SECOND = 1_000_000_000


def job(ranks: int, **spec: Any) -> Job:
    return Job("j", JobSpec("j", ("x",), ranks, **spec), JobState.PENDING, 0)


def cluster(racks: int, nodes: int, slots: int, **fields: Any) -> list[Node]:
    """Return nodes 'r0-0', 'r0-1', ... in racks 'r0', ..."""
    return [Node(f"r{r}-{n}", slots, rack=f"r{r}", **fields) for r in range(racks) for n in range(nodes)]


def racks_of(slots: tuple[Slot, ...] | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for slot in slots or ():
        rack = slot.node.partition("-")[0]
        found[rack] = found.get(rack, 0) + 1
    return found


def test_a_gang_gets_the_rack_with_the_tightest_fit() -> None:
    busy = [Slot("r1-0", slot) for slot in range(4)]
    assert racks_of(place(Plan(cluster(3, 3, 4), busy), job(8))) == {"r1": 8}
    assert racks_of(place(Plan(cluster(3, 3, 4), busy), job(9))) == {"r0": 9}


def test_among_equal_nodes_one_in_the_fullest_rack_is_taken() -> None:
    busy = [Slot("r2-0", slot) for slot in range(4)]
    assert where(place(Plan(cluster(3, 2, 4), busy), job(1)) or ()) == "r2-1:0"


def test_a_gang_larger_than_a_rack_is_cut_into_equal_slices_of_whole_nodes() -> None:
    assert racks_of(place(Plan(cluster(4, 4, 4)), job(24))) == {"r0": 12, "r1": 12}
    busy = [Slot("r0-0", slot) for slot in range(4)] + [Slot("r1-0", slot) for slot in range(4)]
    # 12 + 12 + 16 + 16 slots are free. 28 ranks fit into the two large racks as 16 and 12, because 14 would split a
    # node.
    assert racks_of(place(Plan(cluster(4, 4, 4), busy), job(28))) == {"r2": 16, "r3": 12}


def test_ranks_follow_the_order_of_the_network() -> None:
    slots = place(Plan(cluster(2, 3, 2)), job(10))
    assert slots is not None
    assert list(slots) == sorted(slots)


def test_a_required_level_is_met_or_the_job_waits() -> None:
    nodes = cluster(2, 2, 4)
    assert place(Plan(nodes), job(9)) is not None
    assert place(Plan(nodes), job(9, required_level=Level.RACK)) is None
    assert racks_of(place(Plan(nodes), job(8, required_level=Level.RACK))) == {"r0": 8}
    assert place(Plan(nodes), job(5, required_level=Level.NODE)) is None
    flat = [Node("a", 4), Node("b", 4)]
    assert place(Plan(flat), job(5, required_level=Level.RACK)) is None, "an unknown level does not count as met"


def test_islands_within_a_node_and_across_nodes() -> None:
    inside = [Node("a", 8, island_slots=4)]
    busy = [Slot("a", 0), Slot("a", 4)]
    assert where(place(Plan(inside, busy), job(3)) or ()) == "a:1,2,3"
    assert place(Plan(inside, busy), job(4, required_level=Level.ISLAND)) is None
    assert where(place(Plan(inside, busy), job(4)) or ()) == "a:1,2,3,5"
    wide = [Node(f"n{n}", 4, rack="r", island=f"i{n // 2}") for n in range(4)]
    placed = place(Plan(wide, [Slot("n0", 0)]), job(8))
    assert {slot.node for slot in placed or ()} == {"n2", "n3"}, "one NVLink domain before two"


def test_a_gang_runs_on_one_type_the_fastest_for_it() -> None:
    nodes = [Node("a", 4, gpu_type="A100"), Node("h", 4, gpu_type="H100")]
    policy = Policy(throughput={"": {"A100": 1.0, "H100": 2.5}, "small": {"H100": 0.9}})
    assert where(place(Plan(nodes), job(2), policy=policy) or ()) == "h:0,1"
    assert where(place(Plan(nodes), job(2, workload="small"), policy=policy) or ()) == "a:0,1"
    assert where(place(Plan(nodes), job(2, throughput={"A100": 9.0}), policy=policy) or ()) == "a:0,1"
    assert where(place(Plan(nodes), job(2, gpu_types=("A100",)), policy=policy) or ()) == "a:0,1"
    assert place(Plan(nodes), job(5), policy=policy) is None
    assert place(Plan(nodes), job(1, gpu_types=("B200",))) is None
    assert speed(policy, job(1, workload="small"), "A100") == 1.0


def test_spread_takes_as_many_nodes_as_it_can() -> None:
    placed = place(Plan(cluster(2, 2, 4)), job(6, packing=Packing.SPREAD))
    assert placed is not None
    assert sorted(sum(slot.node == name for slot in placed) for name in {slot.node for slot in placed}) == [1, 1, 2, 2]


def test_groups_follow_the_order_of_ranks_and_keep_to_one_node_if_required() -> None:
    groups = (Group("launcher", 1), Group("server", 3, same_node=True), Group("worker", 4))
    placed = place(Plan(cluster(1, 3, 4)), job(8, groups=groups))
    assert placed is not None and len(set(placed)) == 8
    assert len({slot.node for slot in placed[1:4]}) == 1
    nowhere = (Group("a", 3, same_node=True), Group("b", 3, same_node=True))
    plan = Plan([Node("x", 3), Node("y", 2), Node("z", 2)])
    assert place(plan, job(6, groups=nowhere)) is None
    assert [plan.free_on(name) for name in "xyz"] == [3, 2, 2], "and no slot is taken"


def test_an_elastic_gang_gets_as_many_ranks_as_fit_from_its_minimum_on() -> None:
    nodes = [Node("a", 4), Node("b", 2)]
    assert len(place(Plan(nodes), job(6, min_ranks=2)) or ()) == 6
    assert len(place(Plan(nodes, [Slot("a", 0)]), job(6, min_ranks=2)) or ()) == 5
    assert place(Plan(nodes, [Slot("a", n) for n in range(4)]), job(6, min_ranks=3)) is None
    assert len(place(Plan(nodes), job(4, max_ranks=8), most=5) or ()) == 5


def test_a_reservation_uses_future_releases_before_free_slots() -> None:
    plan = Plan([Node("a", 4), Node("b", 4)], [Slot("a", n) for n in range(4)])
    ends = [Release(10 * SECOND, "x", tuple(Slot("a", n) for n in range(4)))]
    kept = reserve(plan, ends, job(5), 0)
    assert kept is not None
    assert {slot.node for slot in kept.slots[:4]} == {"a"} and len(kept.slots) == 5


def test_a_reservation_for_a_level_is_at_the_first_end_that_permits_it() -> None:
    nodes = cluster(2, 2, 2)
    busy = [Slot(node.name, slot) for node in nodes for slot in range(2)]
    order = ["r0-0", "r1-0", "r1-1", "r0-1"]
    ends = [Release((n + 1) * 10 * SECOND, f"j{n}", (Slot(name, 0), Slot(name, 1))) for n, name in enumerate(order)]
    anywhere = reserve(Plan(nodes, busy), ends, job(4), 0)
    assert anywhere is not None and anywhere.from_ns == 20 * SECOND
    level = reserve(Plan(nodes, busy), ends, job(4, required_level=Level.RACK), 0)
    assert level is not None
    assert (level.from_ns, racks_of(level.slots)) == (30 * SECOND, {"r1": 4})


def test_domains_are_ranges_of_numbers_without_unknown_levels() -> None:
    nodes = [Node("c", 1), Node("b", 1, rack="r", rail="x"), Node("a", 1, spine="s", rack="r")]
    topology = Topology(nodes)
    assert [topology.names[n] for n in range(3)] == ["c", "b", "a"]
    assert [[topology.domains[d].name for d in above[1:]] for above in topology.above] == [[], ["r", "x"], ["s", "r"]]


_SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))


@settings(max_examples=150, deadline=None)
@given(
    _SHAPES,
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), max_size=20),
    st.integers(1, 30),
    st.sampled_from([None, Level.NODE, Level.RACK]),
    st.sampled_from([NodeState.HEALTHY, NodeState.SUSPECT, NodeState.PROBATION]),
)
def test_slots_are_found_exactly_if_they_exist(
    shape: tuple[int, int, int], used: list[tuple[int, int]], ranks: int, level: Level | None, state: NodeState
) -> None:
    nodes = cluster(*shape)
    nodes[0].state = state
    busy = {Slot(nodes[n % len(nodes)].name, slot) for n, slot in used if slot < shape[2]}
    free = {node.name: node.slots - sum(slot.node == node.name for slot in busy) for node in nodes}
    shared = {node.name: free[node.name] for node in nodes if node.state is not NodeState.PROBATION}
    racks: dict[str, int] = {}
    for name, count in shared.items():
        racks[name.partition("-")[0]] = racks.get(name.partition("-")[0], 0) + count
    alone = max(free.values()) >= ranks
    there_is = {
        None: sum(shared.values()) >= ranks or alone,
        Level.NODE: alone,
        Level.RACK: max(racks.values(), default=0) >= ranks or alone,
    }[level]
    plan = Plan(nodes, busy)
    slots = place(plan, job(ranks, required_level=level))
    assert (slots is not None) is there_is
    if slots is not None:
        assert len(set(slots)) == ranks and not set(slots) & busy
        assert level is not Level.RACK or len(racks_of(slots)) == 1
        assert plan.free_of(slots) == 0


@pytest.mark.parametrize("ranks", [1, 7, 8, 9, 64, 200])
def test_the_fewest_nodes_are_used_in_an_empty_cluster(ranks: int) -> None:
    placed = place(Plan(cluster(5, 8, 8)), job(ranks))
    assert placed is not None
    assert len({slot.node for slot in placed}) == -(-ranks // 8)


def test_the_fastest_free_type_is_used_and_scales_the_estimate() -> None:
    """The speed of a node type is the job's own value, or else the policy's value for the workload."""
    matrix = {"bert": {"A100": 1.0, "V100": 0.5}}
    state = State(policy=Policy(estimates=Estimates.EXACT, throughput=matrix))
    nodes = [NodeSeen("n0", 2, gpu_type="V100"), NodeSeen("n1", 2, gpu_type="A100")]
    specs = {
        "first": JobSpec("first", ("x",), 2, workload="bert", exact_seconds=100.0),
        "second": JobSpec("second", ("x",), 2, workload="bert", exact_seconds=100.0),
    }
    cycle.run(state, [*nodes, *(Submitted(name, spec) for name, spec in specs.items())], SECOND)
    where_ = {name: {rank.slot.node for rank in state.jobs[name].ranks} for name in specs}
    assert where_ == {"first": {"n1"}, "second": {"n0"}}
    ends = {end.job_id: (end.at_ns - SECOND) / SECOND for end in index_of(state).ends}
    assert ends == {"first": 100.0, "second": 200.0}
    own = job(2, workload="bert", throughput={"V100": 2.0})
    assert attempt_speed(state.policy, own, "V100", 2) == 2.0
    assert attempt_speed(state.policy, own, "A100", 1) == 0.5
