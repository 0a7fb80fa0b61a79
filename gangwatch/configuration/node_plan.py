"""Plan of the virtual nodes on this machine: their number, names, slots and GPUs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agent.schema.errors import ConfigError
from gangwatch.configuration.sections import ClusterSection
from gangwatch.state_folder import NodePlan

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
"""Pattern of a valid node name: one label of RFC 1123, where '_' is also allowed."""

LEAST_SLOTS = 4
"""Minimum number of CPU slots per node if the configuration sets no number. A gang of four ranks can then start even
on a laptop."""

_NODES_BY_SIZE = ((64, 8), (16, 4), (0, 2))
"""Default number of virtual nodes by the size of the machine, as pairs (minimum of processors or GPUs, nodes)."""


def plan_nodes(cluster: ClusterSection, host: str, processors: int, gpus: tuple[str, ...]) -> tuple[NodePlan, ...]:
    """Return the virtual nodes to run on this machine.

    host: name of the machine. processors: number of usable processors. gpus: UUIDs of its GPUs.

    With GPUs, a slot is a GPU, and neighbours in the driver's order share a node. Without GPUs, slots are shares of
    CPU. Defaults depend on the size of the machine: several nodes, so that a job can move, with at least LEAST_SLOTS
    slots each. Raises ConfigError if there are fewer GPUs than requested slots.
    """
    units = gpus if cluster.gpus else ()
    count = _count_nodes(cluster, processors, len(units))
    if cluster.names is not None:
        names = cluster.names
    elif count == 1:
        names = (node_name_of(host),)
    else:
        names = tuple(f"node-{index}" for index in range(count))
    if not units:
        slots = cluster.slots
        if slots is None:
            slots = max(1 if cluster.nodes is not None else LEAST_SLOTS, processors // count)
        return tuple(NodePlan(name, slots) for name in names)
    sizes = [cluster.slots] * count if cluster.slots is not None else _shared_out(len(units), count)
    if min(sizes) == 0 or sum(sizes) > len(units):
        wanted = cluster.slots or 1
        raise ConfigError(
            f"cluster.slots: {count} nodes of {wanted} slots need {count * wanted} GPUs, "
            f"this machine has {len(units)}; for CPU slots set cluster.gpus = false (--no-gpus)"
        )
    ends = [sum(sizes[: index + 1]) for index in range(count)]
    return tuple(
        NodePlan(name, size, units[end - size : end]) for name, size, end in zip(names, sizes, ends, strict=True)
    )


def _count_nodes(cluster: ClusterSection, processors: int, gpus: int) -> int:
    """Return the number of virtual nodes: as configured, else derived from the number of GPUs or processors."""
    if cluster.nodes is not None:
        return cluster.nodes
    if cluster.names is not None:
        return len(cluster.names)
    size = gpus or processors
    usual = next(nodes for least, nodes in _NODES_BY_SIZE if size >= least)
    if gpus:
        # Nodes do not share a GPU, so one GPU is one node.
        return max(1, min(usual, gpus // (cluster.slots or 1)))
    return usual if cluster.slots is None else max(2, min(usual, processors // cluster.slots))


def _shared_out(units: int, nodes: int) -> list[int]:
    """Distribute the units (processors or GPUs) evenly, and return the number for each node.

    If they do not divide evenly, the first nodes get one more.
    """
    return [units // nodes + (index < units % nodes) for index in range(nodes)]


def oversubscribed(nodes: Sequence[NodePlan], processors: int) -> str:
    """Return a warning if there are more CPU slots than processors; '' otherwise."""
    slots = sum(node.slots for node in nodes if not node.devices)
    if slots <= processors:
        return ""
    return (
        f"{slots} slots share {processors} processor{'' if processors == 1 else 's'}: jobs that use all of them slow "
        "each other down; change this with --nodes and --slots"
    )


def node_name_of(host: str) -> str:
    """Return a valid node name: the part of the host's name before the first dot, without invalid characters."""
    name = re.sub(r"[^A-Za-z0-9_-]", "", host.split(".")[0])[:63].strip("_-")
    return name or "node-0"
