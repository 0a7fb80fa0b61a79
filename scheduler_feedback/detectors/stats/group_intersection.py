"""Intersection: ranks of one group can be slow alike because one of them is; who is in most slow groups is that one.

A rank belongs to several groups at once (tensor, data, pipeline, rail). Where waiting inside of a group is not told
apart from computing, a slow member makes its whole group look slow. It alone is also in the other groups that look
slow; a healthy group that contains a suspect vetoes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.telemetry import Shape

SLOW_SHARE = 0.75
"""A group is slow as a whole where three quarters of its members are: one that is only unlucky leaves most healthy."""


def intersected(slow: npt.NDArray[np.bool_], shape: Shape, alarmed: Sequence[int]) -> list[int]:
    """Those of the alarmed ranks (indices) that no better suspect of a common slow group explains.

    slow: bool [n], which ranks look slow now.
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
