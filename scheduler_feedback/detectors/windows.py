"""From aligned steps to windows: per rank means, and how much shorter the steps would have been without each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.gangs import STOPPED, Consumed, FloatArray, Gang, IntArray, Steps

WINDOW_SECONDS = 1.0
"""Frames come once a second: shorter windows find nothing sooner."""

WINDOW_STEPS = 5
"""Fewer steps make a noisy mean; at steps of over 0.2 s the windows grow instead."""

SHARED_WAIT_SLACK = 1.25
"""The collective's own time varies with load by about a quarter; a stop is not such a trifle."""

LEAST_COMPUTE = 0.02
"""Computing below this share of a step counts as this much: a change of it cannot move the step time measurably."""

MAD_TO_SIGMA = 1.4826
"""Median absolute deviation of a normal distribution times this is its standard deviation."""


@dataclass(frozen=True, slots=True)
class Window:
    """Some consecutive steps of all n ranks, which stand on m nodes.

    The MEAN is kept, not the median: a process stopped 0.3 s of every second hits a minority of the steps and still
    costs the job its mean.

    first_ns, last_ns: wall time. step_seconds: mean over steps and ranks, end to end.
    compute, wait: float64 [n] mean seconds a step, NaN where waits are unknown.
    gain: float64 [n], mean over steps of (largest computing time - largest of the others'): by so much would the
    steps have been shorter without the rank. node_gain: float64 [m], the same without a whole node.
    peak, peak_step: float64 and int64 [n], each rank's largest computing time and the number of that step.
    shared_wait: mean over steps of the shortest wait of any rank: what the collective itself takes.
    began: cumulative counters at the beginning of the window. stopped: float64 [n], how many samples found the rank
    stopped during it.
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

    @property
    def known(self) -> bool:
        """Whether waits, and with them computing times, are known."""
        return bool(np.isfinite(self.compute[0]))


@dataclass(frozen=True, slots=True)
class Places:
    """Where the ranks are: node names [m], index of each rank's node [n]."""

    names: tuple[str, ...]
    index: npt.NDArray[np.intp]


def places(nodes: Sequence[str]) -> Places:
    """Number the nodes of the ranks."""
    names, index = np.unique(np.asarray(nodes), return_inverse=True)
    return Places(tuple(str(name) for name in names), index.astype(np.intp))


def cut(gang: Gang, steps: Steps, where: Places, wall_offset_ns: int) -> tuple[list[Window], int]:
    """Cut completed steps into whole windows; returns them and the sequence number of the last step used, 0 for none.

    `wall_offset_ns` takes the first rank's clock to wall time. A rest too short for a window is left for later.
    """
    elapsed = np.cumsum(steps.seconds.mean(axis=1))
    windows: list[Window] = []
    first, before = 0, 0.0
    while True:
        last = max(first + WINDOW_STEPS - 1, int(np.searchsorted(elapsed, before + WINDOW_SECONDS)))
        if last >= len(elapsed):
            return windows, int(steps.sequence[first - 1]) if first else 0
        windows.append(_window(gang, steps, slice(first, last + 1), where, wall_offset_ns))
        first, before = last + 1, float(elapsed[last])


def _window(gang: Gang, steps: Steps, rows: slice, where: Places, wall_offset_ns: int) -> Window:
    seconds, waits = steps.seconds[rows], steps.wait_seconds[rows]
    began_ns: IntArray = steps.end_ns[rows.start] - np.rint(seconds[0] * 1e9).astype(np.int64)
    began, ended = gang.consumed(began_ns), gang.consumed(steps.end_ns[rows][-1])
    compute = seconds - waits
    ranks, nodes = compute.shape[1], len(where.names)
    if np.isfinite(waits).all():
        gain = _gain(compute)
        by_node = gain[np.argsort(where.index)] if nodes == ranks else _gain(_largest_by_node(compute, where))
    else:
        compute = np.full_like(compute, np.nan)
        gain, by_node = np.full(ranks, np.nan), np.full(nodes, np.nan)
    return Window(
        steps=len(seconds),
        first_ns=int(began_ns[0]) + wall_offset_ns,
        last_ns=int(steps.end_ns[rows][-1, 0]) + wall_offset_ns,
        step_seconds=float(seconds.mean()),
        compute=compute.mean(axis=0),
        wait=waits.mean(axis=0),
        gain=gain,
        node_gain=by_node,
        peak=compute.max(axis=0),
        peak_step=steps.number[rows][compute.argmax(axis=0)],
        shared_wait=float(waits.min(axis=1).mean()),
        began=began,
        stopped=np.nan_to_num(ended.values[:, STOPPED] - began.values[:, STOPPED]),
    )


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


def _gain(compute: FloatArray) -> FloatArray:
    """[k steps, n] -> [n]: mean over steps of the largest minus the largest of the others."""
    steps, count = compute.shape
    if count == 1:
        return np.zeros(1)
    slowest = compute.argmax(axis=1)
    two = np.partition(compute, count - 2, axis=1)[:, -2:]
    result: FloatArray = np.bincount(slowest, two[:, 1] - two[:, 0], count) / steps
    return result


def _largest_by_node(compute: FloatArray, where: Places) -> FloatArray:
    order = np.argsort(where.index, kind="stable")
    starts = np.searchsorted(where.index[order], np.arange(len(where.names)))
    result: FloatArray = np.maximum.reduceat(compute[:, order], starts, axis=1)
    return result


def median_of_others(values: FloatArray) -> FloatArray:
    """[n] -> [n]: for each the median of the others; of two, each is measured against the other. n >= 2."""
    count = len(values)
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    place = np.empty(count, np.intp)
    place[order] = np.arange(count)

    def of_others(index: int) -> FloatArray:
        result: FloatArray = np.where(place > index, ordered[index], ordered[index + 1])
        return result

    middle = (count - 2) // 2
    if count % 2 == 0:
        return of_others(middle)
    return (of_others(middle) + of_others(middle + 1)) / 2 if count > 2 else of_others(0)


def spread(values: FloatArray) -> float:
    """Robust standard deviation around the median."""
    return float(MAD_TO_SIGMA * np.median(np.abs(values - np.median(values))))


def spread_of_others(shifts: FloatArray, rank: int) -> float:
    """Root mean square of how the other ranks disagree, over the newest windows: shifts is [windows, n].

    Not a robust measure, on purpose: bursts that hit one rank now and another then are what it must see. Where there
    are fewer than three others they cannot disagree visibly, and their unrest in time counts as well.
    """
    others = np.delete(shifts, rank, axis=1)
    across = others - np.median(others, axis=1, keepdims=True)
    result = float(np.sqrt(np.mean(across**2)))
    if others.shape[1] < 3 and len(others) > 1:
        in_time = others - np.median(others, axis=0, keepdims=True)
        result = max(result, float(np.sqrt(np.mean(in_time**2))))
    return result


def join(windows: Sequence[Window], field: str) -> FloatArray:
    """Mean of a per-rank, per-node or scalar field over windows, weighted by their steps."""
    weights = np.array([window.steps for window in windows], float)
    values = np.array([getattr(window, field) for window in windows])
    result: FloatArray = np.tensordot(weights / weights.sum(), values, axes=1)
    return result
