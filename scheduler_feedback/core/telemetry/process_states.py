"""Kernel states of each rank's processes, from the newest frames of their nodes.

A rank is gone if its agent still sends frames but no longer reports the rank's processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from agent.schema.frame import Column, Frame, Member
from agent.schema.process_state import ProcessState
from scheduler_feedback.core.telemetry.steps.gang_attempts import Gang, IntArray
from scheduler_feedback.core.telemetry.telemetry import UNKNOWN_STATE, IndexArray

METRIC = "gangwatch_rank_process_state"


class NodeStates:
    """States of the ranks on one node.

    members: ranks with a gauge in the node's frames. index: position of each of these gauges. gone: ranks that had a
    gauge before.
    """

    __slots__ = ("gone", "index", "members", "values")

    def __init__(self, gauges: Iterable[Column], old: NodeStates | None, gangs: Mapping[str, Gang]) -> None:
        """Find the gauges of the states in a new layout.

        old: states in the node's last layout. gangs: the newest attempts by name; only gone ranks of these attempts are
        kept.
        """
        found = {
            member: index
            for index, column in enumerate(gauges)
            if column.metric == METRIC and (member := _member(dict(column.labels))) is not None
        }
        self.members = {member: row for row, member in enumerate(found)}
        self.index: IndexArray = np.array(list(found.values()), np.intp)
        self.values = np.full(len(found), np.nan)
        before: set[Member] = {*old.members, *old.gone} if old is not None else set()
        newest = {(gang.name, gang.attempt) for gang in gangs.values()} if before else set()
        self.gone: set[Member] = {one for one in before if one not in found and (one.gang, one.attempt) in newest}

    def take(self, frame: Frame) -> None:
        """Keep the process states that the frame contains. The frame must have the current layout."""
        self.values = frame.gauges.take(self.index)

    def of(self, member: Member) -> int:
        """Return the rank's ProcessState, or UNKNOWN_STATE."""
        row = self.members.get(member)
        if row is None:
            return int(ProcessState.GONE) if member in self.gone else UNKNOWN_STATE
        value = float(self.values[row])
        return int(value) if value == value and 0 <= value < len(ProcessState) else UNKNOWN_STATE


def states_of(gang: Gang, nodes: Mapping[str, NodeStates]) -> IntArray:
    """Return int64 [n], ordered by rank: the ProcessState of each rank, or UNKNOWN_STATE. nodes: states of each node,
    by name."""
    found = [
        UNKNOWN_STATE if (on := nodes.get(node)) is None else on.of(Member(gang.name, gang.attempt, rank))
        for rank, node in zip(gang.ranks, gang.nodes, strict=True)
    ]
    return np.array(found, np.int64)


def _member(labels: dict[str, str]) -> Member | None:
    try:
        return Member(labels["gang"], int(labels["attempt"]), int(labels["rank"]))
    except (KeyError, ValueError):
        return None
