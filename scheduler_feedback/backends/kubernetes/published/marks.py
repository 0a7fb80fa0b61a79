"""Marks: labels, annotations, taint and condition that gangwatch writes on a node and reads after a restart. No I/O.

Two labels (state and score), two annotations (the reason and the controller's memory), one taint and one condition. The
memory has the node's whole state, so that a controller with an empty state folder continues the quarantines and
backoffs of the previous controller. A healthy node without a history has no marks.

The score is the node's estimated speed in percent of a healthy node's, and 0 for a node that is out of use for another
reason than slowness. It is an integer, so that a node affinity can compare it (``Gt``, ``Lt``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from scheduler_feedback.backends.kubernetes.objects.constraints import OURS
from scheduler_feedback.backends.kubernetes.objects.objects import Condition, Node, Taint
from scheduler_feedback.core import cluster
from scheduler_feedback.core.cluster import NodeState

STATE = f"{OURS}state"
SCORE = f"{OURS}score"
REASON = f"{OURS}reason"
MEMORY = f"{OURS}memory"
CONDITION = "GangwatchDoubt"
_MOST_REASON = 1024
"""Maximum number of characters of a condition's message, so that people can read it."""

_TAINTS = {
    NodeState.SUSPECT: Taint(f"{OURS}suspect", "", "PreferNoSchedule"),
    NodeState.PROBATION: Taint(f"{OURS}probation", "", "PreferNoSchedule"),
    NodeState.QUARANTINE: Taint(f"{OURS}quarantine", "", "NoSchedule"),
    NodeState.MAINTENANCE: Taint(f"{OURS}maintenance", "", "NoSchedule"),
}


class Memory(msgspec.Struct, omit_defaults=True):
    """State of a node that outlives the controller, because it is stored on the node. Instants are wall time, in
    nanoseconds.
    """

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
    """Marks that a node must have. All fields are empty if the node must have none."""

    state: str = ""
    memory: str = ""
    taint: Taint | None = None
    reason: str = ""
    score: str = ""


def marks_of(node: cluster.Node, *, evicts: bool = False) -> Marks:
    """Return the node's marks. evicts: whether quarantine evicts pods that do not tolerate it."""
    if node.state is NodeState.HEALTHY and not node.backoff and not node.accusers:
        return Marks()
    memory = Memory(
        node.state,
        node.since_ns,
        node.until_ns if node.probe_job is None else node.since_ns,  # the next controller probes it again
        node.backoff,
        node.reason,
        node.verdict_id,
        node.accusers,
        node.probes,
        node.slowdown,
        node.doubted_ns,
    )
    if node.state is NodeState.HEALTHY:
        return Marks(memory=msgspec.json.encode(memory).decode())
    reason = node.reason[:_MOST_REASON] or node.state.value
    taint = _TAINTS.get(node.state)
    if evicts and node.state is NodeState.QUARANTINE and taint is not None:
        taint = Taint(taint.key, taint.value, "NoExecute")
    return Marks(node.state.value, msgspec.json.encode(memory).decode(), taint, reason, _score(node))


def _score(node: cluster.Node) -> str:
    out = node.state in (NodeState.QUARANTINE, NodeState.MAINTENANCE)
    return "0" if out and node.slowdown <= 1.0 else str(round(100 / max(node.slowdown, 1.0)))


def remembered(node: Node) -> Memory:
    """Return the state that a controller stored in the node's annotations; a healthy node's state if none is stored.

    If the stored state is damaged or of another release, the node's label gives the state. An unknown state counts as
    quarantine: the cause for which the node was taken out of use may still exist.
    """
    text = node.metadata.annotation(MEMORY)
    try:
        return _memories.decode(text) if text else Memory()
    except (msgspec.MsgspecError, RecursionError):
        pass
    word, reason = node.metadata.label(STATE), node.metadata.annotation(REASON)
    if not word:
        return Memory()
    try:
        return Memory(NodeState(word), reason=reason)
    except ValueError:
        return Memory(NodeState.QUARANTINE, reason=f"{word[:60]} (a state of another release): {reason}")


def changes(node: Node, marks: Marks) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the patches that set the marks: of the node (merge patch) and of its status (strategic merge patch).

    A patch is None if there is nothing to change. Taints are one list with several writers, so a patch with taints
    applies only to the version of the node that was read.
    """
    labels = {STATE: marks.state, SCORE: marks.score}
    annotations = {MEMORY: marks.memory, REASON: marks.reason}
    labels = {key: value for key, value in labels.items() if node.metadata.label(key) != value}
    annotations = {key: value for key, value in annotations.items() if node.metadata.annotation(key) != value}
    metadata: dict[str, Any] = {}
    if labels:
        metadata["labels"] = {key: value or None for key, value in labels.items()}
    if annotations:
        metadata["annotations"] = {key: value or None for key, value in annotations.items()}
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
