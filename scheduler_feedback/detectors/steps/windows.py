"""From aligned steps to windows: per rank means, and how much shorter the steps would have been without each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.gang_attempts import CONSUMED, STOPPED, Consumed, FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import Shape, StepTable
from scheduler_feedback.detectors.stats.medians import (
    column_medians,
    median,
    median_of_others,
    median_of_the_others,
    row_medians,
)
from scheduler_feedback.detectors.steps.expected_work import Work

WINDOW_SECONDS = 1.0
"""Frames come once a second: shorter windows find nothing sooner."""

WINDOW_STEPS = 5
LONG_WINDOW_SECONDS = 2.0
"""Fewer steps make a noisy mean: a window holds five, unless they take longer than two seconds. Beyond, waiting for
more steps would cost more time than their mean saves."""

SHARED_WAIT_SLACK = 1.25
"""The collective's own time varies with load by about a quarter; a stop is not such a trifle."""

LEAST_COMPUTE = 0.02
"""Computing below this share of a step counts as this much: a change of it cannot move the step time measurably."""

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation of a normal distribution times this is its standard deviation."""

LONGEST_SECONDS = 4e9
"""A trace's unit of time may be anything; a time beyond this would leave 64 bits."""

LEAST_PEERS = 4
"""In groups below four two peers cannot out-vote a third: only a rank's own past speaks there."""


@dataclass(frozen=True, slots=True)
class Window:
    """Some consecutive steps of all n ranks, which stand on m nodes.

    The MEAN is kept, not the median: a process stopped 0.3 s of every second hits a minority of the steps and still
    costs the job its mean.

    first_ns, last_ns: wall time; first_step, last_step: numbers. step_seconds: mean over steps and ranks, end to end.
    compute, wait: float64 [n] mean seconds a step, NaN where waits are unknown; computing is what it would be had all
    ranks been given their usual work (work.py), once that is known.
    gain: float64 [n], mean over steps of (largest computing time of its role - largest of the others in it): by so
    much would the steps have been shorter without the rank. node_gain: float64 [m], the same without a whole node.
    peak, peak_step: float64 and int64 [n], each rank's largest computing time and the number of that step.
    shared_wait: mean over steps of the shortest wait of any rank: what the collective itself takes.
    began: cumulative counters at the beginning of the window. stopped: float64 [n], how many samples found the rank
    stopped during it. present: bool [n], whether any step of the rank was reported in it.
    tokens, squares: float64 [n], mean a step, NaN where not reported.
    alike: correlation of forward and backward times over ranks and steps, each against the step's median; NaN unknown.
    """

    steps: int
    first_ns: int
    last_ns: int
    step_seconds: float
    compute: FloatArray
    wait: FloatArray
    gain: FloatArray
    node_gain: FloatArray
    peak: FloatArray
    peak_step: IntArray
    shared_wait: float
    began: Consumed
    stopped: FloatArray
    present: npt.NDArray[np.bool_]
    first_step: int
    last_step: int
    tokens: FloatArray
    squares: FloatArray
    alike: float

    @property
    def known(self) -> bool:
        """Whether waits, and with them computing times, are known."""
        return bool(np.isfinite(self.compute).all())

    def of_the_gang(self) -> Window:
        """What it says of all ranks together; arrays are empty."""
        return replace(
            self, compute=_NONE, wait=_NONE, gain=_NONE, node_gain=_NONE, peak=_NONE, peak_step=_NO_STEPS,
            began=_NOT_CONSUMED, stopped=_NONE, present=_NO_STEPS.astype(np.bool_), tokens=_NONE, squares=_NONE,
        )  # fmt: skip


