"""Step windows of a gang with given compute times, for tests of the straggler detector's parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_feedback.core.telemetry.series.consumption_trail import CONSUMED, STOPPED, Consumed
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import Shape, StepTable
from scheduler_feedback.detectors.steps.places import Places, places
from scheduler_feedback.detectors.steps.windows import Window, cut

NS = 1_000_000_000
START_NS = 1_700_000_000 * NS
SHARED_WAIT = 0.2
"""Seconds of the collective itself."""


def shape_of(count: int, nodes: Sequence[str] = (), stage: Sequence[int] | None = None) -> Shape:
    """Return a job's shape. nodes: of each rank; by default each rank is on its own node."""
    names = tuple(nodes) or tuple(f"n{rank:02d}" for rank in range(count))
    return Shape("g", 1, np.arange(count), names, stage=None if stage is None else np.array(stage, np.int64))


def where_of(count: int, nodes: Sequence[str] = (), stage: Sequence[int] | None = None) -> Places:
    return places(shape_of(count, nodes, stage))


def table_of(
    own: FloatArray,
    shared: float = SHARED_WAIT,
    together: bool = True,
    first: int = 0,
    tokens: FloatArray | None = None,
) -> StepTable:
    """Return steps with these compute times: own is [steps, ranks] in seconds. together: all ranks wait for the
    slowest."""
    seconds = np.repeat(own.max(axis=1, keepdims=True), own.shape[1], axis=1) + shared if together else own + shared
    ends = START_NS + np.rint(np.cumsum(seconds.max(axis=1)) * NS).astype(np.int64)
    numbers = np.arange(first, first + len(own))
    return StepTable(numbers, np.repeat(ends[:, None], own.shape[1], axis=1), seconds, seconds - own, tokens)


def windows_of(
    own: FloatArray, where: Places, shared: float = SHARED_WAIT, together: bool = True, first: int = 0,
    tokens: FloatArray | None = None, stopped_steps: Sequence[int] = (), stopped: int = 0, used: float | None = None,
) -> list[Window]:  # fmt: skip
    """Return one window for each step.

    stopped_steps: steps in which samples show that rank `stopped` was stopped. used: CPU seconds per second of each
    rank; None without counters.
    """
    steps = table_of(own, shared, together, first, tokens)
    ends = steps.end_ns[:, 0]

    def consumed(at_ns: IntArray) -> Consumed:
        values = np.zeros((own.shape[1], len(CONSUMED)))
        if used is None:
            values[:, :3] = np.nan
        else:
            values[:, 0] = (at_ns - START_NS) * used
            values[:, 1:3] = 0.0
        for step in stopped_steps:
            values[stopped, STOPPED] += at_ns[stopped] >= ends[step]
        values[:, STOPPED + 1] = (at_ns - START_NS) / NS
        return Consumed(values, at_ns)

    return cut(steps, where, consumed, timed=False)[0]
