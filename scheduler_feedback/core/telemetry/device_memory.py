"""Device memory of each rank's processes, from the newest frames of their nodes.

Only processes that the driver lists on a GPU count. A rank on a CPU slot has no device memory, whatever memory of the
host its processes use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sys import intern

import numpy as np

from agent.schema.frame import Column, Frame, Member
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, Gang
from scheduler_feedback.core.telemetry.telemetry import IndexArray

MEMORY = "gangwatch_gpu_process_memory_used_bytes"
OWNER = "gangwatch_gpu_process_owner_info"


class NodeMemory:
    """Device memory of the ranks on one node, in two small arrays, because clusters have many nodes."""

    __slots__ = ("_index", "_places", "_values")

    def __init__(self, gauges: Iterable[Column]) -> None:
        """Find the processes of ranks on GPUs in a new layout."""
        owners: dict[tuple[str, str, str], Member] = {}
        found: list[tuple[int, tuple[str, str, str]]] = []
        for index, column in enumerate(gauges):
            if column.metric not in (MEMORY, OWNER):
                continue
            labels = dict(column.labels)
            process = labels.get("gpu", ""), labels.get("mig", ""), labels.get("pid", "")
            if column.metric == MEMORY:
                found.append((index, process))
            elif (member := _member(labels)) is not None:
                owners[process] = member
        owned = [(index, process) for index, process in found if process in owners]
        numbers: dict[tuple[str, str], int] = {}
        self._places = tuple((owners[process], numbers.setdefault(process[:2], len(numbers))) for _, process in owned)
        """Rank and number of the device (GPU or MIG instance) of each process."""
        self._index: IndexArray = np.array([index for index, _ in owned], np.intp)
        self._values = np.full(len(owned), np.nan)

    def __bool__(self) -> bool:
        return bool(self._places)

    def take(self, frame: Frame) -> None:
        """Keep the memory that the frame contains. The frame must have the current layout."""
        self._values = frame.gauges.take(self._index)

    def of(self, member: Member) -> float:
        """Return the memory in bytes that the rank uses of one device, the largest of all; NaN if it is unknown."""
        used: dict[int, float] = {}
        for (owner, device), value in zip(self._places, self._values.tolist(), strict=True):
            if owner == member:
                used[device] = used.get(device, 0.0) + value
        return max(used.values(), default=float("nan"))


def memory_of(gang: Gang, nodes: Mapping[str, NodeMemory]) -> FloatArray:
    """Return float64 [n], ordered by rank: the device memory of each rank in bytes; NaN if it is unknown.

    nodes: memory on each node, by name.
    """
    found = [
        float("nan") if (on := nodes.get(node)) is None else on.of(Member(gang.name, gang.attempt, rank))
        for rank, node in zip(gang.ranks, gang.nodes, strict=True)
    ]
    return np.array(found, np.float64)


def _member(labels: dict[str, str]) -> Member | None:
    try:
        return Member(intern(labels["gang"]), int(labels["attempt"]), int(labels["rank"])) if labels["gang"] else None
    except (KeyError, ValueError):
        return None
