"""Maintenance with drain, and removed nodes: which gangs move or stay, and which commands are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_feedback.api import documents as documents
from scheduler_feedback.api.reading.node_summary import summary_of
from scheduler_feedback.api.web import views
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.events import (
    CancelRequested,
    FreezeSet,
    NodeCommand,
    NodeCommanded,
    NodeSeen,
    VerdictJudged,
)
from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.state import Mode, Policy
from scheduler_feedback.core.verdict import Cleared
from scheduler_feedback.policies.nodes.draining import why_not_removed
from tests.cluster.cycle_world import World

MAINTAIN = NodeCommanded("n0", NodeCommand.MAINTENANCE, "ada", "new NIC")
DRAIN = NodeCommanded("n0", NodeCommand.MAINTENANCE, "ada", "new NIC", drain=True)
REMOVE = NodeCommanded("n0", NodeCommand.REMOVE, "ada", "sold")


def started(ranks: int = 2, nodes: int = 3, policy: Policy | None = None, **spec: object) -> tuple[World, str]:
    world = World({f"n{number}": 2 for number in range(nodes)}, policy=policy or Policy())
    job = world.submit(ranks, true_seconds=1000, **spec)
    world.running()
    assert "n0" in world.nodes_of(job)
    return world, job


def test_a_drain_moves_restartable_gangs() -> None:
    world, job = started(restartable=True, time_limit_seconds=1000.0)
    world.cycle(DRAIN)
    assert documents.left_on(world.state, "n0")["jobs"][0]["moving"]
    world.advance(5)
    assert world.job_state(job) is JobState.RUNNING
    assert "n0" not in world.nodes_of(job)
    assert world.state.jobs[job].attempt == 2
    assert "drain" in world.entry_kinds(job)
    assert documents.left_on(world.state, "n0")["jobs"] == []
    assert world.state.nodes["n0"].state is NodeState.MAINTENANCE


def test_a_drain_keeps_gangs_that_are_not_restartable() -> None:
    world, job = started(time_limit_seconds=1000.0)
    world.cycle(DRAIN)
    world.advance(60)
    assert (world.state.jobs[job].attempt, world.job_state(job)) == (1, JobState.RUNNING)
    [left] = documents.left_on(world.state, "n0")["jobs"]
    assert (left["job"], left["movable"], left["moving"], left["ranks"]) == (job, False, False, 2)


def test_maintenance_without_a_drain_moves_nothing() -> None:
    world, job = started(restartable=True, time_limit_seconds=1000.0)
    world.cycle(MAINTAIN)
    world.advance(60)
    assert world.state.jobs[job].attempt == 1
    world.cycle(DRAIN)
    world.advance(5)
    assert world.state.jobs[job].attempt == 2


def test_a_drained_gang_without_free_slots_waits_in_the_queue() -> None:
    world, job = started(ranks=4, nodes=2, restartable=True, time_limit_seconds=1000.0)
    world.cycle(DRAIN)
    world.advance(5)
    assert world.job_state(job) is JobState.PENDING
    world.cycle(NodeCommanded("n0", NodeCommand.RELEASE, "ada"))
    world.running()
    assert world.job_state(job) is JobState.RUNNING
    assert not world.state.nodes["n0"].draining


def test_a_job_that_starts_during_a_drain_leaves_too() -> None:
    world = World({"n0": 2, "n1": 2})
    job = world.submit(2, true_seconds=1000, restartable=True)
    assert world.job_state(job) is JobState.STARTING
    node = next(iter(world.nodes_of(job)))
    world.cycle(NodeCommanded(node, NodeCommand.MAINTENANCE, "ada", drain=True))
    world.running()
    world.advance(5)
    assert node not in world.nodes_of(job)


def test_a_drain_moves_nothing_while_actions_are_frozen() -> None:
    world, job = started(restartable=True, time_limit_seconds=1000.0)
    world.cycle(FreezeSet(True, "ada"), DRAIN)
    world.advance(60)
    assert world.state.jobs[job].attempt == 1
    assert documents.left_on(world.state, "n0")["frozen"]
    world.cycle(FreezeSet(False, "ada"))
    world.advance(5)
    assert world.state.jobs[job].attempt == 2


def test_a_drain_moves_nothing_in_observe_mode() -> None:
    world, job = started(restartable=True, time_limit_seconds=1000.0, policy=Policy(mode=Mode.OBSERVE))
    world.cycle(DRAIN)
    world.advance(60)
    assert world.state.jobs[job].attempt == 1
    assert documents.left_on(world.state, "n0")["mode"] == "observe"


# --- removal ---------------------------------------------------------------------------------------------------------


def test_a_node_that_reports_is_not_removed() -> None:
    world = World({"n0": 2, "n1": 2})
    assert "still reports" in (why_not_removed(world.state, world.state.nodes["n0"]) or "")
    world.cycle(REMOVE)
    assert "n0" in world.state.nodes


def test_a_node_with_held_slots_is_not_removed() -> None:
    world, job = started(time_limit_seconds=1000.0)
    world.cycle(NodeSeen("n0", 2, present=False))
    assert job in (why_not_removed(world.state, world.state.nodes["n0"]) or "")
    world.cycle(REMOVE)
    assert "n0" in world.state.nodes
    world.cycle(CancelRequested(job, "ada"))
    world.advance(5)
    assert why_not_removed(world.state, world.state.nodes["n0"]) is None
    world.cycle(REMOVE)
    assert "n0" not in world.state.nodes


def test_slots_of_a_removed_node_are_never_assigned() -> None:
    world = World({"n0": 2, "n1": 2})
    wide = world.submit(4, true_seconds=100, time_limit_seconds=100.0)
    world.advance(200)
    assert world.job_state(wide) is JobState.COMPLETED
    world.cycle(NodeSeen("n0", 2, present=False))
    world.cycle(REMOVE)
    assert list(world.state.nodes) == ["n1"]
    assert world.entry_kinds("node:n0")[-1] == "removed"
    job = world.submit(2, true_seconds=100, time_limit_seconds=100.0)
    assert world.nodes_of(job) == {"n1"}
    world.cycle(NodeSeen("n0", 2))  # a new node with the same name
    assert world.state.nodes["n0"].state is NodeState.HEALTHY


def test_verdicts_about_a_removed_node_are_dropped() -> None:
    world, job = started(time_limit_seconds=1000.0)
    alone = replace(world.verdict(job), gang="", node="n0", verdict_id="v-n0")
    world.end(job, 0)
    world.cycle(alone)
    world.cycle(NodeSeen("n0", 2, present=False))
    world.cycle(REMOVE)
    assert world.state.verdicts == {}
    assert "v-n0" in [past.verdict.verdict_id for past in world.state.past_verdicts]


@pytest.mark.parametrize("state", [NodeState.HEALTHY, NodeState.MAINTENANCE])
def test_an_absent_node_offers_no_slots(state: NodeState) -> None:
    world = World({"n0": 2, "n1": 2})
    if state is NodeState.MAINTENANCE:
        world.cycle(MAINTAIN)
    world.cycle(NodeSeen("n0", 2, present=False))
    n0, n1 = documents.nodes_document(world.state)
    assert (n0["free"], n1["free"]) == (0, 2)
    nodes = summary_of(world.state.nodes.values())
    assert views.slots_by_use(world.state, nodes) == {
        "total": 2,
        "used": 0,
        "free": 2,
        "unavailable": 0,
    }


# --- verdicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_cleared_verdict_can_still_be_judged(confirmed: bool) -> None:
    world, job = started(restartable=False, time_limit_seconds=1000.0)
    verdict = world.verdict(job)
    world.cycle(verdict)
    world.cycle(Cleared(verdict.verdict_id, job, world.now_ns, "at its usual speed again"))
    world.cycle(VerdictJudged(verdict.verdict_id, confirmed, "ada"))
    [listed] = documents.verdicts_document(world.state)
    assert (listed["verdict_id"], listed["judged"], listed["standing"]) == (verdict.verdict_id, confirmed, False)
    assert f"verdict-{'confirmed' if confirmed else 'rejected'}" in world.entry_kinds(job)
