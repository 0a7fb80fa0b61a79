"""Constraints of jobs on nodes: a node is used only while it meets the job's constraint."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.cluster import Limit, Node, Tier
from scheduler_feedback.core.events import NodeSeen, Submitted
from scheduler_feedback.core.job import Group, Job, JobSpec, JobState
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


# --- limits by other resources than slots ----------------------------------------------------------------------------


def limited(name: str, slots: int, pods: int, most_pods: int) -> Node:
    return Node(name, slots, limits=(Limit("wide", pods, most_pods),))


def test_a_gang_takes_no_more_slots_of_a_node_than_its_other_resources_allow() -> None:
    plan = Plan([limited("n1", 8, 1, 1), limited("n2", 8, 2, 2), Node("n3", 8)])
    free = plan.free(Tier.HEALTHY)
    mark = plan.checkpoint()
    placed = place(plan, job(11, "wide")) or ()
    assert Counter(slot.node for slot in placed) == {"n1": 1, "n2": 2, "n3": 8}
    assert plan.free(Tier.HEALTHY) == free - 11, "all other slots are free for others"
    plan.rollback(mark)
    assert place(plan, job(12, "wide")) is None and plan.free(Tier.HEALTHY) == free
    assert place(plan, job(12, "narrow")) is not None, "only this constraint is limited"


def test_a_pod_of_several_ranks_counts_once() -> None:
    spec = replace(job(8, "wide").spec, groups=(Group("pod-0", 4, same_node=True), Group("pod-1", 4, same_node=True)))
    whole = Job("j", spec, JobState.PENDING, 0)
    placed = place(Plan([limited("n1", 8, 1, 2), limited("n2", 8, 1, 2)]), whole) or ()
    assert Counter(slot.node for slot in placed) == {"n1": 4, "n2": 4}


def test_capacity_counts_what_the_ends_of_gangs_would_free() -> None:
    nodes = {"n1": limited("n1", 8, 0, 2)}
    assert Capacity(nodes).could_hold(job(2, "wide"))
    assert not Capacity(nodes).could_hold(job(3, "wide"))


def test_a_gang_waits_for_the_end_of_a_gang_that_uses_its_processors_and_is_not_overtaken() -> None:
    state = State()
    wide = replace(job(4, "wide").spec, time_limit_seconds=600.0)
    run(state, [NodeSeen("n1", 8), Submitted("runs", wide)], SECOND)
    full = NodeSeen("n1", 8, limits=(Limit("wide", 0, 1),))
    head = replace(wide, groups=(Group("pod-0", 4, same_node=True),))
    run(state, [full, Submitted("head", head)], 2 * SECOND)
    assert state.reserved_for == "head" and state.jobs["head"].state is JobState.PENDING
    assert state.reserved_from_ns == pytest.approx(601 * SECOND, abs=2 * SECOND), "when the running gang ends"
    long = replace(job(5, "other").spec, time_limit_seconds=7200.0)
    outcome = run(state, [Submitted("long", long)], 3 * SECOND)
    assert not outcome.actions, "it would use a slot that is reserved"


# --- room for the head of the queue ----------------------------------------------------------------------------------

WIDE = Limit("wide", 0, 1, 40 / 64)
"""A node with 64 processors and 8 slots has room for one pod with 40 processors, and none while one runs."""


def room_beside(later: Limit | None) -> int:
    """Return how many long jobs of one rank start beside the running job, while the head waits for its processors."""
    state = State()
    wide = replace(job(4, "wide").spec, groups=(Group("pod-0", 4, same_node=True),), time_limit_seconds=600.0)
    run(state, [NodeSeen("n1", 8), Submitted("runs", wide)], SECOND)
    node = NodeSeen("n1", 8, limits=(WIDE,) if later is None else (WIDE, later))
    run(state, [node, Submitted("head", wide)], 2 * SECOND)
    assert state.reserved_for == "head" and state.jobs["head"].state is JobState.PENDING
    long = replace(job(1, "later").spec, time_limit_seconds=7200.0)
    started = 0
    for number in range(5):  # in cycles of their own: the earlier ones count as running jobs
        outcome = run(state, [Submitted(f"later-{number}", long)], (3 + number) * SECOND)
        started += sum(isinstance(action, StartGang) for action in outcome.actions)
    return started


@pytest.mark.parametrize(
    ("processors", "started"),
    [(6, 4), (12, 2), (16, 1), (30, 0)],  # the head needs 40 of 64; four slots are not reserved
)
def test_long_jobs_beside_the_head_s_slots_leave_its_processors(processors: int, started: int) -> None:
    share = processors / 64
    later = None if 64 // processors >= 8 else Limit("later", 8, 64 // processors, share)
    assert room_beside(later) == (min(started, 3) if later is None else started)


def test_a_short_job_may_use_the_head_s_processors() -> None:
    state = State()
    wide = replace(job(4, "wide").spec, groups=(Group("pod-0", 4, same_node=True),), time_limit_seconds=600.0)
    run(state, [NodeSeen("n1", 8), Submitted("runs", wide)], SECOND)
    run(state, [NodeSeen("n1", 8, limits=(WIDE, Limit("later", 2, 2, 0.46))), Submitted("head", wide)], 2 * SECOND)
    short = replace(job(1, "later").spec, time_limit_seconds=60.0)
    outcome = run(state, [Submitted("short", short)], 3 * SECOND)
    assert [type(action) for action in outcome.actions] == [StartGang]