_NONE, _NO_STEPS = np.zeros(0), np.zeros(0, np.int64)
_NOT_CONSUMED = Consumed(np.zeros((0, len(CONSUMED))), _NO_STEPS)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the ranks are: node names [m], index of each rank's node [n]; role of each rank [n], ranks of each role.

    Ranks of one role (pipeline stage) do the same work. layout_known: whether a layout said so; one role of all else.
    grid: the roles [roles, size] where all are of one size, for arithmetic on all at once. votes: bool [roles], whether
    a role's ranks are enough to out-vote one of them. by_node: for each role its ranks by node [of the role], the nodes
    that it has ranks of, and where in that order each node begins. node_grid: the same [roles, nodes, size] where all
    have as many nodes, and each as many ranks on every one of them.
    """

    names: tuple[str, ...]
    index: npt.NDArray[np.intp]
    role: npt.NDArray[np.intp]
    roles: tuple[npt.NDArray[np.intp], ...]
    layout_known: bool
    grid: npt.NDArray[np.intp] | None
    votes: npt.NDArray[np.bool_]
    by_node: tuple[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]], ...]
    node_grid: npt.NDArray[np.intp] | None


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


ConsumedAt = Callable[[IntArray], Consumed]


def cut(
    steps: StepTable, where: Places, consumed: ConsumedAt | None, timed: bool = True, work: Work | None = None
) -> tuple[list[Window], int]:
    """Cut completed steps into whole windows; returns them and how many steps were used.

    A rest too short for a window is left for later. `timed`: windows of about a second; else of one step each, which
    no unit of time can change. `work`: what each rank's computing time should be for what it was given.
    """
    if not timed:
        return [_window(steps, slice(k, k + 1), where, consumed, work) for k in range(len(steps))], len(steps)
    elapsed = np.cumsum(_mean_of_known(steps.seconds))
    windows: list[Window] = []
    first, before = 0, 0.0
    while True:
        by_time = int(np.searchsorted(elapsed, before + WINDOW_SECONDS))
        long = int(np.searchsorted(elapsed, before + LONG_WINDOW_SECONDS))
        last = max(by_time, min(first + WINDOW_STEPS - 1, long))
        if last >= len(elapsed):
            return windows, first
        windows.append(_window(steps, slice(first, last + 1), where, consumed, work))
        first, before = last + 1, float(elapsed[last])


def _mean_of_known(values: FloatArray) -> FloatArray:
    """[k, n] -> [k]: mean of each row's known values, 0 without any."""
    mean: FloatArray = values.mean(axis=1)
    if np.isnan(mean).any():
        with np.errstate(invalid="ignore"):
            mean = np.nan_to_num(np.nanmean(values, axis=1))
    return mean


def _window(steps: StepTable, rows: slice, where: Places, consumed: ConsumedAt | None, work: Work | None) -> Window:
    seconds, waits = steps.seconds[rows], steps.wait_seconds[rows]
    ranks, nodes = seconds.shape[1], len(where.names)
    present = np.isfinite(seconds)
    whole = bool(present.all())
    waits_known = bool(np.isfinite(waits[present]).all()) and bool(present.any())
    compute = seconds - waits
    if work is not None and steps.tokens is not None:
        compute = compute / work.factor(steps.tokens[rows], None if steps.squares is None else steps.squares[rows])
    if not whole:
        seconds, waits, compute = (_filled(array, where) for array in (seconds, waits, compute))
    end_ns = steps.end_ns[rows]
    first_seconds = np.minimum(seconds[0] if whole else np.nan_to_num(seconds[0]), LONGEST_SECONDS)
    began_ns: IntArray = end_ns[0] - np.rint(first_seconds * 1e9).astype(np.int64)
    if consumed is None:
        began = Consumed(np.full((ranks, len(CONSUMED)), np.nan), began_ns)
        stopped = np.zeros(ranks)
    else:
        began, ended = consumed(began_ns), consumed(end_ns[-1])
        stopped = np.nan_to_num(ended.values[:, STOPPED] - began.values[:, STOPPED])
    if waits_known:
        gain = _gain_by_rank(compute, where)
        by_node = _gain_by_node(compute, where, gain)
    else:
        compute = np.full_like(compute, np.nan)
        gain, by_node = np.full(ranks, np.nan), np.full(nodes, np.nan)
    number = steps.number[rows]
    return Window(
        steps=len(seconds),
        first_ns=int(began_ns[0]),
        last_ns=int(end_ns[-1, 0]),
        step_seconds=float(seconds.mean()),
        compute=compute.mean(axis=0),
        wait=waits.mean(axis=0) if waits_known else np.full(ranks, np.nan),
        gain=gain,
        node_gain=by_node,
        peak=compute.max(axis=0),
        peak_step=number[compute.argmax(axis=0)],  # all of it is known, or nothing
        shared_wait=float(waits.min(axis=1).mean()) if waits_known else float("nan"),
        began=began,
        stopped=stopped,
        present=np.asarray(present.any(axis=0), np.bool_),
        first_step=int(number[0]),
        last_step=int(number[-1]),
        tokens=_mean(steps.tokens, rows, ranks),
        squares=_mean(steps.squares, rows, ranks),
        alike=_alike(steps, rows, where),
    )


