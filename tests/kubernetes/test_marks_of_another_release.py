"""Marks by a controller of another release: a node that it took out of use stays out of use."""

from __future__ import annotations

import msgspec
import pytest

from scheduler_feedback.backends.kubernetes.objects.objects import Node
from scheduler_feedback.backends.kubernetes.published.marks import MEMORY, REASON, STATE, Memory, marks_of, remembered
from scheduler_feedback.core import cluster
from scheduler_feedback.core.cluster import NodeState


def node(memory: str, state: str = "", reason: str = "") -> Node:
    labels = {STATE: state} if state else {}
    annotations = {key: value for key, value in ((MEMORY, memory), (REASON, reason)) if value}
    return msgspec.convert({"metadata": {"name": "n0", "labels": labels, "annotations": annotations}}, Node)


def test_fields_added_by_another_release_are_ignored() -> None:
    text = '{"state": "quarantine", "backoff": 2, "reason": "slow", "mood": {"a": 1}}'
    assert remembered(node(text)) == Memory(NodeState.QUARANTINE, backoff=2, reason="slow")


@pytest.mark.parametrize("text", ["{", '{"state": "exiled"}', '{"backoff": "many"}', "[]"])
@pytest.mark.parametrize("state", [NodeState.SUSPECT, NodeState.QUARANTINE, NodeState.MAINTENANCE])
def test_a_node_with_unreadable_history_keeps_the_state_of_its_label(text: str, state: NodeState) -> None:
    found = remembered(node(text, state.value, "it is slow"))
    assert (found.state, found.reason) == (state, "it is slow")


def test_an_unknown_state_is_a_quarantine() -> None:
    found = remembered(node('{"state": "exiled"}', "exiled", "the fabric manager said so"))
    assert found.state is NodeState.QUARANTINE
    assert "exiled" in found.reason and "the fabric manager said so" in found.reason


def test_a_node_without_a_state_is_healthy_with_any_history() -> None:
    assert remembered(node("{")) == Memory()
    assert remembered(node("")) == Memory()


def test_written_marks_are_read_back() -> None:
    full = cluster.Node("n0", 8, state=NodeState.QUARANTINE, since_ns=5, until_ns=9, backoff=3, reason="slow")
    marks = marks_of(full)
    found = remembered(node(marks.memory, marks.state, marks.reason))
    assert (found.state, found.since_ns, found.until_ns, found.backoff) == (NodeState.QUARANTINE, 5, 9, 3)


def test_a_node_with_an_unfinished_probe_is_probed_again_by_the_next_controller() -> None:
    """A probe ends with its controller. The next controller ends the quarantine at once and starts another probe."""
    probed = cluster.Node("n0", 8, state=NodeState.QUARANTINE, since_ns=5, until_ns=9, probe_job="probe-1")
    marks = marks_of(probed)
    assert remembered(node(marks.memory, marks.state)).until_ns == 5
    probed.probe_job = None
    marks = marks_of(probed)
    assert remembered(node(marks.memory, marks.state)).until_ns == 9
