"""Rules that judge a trace of step times: a simple rule, whose threshold varies, and the published rules.

The simple rule: the own time of each rank in ten steps, divided by the median of its role, and by the same ratio in the
job's first steps. The worst rank is accused if the ratio is above the threshold in three windows in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.detection.baselines import BASELINES
from benchmarks.detection.baselines.history import JobHistory
from scheduler_feedback.core.telemetry.telemetry import Shape

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

WINDOW_STEPS, WARM_WINDOWS, IN_A_ROW = 10, 3, 3

BY_STEPS = tuple(rule for rule in BASELINES if rule.name != "pairwise_distance")
"""The published rules that need no counters."""


@dataclass(slots=True)
class Trace:
    """Step times of one job with n ranks and k recorded steps, and its true fault."""

    own: FloatArray
    """float64 [k, n]: seconds that each rank computed; NaN if the sample was lost."""
    seconds: FloatArray
    """float64 [k]: length of each step."""
    role: IntArray
    """int64 [n]: pipeline stage of each rank."""
    node: IntArray
    """int64 [n]: node of each rank."""
    culprits: frozenset[int]
    """Indices of the ranks at fault; empty for a healthy job."""
    onset: int
    """First recorded step with the fault; -1 for a healthy job."""


@dataclass(frozen=True, slots=True)
class Accusation:
    """A rank that a rule accuses."""

    rank: int
    at: int
    """Recorded step."""
    score: float
    """Largest threshold of the simple rule that accuses the rank at this step; 1 for the other rules."""


def simple(trace: Trace) -> list[Accusation]:
    """Return each accusation by the simple rule, with the largest threshold that leads to it."""
    windows = len(trace.own) // WINDOW_STEPS
    if windows < WARM_WINDOWS + IN_A_ROW:
        return []
    cut = trace.own[: windows * WINDOW_STEPS].reshape(windows, WINDOW_STEPS, -1)
    values = _ignoring_lost(np.nanmedian, cut, 1)
    ratio = np.ones_like(values)
    for role in np.unique(trace.role):
        members = trace.role == role
        ratio[:, members] = values[:, members] / _ignoring_lost(np.nanmedian, values[:, members], 1)[:, None]
    ratio = np.nan_to_num(ratio / _ignoring_lost(np.nanmedian, ratio[:WARM_WINDOWS], 0), nan=1.0)
    worst, found = ratio.argmax(axis=1), []
    for last in range(WARM_WINDOWS + IN_A_ROW - 1, windows):
        rank, first = int(worst[last]), last - IN_A_ROW + 1
        if (worst[first : last + 1] == rank).all():
            at = (last + 1) * WINDOW_STEPS - 1
            found.append(Accusation(rank, at, float(ratio[first : last + 1, rank].min())))
    return found


def _ignoring_lost(middle: Callable[..., FloatArray], values: FloatArray, axis: int) -> FloatArray:
    with np.errstate(invalid="ignore"):
        missing = np.isnan(values).all(axis=axis)
        if missing.any():
            values = np.where(np.expand_dims(missing, axis), 1.0, values)
        return np.asarray(middle(values, axis=axis))


def published(trace: Trace) -> dict[str, list[Accusation]]:
    """Return the accusations by each published rule, by its name. Each rule judges as often as its authors run it."""
    rules = [rule() for rule in BY_STEPS]
    ranks = trace.own.shape[1]
    history = JobHistory(
        Shape("job", 0, np.arange(ranks), tuple(f"node-{node}" for node in trace.node), stage=trace.role)
    )
    found: dict[str, list[Accusation]] = {rule.name: [] for rule in rules}
    due = {rule.name: rule.every_seconds for rule in rules}
    for at, (own, seconds) in enumerate(zip(trace.own, trace.seconds, strict=True)):
        history.now += float(seconds)
        history.new = [float(seconds)]
        history.ends.append(history.now)
        history.seconds.append(np.full(ranks, seconds))
        history.waits.append(seconds - own)
        if len(history.ends) > 256:
            for kept in (history.ends, history.seconds, history.waits):
                kept.popleft()
        for rule in rules:
            rule.note(history)
            if history.now < due[rule.name]:
                continue
            due[rule.name] = history.now + rule.every_seconds
            found[rule.name] += [Accusation(one, at, 1.0) for one in rule.judge(history) if isinstance(one, int)]
    return found
