"""Peer outliers: ranks that, by their counters, work longer than their peers or are kept from working.

Used for jobs that report no steps. A throttling GPU or a busy host is evidence for a cause, but not for slowness: a
stage with more work runs hotter without any fault. All ranks of a synchronous job finish an iteration together. A slow
rank therefore works for a larger part of it: its tensor pipes are busy longer or, if that is not measured, its clock is
lower. A rank that is kept from working runs nothing while its waiting peers poll, and so draws less power than they do.
All values are relative to the rank's usual offset from its peers (counter_statistics.py).
"""

from __future__ import annotations

import math

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, IndexArray, Shape
from scheduler_feedback.detectors.counters.counter_statistics import CounterStatistics
from scheduler_feedback.detectors.stats.spread import MAD_TO_SIGMA

SHARE = 0.5
"""A rank works longer than its peers only if its work has increased by at least this share of the job's slowdown (both
as logarithms). If one rank alone slows the job, its share is 1."""

NODE_SHARE, NODE_SIGMAS = 0.1, 0.7
"""The ranks of a node are kept from working only if the node's power (as a logarithm) has decreased by at least these
limits. NODE_SHARE: as a share of the logarithm of the job's slowdown. NODE_SIGMAS: in standard deviations."""

SIGMAS, NODE_RANKS_SIGMAS = 4.0, 1.5
"""A rank or node is an outlier only if it deviates by at least this multiple of the spread of the ranks of its role:
SIGMAS for a rank, NODE_RANKS_SIGMAS for the mean of a node. The spread is large if some experts are popular, or if
windows are shorter than an iteration."""

MANY = 8
"""No single rank or node is the cause of the slowness if more than one rank in eight is affected, on several nodes."""


def works_longer(counters: CounterStatistics, shape: Shape, rank: int, slower: float) -> bool:
    """Return whether the rank with this index works longer than its peers, and few other ranks do.

    slower: slowdown of the job.
    """
    columns = counters.of(shape.job)
    longer = counters.level[FEATURE["tensor_active"], columns]
    if not np.isfinite(longer[rank]):
        longer = -counters.level[FEATURE["sm_clock"], columns]
    alike = np.flatnonzero(longer >= SHARE * math.log(max(slower, 1.0)))
    among = longer[shape.roles == shape.roles[rank]]
    clear = longer[rank] >= SIGMAS * _spread(among[np.isfinite(among)])
    return bool(clear) and rank in alike and not many(alike, shape)


def kept_from_working(counters: CounterStatistics, shape: Shape, rank: int, slower: float) -> bool:
    """Return whether the ranks on this rank's node draw less power than ranks of its role on other nodes.

    SM activity is compared if there are no power readings. The reference is the median over ranks on other nodes.
    """
    columns = counters.of(shape.job)
    here = np.array([node == shape.nodes[rank] for node in shape.nodes])
    peers = shape.roles == shape.roles[rank]
    for name in ("power", "sm_active"):
        level = counters.level[FEATURE[name], columns]
        known = np.isfinite(level) & peers
        if (known & here).any() and (known & ~here).any():
            less = float(np.median(level[known & ~here]) - level[known & here].mean())
            sigma = float(np.median(counters.scale[FEATURE[name], columns][known & here]))
            among = NODE_RANKS_SIGMAS * _spread(level[known & ~here])
            return less >= max(NODE_SHARE * math.log(max(slower, 1.0)), NODE_SIGMAS * sigma, among)
    return False


def _spread(values: Float32Array) -> float:
    return MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def many(ranks: IndexArray, shape: Shape) -> bool:
    """Return whether these ranks (indices) are on several nodes and too many for a single rank or node to be the
    cause."""
    return len(ranks) > max(1, len(shape) // MANY) and len({shape.nodes[rank] for rank in ranks.tolist()}) > 1
