"""Nodes and roles of a gang's ranks, and medians over ranks of one role."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import Shape
from scheduler_feedback.detectors.stats.medians import median_of_others, median_of_the_others

LEAST_PEERS = 4
"""Ranks of a role are compared with each other only if the role has at least this many. In a smaller role only a rank's
own history counts, because too few peers remain."""


@dataclass(frozen=True, slots=True)
class Places:
    """Nodes and roles of n ranks on m nodes. Ranks of one role (pipeline stage) do the same work."""

    names: tuple[str, ...]
    """Name of each node: m names."""
    index: npt.NDArray[np.intp]
    """Index in `names` of each rank's node: [n]."""
    role: npt.NDArray[np.intp]
    """Number of each rank's role: [n]."""
    roles: tuple[npt.NDArray[np.intp], ...]
    """Indices of the ranks of each role."""
    layout_known: bool
    """Whether the layout of the job is known and defines the roles. If not, all ranks have one role."""
    grid: npt.NDArray[np.intp] | None
    """Indices of the ranks by role, [roles, ranks of a role]; None if roles differ in size."""
    votes: npt.NDArray[np.bool_]
    """Whether each role has enough ranks to outvote one of them: bool [roles]."""
    by_node: tuple[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]], ...]
    """For each role, three arrays: its ranks sorted by node, the nodes, and for each node the index of its first rank
    in the sorted array."""
    node_grid: npt.NDArray[np.intp] | None
    """Indices of the ranks by role and node, [roles, nodes, ranks]; None if the numbers of nodes or ranks differ."""
    alike: tuple[npt.NDArray[np.intp], ...] = ()
    """Indices of the ranks with the same role and GPU model; empty if all GPUs are of one model, or unknown."""

    def on_one_node(self, rank: int) -> bool:
        """Return whether all ranks of the role of the rank with this index are on one node."""
        return len(self.by_node[int(self.role[rank])][1]) == 1

    def cells(self) -> Iterator[npt.NDArray[np.intp]]:
        """Yield the indices of the ranks of each role on each node."""
        for order, _, starts in self.by_node:
            yield from np.split(order, starts[1:])

    def alone(self, rank: int) -> bool:
        """Return whether no other rank has the role of the rank with this index."""
        return len(self.roles[int(self.role[rank])]) == 1


def places(shape: Shape) -> Places:
    """Return the nodes and roles of the gang's ranks, numbered from 0."""
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
    alike = _alike(shape, role)
    return Places(named, index, role, roles, known, grid, sizes >= LEAST_PEERS, tuple(by_node), node_grid, alike)


def _alike(shape: Shape, role: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.intp], ...]:
    """Return the indices of the ranks with the same role and GPU model; empty unless several models are known."""
    if len(set(shape.models) - {""}) < 2:
        return ()
    _, model = np.unique(np.asarray(shape.models), return_inverse=True)
    _, group = np.unique(role * (int(model.max()) + 1) + model, return_inverse=True)
    return tuple(np.flatnonzero(group == number) for number in range(int(group.max()) + 1))


def middle_of_others(values: FloatArray, where: Places) -> FloatArray:
    """Return for each rank the median of the other ranks of its role, or of all other ranks if the role is too small:
    [n ranks] -> [n ranks].
    """
    if len(where.roles) == 1 or not where.votes.all():
        return median_of_others(values)
    return _of_roles(values, where)


def middle_of_others_of(values: FloatArray, where: Places, rank: int) -> float:
    """Return for the rank with this index the median of the other ranks of its role, or of all other ranks if the role
    is too small."""
    if len(where.roles) == 1 or not where.votes.all():
        return median_of_the_others(values, rank)
    members = where.roles[where.role[rank]]
    return median_of_the_others(values[members], int(np.searchsorted(members, rank)))


def middle_of_peers(values: FloatArray, where: Places) -> FloatArray:
    """Return for each rank the median of the other ranks of its role, [n ranks]; NaN if the role is too small."""
    return _of_roles(values, where)


def middle_of_equals(values: FloatArray, where: Places) -> FloatArray:
    """Return for each rank the median of the other ranks of its role and GPU model, [n ranks]; NaN if there are too
    few. GPUs of different models do not compute equally fast, even if none is at fault."""
    if not where.alike:
        return _of_roles(values, where)
    result = np.full_like(values, np.nan)
    for members in where.alike:
        if len(members) >= LEAST_PEERS:
            result[members] = median_of_others(values[members])
    return result


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
