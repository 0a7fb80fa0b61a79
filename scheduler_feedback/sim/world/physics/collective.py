"""Duration of collectives on links of unequal speed: the alpha-beta model (Thakur, Rabenseifner, Gropp 2005).

Times are in seconds, volumes in bytes per rank, bandwidths in bytes per second and rank. Arrays broadcast; the last
axis of `bandwidth` contains the members of a group. A ring is as fast as its slowest link.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray

NVLINK_LATENCY_SECONDS = 1.0e-6
"""Latency of one hop inside a node (NCCL's tuning table, src/graph/tuning.cc, has about this value for the Simple
protocol)."""

NETWORK_LATENCY_SECONDS = 8.0e-6
"""Latency of one hop between nodes: NIC, leaf, NIC, and the proxy thread of NCCL."""


def ring(bytes_: Any, bandwidth: FloatArray, members: int, latency: float) -> FloatArray:
    """Return the seconds of an all-reduce over a ring of n members: 2(n - 1) hops, and 2(n - 1)/n of the bytes."""
    if members < 2:
        return np.zeros(bandwidth.shape[:-1])
    found: FloatArray = 2 * (members - 1) / members * bytes_ / bandwidth.min(axis=-1) + 2 * (members - 1) * latency
    return found


def tree(bytes_: Any, bandwidth: FloatArray, members: int, latency: float) -> FloatArray:
    """Return the seconds of an all-reduce over a double binary tree. Twice the bytes pass the slowest link, in 2
    log2(n) hops."""
    if members < 2:
        return np.zeros(bandwidth.shape[:-1])
    found: FloatArray = 2.0 * bytes_ / bandwidth.min(axis=-1) + 2 * np.ceil(np.log2(members)) * latency
    return found


def all_reduce(bytes_: Any, bandwidth: FloatArray, members: int, latency: float) -> FloatArray:
    """Return the seconds of an all-reduce by ring or by tree: the faster one, as NCCL's tuner selects."""
    return np.minimum(ring(bytes_, bandwidth, members, latency), tree(bytes_, bandwidth, members, latency))


def gather(bytes_: Any, bandwidth: FloatArray, members: int, latency: float) -> FloatArray:
    """Return the seconds of an all-gather or a reduce-scatter over a ring: half of an all-reduce."""
    if members < 2:
        return np.zeros(bandwidth.shape[:-1])
    found: FloatArray = (members - 1) / members * bytes_ / bandwidth.min(axis=-1) + (members - 1) * latency
    return found


def all_to_all(bytes_: FloatArray, bandwidth: FloatArray, members: int, latency: float) -> FloatArray:
    """Return the seconds until the slowest member has sent its bytes to all others. bytes_: [..., members]."""
    if members < 2:
        return np.zeros(bandwidth.shape[:-1])
    share = (members - 1) / members
    moved: FloatArray = share * np.max(bytes_ / bandwidth, axis=-1)
    found: FloatArray = moved + latency * np.ceil(np.log2(members))
    return found
