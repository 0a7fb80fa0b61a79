"""Windows of aligned steps: mean times of each rank, and the time that the steps would save without each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scheduler_feedback.core.telemetry.series.consumption_trail import CONSUMED, STOPPED, Consumed
from scheduler_feedback.core.telemetry.steps.gang_attempts import ConsumedAt, FloatArray, IntArray, consumed_together
from scheduler_feedback.core.telemetry.telemetry import StepTable
from scheduler_feedback.detectors.steps.expected_work import Work
from scheduler_feedback.detectors.steps.places import Places

WINDOW_SECONDS = 1.0
"""A window lasts at least this many seconds. Frames arrive once a second, so that shorter windows would find nothing
sooner."""

WINDOW_STEPS = 5
"""A window has at least this many steps. A mean of fewer steps is noisy."""

LONG_WINDOW_SECONDS = 2.0
"""A window that lasts at least this many seconds may contain fewer than WINDOW_STEPS steps."""

SHARED_WAIT_SLACK = 1.25
"""A collective that takes more than this many times its usual duration contains a stop of a process."""

LEAST_COMPUTE = 0.02
"""Shorter compute times count as this share of a step: changes below it cannot change the step time measurably."""

LONGEST_SECONDS = 4e9
"""Maximum duration of a step in seconds. Longer times, possible in traces with another unit, would exceed 64 bits."""


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
    """Mean time in seconds from the end of a step to the end of the next, over steps and ranks."""
    compute: FloatArray
    """Mean compute seconds a step of each rank: float64 [n], NaN if waits are unknown. Once the effect of sequence
    lengths is known (expected_work.py), it is removed."""
    wait: FloatArray
    """Mean seconds a step that each rank waits in collectives: float64 [n], NaN if unknown."""
    gain: FloatArray
    """Mean seconds that a step would save without the rank: float64 [n]. For one step this is the rank's compute time
    minus the largest of the other ranks of its role, if the rank is the slowest; else zero."""
    node_gain: FloatArray
    """Mean seconds that a step would save without all ranks of a node: float64 [m]."""
    peak: FloatArray
    """Largest compute time of each rank in one step of the window, in seconds: float64 [n]."""
    peak_step: IntArray
    """Number of the step in which each rank had its largest compute time: int64 [n]."""
    shared_wait: float
    """Mean over steps of the shortest wait of any rank, in seconds: the duration of the collective itself."""
    began: Consumed
    """Cumulative process counters of each rank at the start of the window."""
    stopped: FloatArray
    """Number of samples in the window that found each rank stopped: float64 [n]."""
    present: npt.NDArray[np.bool_]
    """Whether each rank reported any step in the window: bool [n]."""
    first_step: int
    last_step: int
    tokens: FloatArray
    """Mean tokens a step of each rank: float64 [n], NaN if not reported."""
    squares: FloatArray
    """Mean over steps of each rank's sum of squared sequence lengths: float64 [n], NaN if not reported."""
    alike: float
    """Correlation of forward with backward times over ranks and steps, each relative to the median of the step; NaN if
    unknown."""

    @property
    def known(self) -> bool:
        """Whether wait times, and therefore compute times, are known."""
        return bool(np.isfinite(self.compute).all())

    def of_the_gang(self) -> Window:
        """Return the window without its per-rank values: only the values of the whole gang remain."""
        return replace(
            self, compute=_NONE, wait=_NONE, gain=_NONE, node_gain=_NONE, peak=_NONE, peak_step=_NO_STEPS,
            began=_NOT_CONSUMED, stopped=_NONE, present=_NO_STEPS.astype(np.bool_), tokens=_NONE, squares=_NONE,
        )  # fmt: skip


_NONE, _NO_STEPS = np.zeros(0), np.zeros(0, np.int64)
_NOT_CONSUMED = Consumed(np.zeros((0, len(CONSUMED))), _NO_STEPS)


def cut(
    steps: StepTable, where: Places, consumed: ConsumedAt | None, timed: bool = True, work: Work | None = None
) -> tuple[list[Window], int]:
    """Divide completed steps into windows. Return the windows and the number of steps used.

    Steps that do not fill a window are not used yet. timed: whether a window lasts about a second; if not, each step is
    one window. work: fitted model of the compute time that each rank needs for its sequences.
    """
    spans = divide(steps, timed)
    return [_window(steps, rows, where, consumed, work) for rows in spans], spans[-1].stop if spans else 0


def divide(steps: StepTable, timed: bool) -> list[slice]:
    """Return the rows of the steps that each window contains."""
    if not timed:
        return [slice(k, k + 1) for k in range(len(steps))]
    elapsed = np.cumsum(_mean_of_known(steps.seconds))
    spans: list[slice] = []
    first, before = 0, 0.0
    while True:
        by_time = int(np.searchsorted(elapsed, before + WINDOW_SECONDS))
        long = int(np.searchsorted(elapsed, before + LONG_WINDOW_SECONDS))
        last = max(by_time, min(first + WINDOW_STEPS - 1, long))
        if last >= len(elapsed):
            return spans
        spans.append(slice(first, last + 1))
        first, before = last + 1, float(elapsed[last])


