"""The data of an alarm: the outlier rank, its gang, the windows since the alarm began, and what these measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import STOPPED, FloatArray
from scheduler_feedback.core.verdict import Cause
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.counters.cause_attribution import (
    CONTESTED_HINT,
    AlarmInterval,
    Attribution,
    HealthyState,
    attribute,
)
from scheduler_feedback.detectors.steps.baseline import Baseline, per_step
from scheduler_feedback.detectors.steps.places import Places, middle_of_others_of
from scheduler_feedback.detectors.steps.windows import Window, join

HIT_SIGMAS = 2.0
"""A rank is slow in a window if its excess is at least two standard deviations."""

FEW = 8
"""At most one rank in eight can be slow for its own reason at one time. More means a workload or machine problem."""

Means = dict[tuple[int, str], FloatArray]
"""Mean of a field over the interval, by number of windows and name of the field."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A window, and the excess of each rank in standard deviations: float64 [n]."""

    window: Window
    sigmas: FloatArray


@dataclass(frozen=True, slots=True)
class Case:
    """An alarmed rank (index) with all data that the checks read."""

    rank: int
    ranks: tuple[int, ...]
    where: Places
    interval: Sequence[Judged]
    """Judged windows since the alarm began."""
    baseline: Baseline
    best_step_seconds: float
    alarmed: frozenset[int]
    """Indices of all ranks that are alarmed at the same time."""
    others_spread: float
    """Spread of the other ranks' compute times, in log seconds."""
    shared_machine: bool
    switches: Switches
    for_work: bool = False
    """Whether compute times are normalised by the work of each rank."""
    accused: frozenset[int] = frozenset()
    """Alarmed ranks, except this one, that active verdicts cover."""
    on_device: bool = False
    """Whether the rank computes on a GPU with readable counters."""
    means: Means = field(default_factory=dict)
    """Cache of field means by the number of windows. All alarmed ranks of a job share it, because every interval ends
    now."""

    def mean(self, of: str) -> FloatArray:
        """Return the mean of a field over the interval, weighted by steps (``windows.join``)."""
        key = (len(self.interval), of)
        found = self.means.get(key)
        if found is None:
            found = self.means[key] = join([judged.window for judged in self.interval], of)
        return found


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a case over its interval. Times are in seconds a step."""

    windows: int
    slow_windows: int
    sigmas: float
    """Mean excess of the rank, in standard deviations."""
    from_start: bool
    """Whether the rank was already slow during the warm-up. Its peers are then the reference."""
    compute: float
    usual: float
    """Compute time of the reference during the warm-up."""
    drift: float
    """Compute time of the other ranks relative to the warm-up: drift of the gang is not a rank's fault."""
    wait: float
    others_wait: float
    """Median wait of the other ranks."""
    extra_wait: float
    """How much longer the other ranks wait than this rank, beyond the usual difference."""
    step_seconds: float
    gain: float
    """By how much the steps would be shorter without the rank, or without its node if other ranks of the node are
    alarmed."""
    next_gain: float
    """Time by which the steps would be shorter without the next best rank."""
    few: bool
    """Whether so few ranks are alarmed that each can be slow for its own reason."""
    of_node: tuple[int, ...]
    """Indices of the other alarmed ranks of the same node."""
    of_other_nodes: tuple[int, ...]
    """Indices of the alarmed ranks of other nodes."""
    split: Attribution

    @property
    def expected(self) -> float:
        """Compute time of a healthy rank in the interval."""
        return self.usual * self.drift

    @property
    def excess(self) -> float:
        """Compute time of the rank beyond the expected compute time."""
        return float(self.compute - self.expected)

    @property
    def without(self) -> float:
        """Step time that the gang would have without the rank."""
        return max(self.step_seconds - self.gain, 1e-9)

    @property
    def slowdown(self) -> float:
        """Step time divided by the step time without the rank."""
        return self.step_seconds / self.without


