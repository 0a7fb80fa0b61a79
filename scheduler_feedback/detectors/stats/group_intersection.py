"""Group intersection: finds the rank that makes its groups slow, by the number of slow groups that it belongs to.

A rank belongs to several groups at once (tensor, data, pipeline, rail). If waiting within a group is counted as
computing, a slow member makes its whole group look slow. Only that member is also in the other slow groups. A healthy
group that contains a suspect vetoes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.telemetry import Shape

SLOW_SHARE = 0.75
"""A group is slow if three quarters of its members are. Chance leaves most members healthy."""


def intersected(slow: npt.NDArray[np.bool_], shape: Shape, alarmed: Sequence[int]) -> list[int]:
    """Return those alarmed ranks (indices) that no better suspect in a common slow group explains.

    slow: bool [n], which ranks are slow now.
    """
    if len(alarmed) < 2:
        return list(alarmed)
    of_rank = {rank: set[tuple[str, int]]() for rank in alarmed}
    for way, groups in shape.groups.items():
        if way == "node":
            continue
        sizes = np.bincount(groups)
        share = np.bincount(groups, slow) / np.maximum(sizes, 1)
        for rank in alarmed:
            group = int(groups[rank])
            if sizes[group] > 1 and share[group] >= SLOW_SHARE:
                of_rank[rank].add((way, group))
    return [
        rank
        for rank in alarmed
        if not any(len(of_rank[other]) > len(of_rank[rank]) and of_rank[other] & of_rank[rank] for other in alarmed)
    ]
