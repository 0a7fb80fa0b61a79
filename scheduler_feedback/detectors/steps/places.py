"""Nodes and roles of a gang's ranks, and medians over the peers of a role."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import Shape
from scheduler_feedback.detectors.stats.medians import median_of_others, median_of_the_others

LEAST_PEERS = 4
"""Minimum size of a group that can vote: in a smaller one, two peers cannot outvote a third, and only a rank's own
history counts."""


@dataclass(frozen=True, slots=True)
class Places:
    """Nodes and roles of the ranks. Ranks of one role (pipeline stage) do the same work."""

    names: tuple[str, ...]
    """Names of the nodes: [m]."""
    index: npt.NDArray[np.intp]
    """Index of each rank's node: [n]."""
    role: npt.NDArray[np.intp]
    """Role of each rank: [n]."""
    roles: tuple[npt.NDArray[np.intp], ...]
    """Ranks of each role."""
    layout_known: bool
    """Whether a layout defines the roles. Otherwise all ranks have one role."""
    grid: npt.NDArray[np.intp] | None
    """Ranks of the roles, [roles, size], if all roles have one size: for arithmetic on all at once."""
    votes: npt.NDArray[np.bool_]
    """Whether a role has enough ranks to outvote one of them: bool [roles]."""
    by_node: tuple[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]], ...]
    """For each role: its ranks by node, its nodes, and the index in that order at which each node begins."""
    node_grid: npt.NDArray[np.intp] | None
    """`grid` as [roles, nodes, size], if all roles have equally many nodes, and equally many ranks on each."""


def places(shape: Shape) -> Places:
    """Number the nodes and roles of the ranks."""
    names, index = np.unique(np.asarray(shape.nodes), return_inverse=True)
    role = shape.roles
    roles = tuple(np.flatnonzero(role == number) for number in range(int(role.max()) + 1))
    known = shape.stage is not None
    sizes = np.array([len(members) for members in roles])
    grid = np.stack(roles) if (sizes == sizes[0]).all() else None
    index = index.astype(np.intp)
    by_node = []
    for members in roles:
        order = members[np.argsort(index[members], kind="stable")]
        present, starts = np.unique(index[order], return_index=True)
        by_node.append((order, present, starts))
    node_grid = None
    if grid is not None and len({len(starts) for _, _, starts in by_node}) == 1:
        apart = np.concatenate([np.diff(starts, append=len(order)) for order, _, starts in by_node])
        if (apart == apart[0]).all():
            node_grid = np.stack([order for order, _, _ in by_node]).reshape(len(roles), -1, int(apart[0]))
    named = tuple(str(name) for name in names)
    return Places(named, index, role, roles, known, grid, sizes >= LEAST_PEERS, tuple(by_node), node_grid)


def middle_of_others(values: FloatArray, where: Places) -> FloatArray:
    """Return the median of the other ranks of the role if they can vote, else of all other ranks: [n] -> [n]."""
    if len(where.roles) == 1 or not where.votes.all():
        return median_of_others(values)
    return _of_roles(values, where)


def middle_of_others_of(values: FloatArray, where: Places, rank: int) -> float:
    """Return ``middle_of_others`` for one rank (index)."""
    if len(where.roles) == 1 or not where.votes.all():
        return median_of_the_others(values, rank)
    members = where.roles[where.role[rank]]
    return median_of_the_others(values[members], int(np.searchsorted(members, rank)))


def middle_of_peers(values: FloatArray, where: Places) -> FloatArray:
    """Return the median of the other ranks of the role: [n] -> [n]; NaN if they are too few to vote."""
    return _of_roles(values, where)


def _of_roles(values: FloatArray, where: Places) -> FloatArray:
    result = np.full_like(values, np.nan)
    if where.grid is not None:
        if where.votes[0]:
            result[where.grid] = median_of_others(values[where.grid])
        return result
    for members in where.roles:
        if len(members) >= LEAST_PEERS:
            result[members] = median_of_others(values[members])
    return result
