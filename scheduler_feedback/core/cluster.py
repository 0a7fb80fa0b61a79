"""Nodes and their states."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NodeState(StrEnum):
    """healthy -> suspect -> quarantine -> (probe) -> probation -> healthy; maintenance is the operator's alone."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"  # a verdict stands against it: used last
    QUARANTINE = "quarantine"  # takes nothing but our own probe
    PROBATION = "probation"  # passed a probe: takes single-node jobs only
    MAINTENANCE = "maintenance"  # the operator's: takes nothing until released


@dataclass(slots=True)
class Node:
    """A node and why it is in its state. Owned and changed by the cycle alone.

    slots: number of places. devices: GPU UUID of each slot, empty on a CPU node.
    machine: boot_id of the host: nodes that share it share processors.
    since_ns: when the state began. until_ns: when quarantine or probation may end, None where only an event ends it.
    backoff: quarantines since the last full recovery; each doubles the next one's length.
    reason: in words. verdict_id: of the verdict behind it, '' where an operator did it.
    present: whether the backend reports it; an absent node takes nothing.
    accusers: jobs whose verdicts named it since it was last healthy. probe_job: the probe that is under way.
    probes: how many probes it has had; numbers them.
    """

    name: str
    slots: int
    devices: tuple[str, ...] = ()
    machine: str = ""
    state: NodeState = NodeState.HEALTHY
    since_ns: int = 0
    until_ns: int | None = None
    backoff: int = 0
    reason: str = ""
    verdict_id: str = ""
    present: bool = True
    probe_job: str | None = None
    accusers: tuple[str, ...] = ()
    probes: int = 0
