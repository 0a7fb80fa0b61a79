"""Group intersection: finds the rank that makes its groups slow, by counting the slow groups that contain each rank.

A rank belongs to several groups at once (tensor, data, pipeline, rail). If a job counts waiting within a group as
computing, one slow rank makes its whole group look slow. Only that rank is also in the other slow groups. So a
suspect is cleared if another suspect in the same slow group is in more slow groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.telemetry import Shape

SLOW_SHARE = 0.75
"""A group is slow if at least this share of its members is. By chance, most members of a group are not slow."""


def intersected(slow: npt.NDArray[np.bool_], shape: Shape, alarmed: Sequence[int]) -> list[int]:
    """Return the alarmed ranks (indices) that remain suspects.

    A rank is removed if another alarmed rank shares a slow group with it and is in more slow groups. slow: bool [n],
    whether each rank is slow.
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
