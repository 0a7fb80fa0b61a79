"""Places of nodes in the simulated network: rails, leaf switches, and uplinks from leaf switches to spines.

The fabric is a rail-optimised Clos network: NIC i of a node, which belongs to GPU i, connects to the leaf of rail i of
the node's pod. Leaves reach other pods over several uplinks. A hash puts a flow on one uplink (ECMP), or its packets
are spread over all of them (adaptive routing). Queues are modelled as a fluid: an overloaded link gives every flow its
share, marks packets in proportion to the excess (ECN; the marks return as congestion notifications), and pauses its
senders if the marks do not slow them enough (PFC).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.sim.world.arrays import BoolArray, FloatArray, IntArray
from scheduler_feedback.sim.world.physics import hardware

NODES_PER_POD = 32
RACK_NODES = 4
"""Number of nodes in a rack with a power feed of 40 kW (NVIDIA, DGX SuperPOD reference architecture for DGX H100:
10.2 kW a node)."""

UPLINKS = 16
"""Number of links from a leaf switch to the spines. Each link has the line rate of one NIC. A leaf has 32 ports for
NICs, so its uplinks can carry half of the traffic of these NICs."""

MARK_INTERVAL_SECONDS = 50e-6
"""Minimum seconds between two congestion notifications of one flow (DCQCN; Zhu et al., SIGCOMM 2015)."""

FLOWS_PER_NIC = 4
"""Number of queue pairs per NIC over which a collective spreads its traffic. Set by NCCL_IB_QPS_PER_CONNECTION and the
number of channels."""


@dataclass(frozen=True, slots=True)
class Place:
    """Places of a job's ranks in the cluster. Each array and tuple has one item per rank."""

    node: IntArray
    """Number of each rank's node: int64 [ranks]."""
    local: IntArray
    """Number of each rank's GPU in its node: int64 [ranks]."""
    rail: IntArray
    """Number of the rail of each rank's NIC: int64 [ranks]."""
    nodes: tuple[str, ...]
    """Name of each rank's node."""
    gpus: tuple[str, ...]
    """UUID of each rank's GPU."""
    nics: tuple[str, ...]
    """Name of each rank's NIC."""
    uplinks: tuple[str, ...]
    """For each rank, the common name of the uplinks of the leaf switch to which its NIC connects."""
    crosses: BoolArray
    """Whether the job's ranks are in several pods; the same value for every rank."""

    def __len__(self) -> int:
        return len(self.node)


def place(nodes: IntArray, gpus: int, local: tuple[int, ...] = tuple(range(8)), shared: int = 1) -> Place:
    """Return the places of `gpus` ranks that fill these nodes in order, on the `local` GPUs of each node.

    `shared` GPUs share one NIC. Raises ValueError if the ranks do not fit.
    """
    index = np.arange(gpus)
    if gpus > len(nodes) * len(local):
        raise ValueError(f"{gpus} ranks on {len(nodes)} nodes of {len(local)} GPUs")
    if shared < 1:
        raise ValueError(f"a NIC for {shared} GPUs")
    node = np.asarray(nodes, np.int64)[index // len(local)]
    slot = np.asarray(local, np.int64)[index % len(local)]
    rail = slot // shared
    pod = node // NODES_PER_POD
    names = [f"node-{n:05d}" for n in node.tolist()]
    return Place(
        node,
        slot,
        rail,
        tuple(names),
        tuple(f"GPU-{n:08x}-{s:04x}" for n, s in zip(node.tolist(), slot.tolist(), strict=True)),
        tuple(f"{name}/mlx5_{s}" for name, s in zip(names, rail.tolist(), strict=True)),
        tuple(f"pod-{p}/rail-{s}" for p, s in zip(pod.tolist(), rail.tolist(), strict=True)),
        np.full(gpus, bool((pod != pod[0]).any())),
    )


def hashed_share(nics: int, adaptive: bool, random: np.random.Generator) -> FloatArray:
    """Return the share of its line rate that each NIC of one leaf switch gets over the uplinks: float64 [nics].

    With adaptive routing, every NIC gets the same share: uplinks divided by NICs, at most 1. With ECMP, a hash puts
    each flow on one uplink, and flows on the same uplink share its rate.
    """
    if nics == 0:
        return np.zeros(0)
    if adaptive:
        return np.full(nics, min(1.0, UPLINKS / nics))
    link = random.integers(0, UPLINKS, (nics, FLOWS_PER_NIC))
    load = np.bincount(link.reshape(-1), minlength=UPLINKS) / FLOWS_PER_NIC
    # A collective waits for its slowest flow, which is on the fullest link of the NIC's flows.
    found: FloatArray = np.minimum(1.0, 1.0 / load[link].max(axis=1))
    return found


def standing_share(place_: Place, adaptive: bool, random: np.random.Generator) -> FloatArray:
    """Return the share of its line rate that each rank's NIC gets if the job runs alone: float64 [ranks].

    Inside one pod the share is 1. In a ring over replicas in several pods, only the edges between pods use the uplinks.
    If pods are filled one after the other, one NIC in NODES_PER_POD uses them in each direction; the others keep their
    line rate.
    """
    share = np.ones(len(place_))
    for uplink in sorted(set(place_.uplinks)) if place_.crosses.any() else ():
        members = np.array([name == uplink for name in place_.uplinks])
        crossing = max(1, int(members.sum()) // 8)
        share[np.flatnonzero(members)[:crossing]] = hashed_share(crossing, adaptive, random)
    return np.maximum(share, 0.25)


def marks_a_second(share: FloatArray | float) -> FloatArray | float:
    """Return the congestion notifications per second of a NIC whose flows get this share of their demand."""
    excess = 1.0 - np.asarray(share)
    return FLOWS_PER_NIC / MARK_INTERVAL_SECONDS * np.clip(excess, 0.0, 1.0) ** 0.5


def pauses_a_second(share: FloatArray | float) -> FloatArray | float:
    """Return the pause frames per second at a port that can forward only this share of its traffic.

    There is one pause frame for each quantum of 65,535 slots of 512 bits.
    """
    quantum_seconds = 65535 * 512 / (hardware.NIC_BYTES_PER_SECOND * 8)
    return np.clip(1.0 - np.asarray(share), 0.0, 1.0) / quantum_seconds
