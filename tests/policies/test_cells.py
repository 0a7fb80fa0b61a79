"""Cells: a queue's jobs start as in a private cluster, and other jobs use the cells until their owner needs them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler_feedback import cycle
from scheduler_feedback.core.cluster import Level, Node, NodeState
from scheduler_feedback.core.events import (
    AttemptEnded,
    FreezeSet,
    NodeCommand,
    NodeCommanded,
    NodeSeen,
    PolicySet,
    Submitted,
    Tick,
)
from scheduler_feedback.core.job import After, Dependency, JobSpec, JobState, Slot, StopReason
from scheduler_feedback.core.state import Backfilling, Cell, Estimates, Mode, Order, Policy, Queue, State
from scheduler_feedback.policies.cells.virtual_cluster import virtual_clusters
from scheduler_feedback.policies.index.scheduling_index import drop_index, index_of
from scheduler_feedback.policies.queue.order import round_robin
from tests.cluster.cycle_world import World

GUEST: dict[str, Any] = {"restartable": True, "preemptible": True, "grace_seconds": 2.0, "required_level": Level.NODE}
FIXED: dict[str, Any] = {"required_level": Level.NODE}


def world_of(cells: dict[str, dict[Cell, int]], nodes: int = 2, slots: int = 4, racks: int = 0, **policy: Any) -> World:
    queues = tuple(Queue(name, cells=own) for name, own in cells.items())
    return World({f"n{i}": slots for i in range(nodes)}, Policy(queues=queues, **policy), racks=racks)


def two(**policy: Any) -> World:
    """Return a cluster of two nodes with four slots; queues a and b have one of them each."""
    return world_of({"a": {Cell.NODE: 1}, "b": {Cell.NODE: 1}}, **policy)


def nodes_of(world: World, job_id: str) -> set[str]:
    return {rank.slot.node for rank in world.state.jobs[job_id].ranks}


def active(world: World, *job_ids: str) -> list[bool]:
    return [world.state.jobs[one].state.holds_slots and world.state.jobs[one].stop_reason is None for one in job_ids]


def why(world: World, job_id: str) -> str:
    found = cycle.explain(world.state, job_id)
    assert found is not None
    return found.why


def test_a_queue_takes_its_cell_back_at_once() -> None:
    world = two(min_run_seconds=1000.0)
    first, second = (world.submit(4, 500.0, queue="b", **GUEST) for _ in range(2))
    world.running()
    assert active(world, first, second) == [True, True]
    assert "guaranteed in the cells of queue b" in why(world, first)
    assert "it leaves when another queue needs the cells there" in why(world, second)
    owner = world.submit(4, 100.0, queue="a", **FIXED)
    assert active(world, first, second) == [True, False], "the job in its own cell stays"
    assert world.state.jobs[second].stop_reason is StopReason.PREEMPT
    world.end(second, 75, signalled=True)
    assert active(world, owner) == [True]
    text = next(entry.text for entry in world.entries if entry.kind == "reclaim")
    assert text == f"is guaranteed in the cells of queue a: {second} must leave them"
    assert "needs 4 slots in the cells of queue b; guaranteed jobs use 4 of their 4 slots" in why(world, second)


def test_jobs_of_one_queue_never_divide_the_cells_of_another() -> None:
    world = two()
    jobs = [world.submit(1, 500.0, queue="b", **FIXED) for _ in range(4)]
    assert len({node for job in jobs for node in nodes_of(world, job)}) == 1
    owner = world.submit(4, 100.0, queue="a", **FIXED)
    assert active(world, owner, *jobs) == [True] * 5


def test_only_jobs_that_can_be_stopped_use_other_cells() -> None:
    world = two()
    fixed = [world.submit(4, 500.0, queue="b", **FIXED) for _ in range(2)]
    assert active(world, *fixed) == [True, False]
    large = world.submit(8, 500.0, queue="b")
    assert not active(world, large)[0]
    assert "which the cells of queue b cannot hold; only preemptible, restartable jobs" in why(world, large)
    explained = cycle.explain(world.state, large)
    assert explained is not None and explained.binds == "capacity"
    guest = world.submit(8, 500.0, queue="b", restartable=True, preemptible=True)
    assert "which the cells of queue b cannot hold; waits for slots that no other queue needs" in why(world, guest)
    world.end(fixed[0], 0)
    world.running()
    world.end(fixed[1], 0)
    assert active(world, large, guest) == [False, True], "it uses both cells"


def test_a_job_elsewhere_returns_to_its_own_cell_when_it_must_leave() -> None:
    world = two()
    home = world.submit(4, 500.0, queue="b", **FIXED)
    guest = world.submit(4, 500.0, queue="b", **GUEST)
    world.running()
    foreign = nodes_of(world, guest)
    assert foreign != nodes_of(world, home)
    world.end(home, 0)
    world.running()
    # Its slots become b's cell: it is guaranteed without a restart, and queue a has the other node.
    assert "guaranteed in the cells of queue b" in why(world, guest)
    owner = world.submit(4, 100.0, queue="a", **FIXED)
    assert active(world, guest, owner) == [True, True]
    assert nodes_of(world, guest) == foreign and world.state.jobs[guest].attempt == 1


def test_a_guaranteed_job_that_must_leave_starts_at_home_at_once() -> None:
    world = two()
    home, short = (world.submit(2, 500.0, queue="b", **FIXED) for _ in range(2))
    guest = world.submit(2, 500.0, queue="b", **GUEST)
    world.running()
    assert nodes_of(world, home) == nodes_of(world, short) != nodes_of(world, guest)
    world.end(short, 0)
    world.running()
    text = "it leaves when another queue needs the cells there, and then continues in the cells of queue b"
    assert text in why(world, guest)
    owner = world.submit(4, 100.0, queue="a", **FIXED)
    assert active(world, guest) == [False]
    world.end(guest, 75, signalled=True)
    assert active(world, owner, guest) == [True, True]
    assert nodes_of(world, guest) == nodes_of(world, home) != nodes_of(world, owner)
    assert "; guaranteed in the cells of queue b" in why(world, guest)


def test_jobs_that_stay_in_place_and_new_ones_share_no_slot() -> None:
    world = two()
    whole = world.submit(4, 500.0, queue="b", **FIXED)
    left, right = (world.submit(2, 500.0, queue="b", **GUEST) for _ in range(2))
    world.running()
    world.end(left, 0)
    world.running()
    assert {rank.slot.slot for rank in world.state.jobs[right].ranks} == {2, 3}
    late = [Submitted(name, JobSpec(name, ("train",), 2, queue="b", **FIXED)) for name in ("late", "later")]
    world.alive.pop((whole, 1))
    world.cycle(AttemptEnded(whole, 1, (), ended_wall_ns=world.now_ns, all_exited_with=0), *late)
    assert active(world, right, "late", "later") == [True, True, False]
    assert world.state.jobs[right].cell_slots == [Slot("b/node-0", 2), Slot("b/node-0", 3)]
    assert nodes_of(world, right) == nodes_of(world, "late"), "one cell for both"


def test_quads_of_two_queues_share_a_node_and_leave_the_other_whole() -> None:
    world = world_of({"a": {Cell.QUAD: 1}, "b": {Cell.QUAD: 1}, "c": {Cell.NODE: 1}}, slots=8)
    a, b = (world.submit(4, 500.0, queue=name, **FIXED) for name in "ab")
    c = world.submit(8, 500.0, queue="c", **FIXED)
    assert active(world, a, b, c) == [True] * 3
    assert nodes_of(world, a) == nodes_of(world, b) != nodes_of(world, c)
    assert {name: slot.slot % 4 for name, slot in world.state.bound_cells.items()} == {
        "a/quad-0": 0, "b/quad-0": 0, "c/node-0": 0
    }  # fmt: skip


def test_a_pair_uses_the_smallest_block_that_is_already_divided() -> None:
    world = world_of({"a": {Cell.PAIR: 2}, "b": {Cell.QUAD: 1}, "c": {Cell.NODE: 1}}, slots=8)
    pairs = [world.submit(2, 500.0, queue="a", **FIXED) for _ in range(2)]
    quad, node = world.submit(4, 500.0, queue="b", **FIXED), world.submit(8, 500.0, queue="c", **FIXED)
    assert active(world, *pairs, quad, node) == [True] * 4
    assert {rank.slot.slot for job in pairs for rank in world.state.jobs[job].ranks} == {0, 1, 2, 3}


def test_a_pair_leaves_a_larger_free_block_whole() -> None:
    world = world_of({"a": {Cell.PAIR: 2}, "b": {Cell.QUAD: 1}, "c": {Cell.NODE: 1}}, slots=8)
    quad = world.submit(4, 500.0, queue="b", **FIXED)
    first = world.submit(2, 500.0, queue="a", **FIXED)
    assert {rank.slot.slot for rank in world.state.jobs[first].ranks} == {4, 5}
    world.end(quad, 0)
    second = world.submit(2, 500.0, queue="a", **FIXED)
    assert {rank.slot.slot for rank in world.state.jobs[second].ranks} == {6, 7}, "not 0 and 1, part of a free quad"
    assert active(world, world.submit(4, 500.0, queue="b", **FIXED)) == [True]


def test_each_rack_is_one_cell() -> None:
    state = State(policy=Policy(queues=(Queue("a", cells={Cell.RACK: 1}), Queue("b", cells={Cell.RACK: 2}))))
    racks = ("r0", "r0", "r1", "r1", "r1", "r1")
    state.nodes = {f"n{number}": Node(f"n{number}", 4, rack=rack) for number, rack in enumerate(racks)}
    found = virtual_clusters(state)
    assert [len(found[name].empty.topology.names) for name in ("a", "b", "")] == [2, 2, 2], "b's second rack is missing"


def test_a_rack_cell_is_one_rack_and_node_cells_use_a_divided_rack() -> None:
    world = world_of({"a": {Cell.RACK: 1}, "b": {Cell.NODE: 2}}, nodes=4, racks=2)
    b = [world.submit(4, 500.0, queue="b", **FIXED) for _ in range(2)]
    a = world.submit(8, 500.0, queue="a", required_level=Level.RACK)
    assert active(world, a, *b) == [True] * 3
    racks = [{world.state.nodes[name].rack for name in nodes_of(world, job)} for job in (a, *b)]
    assert racks[0] != racks[1] == racks[2] and len(racks[0]) == 1


def test_the_limit_of_a_queue_counts_the_jobs_of_one_cycle() -> None:
    queues = (Queue("a", cells={Cell.NODE: 2}, limit=5), Queue("b", limit=2))
    world = World({"n0": 4, "n1": 4}, Policy(queues=queues))
    specs = [JobSpec(f"x{n}", ("train",), 3, queue="a") for n in range(2)]
    world.cycle(*(Submitted(spec.name, spec) for spec in specs))
    assert active(world, "x0", "x1") == [True, False]
    assert "queue a is limited to 5 slots and uses 3" in why(world, "x1")
    world.end("x0", 0)
    assert active(world, "x1") == [True]


def test_queues_without_cells_share_the_nodes_that_are_left() -> None:
    world = world_of({"a": {Cell.NODE: 1}}, nodes=3)
    shared = [world.submit(4, 500.0, queue=name, **FIXED) for name in ("x", "y")]
    late, owner = world.submit(4, 500.0, queue="x", **FIXED), world.submit(4, 500.0, queue="a", **FIXED)
    assert active(world, *shared, late, owner) == [True, True, False, True]
    assert "guaranteed in what the queues without cells share" in why(world, shared[0])


def test_a_cell_moves_away_from_a_node_that_is_out_of_use() -> None:
    world = two()
    job = world.submit(4, 10.0, queue="a", **FIXED)
    (node,) = nodes_of(world, job)
    world.cycle(NodeCommanded(node, NodeCommand.MAINTENANCE))
    world.end(job, 0)
    again = world.submit(4, 500.0, queue="a", **FIXED)
    assert active(world, again) == [True] and nodes_of(world, again) != {node}
    waiting = world.submit(4, 500.0, queue="b", **FIXED)
    assert "guaranteed in the cells of queue b; waits for usable nodes" in why(world, waiting)
    world.cycle(NodeCommanded(node, NodeCommand.RELEASE))
    assert active(world, waiting) == [True]


@pytest.mark.parametrize(("backfill", "starts"), [(Backfilling.EASY, [True, False]), (Backfilling.GREEDY, [True, True]),
                                                  (Backfilling.NONE, [False, False])])  # fmt: skip
def test_the_cells_of_a_queue_have_its_backfill_rule(backfill: Backfilling, starts: list[bool]) -> None:
    world = two(backfill=backfill)
    world.submit(3, 100.0, queue="a", time_limit_seconds=100.0, **FIXED)
    head = world.submit(4, 100.0, queue="a", time_limit_seconds=100.0, **FIXED)
    jobs = [world.submit(1, seconds, queue="a", time_limit_seconds=seconds, **FIXED) for seconds in (50.0, 500.0)]
    if backfill is not Backfilling.NONE:
        world.end(jobs[0], 0)
        jobs[0] = world.submit(1, 50.0, queue="a", time_limit_seconds=50.0, **FIXED)
    assert active(world, head)[0] is False
    if backfill is Backfilling.GREEDY:
        assert sum(active(world, *jobs)) == 1, "one slot is free"
        return
    assert active(world, *jobs) == starts
    if backfill is Backfilling.EASY:
        assert "expected to start in 100" in why(world, head).replace("1m 40s", "100") or "expected" in why(world, head)


def test_a_cell_leaves_a_node_that_has_become_smaller() -> None:
    world = world_of({"a": {Cell.NODE: 1}}, nodes=3)
    first = world.submit(1, 500.0, queue="a", **FIXED)
    (node,) = nodes_of(world, first)
    world.cycle(NodeSeen(node, 3))
    late = world.submit(3, 500.0, queue="a", **FIXED)
    assert active(world, late) == [False], "the cell is still bound to the smaller node"
    world.end(first, 0)
    assert active(world, late) == [True] and nodes_of(world, late) != {node}


def test_frozen_actions_leave_nothing_to_evaluate() -> None:
    world = two(order=Order.THEMIS)
    world.cycle(FreezeSet(True, "test"))
    world.submit(4, 500.0, queue="a", **FIXED)
    world.cycle(Tick())
    assert world.state.idle and not world.cycle(Tick()).changed
    world.cycle(FreezeSet(False, "test"))
    assert active(world, "j-000001") == [True]


def test_a_job_that_the_cells_cannot_hold_blocks_no_other() -> None:
    world = two(backfill=Backfilling.NONE)
    large, small = world.submit(8, 500.0, queue="a"), world.submit(1, 500.0, queue="a", **FIXED)
    assert active(world, large, small) == [False, True]


def test_observe_mode_only_proposes_to_take_a_cell_back() -> None:
    world = two(mode=Mode.OBSERVE)
    guests = [world.submit(4, 500.0, queue="b", **GUEST) for _ in range(2)]
    world.running()
    owner = world.submit(4, 100.0, queue="a", **FIXED)
    assert active(world, *guests, owner) == [True, True, False]
    proposals = [entry.text for entry in world.entries if entry.kind == "reclaim"]
    assert proposals == [f"{guests[1]} would leave the cells of queue a"]


def test_policies_with_and_without_cells_follow_each_other() -> None:
    world = two()
    jobs = [world.submit(4, 500.0, queue="b", **GUEST) for _ in range(2)]
    world.running()
    cells = world.state.policy
    world.cycle(PolicySet(replace(cells, queues=()), "test"))
    assert "guaranteed" not in why(world, jobs[0])
    world.cycle(PolicySet(cells, "test"))
    owner = world.submit(4, 100.0, queue="a", **FIXED)
    world.advance(5.0)
    assert active(world, owner, jobs[0]) == [True, True]


def test_a_job_keeps_away_from_its_excluded_nodes() -> None:
    world = world_of({"a": {Cell.NODE: 2}})
    first = world.submit(1, 500.0, queue="a", **FIXED)
    job = world.state.jobs[first]
    (node,) = nodes_of(world, first)
    late = world.submit(4, 500.0, queue="a", restartable=True, max_retries=1, **FIXED)
    (other,) = nodes_of(world, late)
    assert node != other and job.state.holds_slots
    index_of(world.state)
    world.state.jobs[late].excluded_nodes = (other,)
    world.end(late, 1)
    world.advance(30.0)
    assert not active(world, late)[0], "its only other node is in use"


def test_bound_cells_are_released_with_their_last_job() -> None:
    world = two()
    job = world.submit(2, 500.0, queue="a", **FIXED)
    assert list(world.state.bound_cells) == ["a/node-0"]
    assert world.state.jobs[job].cell_slots == [Slot("a/node-0", 0), Slot("a/node-0", 1)]
    world.end(job, 0)
    world.submit(2, 500.0, queue="b", **FIXED)
    assert list(world.state.bound_cells) == ["b/node-0"]
    assert world.state.jobs[job].state is JobState.COMPLETED and not world.state.jobs[job].cell_slots


@pytest.mark.parametrize(
    ("nodes", "cells", "found"),
    [
        ([8, 8], {Cell.NODE: 1}, ["q/node-0"]),
        ([8, 4], {Cell.NODE: 2}, ["q/node-0"]),  # a smaller node is no node cell
        ([8], {Cell.QUAD: 3, Cell.PAIR: 1}, ["q/quad-0", "q/quad-1"]),
        ([6], {Cell.QUAD: 1, Cell.PAIR: 2}, ["q/pair-0", "q/quad-0"]),
        ([8, 4], {Cell.NODE: 1, Cell.QUAD: 1}, ["q/node-0", "q/quad-0"]),
        ([8, 1], {Cell.GPU: 3, Cell.NODE: 1}, ["q/gpu-0", "q/node-0"]),
        ([2], {Cell.QUAD: 1}, []),
        ([], {Cell.NODE: 1, Cell.RACK: 1}, []),
    ],
)
def test_only_cells_for_which_there_are_nodes_exist(nodes: list[int], cells: dict[Cell, int], found: list[str]) -> None:
    state = State(policy=Policy(queues=(Queue("q", cells=cells),)))
    state.nodes = {f"n{number}": Node(f"n{number}", slots) for number, slots in enumerate(nodes)}
    assert sorted(virtual_clusters(state)["q"].empty.topology.names) == found


def test_queues_without_cells_share_parts_of_nodes_too() -> None:
    state = State(policy=Policy(queues=(Queue("q", cells={Cell.NODE: 1, Cell.QUAD: 1}),)))
    state.nodes = {f"n{number}": Node(f"n{number}", slots) for number, slots in enumerate((8, 8, 8, 3))}
    left = virtual_clusters(state)[""].empty.topology
    assert dict(zip(left.names, left.sizes, strict=True)) == {
        "/gpu-0": 1, "/node-0": 8, "/pair-0": 2, "/quad-0": 4
    }  # fmt: skip


def test_a_queue_with_more_cells_than_the_cluster_has_nodes_is_explained() -> None:
    world = world_of({"a": {Cell.NODE: 1}, "b": {Cell.NODE: 2}})
    job = world.submit(8, 500.0, queue="b")
    assert why(world, job).endswith("; the cluster has no nodes for 1 of the queue's cells")
    assert active(world, world.submit(4, 500.0, queue="b"), world.submit(4, 500.0, queue="a")) == [True, True]


def test_an_opportunistic_job_has_no_cells() -> None:
    """It uses what other jobs leave. With a cell of its own it would keep it while it is not in the queue."""
    world = two()
    leftover = world.submit(1, 500.0, queue="b", shareable=True, opportunistic=True, **GUEST)
    world.running()
    assert active(world, leftover) == [True]
    world.advance(10.0)
    assert world.state.jobs[leftover].cell_slots == []
    owners = [world.submit(4, 500.0, queue=queue, **FIXED) for queue in ("a", "b")]
    world.advance(10.0)
    assert active(world, leftover, *owners) == [False, True, True]


def test_a_pending_job_that_cannot_start_has_no_cells() -> None:
    """A new limit of its queue is too small for it. Another job gets its cell."""
    world = two()
    large = world.submit(4, 500.0, queue="b", max_retries=1, **GUEST)
    world.running()
    assert world.state.jobs[large].cell_slots
    queues = (Queue("a", cells={Cell.NODE: 1}), Queue("b", cells={Cell.NODE: 1}, limit=3))
    world.cycle(PolicySet(replace(world.state.policy, queues=queues)))
    world.end(large, 75, signalled=True)
    assert world.job_state(large) is JobState.PENDING
    assert world.state.jobs[large].cell_slots == []


def test_a_gang_in_two_cells_waits_until_the_probation_of_a_node_ends() -> None:
    """A node on probation takes no part of a larger gang. One of its cells was bound there before."""
    world = world_of({"c": {Cell.PAIR: 2}}, slots=2)
    for _ in range(2):
        world.submit(1, 5000.0, queue="c", **FIXED)
        world.submit(1, 100.0, queue="c", **FIXED)
    world.running()
    world.advance(150.0)
    index_of(world.state).set_node_state(world.state.nodes["n0"], NodeState.PROBATION, None, "for the test", "")
    wide = world.submit(2, 100.0, queue="c")
    assert active(world, wide) == [False]
    index_of(world.state).set_node_state(world.state.nodes["n0"], NodeState.HEALTHY, None, "for the test", "")
    world.cycle()
    assert active(world, wide) == [True] and nodes_of(world, wide) == {"n0", "n1"}


def test_jobs_are_evaluated_again_at_the_end_of_a_time_slice() -> None:
    """Until then, a job that runs outside of its cells goes before pending jobs."""
    world = two(order=Order.ROUND_ROBIN, slice_seconds=75.0)
    for _ in range(3):
        last = world.submit(4, 500.0, queue="b", **GUEST)
    world.running()
    running = [job for job in world.state.jobs.values() if job.job_id != last]
    ends = {(round_robin.slice_ends_ns(world.state, job), job.job_id) for job in running}
    assert world.job_state(last) is JobState.PENDING and ends <= set(index_of(world.state).timeouts)


def test_another_job_gets_the_cells_of_one_that_reaches_its_limit() -> None:
    """The large job waits for a node. A small job of its queue starts, and leaves it fewer slots than it needs."""
    world = World({"n0": 4, "n1": 4}, Policy())
    for _ in range(2):
        world.submit(3, 5000.0, **FIXED)
    world.running()
    queues = (Queue("c", cells={Cell.NODE: 1, Cell.GPU: 1}, limit=4),)
    world.cycle(PolicySet(replace(world.state.policy, queues=queues)))
    ranks = {"large": 4, "small": 1, "next": 2}
    world.cycle(*(Submitted(name, JobSpec(name, ("train",), many, queue="c")) for name, many in ranks.items()))
    assert active(world, "large", "small") == [False, True]
    world.cycle(Tick())
    assert [bool(world.state.jobs[name].cell_slots) for name in ranks] == [False, True, True]
    assert not world.cycle(Tick()).changed


def test_a_cell_is_taken_back_where_the_least_work_is_lost() -> None:
    """One job loses up to an hour of work, the other some seconds. Both hold as many slots."""
    world = world_of({"a": {Cell.NODE: 2}, "b": {}}, nodes=2)
    dear = world.submit(4, 5000.0, queue="b", checkpoint_interval_seconds=3600.0, **GUEST)
    cheap = world.submit(4, 5000.0, queue="b", **GUEST)
    world.running()
    owner = world.submit(4, 100.0, queue="a", **FIXED)
    assert active(world, dear, cheap) == [True, False]
    entry = next(entry for entry in world.entries if entry.subject == owner and entry.kind == "reclaim")
    spec = world.state.jobs[cheap].spec
    assert entry.detail == (("lost_slot_seconds", f"{4 * (2.0 + spec.restart_cost_seconds):.1f}"),)


def test_a_gang_that_leaves_counts_whole() -> None:
    """A gang of six slots loses more than one of four, also if the cell needs only two of its slots."""
    world = world_of({"a": {Cell.NODE: 3}, "b": {}}, nodes=3)
    spread = GUEST | {"required_level": None}
    large = world.submit(6, 5000.0, queue="b", **spread)
    small = world.submit(4, 5000.0, queue="b", **GUEST)
    world.running()
    assert active(world, large, small) == [True, True]
    world.submit(4, 100.0, queue="a", **FIXED)
    assert active(world, large, small) == [True, False]


def test_a_job_that_has_just_started_elsewhere_is_looked_at_again() -> None:
    """Its queue may have cells for it, now that others have started too (benchmarks.invariants, seed 3603002)."""
    world = two()
    world.submit(4, 500.0, queue="b", **GUEST)
    world.cycle(Tick())
    assert world.state.idle
    guest = world.submit(4, 500.0, queue="b", **GUEST)
    assert active(world, guest) == [True] and not world.state.idle
    world.cycle(Tick())
    assert world.state.idle


def test_a_job_that_waited_for_a_start_in_cells_starts_next() -> None:
    """It was evaluated again only at the next event (benchmarks.invariants, seed 3628001)."""
    world = two()
    world.submit(4, 10.0, queue="a", **FIXED)
    second = world.submit(4, 500.0, queue="a", **FIXED)
    third = world.submit(4, 500.0, queue="b", after=(Dependency(second, After.STARTED),), **FIXED)
    assert active(world, second, third) == [False, False]
    world.advance(10.0)
    assert active(world, second) == [True]
    world.cycle(Tick())
    assert active(world, third) == [True]


@pytest.mark.parametrize("order", [Order.SRTF, Order.SRSF])
def test_a_running_job_outside_of_its_cells_passes_no_pending_one_while_nothing_happens(order: Order) -> None:
    """benchmarks.invariants, seed 8300016: when it had less time left than the first job, another one got cells."""
    world = two(order=order, estimates=Estimates.EXACT, preempt=False)
    first = world.submit(2, 300.0, queue="a", exact_seconds=300.0)
    guest = world.submit(3, 100.0, queue="a", exact_seconds=100.0, **GUEST)
    head = world.submit(4, 70.0, queue="a", exact_seconds=70.0)
    small = world.submit(1, 400.0, queue="a", exact_seconds=400.0)
    assert active(world, first, guest, head, small) == [True, True, False, False]
    assert nodes_of(world, guest) == {"n1"}
    world.running()
    world.advance(50.0)
    index_of(world.state).evaluate_all()
    world.cycle(Tick())
    assert active(world, guest, head, small) == [True, False, False]


def test_a_job_does_not_start_where_its_cell_was_bound_for_another_if_it_must_not_run_there() -> None:
    """The cell is bound in the same cycle, after the job has got slots in it: to the node of the other one."""
    world = world_of({"a": {Cell.NODE: 1}, "b": {Cell.NODE: 1}}, nodes=3)
    first = world.submit(4, 500.0, queue="a")
    world.submit(4, 500.0, queue="b")
    waits = world.submit(1, 500.0, queue="a", priority=1)
    world.state.jobs[waits].excluded_nodes = ("n2",)
    drop_index(world.state)
    filler, guest = (world.submit(2, 500.0, queue=queue, **GUEST) for queue in "ba")
    assert active(world, waits, filler, guest) == [False, True, True] and nodes_of(world, guest) == {"n2"}
    world.running()
    world.end(filler, 0)
    world.end(first, 0)
    for _ in range(3):
        world.cycle(Tick())
    assert nodes_of(world, guest) == {"n2"} and "n2" not in nodes_of(world, waits)
    assert index_of(world.state).state.bound_cells["a/node-0"].node == "n2"


def test_no_cell_is_bound_to_the_spare_on_which_a_job_of_its_queue_runs() -> None:
    """benchmarks.invariants, seed 7400003: a job that cannot be stopped started in the rest of such a cell."""
    world = world_of({"a": {Cell.NODE: 1}, "b": {Cell.NODE: 1}}, nodes=3, spare_nodes=1)
    (spare,) = [node.name for node in world.state.nodes.values() if node.spare]
    first = world.submit(4, 500.0, queue="a")
    world.submit(4, 500.0, queue="b")
    guest, fixed = world.submit(2, 500.0, queue="a", **GUEST), world.submit(1, 500.0, queue="a")
    assert active(world, first, guest, fixed) == [True, True, False] and nodes_of(world, guest) == {spare}
    world.running()
    world.end(first, 0)
    assert active(world, guest, fixed) == [True, True]
    assert nodes_of(world, guest) == {spare} and spare not in nodes_of(world, fixed)


def test_a_cell_on_a_node_that_becomes_a_spare_takes_only_jobs_that_can_be_stopped() -> None:
    """benchmarks.invariants, seed 3700201: a job that cannot be stopped started in a bound cell of a spare."""
    world = world_of({"a": {Cell.NODE: 2}, "b": {Cell.NODE: 1}}, nodes=3)
    for queue, ranks in (("b", 4), ("a", 4), ("a", 1)):
        world.submit(ranks, 500.0, queue=queue)
    world.cycle(PolicySet(replace(world.state.policy, spare_nodes=1)))
    assert [node.name for node in world.state.nodes.values() if node.spare] == ["n2"]
    fixed, guest = world.submit(1, 500.0, queue="a"), world.submit(1, 500.0, queue="a", **GUEST)
    assert active(world, fixed, guest) == [False, True] and nodes_of(world, guest) == {"n2"}
    world.cycle(PolicySet(replace(world.state.policy, spare_nodes=0)))
    assert active(world, fixed) == [True] and nodes_of(world, fixed) == {"n2"}
