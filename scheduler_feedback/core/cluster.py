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


class Level(StrEnum):
    """How near to each other two slots are, the nearest first."""

    ISLAND = "island"  # GPUs on one NVLink switch: inside of a node, or over several
    NODE = "node"
    RAIL = "rail"  # nodes whose NICs of equal number share a leaf switch
    RACK = "rack"
    SPINE = "spine"


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
    gpu_type: of all of its slots, '' where there is only one or it is not known.
    spine, rack, rail, island: the domains that it lies in, from wide to narrow; '' where the level is not known. A name
    need be unique only inside of the wider domain. island: an NVLink domain wider than a node.
    island_slots: size of the NVLink islands that its slots form, in their order; 0: the node is one island.
    slowdown: how slow it is held to be, run time there / run time elsewhere; 1 where it is not slowness that is held
    against it. doubted_ns: since when, None where nothing is held against it.
    spare: whether it is kept for gangs that leave a bad node, and lent meanwhile to those that may be stopped.
    refuses: constraints of jobs, by name, that the node does not meet as the backend sees it.
    queues: those of another scheduler whose jobs may use it; none where it has none.
    draining: in maintenance, and restartable jobs are moved away from it.
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
    gpu_type: str = ""
    spine: str = ""
    rack: str = ""
    rail: str = ""
    island: str = ""
    island_slots: int = 0
    slowdown: float = 1.0
    doubted_ns: int | None = None
    spare: bool = False
    refuses: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    draining: bool = False
