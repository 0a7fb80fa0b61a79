"""Preemption counts only slots of nodes in use."""

from __future__ import annotations

import pytest

from scheduler_feedback.core.events import NodeCommand, NodeCommanded
from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.state import Estimates, Order, Policy
from tests.cluster.cycle_world import World


@pytest.mark.parametrize("order", [Order.FIFO, Order.SJF, Order.SRTF, Order.LAS])
@pytest.mark.parametrize("word", [NodeCommand.QUARANTINE, NodeCommand.MAINTENANCE])
def test_a_gang_on_an_unavailable_node_blocks_no_free_slot(order: Order, word: NodeCommand) -> None:
    world = World({"n0": 2, "n1": 2, "n2": 2}, Policy(order=order, preempt=True))
    world.submit(4, 1000.0)
    world.running()
    world.cycle(NodeCommanded("n0", word, "operator", "disk"))
    world.cycle(NodeCommanded("n1", word, "operator", "disk"))
    waiting = world.submit(2, 100.0)
    world.running()
    assert world.job_state(waiting) is JobState.RUNNING
    assert world.nodes_of(waiting) == {"n2"}


@pytest.mark.parametrize("order", [Order.SJF, Order.SRTF, Order.SRSF])
def test_a_gang_on_unavailable_nodes_is_not_preempted(order: Order) -> None:
    policy = Policy(order=order, estimates=Estimates.EXACT, preempt=True, min_run_seconds=0.0)
    world = World({"n0": 4, "n1": 4}, policy)
    movable = {"restartable": True, "preemptible": True, "grace_seconds": 2.0}
    aside = world.submit(4, 9000.0, exact_seconds=9000.0, **movable)
    other = world.submit(4, 9000.0, exact_seconds=9000.0, **movable)
    world.running()
    (node,) = world.nodes_of(aside)
    world.cycle(NodeCommanded(node, NodeCommand.MAINTENANCE, "operator", "disk"))
    short = world.submit(4, 50.0, exact_seconds=50.0)
    world.advance(10.0)
    assert "preempt" in world.entry_kinds(other) and "preempt" not in world.entry_kinds(aside)
    assert (world.job_state(aside), world.job_state(short)) == (JobState.RUNNING, JobState.RUNNING)
