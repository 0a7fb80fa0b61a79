"""The summary of all nodes equals the counts over the single nodes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scheduler_feedback.api.reading.listing import Kept
from scheduler_feedback.api.reading.node_summary import summary_of
from scheduler_feedback.api.web.words import node_state
from scheduler_feedback.core.cluster import Node, NodeState, tier_of
from scheduler_feedback.core.state import State
from scheduler_feedback.core.state_copy import frozen

NODES = st.lists(
    st.builds(
        Node,
        name=st.uuids().map(str),
        slots=st.integers(0, 8),
        state=st.sampled_from(NodeState),
        present=st.booleans(),
        spare=st.booleans(),
    ),
    max_size=12,
    unique_by=lambda node: node.name,
)


@given(NODES)
def test_each_node_counts_once(nodes: list[Node]) -> None:
    found = summary_of(nodes)
    assert found.present == [node.name for node in nodes if node.present]
    assert found.absent == {node.name for node in nodes if not node.present}
    assert found.slots == sum(node.slots for node in nodes if node.present)
    assert found.closed == {node.name: node.slots for node in nodes if node.present and tier_of(node) is None}
    assert found.doubtful == [node for node in nodes if node_state(node) != "healthy"]
    assert +Counter(found.by_state) == Counter(map(node_state, nodes))
    assert set(found.by_state) == {*(one.value for one in NodeState), "absent"}


def test_a_summary_is_kept_until_a_node_changes() -> None:
    kept, state = Kept(), State()
    state.nodes["a"] = Node("a", 2)
    first = frozen(state)
    found = kept.summary_of(first)
    second = frozen(state, first)
    assert kept.summary_of(second) is found
    state.nodes["a"].present = False
    assert kept.summary_of(frozen(state, second)).absent == {"a"}
