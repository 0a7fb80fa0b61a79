"""Where nodes stand and what their traffic shares: rails, leaves, uplinks to the spines, and flows hashed onto them.

A rail-optimised Clos: GPU i of a node has NIC i, which goes to the leaf of rail i of the node's pod; leaves reach other
pods over a bundle of uplinks. A flow is put on one link of the bundle by a hash (ECMP) or spread packet by packet
(adaptive routing). Queues are a fluid: a link loaded over its capacity gives every flow its share, marks packets in
proportion to the excess (ECN; the marks come back as congestion notifications), and pauses its senders where marks do
not slow them enough (PFC).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler_feedback.sim.world import hardware
from scheduler_feedback.sim.world.arrays import BoolArray, FloatArray, IntArray

NODES_PER_POD = 32
UPLINKS = 16
"""Links of a leaf into the spines, each at the NIC's rate: 32 ports down, 16 up."""

MARK_INTERVAL_SECONDS = 50e-6
"""DCQCN's notification point sends at most one notification a flow in this time (Zhu et al., SIGCOMM 2015)."""

FLOWS_PER_NIC = 4
"""Queue pairs a NIC that a collective spreads its traffic over (NCCL_IB_QPS_PER_CONNECTION and channels)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job's ranks stand. Arrays and tuples over ranks.

    node, local, rail: number of the node, of the GPU in it, and of its NIC's rail. nodes, gpus, nics: their names.
    uplinks: name of the bundle of the leaf of the rank's NIC. crosses: whether the job's ranks stand in several pods.
    """

    node: IntArray
    local: IntArray
    rail: IntArray
    nodes: tuple[str, ...]
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    uplinks: tuple[str, ...]
    crosses: BoolArray

    def __len__(self) -> int:
        return len(self.node)


def place(nodes: IntArray, gpus: int, local: tuple[int, ...] = tuple(range(8)), shared: int = 1) -> Place:
    """Put `gpus` ranks on these nodes in turn, on these GPUs of each; `shared` GPUs have one NIC together.

    Raises ValueError where they do not fit.
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
    """Share of its line rate that each of `nics` NICs of one leaf gets over the uplinks, float64 [nics].

    With adaptive routing, only the ratio of ports counts; with ECMP, flows that meet on one link share it.
    """
    if nics == 0:
        return np.zeros(0)
    if adaptive:
        return np.full(nics, min(1.0, UPLINKS / nics))
    link = random.integers(0, UPLINKS, (nics, FLOWS_PER_NIC))
    load = np.bincount(link.reshape(-1), minlength=UPLINKS) / FLOWS_PER_NIC
    # A collective waits for its slowest flow: the fullest of the links that a NIC's flows are on.
    found: FloatArray = np.minimum(1.0, 1.0 / load[link].max(axis=1))
    return found


def standing_share(place_: Place, adaptive: bool, random: np.random.Generator) -> FloatArray:
    """Share of line rate each NIC of a job has when it is alone: float64 [ranks]. Inside one pod it is all of it.

    Of a ring over replicas in several pods only the edges between pods use the uplinks: with pods filled one after the
    other, one NIC in NODES_PER_POD each way; the other NICs keep their line rate.
    """
    share = np.ones(len(place_))
    for uplink in sorted(set(place_.uplinks)) if place_.crosses.any() else ():
        members = np.array([name == uplink for name in place_.uplinks])
        crossing = max(1, int(members.sum()) // 8)
        share[np.flatnonzero(members)[:crossing]] = hashed_share(crossing, adaptive, random)
    return np.maximum(share, 0.25)


def contended(pressure: FloatArray | float) -> FloatArray | float:
    """Share that flows keep on a full link while others bring `pressure` times their load onto it."""
    return 1.0 / (1.0 + pressure)


def marks_a_second(share: FloatArray | float) -> FloatArray | float:
    """Congestion notifications a second that a NIC receives whose flows keep this share of what they ask for."""
    excess = 1.0 - np.asarray(share)
    return FLOWS_PER_NIC / MARK_INTERVAL_SECONDS * np.clip(excess, 0.0, 1.0) ** 0.5


def pauses_a_second(share: FloatArray | float) -> FloatArray | float:
    """Pause frames a second at a port that drains only this share: one for each quantum of 65,535 slots of 512 bits."""
    quantum_seconds = 65535 * 512 / (hardware.NIC_BYTES_PER_SECOND * 8)
    return np.clip(1.0 - np.asarray(share), 0.0, 1.0) / quantum_seconds
