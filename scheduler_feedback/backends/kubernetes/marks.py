"""What stands on a node for every other scheduler to read, from what the core thinks of it; and the way back. Pure.

One label, one annotation, one taint and one condition. The annotation holds the node's whole state, so that a
controller that starts with nothing goes on with the quarantines and backoffs of the one before. A healthy node that has
nothing to remember carries nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from scheduler_feedback.backends.kubernetes.constraints import OURS
from scheduler_feedback.backends.kubernetes.objects import Condition, Node, Taint
from scheduler_feedback.core import cluster
from scheduler_feedback.core.cluster import NodeState

STATE = f"{OURS}state"
MEMORY = f"{OURS}memory"
CONDITION = "GangwatchDoubt"
_MOST_REASON = 1024
"""Of a message: conditions are read by people."""

_TAINTS = {
    NodeState.SUSPECT: Taint(f"{OURS}suspect", "", "PreferNoSchedule"),
    NodeState.PROBATION: Taint(f"{OURS}probation", "", "PreferNoSchedule"),
    NodeState.QUARANTINE: Taint(f"{OURS}quarantine", "", "NoSchedule"),
    NodeState.MAINTENANCE: Taint(f"{OURS}maintenance", "", "NoSchedule"),
}


class Memory(msgspec.Struct, omit_defaults=True):
    """What of the core's node outlives the controller. Instants are wall time, in nanoseconds."""

    state: NodeState = NodeState.HEALTHY
    since_ns: int = 0
    until_ns: int | None = None
    backoff: int = 0
    reason: str = ""
    verdict_id: str = ""
    accusers: tuple[str, ...] = ()
    probes: int = 0
    slowdown: float = 1.0
    doubted_ns: int | None = None


_memories = msgspec.json.Decoder(Memory)


@dataclass(frozen=True, slots=True)
class Marks:
    """What a node is to carry of ours; all empty: nothing."""

    state: str = ""
    memory: str = ""
    taint: Taint | None = None
    reason: str = ""


def marks_of(node: cluster.Node) -> Marks:
    """What the node is to carry."""
    memory = Memory(
        node.state,
        node.since_ns,
        node.until_ns,
        node.backoff,
        node.reason,
        node.verdict_id,
        node.accusers,
        node.probes,
        node.slowdown,
        node.doubted_ns,
    )
    if node.state is NodeState.HEALTHY:
        if not node.backoff and not node.accusers:
            return Marks()
        return Marks(memory=msgspec.json.encode(memory).decode())
    reason = node.reason[:_MOST_REASON] or node.state.value
    return Marks(node.state.value, msgspec.json.encode(memory).decode(), _TAINTS.get(node.state), reason)


def remembered(node: Node) -> Memory:
    """What a controller before us wrote on the node; a healthy one's where nothing is, or nothing that we can read."""
    text = node.metadata.annotation(MEMORY)
    try:
        return _memories.decode(text) if text else Memory()
    except msgspec.MsgspecError:
        return Memory()


def changes(node: Node, marks: Marks) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Patches that make the node carry the marks: of the node (merge patch) and of its status (strategic merge patch).

    None where there is nothing to change. Taints are one list for all who taint, so that patch holds only for the
    version that we have seen.
    """
    metadata: dict[str, Any] = {}
    if node.metadata.label(STATE) != marks.state:
        metadata["labels"] = {STATE: marks.state or None}
    if node.metadata.annotation(MEMORY) != marks.memory:
        metadata["annotations"] = {MEMORY: marks.memory or None}
    body: dict[str, Any] = {"metadata": metadata} if metadata else {}
    present = node.spec.taints or []
    ours = [taint for taint in present if taint.key.startswith(OURS)]
    wanted = [] if marks.taint is None else [marks.taint]
    if ours != wanted:
        others = [taint for taint in present if not taint.key.startswith(OURS)]
        body["spec"] = {"taints": [*others, *wanted] or None}
        body.setdefault("metadata", {})["resourceVersion"] = node.metadata.resource_version
    return body or None, _condition(node, marks)


def _condition(node: Node, marks: Marks) -> dict[str, Any] | None:
    present = next((one for one in node.status.conditions or () if one.type == CONDITION), None)
    if not marks.state:
        return None if present is None else {"status": {"conditions": [{"type": CONDITION, "$patch": "delete"}]}}
    wanted = Condition(CONDITION, "True", marks.state.capitalize(), marks.reason)
    if present == wanted:
        return None
    return {
        "status": {
            "conditions": [
                {"type": wanted.type, "status": wanted.status, "reason": wanted.reason, "message": wanted.message}
            ]
        }
    }
