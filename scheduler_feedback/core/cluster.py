"""Nodes and their states."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from scheduler_feedback.core.mig import MigProfile


class NodeState(StrEnum):
    """State of a node: healthy -> suspect -> quarantine -> (probe) -> probation -> healthy. Only an operator sets
    maintenance."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"  # an active verdict accuses it: used last
    QUARANTINE = "quarantine"  # takes only the probe
    PROBATION = "probation"  # passed a probe: takes single-node jobs only
    MAINTENANCE = "maintenance"  # takes no jobs until an operator releases it


class Level(StrEnum):
    """Levels of the network, which measure the distance between two slots; the nearest level first."""

    ISLAND = "island"  # GPUs on one NVLink switch, in one node or in several
    NODE = "node"
    RAIL = "rail"  # nodes whose NICs with the same number share a leaf switch
    RACK = "rack"
    SPINE = "spine"


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit on the pods of one constraint on a node, from resources other than slots: CPU, memory and others."""

    constraint: str
    """Name of the constraint (`JobSpec.constraint`), whose pods all request the same resources."""
    pods: int
    """Number of pods for which the node has resources now."""
    most_pods: int
    """The same if all gangs on the node had ended."""
    share: float = 0.0
    """Largest part (0 to 1) of any resource that one pod requests, of what the node has without gangs; 0 if unknown."""


@dataclass(slots=True)
class Node:
    """A node, its state, and the reason for that state.

    Only the cycle changes a node. The scheduling index contains data derived from some fields; the cycle changes these
    fields only through methods of the index. All times are the cycle's wall time, in nanoseconds since 1970.
    """

    name: str
    """Unique name of the node."""
    slots: int
    """Number of slots. A slot takes one rank."""
    devices: tuple[str, ...] = ()
    """GPU UUID of each slot; empty on a CPU node."""
    machine: str = ""
    """boot_id of the host. Nodes with the same boot_id share processors."""
    state: NodeState = NodeState.HEALTHY
    """Current state of the node."""
    since_ns: int = 0
    """Wall time at which the state began."""
    until_ns: int | None = None
    """Wall time at which quarantine or probation may end; None if only an event ends it."""
    backoff: int = 0
    """Number of quarantines since the last full recovery. Each quarantine doubles the length of the next one."""
    reason: str = ""
    """Reason for the state, in words."""
    verdict_id: str = ""
    """Id of the verdict that caused the state; '' if an operator set the state."""
    present: bool = True
    """Whether the backend reports the node. An absent node takes no jobs."""
    probe_job: str | None = None
    """Id of the running probe job; None if no probe runs."""
    accusers: tuple[str, ...] = ()
    """Jobs whose verdicts named the node since it was last healthy."""
    probes: int = 0
    """Number of probes so far. The id of the next probe job contains the next number."""
    gpu_type: str = ""
    """GPU type of all slots; '' if the cluster has one type or the type is unknown."""
    spine: str = ""
    """Name of the node's spine; '' if unknown. A name need only be unique inside the next wider level of the
    network."""
    rack: str = ""
    """Name of the node's rack; '' if unknown."""
    rail: str = ""
    """Name of the group of nodes whose NICs of equal number share a leaf switch; '' if unknown."""
    island: str = ""
    """Name of the node's NVLink island, if the island spans several nodes; '' if unknown."""
    island_slots: int = 0
    """Number of consecutive slots that form one NVLink island. 0: the whole node is one island."""
    slowdown: float = 1.0
    """Expected run time on this node divided by the expected run time on other nodes. 1 if the node is not suspected of
    slowness."""
    doubted_ns: int | None = None
    """Wall time since which a verdict has accused the node; None if no verdict does."""
    spare: bool = False
    """Whether the node is reserved for gangs that leave a bad node. Preemptible jobs may use it meanwhile."""
    refuses: tuple[str, ...] = ()
    """Names of job constraints that the node does not meet, as the backend reports them."""
    limits: tuple[Limit, ...] = ()
    """Limits by other resources, as the backend reports them. A constraint without a limit is limited by slots only."""
    free: tuple[tuple[str, int], ...] = ()
    """Free amounts of other resources by name, as of the backend's last report; empty if slots limit every constraint
    more than these resources do."""
    reported_ns: int = 0
    """Wall time of the backend's last report. `free` and `limits` include gangs that started before it, and no later
    ones."""
    queues: tuple[str, ...] = ()
    """Queues of the external scheduler whose jobs may use the node; empty if it has no queues."""
    jobs_per_slot: int = 1
    """Maximum number of shareable jobs on one slot, as the backend reports it; 1: no job shares a slot."""
    slot_memory_mib: int = 0
    """Device memory of each slot in MiB; 0: unknown. The memory of all jobs on a slot fits into it."""
    mig_profiles: tuple[MigProfile, ...] = ()
    """Profiles of the MIG instances into which each GPU of the node can be divided, as the backend reports them; empty:
    its GPUs cannot be divided now."""
    draining: bool = False
    """Whether restartable jobs are being moved off the node. Set only in maintenance."""


class Tier(IntEnum):
    """Class of a node that takes jobs: healthy, probation, suspect or spare. Nodes that take no jobs have no tier."""

    HEALTHY = 0
    PROBATION = 1
    SUSPECT = 2
    SPARE = 3


_TIERS = {NodeState.HEALTHY: Tier.HEALTHY, NodeState.PROBATION: Tier.PROBATION, NodeState.SUSPECT: Tier.SUSPECT}


def tier_of(node: Node) -> Tier | None:
    """Return the node's tier; None if it takes no jobs: absent, in quarantine or in maintenance."""
    if node.spare and node.present and node.state is NodeState.HEALTHY:
        return Tier.SPARE
    return _TIERS.get(node.state) if node.present else None
