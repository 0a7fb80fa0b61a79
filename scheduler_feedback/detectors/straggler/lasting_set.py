"""Lasting sets: tests whether more ranks than chance explains are slow at one time, each for its own reason.

Ranks that share work become slow together: the ranks of a replica, of a tensor shard, of a stage or of an expert. Ranks
that share none and stay slow have faults of their own, for example on several nodes of one rack. Without a layout, it
is unknown what they share: the workers 6 to 9 of the public trace pai-job3 become slow together.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from scheduler_feedback.core.telemetry.telemetry import Shape
from scheduler_feedback.detectors.stats.group_intersection import SLOW_SHARE
from scheduler_feedback.detectors.straggler.alarm_case import most_alarmed
from scheduler_feedback.detectors.straggler.gang_state import GangState
from scheduler_feedback.detectors.straggler.rotating_slowness import NODE_WINDOWS

WORK = ("data", "tensor", "stage", "expert")
"""Coordinates whose ranks share work: equal data, an equal shard of each layer, equal layers, or an equal expert."""


def lasting_set(watched: GangState, shape: Shape, alarmed: Collection[int]) -> frozenset[int]:
    """Return the alarmed ranks (indices) that have been slow for long and share no work; empty if they are few anyway,
    if they are half of the job, if more work can explain them, or if the layout is unknown.

    Each of them has been slow for NODE_WINDOWS windows, as a node has to be before it is accused.
    """
    count = len(watched.ranks)
    most = most_alarmed(count)
    if len(alarmed) <= most:
        return frozenset()
    lasting = frozenset(rank for rank in alarmed if len(watched.interval(rank)) >= NODE_WINDOWS)
    if len(alarmed) - len(lasting) > most or 2 * len(lasting) >= count:
        return frozenset()
    if not watched.where.layout_known:
        return frozenset()
    return frozenset() if shares_work(shape, lasting) else lasting


def shares_work(shape: Shape, ranks: Collection[int]) -> bool:
    """Return whether these ranks (indices) are all ranks, or nearly all, with some values of one coordinate."""
    slow = np.zeros(len(shape), np.int64)
    slow[list(ranks)] = 1
    for name in WORK:
        values = shape.coordinate(name)
        if not len(ranks) or (values < 0).any():
            continue
        size, among = np.bincount(values), np.bincount(values, slow)
        mine = values[list(ranks)]
        if bool(((size[mine] > 1) & (among[mine] >= SLOW_SHARE * size[mine])).all()):
            return True
    return False
