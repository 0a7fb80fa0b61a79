"""Peer outliers: ranks of a job without step reports that work longer, or are kept from working, by their counters.

A throttling GPU or a busy host is evidence for a cause, not for slowness: a stage with more work runs hotter without
any fault. All ranks of a synchronous job finish an iteration together, and peers do the same work in it. A slow rank
therefore needs a larger part of the iteration: its tensor pipes are busy longer or, if that is not measured, its clock
is lower. A rank that is kept from working runs nothing while its waiting peers poll: it draws less power. All values
are relative to the rank's usual offset from its peers (counter_statistics.py).
"""

from __future__ import annotations

import math

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, IndexArray, Shape
from scheduler_feedback.detectors.counters.counter_statistics import CounterStatistics
from scheduler_feedback.detectors.stats.spread import MAD_TO_SIGMA

SHARE = 0.5
"""Minimum increase of a rank's work, as a share of the log of the job's slowdown. A rank that alone slows the job works
longer by all of it."""

NODE_SHARE, NODE_SIGMAS = 0.1, 0.7
"""A rank that runs nothing draws less power than one that polls, for the time that it is kept from working: at least a
tenth of the job's slowdown, and two standard deviations of a mean over about ten windows."""

SIGMAS, NODE_RANKS_SIGMAS = 4.0, 1.5
"""Minimum multiple of the spread within a role: popular experts, or windows shorter than an iteration, spread all
ranks. A node usually has eight ranks, of which the mean is used."""

MANY = 8
"""If more than one rank in eight, on several nodes, is affected, the affected ranks share the cause."""


def works_longer(counters: CounterStatistics, shape: Shape, rank: int, slower: float) -> bool:
    """Return whether the rank (index) works longer than its peers, and few other ranks do."""
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

    Without power readings, SM activity is compared. The node's own ranks are excluded from the reference: with two
    nodes the median of the role could be on either.
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
    """Return whether these ranks (indices) are too many, on several nodes, for a single member to be the cause."""
    return len(ranks) > max(1, len(shape) // MANY) and len({shape.nodes[rank] for rank in ranks.tolist()}) > 1
