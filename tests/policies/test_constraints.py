"""Nodes that refuse a job's constraint: never used for it, and used for it again once they meet it."""

from __future__ import annotations

from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.events import NodeSeen, Submitted
from scheduler_feedback.core.job import Job, JobSpec, JobState
from scheduler_feedback.core.state import State
from scheduler_feedback.cycle import run
from scheduler_feedback.policies.index.slot_plan import Plan
from scheduler_feedback.policies.queue.placement import Capacity, place

SECOND = 1_000_000_000


def job(ranks: int, constraint: str = "") -> Job:
    return Job("j", JobSpec("j", ("x",), ranks, constraint=constraint), JobState.PENDING, 0)


def test_a_gang_is_placed_only_where_its_constraint_is_met() -> None:
    nodes = [Node("n1", 4, refuses=("zone-a",)), Node("n2", 4), Node("n3", 4, refuses=("zone-b",))]
    assert {slot.node for slot in place(Plan(nodes), job(8, "zone-a")) or ()} == {"n2", "n3"}
    assert place(Plan(nodes), job(9, "zone-a")) is None
    assert {slot.node for slot in place(Plan(nodes), job(12)) or ()} == {"n1", "n2", "n3"}


def test_capacity_excludes_nodes_that_refuse_the_job() -> None:
    capacity = Capacity({"n1": Node("n1", 4, refuses=("zone-a",)), "n2": Node("n2", 4)})
    assert capacity.shared(job(8, "zone-a")) == 4
    assert not capacity.could_hold(job(8, "zone-a"))
    assert capacity.could_hold(job(8))


def test_a_waiting_gang_starts_once_the_backend_says_that_the_node_meets_its_constraint() -> None:
    state = State()
    refusing = NodeSeen("n1", 4, refuses=("zone-a",))
    outcome = run(state, [refusing, Submitted("j", job(4, "zone-a").spec)], SECOND)
    assert not outcome.actions
    outcome = run(state, [NodeSeen("n1", 4)], 2 * SECOND)
    assert [type(action) for action in outcome.actions] == [StartGang]