class Prepared:
    """What a gang's ranks had consumed at the start and the end of its next windows, read together with other
    gangs."""

    __slots__ = ("_consumed", "_known")

    def __init__(self, consumed: ConsumedAt, known: list[tuple[IntArray, Consumed]]) -> None:
        """consumed: returns what was not read. known: times and results, in the order in which `cut` needs them."""
        self._consumed, self._known = consumed, known[::-1]

    def __call__(self, at_ns: IntArray) -> Consumed:
        if self._known and np.array_equal(self._known[-1][0], at_ns):
            return self._known.pop()[1]
        return self._consumed(at_ns)


def prepare(gangs: Sequence[tuple[StepTable, ConsumedAt | None]], timed: bool) -> list[ConsumedAt | None]:
    """Read the counters that `cut` needs for the steps of several gangs. Return the argument `consumed` for each."""
    times = [[] if of is None else _times(steps, timed) for steps, of in gangs]
    asked = [(of, at_ns) for (_, of), some in zip(gangs, times, strict=True) if of is not None for at_ns in some]
    found = iter(consumed_together(asked))
    return [
        None if of is None else Prepared(of, [(at_ns, next(found)) for at_ns in some])
        for (_, of), some in zip(gangs, times, strict=True)
    ]


def _times(steps: StepTable, timed: bool) -> list[IntArray]:
    """Return the start and the end of each window; nothing if a step is missing, because the start then depends on
    other ranks."""
    if not np.isfinite(steps.seconds).all():
        return []
    ends_ns, seconds = steps.end_ns, steps.seconds
    return [
        at_ns
        for rows in divide(steps, timed)
        for at_ns in (_began_ns(ends_ns[rows.start], seconds[rows.start]), ends_ns[rows.stop - 1])
    ]


def _began_ns(end_ns: IntArray, seconds: FloatArray) -> IntArray:
    """Return the start of a step that ended at these times: [n] -> [n]."""
    began_ns: IntArray = end_ns - np.rint(np.minimum(seconds, LONGEST_SECONDS) * 1e9).astype(np.int64)
    return began_ns


def _mean_of_known(values: FloatArray) -> FloatArray:
    """Return the mean of the known values in each of k rows: [k, n] -> [k]. The mean is 0 if no value is known."""
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
    known = np.isfinite(waits)
    waits_known = bool(known.all() if whole else known[present].all()) and bool(whole or present.any())
    compute = seconds - waits
    if work is not None and steps.tokens is not None:
        compute = compute / work.longest(steps.tokens[rows], None if steps.squares is None else steps.squares[rows])
    if not whole:
        seconds, waits, compute = (_filled(array, where) for array in (seconds, waits, compute))
    end_ns = steps.end_ns[rows]
    began_ns = _began_ns(end_ns[0], seconds[0] if whole else np.nan_to_num(seconds[0]))
    if consumed is None:
        began = Consumed(np.full((ranks, len(CONSUMED)), np.nan), began_ns)
        stopped = np.zeros(ranks)
    else:
        began, ended = consumed(began_ns), consumed(end_ns[-1])
        stopped = ended.values[:, STOPPED] - began.values[:, STOPPED]
        stopped[np.isnan(stopped)] = 0.0
    if waits_known:
        gain = _gain_by_rank(compute, where)
        by_node = _gain_by_node(compute, where, gain)
    else:
        compute = np.full_like(compute, np.nan)
        gain, by_node = np.full(ranks, np.nan), np.full(nodes, np.nan)
    number = steps.number[rows]
    if len(seconds) == 1:  # the usual case with long steps: nothing is to be averaged
        mean_compute = peak = compute[0]
        peak_step = np.full(ranks, number[0])
        mean_wait, present_in_any = waits[0].copy(), present[0]
    else:
        mean_compute, peak = compute.mean(axis=0), compute.max(axis=0)
        peak_step = number[compute.argmax(axis=0)]  # all of it is known, or nothing
        mean_wait, present_in_any = waits.mean(axis=0), present.any(axis=0)
    return Window(
        steps=len(seconds),
        first_ns=int(began_ns[0]),
        last_ns=int(end_ns[-1, 0]),
        step_seconds=float(seconds.mean()),
        compute=mean_compute,
        wait=mean_wait if waits_known else np.full(ranks, np.nan),
        gain=gain,
        node_gain=by_node,
        peak=peak,
        peak_step=peak_step,
        shared_wait=float(waits.min(axis=1).mean()) if waits_known else float("nan"),
        began=began,
        stopped=stopped,
        present=present_in_any,
        first_step=int(number[0]),
        last_step=int(number[-1]),
        tokens=_mean(steps.tokens, rows, ranks),
        squares=_mean(steps.squares, rows, ranks),
        alike=_alike(steps, rows, where),
    )


