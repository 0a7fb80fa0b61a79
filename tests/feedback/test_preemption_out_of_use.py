"""Preemption passes count slots of nodes in use alone."""

from __future__ import annotations

import pytest

from scheduler_feedback.core.events import NodeCommand, NodeCommanded
from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.state import Order, Policy
from tests.feedback.world import World


@pytest.mark.parametrize("order", [Order.FIFO, Order.SJF, Order.SRTF, Order.LAS])
@pytest.mark.parametrize("word", [NodeCommand.QUARANTINE, NodeCommand.MAINTENANCE])
def test_a_gang_on_a_node_out_of_use_keeps_no_free_slot_from_a_pending_job(order: Order, word: NodeCommand) -> None:
    world = World({"n0": 2, "n1": 2, "n2": 2}, Policy(order=order, preempt=True))
    world.submit(4, 1000.0)
    world.running()
    world.cycle(NodeCommanded("n0", word, "operator", "disk"))
    world.cycle(NodeCommanded("n1", word, "operator", "disk"))
    waiting = world.submit(2, 100.0)
    world.running()
    assert world.job_state(waiting) is JobState.RUNNING
    assert world.nodes_of(waiting) == {"n2"}