def _mean(values: FloatArray | None, rows: slice, ranks: int) -> FloatArray:
    return np.broadcast_to(np.nan, ranks) if values is None else values[rows].mean(axis=0)  # eight bytes for all


def _filled(values: FloatArray, where: Places) -> FloatArray:
    """[k, n]: what is missing takes what its role took in that step, and what the rank differs by from it: nothing new.

    In one role: a node that is not heard, counted as what the lighter stages take, would make the others of its own
    stage look slow. In that step: a rank heard only in the one in which the job saved would pass for slow in both.
    """
    result = values.copy()
    for members in where.roles:
        result[:, members] = _filled_by_peers(values[:, members])
    return result if np.isfinite(result).all() else _filled_by_peers(result)


def _filled_by_peers(values: FloatArray) -> FloatArray:
    """[k, members] as ``_filled``, within one role; NaN where none of it is known.

    Differences, not ratios: a save takes no longer where computing does.
    """
    known = np.isfinite(values)
    middle = float(np.median(values[known])) if known.any() else np.nan
    by_step = np.array(
        [np.median(row[fine]) if fine.any() else middle for row, fine in zip(values, known, strict=True)]
    )[:, None]
    apart = np.where(known, values - by_step, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return np.where(known, values, np.maximum(by_step + apart, 0.0))


def _alike(steps: StepTable, rows: slice, where: Places) -> float:
    if steps.forward_seconds is None or steps.backward_seconds is None:
        return float("nan")
    parts = []
    for values in (steps.forward_seconds[rows], steps.backward_seconds[rows]):
        logs = np.log(np.maximum(values, 1e-12))
        parts.append(np.concatenate([(logs[:, m] - np.median(logs[:, m], axis=1, keepdims=True)).ravel()
                                     for m in where.roles]))  # fmt: skip
    first, second = parts
    spread_of_both = float(first.std() * second.std())
    return float(np.mean((first - first.mean()) * (second - second.mean())) / spread_of_both) if spread_of_both else 0.0


def blame_stopped(window: Window, usual_shared_wait: float, where: Places) -> Window:
    """Give what the collective took beyond its usual time to the rank that was seen stopped, if there is just one node.

    A rank that is stopped inside of the collective holds everybody up and looks like everybody else: all wait. Only
    its process state tells; what was waiting then becomes its own time.
    """
    excess = window.shared_wait - SHARED_WAIT_SLACK * usual_shared_wait
    stopped = np.flatnonzero(window.stopped > 0)
    if not excess > 0 or not len(stopped) or len(set(where.index[stopped].tolist())) > 1:
        return window
    rank = int(window.stopped.argmax())
    compute, wait, gain, node_gain = (a.copy() for a in (window.compute, window.wait, window.gain, window.node_gain))
    compute[rank] += excess
    wait[rank] -= excess
    gain[rank] += excess
    node_gain[where.index[rank]] += excess
    return replace(window, compute=compute, wait=wait, gain=gain, node_gain=node_gain)


def _gain_by_rank(compute: FloatArray, where: Places) -> FloatArray:
    """[k steps, n] -> [n]: what the steps would gain without each rank, as its role's."""
    result = np.zeros(compute.shape[1])
    if where.grid is not None:
        result[where.grid] = _gain(compute[:, where.grid])
    else:
        for members in where.roles:
            result[members] = _gain(compute[:, members])
    return result


def _gain(compute: FloatArray) -> FloatArray:
    """[k steps, ..., n] -> [..., n]: mean over steps of the largest less the next. Spoils `compute`."""
    steps, count = len(compute), compute.shape[-1]
    if count == 1:
        return np.zeros(compute.shape[1:])
    flat = compute.reshape(-1, count)
    row = np.arange(len(flat))
    slowest = flat.argmax(axis=1)
    largest = flat[row, slowest]
    flat[row, slowest] = -np.inf
    groups = len(flat) // steps
    place = row % groups * count + slowest
    gain: FloatArray = np.bincount(place, largest - flat.max(axis=1), groups * count) / steps
    return gain.reshape(compute.shape[1:])


def _gain_by_node(compute: FloatArray, where: Places, gain: FloatArray) -> FloatArray:
    """[m]: what the steps would gain without each whole node; the largest of the roles that it has ranks of."""
    nodes = len(where.names)
    if nodes == compute.shape[1]:
        return gain[np.argsort(where.index)]
    result = np.zeros(nodes)
    if where.node_grid is not None:
        present = np.stack([present for _, present, _ in where.by_node])
        np.maximum.at(result, present, _gain(compute[:, where.node_grid].max(axis=3)))
        return result
    for order, present, starts in where.by_node:
        largest = np.maximum.reduceat(compute[:, order], starts, axis=1)
        result[present] = np.maximum(result[present], _gain(largest))
    return result


def middle_of_others(values: FloatArray, where: Places) -> FloatArray:
    """[n] -> [n]: median of the others of its role where those are enough to vote, of all others else."""
    if len(where.roles) == 1 or not where.votes.all():
        return median_of_others(values)
    return _of_roles(values, where)


def middle_of_others_of(values: FloatArray, where: Places, rank: int) -> float:
    """That of ``middle_of_others`` for one rank (index)."""
    if len(where.roles) == 1 or not where.votes.all():
        return median_of_the_others(values, rank)
    members = where.roles[where.role[rank]]
    return median_of_the_others(values[members], int(np.searchsorted(members, rank)))


def middle_of_peers(values: FloatArray, where: Places) -> FloatArray:
    """[n] -> [n]: median of the others of its role; NaN where those are too few to vote."""
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


def spread(values: FloatArray) -> float:
    """Robust standard deviation around the median."""
    return MAD_TO_SIGMA * median(np.abs(values - median(values)))


def spread_of_others(shifts: FloatArray, rank: int) -> float:
    """Root mean square of how the other ranks disagree, over the newest windows: shifts is [windows, n].

    Not a robust measure, on purpose: bursts that hit one rank now and another then are what it must see. Where there
    are fewer than three others they cannot disagree visibly, and their unrest in time counts as well.
    """
    others = np.delete(shifts, rank, axis=1)
    across = others - row_medians(others)[:, None]
    result = float(np.sqrt(np.mean(across**2)))
    if others.shape[1] < 3 and len(others) > 1:
        in_time = others - column_medians(others)
        result = max(result, float(np.sqrt(np.mean(in_time**2))))
    return result


def join(windows: Sequence[Window], field: str) -> FloatArray:
    """Mean of a per-rank, per-node or scalar field over windows, weighted by their steps."""
    weights = np.array([window.steps for window in windows], float)
    told = [getattr(window, field) for window in windows]
    alike = not isinstance(
        told[0], float
    )  # np.array looks at each array for what it is, which takes three times as long
    values = np.concatenate(told).reshape(len(told), *told[0].shape) if alike else np.array(told)
    # As np.tensordot has it, which takes three times as long to find out how.
    result: FloatArray = np.dot((weights / weights.sum()).reshape(1, -1), values.reshape(len(values), -1))
    return result.reshape(values.shape[1:])