def _mean(values: FloatArray | None, rows: slice, ranks: int) -> FloatArray:
    if values is None:
        return np.broadcast_to(np.nan, ranks)  # one value for all ranks
    mean: FloatArray = values[rows][0].copy() if rows.stop - rows.start == 1 else values[rows].mean(axis=0)
    return mean


def _filled(values: FloatArray, where: Places) -> FloatArray:
    """Fill each missing value with the median of the role in that step, plus the rank's usual difference from it: [k
    steps, n].

    The role is used, because values of lighter stages would make the reporting ranks look slow. The step is used,
    because otherwise a rank that reported only a long step would look slow in all steps.
    """
    result = values.copy()
    for members in where.roles:
        result[:, members] = _filled_by_peers(values[:, members])
    return result if np.isfinite(result).all() else _filled_by_peers(result)


def _filled_by_peers(values: FloatArray) -> FloatArray:
    """Fill the missing values of one role's ranks, as ``_filled`` describes: [k steps, ranks]. NaN if no value is
    known.

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
    """Add the extra time of a collective to the compute time of the rank whose process was stopped in it.

    A rank that is stopped within a collective delays all ranks, but its own wait is as long as theirs. Only its process
    state shows the stop. Nothing is changed if ranks on several nodes were stopped.
    """
    excess = window.shared_wait - SHARED_WAIT_SLACK * usual_shared_wait
    if not excess > 0:
        return window
    stopped = np.flatnonzero(window.stopped > 0)
    if not len(stopped) or len(set(where.index[stopped].tolist())) > 1:
        return window
    rank = int(window.stopped.argmax())
    compute, wait, gain, node_gain = (a.copy() for a in (window.compute, window.wait, window.gain, window.node_gain))
    compute[rank] += excess
    wait[rank] -= excess
    gain[rank] += excess
    node_gain[where.index[rank]] += excess
    return replace(window, compute=compute, wait=wait, gain=gain, node_gain=node_gain)


def _gain_by_rank(compute: FloatArray, where: Places) -> FloatArray:
    """Return how much shorter the steps of a rank's role would be without that rank, for each rank: [k steps, n ranks]
    -> [n].
    """
    if len(where.roles) == 1:
        return _gain(compute.copy())
    result = np.zeros(compute.shape[1])
    if where.grid is not None:
        result[where.grid] = _gain(compute[:, where.grid])
    else:
        for members in where.roles:
            result[members] = _gain(compute[:, members])
    return result


def _gain(compute: FloatArray) -> FloatArray:
    """Return, for each value on the last axis, the mean over steps of how far it exceeds the next largest value.

    Shape [k steps, ..., n] -> [..., n]. Overwrites `compute`.
    """
    steps, count = len(compute), compute.shape[-1]
    if count == 1:
        return np.zeros(compute.shape[1:])
    flat = compute.reshape(-1, count)
    if len(flat) == 1:  # one step of one role: the usual case with long steps
        values, alone = flat[0], np.zeros(count)
        first = int(values.argmax())
        largest_value = float(values[first])
        values[first] = -np.inf
        alone[first] = largest_value - float(values.max())
        return alone.reshape(compute.shape[1:])
    row = np.arange(len(flat))
    slowest = flat.argmax(axis=1)
    largest = flat[row, slowest]
    flat[row, slowest] = -np.inf
    groups = len(flat) // steps
    place = row % groups * count + slowest
    gain: FloatArray = np.bincount(place, largest - flat.max(axis=1), groups * count) / steps
    return gain.reshape(compute.shape[1:])


def _gain_by_node(compute: FloatArray, where: Places, gain: FloatArray) -> FloatArray:
    """Return how much shorter the steps would be without each node: [m nodes].

    For a node with several roles, the largest value counts.
    """
    nodes = len(where.names)
    if nodes == compute.shape[1]:
        return gain[np.argsort(where.index)]
    if where.node_grid is not None and len(where.roles) == 1:
        return _gain(compute[:, where.node_grid[0]].max(axis=2))
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
    """Return the mean over windows of the field with this name, weighted by the number of steps in each window."""
    weights = np.array([window.steps for window in windows], float)
    parts = [getattr(window, field) for window in windows]
    alike = not isinstance(parts[0], float)  # np.array inspects each array, which takes three times as long
    values = np.concatenate(parts).reshape(len(parts), *parts[0].shape) if alike else np.array(parts)
    # As np.tensordot, which takes three times as long.
    result: FloatArray = np.dot((weights / weights.sum()).reshape(1, -1), values.reshape(len(values), -1))
    return result.reshape(values.shape[1:])
