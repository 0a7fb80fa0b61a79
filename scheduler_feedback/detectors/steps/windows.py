"""Windows of aligned steps: means of each rank, and how much shorter the steps would have been without each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.gang_attempts import CONSUMED, STOPPED, Consumed, FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import StepTable
from scheduler_feedback.detectors.steps.expected_work import Work
from scheduler_feedback.detectors.steps.places import Places

WINDOW_SECONDS = 1.0
"""Minimum length of a window: frames arrive once a second, so that shorter windows find nothing sooner."""

WINDOW_STEPS = 5
LONG_WINDOW_SECONDS = 2.0
"""A window contains at least five steps, because a mean of fewer is noisy, unless they take longer than two seconds.
Waiting for more long steps would cost more time than their mean saves."""

SHARED_WAIT_SLACK = 1.25
"""The time of a collective varies with load by about a quarter. A stop is longer."""

LEAST_COMPUTE = 0.02
"""Minimum compute time, as a share of a step: changes below it cannot change the step time measurably."""

LONGEST_SECONDS = 4e9
"""Maximum seconds of a step: the unit of time of a trace may be anything, and longer times would exceed 64 bits."""


@dataclass(frozen=True, slots=True)
class Window:
    """Some consecutive steps of all n ranks, which are on m nodes.

    Values are means, not medians: a process that is stopped for 0.3 s of every second affects a minority of the steps,
    and still delays the job by its mean.
    """

    steps: int
    first_ns: int
    """Wall time at the start of the window, in ns."""
    last_ns: int
    """Wall time at the end of the window, in ns."""
    step_seconds: float
    """Mean over steps and ranks, end to end."""
    compute: FloatArray
    """Mean compute seconds a step: float64 [n], NaN if waits are unknown. Normalised by work (expected_work.py) once
    that is known."""
    wait: FloatArray
    """Mean seconds a step in collectives: float64 [n], NaN if unknown."""
    gain: FloatArray
    """Time by which the steps would have been shorter without the rank: float64 [n]. In each step, this is the largest
    compute time of the rank's role, minus the largest of the role's other ranks; the field has the mean over steps."""
    node_gain: FloatArray
    """Time by which the steps would have been shorter without all ranks of a node: float64 [m]. Computed as `gain`."""
    peak: FloatArray
    """Largest compute time of each rank: float64 [n]."""
    peak_step: IntArray
    """Number of the step in which each rank had its largest compute time: int64 [n]."""
    shared_wait: float
    """Mean over steps of the shortest wait of any rank: the time of the collective itself."""
    began: Consumed
    """Cumulative counters at the start of the window."""
    stopped: FloatArray
    """Number of samples in the window that found the rank stopped: float64 [n]."""
    present: npt.NDArray[np.bool_]
    """Whether any step of the rank was reported in the window: bool [n]."""
    first_step: int
    last_step: int
    tokens: FloatArray
    """Mean tokens a step: float64 [n], NaN if not reported."""
    squares: FloatArray
    """Mean sum of squared lengths a step: float64 [n], NaN if not reported."""
    alike: float
    """Correlation of forward and backward times over ranks and steps, each against the step's median; NaN if
    unknown."""

    @property
    def known(self) -> bool:
        """Whether wait times, and therefore compute times, are known."""
        return bool(np.isfinite(self.compute).all())

    def of_the_gang(self) -> Window:
        """Return the window with its gang values only; arrays are empty."""
        return replace(
            self, compute=_NONE, wait=_NONE, gain=_NONE, node_gain=_NONE, peak=_NONE, peak_step=_NO_STEPS,
            began=_NOT_CONSUMED, stopped=_NONE, present=_NO_STEPS.astype(np.bool_), tokens=_NONE, squares=_NONE,
        )  # fmt: skip


_NONE, _NO_STEPS = np.zeros(0), np.zeros(0, np.int64)
_NOT_CONSUMED = Consumed(np.zeros((0, len(CONSUMED))), _NO_STEPS)


ConsumedAt = Callable[[IntArray], Consumed]


def cut(
    steps: StepTable, where: Places, consumed: ConsumedAt | None, timed: bool = True, work: Work | None = None
) -> tuple[list[Window], int]:
    """Cut completed steps into whole windows. Return the windows and the number of steps used.

    Steps that are too few for a window are left for later. timed: windows of about a second; otherwise one step each,
    independent of the unit of time. work: expected compute time of each rank for its work.
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
    """Return the mean of each row's known values, 0 if none is known: [k, n] -> [k]."""
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
    return np.broadcast_to(np.nan, ranks) if values is None else values[rows].mean(axis=0)  # one value for all ranks


def _filled(values: FloatArray, where: Places) -> FloatArray:
    """Fill missing values with the role's time in that step, plus the rank's usual difference from it: [k, n].

    Within a role: a node that does not report, filled with the time of lighter stages, would make the rest of its stage
    look slow. Within a step: a rank that reported only the step of a checkpoint would look slow in all steps.
    """
    result = values.copy()
    for members in where.roles:
        result[:, members] = _filled_by_peers(values[:, members])
    return result if np.isfinite(result).all() else _filled_by_peers(result)


def _filled_by_peers(values: FloatArray) -> FloatArray:
    """Fill missing values of one role as ``_filled``: [k, members]; NaN if none of it is known.

    Differences are used, not ratios: a checkpoint does not take longer on a rank that computes longer.
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
    """Attribute the excess time of the collective to the rank that samples found stopped, if stops are on one node
    only.

    A rank that is stopped within the collective delays all ranks, and looks like them: all wait. Only its process state
    shows the stop. The excess wait becomes its compute time.
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
    """Return how much shorter the steps would be without each rank, within its role: [k steps, n] -> [n]."""
    result = np.zeros(compute.shape[1])
    if where.grid is not None:
        result[where.grid] = _gain(compute[:, where.grid])
    else:
        for members in where.roles:
            result[members] = _gain(compute[:, members])
    return result


def _gain(compute: FloatArray) -> FloatArray:
    """Return the mean over steps of the largest less the next value: [k steps, ..., n] -> [..., n]. Overwrites
    `compute`."""
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
    """Return how much shorter the steps would be without each node, the largest of its roles: [m]."""
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


def join(windows: Sequence[Window], field: str) -> FloatArray:
    """Return the mean of a per-rank, per-node or scalar field over windows, weighted by their steps."""
    weights = np.array([window.steps for window in windows], float)
    parts = [getattr(window, field) for window in windows]
    alike = not isinstance(parts[0], float)  # np.array inspects each array, which takes three times as long
    values = np.concatenate(parts).reshape(len(parts), *parts[0].shape) if alike else np.array(parts)
    # As np.tensordot, which takes three times as long.
    result: FloatArray = np.dot((weights / weights.sum()).reshape(1, -1), values.reshape(len(values), -1))
    return result.reshape(values.shape[1:])
