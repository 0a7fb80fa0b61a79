"""Whether a rank of a job that reports no steps works apart from its peers, by its counters.

That a GPU throttles, or that a host is busy, is evidence of a cause, and never of slowness: a stage that is given more
to do runs hotter, and nobody of it is at fault. All ranks of a synchronous job end their iterations together, and peers
do the same work in one. So who is slow by itself needs more of an iteration's time for it than its peers: its tensor
pipes are busy for longer, and where they cannot be seen its clock is lower. Who is kept from working runs nothing while
its peers, who wait for it, poll: it draws less power. All against its own usual place among them (panel.py).
"""

from __future__ import annotations

import math

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import FEATURE, Float32Array, IndexArray, Shape
from scheduler_feedback.detectors.counters.counter_statistics import Panel
from scheduler_feedback.detectors.steps.windows import MAD_TO_SIGMA

SHARE = 0.5
"""Of what the job is slower by, on a logarithm: who alone makes it slow works longer by all of that."""

NODE_SHARE, NODE_SIGMAS = 0.1, 0.7
"""A rank that has nothing to run draws less than one that polls, for the time that it is kept from working: by a tenth
of what the job is slower by at least, and by two deviations of a mean over some ten windows."""

SIGMAS, NODE_RANKS_SIGMAS = 4.0, 1.5
"""Of how far the ranks of a role stand from each other in these windows: experts that are sought more, or windows that
are shorter than an iteration, put all of them apart. A node's ranks are eight, as a rule, of which the mean counts."""

MANY = 8
"""More than one rank in so many on several nodes: what they share is the reason."""


def works_longer(panel: Panel, shape: Shape, rank: int, slower: float) -> bool:
    """Whether the rank (its place) needs longer for its work than its peers, and few others do."""
    columns = panel.of(shape.job)
    longer = panel.level[FEATURE["tensor_active"], columns]
    if not np.isfinite(longer[rank]):
        longer = -panel.level[FEATURE["sm_clock"], columns]
    alike = np.flatnonzero(longer >= SHARE * math.log(max(slower, 1.0)))
    among = longer[shape.roles == shape.roles[rank]]
    clear = longer[rank] >= SIGMAS * _spread(among[np.isfinite(among)])
    return bool(clear) and rank in alike and not many(alike, shape)


def kept_from_working(panel: Panel, shape: Shape, rank: int, slower: float) -> bool:
    """Whether the ranks on this rank's node draw less power than those of its role elsewhere, or, where that is not
    known, have less on their SMs. Not than the middle of the role: of two nodes it may stand on either."""
    columns = panel.of(shape.job)
    here = np.array([node == shape.nodes[rank] for node in shape.nodes])
    peers = shape.roles == shape.roles[rank]
    for name in ("power", "sm_active"):
        level = panel.level[FEATURE[name], columns]
        known = np.isfinite(level) & peers
        if (known & here).any() and (known & ~here).any():
            less = float(np.median(level[known & ~here]) - level[known & here].mean())
            sigma = float(np.median(panel.scale[FEATURE[name], columns][known & here]))
            among = NODE_RANKS_SIGMAS * _spread(level[known & ~here])
            return less >= max(NODE_SHARE * math.log(max(slower, 1.0)), NODE_SIGMAS * sigma, among)
    return False


def _spread(values: Float32Array) -> float:
    return MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def many(ranks: IndexArray, shape: Shape) -> bool:
    """Whether so many ranks (their places) are alike, on several nodes, that no single member is the reason."""
    return len(ranks) > max(1, len(shape) // MANY) and len({shape.nodes[rank] for rank in ranks.tolist()}) > 1