def measure(case: Case) -> Measured:
    """Measure the alarmed rank against its healthy state and its peers."""
    rank, baseline, where = case.rank, case.baseline, case.where
    from_start = bool(baseline.from_start[rank])
    compute, wait, gain = case.mean("compute"), case.mean("wait"), case.mean("gain")
    of_node = [r for r in sorted(case.alarmed) if r != rank and where.index[r] == where.index[rank]]
    of_other_nodes = [r for r in sorted(case.alarmed) if where.index[r] != where.index[rank]]
    few = len(case.alarmed) <= max(1, len(case.ranks) // FEW)
    own_gain = float(case.mean("node_gain")[where.index[rank]] if of_node else gain[rank])
    if of_other_nodes and few:
        own_gain = max(own_gain, _gain_beyond(compute, case, [rank, *(set(of_node) - case.accused)]))
    split = _attribute(case, from_start)
    if split.cause is Cause.SUSPENDED and case.shared_machine and split.contested_share >= CONTESTED_HINT:
        own_gain = min(own_gain, max(split.rest, 0.0))  # exclude what other load on the machine may have added
    others_gain = np.delete(gain, sorted(case.alarmed) if few else [rank, *of_node])
    return Measured(
        windows=len(case.interval),
        slow_windows=len(slow_windows(case.interval, rank)),
        sigmas=float(np.mean([judged.sigmas[rank] for judged in case.interval])),
        from_start=from_start,
        compute=compute[rank],
        usual=baseline.reference[rank] if from_start else baseline.compute[rank],
        drift=middle_of_others_of(compute / np.maximum(baseline.reference, 1e-9), where, rank),
        wait=wait[rank],
        others_wait=middle_of_others_of(wait, where, rank),
        extra_wait=_extra_wait(wait, None if from_start else baseline.wait, where, rank),
        step_seconds=float(case.mean("step_seconds")),
        gain=own_gain,
        next_gain=float(others_gain.max()) if len(others_gain) else 0.0,
        few=few,
        of_node=tuple(of_node),
        of_other_nodes=tuple(of_other_nodes),
        split=split,
    )


def slow_windows(interval: Sequence[Judged], rank: int) -> list[Window]:
    """Return the windows in which the rank is slow: by two standard deviations, and by a quarter of its second largest
    excess.

    The second largest excess is the reference, so that one long stall does not hide all other slow windows.
    """
    sigmas = np.array([judged.sigmas[rank] for judged in interval])
    second = np.partition(sigmas, -2)[-2] if len(sigmas) > 1 else 0.0
    least = max(HIT_SIGMAS, second / 4)
    return [judged.window for judged in interval if judged.sigmas[rank] >= least]


def stopped_again(interval: Sequence[Judged], rank: int) -> bool:
    """Return whether samples found the rank stopped more than once.

    One stop lies in one step, and therefore in one window. Interpolation can extend it to the window before. Two
    windows that are not adjacent, or three windows, are at least two stops.
    """
    found = [index for index, judged in enumerate(interval) if judged.window.stopped[rank] > 0]
    return len(found) > 1 and found[-1] - found[0] > 1


def _gain_beyond(compute: FloatArray, case: Case, own: list[int]) -> float:
    """Return by how much the steps would be shorter without these ranks, after removing the other alarmed ranks.

    The cost of the other ranks, which are slow for their own reasons, is not attributed to these.
    """
    alarmed = np.zeros(len(compute), np.bool_)
    alarmed[list(case.alarmed)] = True
    role = case.where.role[case.rank]
    members = case.where.roles[role]
    rest = compute[members][~alarmed[members]]
    slowest = max(float(compute[one]) for one in own if case.where.role[one] == role)
    return slowest - float(rest.max()) if len(rest) else 0.0


def _extra_wait(wait: FloatArray, usual: FloatArray | None, where: Places, rank: int) -> float:
    """Return by how much the rank delays the others: seconds per step.

    This is the others' wait minus the rank's own wait, minus the usual value of this difference.
    """
    now = middle_of_others_of(wait, where, rank) - float(wait[rank])
    return now if usual is None else now - (middle_of_others_of(usual, where, rank) - float(usual[rank]))


def _attribute(case: Case, from_start: bool) -> Attribution:
    windows = [judged.window for judged in case.interval]
    if len(windows) < 2:
        return Attribution(Cause.UNKNOWN, False, np.nan)
    interval = AlarmInterval(
        compute=join(windows[:-1], "compute"),
        per_step=per_step(windows),
        samples=windows[-1].began.values[:, STOPPED:] - windows[0].began.values[:, STOPPED:],
        step_seconds=float(join(windows, "step_seconds")),
        stopped_again=stopped_again(case.interval, case.rank),
    )
    healthy = None if from_start else HealthyState(case.baseline.parts_compute, case.baseline.parts)
    return attribute(case.rank, interval, healthy, case.on_device)
