"""The data of an alarm: the suspected rank, its gang, the windows since the alarm began, and what is measured in
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.series.consumption_trail import SAMPLES, STOPPED
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.verdict import Cause
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.counters.cause_attribution import (
    CONTESTED_HINT,
    AlarmInterval,
    Attribution,
    HealthyState,
    attribute,
)
from scheduler_feedback.detectors.steps.baseline import Baseline, is_role_outlier, per_step
from scheduler_feedback.detectors.steps.places import Places, middle_of_others_of
from scheduler_feedback.detectors.steps.windows import Window, join

HIT_SIGMAS = 2.0
"""A rank is slow in a window only if its excess is at least this many standard deviations."""

FEW = 8
"""At most one rank in eight can be slow for its own reason at one time. If more are slow, the workload or the machine
is the cause."""

FEW_RANKS = 2
"""Two ranks can be slow for their own reasons at one time if the job has at least FEW ranks."""

LEAST_OF_STALL = 8
"""One stall of another rank is left out of the time that it explains, if there are at least this many windows."""

Means = dict[tuple[int, str], FloatArray]
"""Arrays computed from the newest windows, mostly means of fields. The key is the number of windows and the name of the
array."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A window, and the excess of each rank in it, in standard deviations: float64 [n]."""

    window: Window
    sigmas: FloatArray


@dataclass(frozen=True, slots=True)
class Case:
    """One alarm: the index of the suspected rank, and all data that the checks read."""

    rank: int
    ranks: tuple[int, ...]
    where: Places
    interval: Sequence[Judged]
    """Windows since the alarm began, with the excess of each rank."""
    baseline: Baseline
    best_step_seconds: float
    alarmed: frozenset[int]
    """Indices of all ranks that are alarmed at the same time."""
    others_spread: float
    """Variation of the other ranks' compute times, in log seconds."""
    shared_machine: bool
    switches: Switches
    for_work: bool = False
    """Whether the effect of sequence lengths is removed from compute times."""
    accused: frozenset[int] = frozenset()
    """Indices of the other alarmed ranks that active verdicts already cover."""
    explained: frozenset[int] = frozenset()
    """Indices of ranks whose alarms other alarmed ranks of their groups explain (group_intersection.py)."""
    lasting: frozenset[int] = frozenset()
    """Indices of many ranks that have been slow for long, each for its own reason (lasting_set.py)."""
    shown: Cause = Cause.UNKNOWN
    """Cause that the counters of a rank that was slow from the start show (shown_from_start.py)."""
    on_device: bool = False
    """Whether the rank computes on a GPU with readable counters."""
    means: Means = field(default_factory=dict)
    """Cache of field means over the newest windows. All alarmed ranks of a job share it, because all their windows end
    at the same time."""

    @property
    def seconds(self) -> float:
        """Time since the alarm began, in seconds."""
        return (self.interval[-1].window.last_ns - self.interval[0].window.first_ns) / 1e9

    def mean(self, of: str) -> FloatArray:
        """Return the mean of the field with this name over the windows since the alarm began, weighted by their
        steps."""
        return self.kept(of, lambda: join([judged.window for judged in self.interval], of))

    def kept(self, of: str, make: Callable[[], FloatArray]) -> FloatArray:
        """Return the array with this name for the windows since the alarm began, and make it only once."""
        key = (len(self.interval), of)
        found = self.means.get(key)
        if found is None:
            found = self.means[key] = make()
        return found


@dataclass(frozen=True, slots=True)
class Measured:
    """Measured values of one alarm, over the windows since it began. Times are in seconds a step."""

    windows: int
    slow_windows: int
    sigmas: float
    """Mean excess of the suspected rank, in standard deviations."""
    from_start: bool
    """Whether the rank was already slow during the warm-up. It is then compared with its peers instead of its own
    past."""
    compute: float
    usual: float
    """Compute time of the reference (the rank itself, or its peers) during the warm-up, in seconds a step."""
    drift: float
    """Compute time of the other ranks, divided by their compute time in the warm-up. A change of all ranks is not one
    rank's fault."""
    wait: float
    others_wait: float
    """Median of the other ranks' waits, in seconds a step."""
    extra_wait: float
    """How much longer the other ranks wait than this rank does, minus the usual difference; in seconds a step."""
    step_seconds: float
    gain: float
    """Seconds that a step would save without the rank. If other ranks of its node are alarmed, the whole node is left
    out; if the node has all ranks of the role, only its alarmed ranks are."""
    next_gain: float
    """Seconds that a step would save without the next best suspect, leaving out its longest window; at most by how much
    that suspect became slower."""
    role_outlier: bool
    """Whether the rank was slow from the start, and differed from its role far more than any other rank, or counters
    show the cause."""
    few: bool
    """Whether few enough ranks are alarmed for each to be slow for its own reason."""
    of_node: tuple[int, ...]
    """Indices of the other alarmed ranks on the same node."""
    of_other_nodes: tuple[int, ...]
    """Indices of the alarmed ranks on other nodes."""
    split: Attribution

    @property
    def expected(self) -> float:
        """Compute time that the rank would have if it were healthy, in seconds a step."""
        return self.usual * self.drift

    @property
    def excess(self) -> float:
        """Compute time of the rank minus the compute time that it would have if it were healthy, in seconds a step."""
        return float(self.compute - self.expected)

    @property
    def without(self) -> float:
        """Step time in seconds that the gang would have without the suspected rank."""
        return max(self.step_seconds - self.gain, 1e-9)

    @property
    def slowdown(self) -> float:
        """Step time of the gang divided by its step time without the suspected rank."""
        return self.step_seconds / self.without


def measure(case: Case) -> Measured:
    """Return the measured values of the suspected rank, compared with its healthy state and its peers."""
    rank, baseline, where = case.rank, case.baseline, case.where
    from_start = bool(baseline.from_start[rank])
    compute, wait, gain = case.mean("compute"), case.mean("wait"), case.mean("gain")
    of_node = [r for r in sorted(case.alarmed) if r != rank and where.index[r] == where.index[rank]]
    of_other_nodes = [r for r in sorted(case.alarmed) if where.index[r] != where.index[rank]]
    few = len(case.alarmed) <= most_alarmed(len(case.ranks)) or rank in case.lasting
    usual = float((baseline.reference if from_start else baseline.compute)[rank])
    own_gain = float(case.mean("node_gain")[where.index[rank]] if of_node else gain[rank])
    if where.alone(rank):
        others = sorted({rank, *(case.alarmed if few else of_node)})
        own_gain = max(
            own_gain, _gain_alone(np.delete(compute, others), float(compute[rank]), usual * drift_of_others(case))
        )
    if of_node and where.on_one_node(rank):
        own_gain = max(own_gain, _gain_beyond(compute, case, [rank, *of_node]))
    if of_other_nodes and few:
        own_gain = max(own_gain, _gain_beyond(compute, case, [rank, *(set(of_node) - case.accused)]))
    split = _attribute(case, from_start)
    if split.cause is Cause.SUSPENDED and case.shared_machine and split.contested_share >= CONTESTED_HINT:
        own_gain = min(own_gain, max(split.rest, 0.0))  # exclude what other load on the machine may have added
    slowed = case.kept("gain without one stall", lambda: _without_one_stall(case, gain))
    slowed = slowed if from_start else np.minimum(slowed, _own_excess(case, compute))
    others_gain = np.delete(slowed, sorted(case.explained.union(case.alarmed if few else [rank, *of_node])))
    return Measured(
        windows=len(case.interval),
        slow_windows=len(slow_windows(case.interval, rank)),
        sigmas=float(np.mean([judged.sigmas[rank] for judged in case.interval])),
        from_start=from_start,
        compute=compute[rank],
        usual=usual,
        drift=drift_of_others(case),
        wait=wait[rank],
        others_wait=middle_of_others_of(wait, where, rank),
        extra_wait=_extra_wait(wait, None if from_start else baseline.wait, where, rank),
        step_seconds=float(case.mean("step_seconds")),
        gain=own_gain,
        next_gain=float(others_gain.max()) if len(others_gain) else 0.0,
        role_outlier=from_start
        and not baseline.role_known
        and (case.shown is not Cause.UNKNOWN or is_role_outlier(baseline, where, rank)),
        few=few,
        of_node=tuple(of_node),
        of_other_nodes=tuple(of_other_nodes),
        split=split,
    )


def drift_of_others(case: Case) -> float:
    """Return the compute time of the other ranks since the alarm began, divided by their compute time in the
    warm-up."""
    compute = case.mean("compute")
    return middle_of_others_of(compute / np.maximum(case.baseline.reference, 1e-9), case.where, case.rank)


def times_its_usual(case: Case) -> float:
    """Return the compute time of the suspected rank since the alarm began, divided by that of a healthy rank."""
    rank, baseline = case.rank, case.baseline
    usual = (baseline.reference if baseline.from_start[rank] else baseline.compute)[rank]
    return float(case.mean("compute")[rank]) / max(float(usual) * drift_of_others(case), 1e-9)


def _without_one_stall(case: Case, gain: FloatArray) -> FloatArray:
    """Return the time that a step would save without each rank, leaving out the window in which this is longest: [n].

    One evaluation or checkpoint of another rank does not explain a slowness that lasts. gain: [n], of all windows.
    """
    windows = [judged.window for judged in case.interval]
    if len(windows) < LEAST_OF_STALL:
        return gain
    lost = np.array([window.gain * window.steps for window in windows])
    steps = np.array([float(window.steps) for window in windows])
    longest = lost.argmax(axis=0)
    rest: FloatArray = (lost.sum(axis=0) - lost.max(axis=0)) / (steps.sum() - steps[longest])
    return np.minimum(rest, gain)


def _own_excess(case: Case, compute: FloatArray) -> FloatArray:
    """Return by how many seconds a step each rank computes longer than in the warm-up: [n]. A stage or a GPU that
    always was slower does not explain why steps are slower now."""
    excess: FloatArray = np.maximum(compute - case.baseline.compute * drift_of_others(case), 0.0)
    return excess


def most_alarmed(ranks: int) -> int:
    """Return how many ranks of a job with this number of ranks can be slow for their own reasons at one time."""
    return max(FEW_RANKS, ranks // FEW) if ranks >= FEW else 1


def slow_windows(interval: Sequence[Judged], rank: int) -> list[Window]:
    """Return the windows in which the rank is slow: its excess is at least two standard deviations, and at least a
    quarter of its second largest excess.

    The second largest excess is used, so that one long stall does not hide all other slow windows.
    """
    sigmas = np.array([judged.sigmas[rank] for judged in interval])
    second = np.partition(sigmas, -2)[-2] if len(sigmas) > 1 else 0.0
    least = max(HIT_SIGMAS, second / 4)
    return [judged.window for judged in interval if judged.sigmas[rank] >= least]


def stopped_again(interval: Sequence[Judged], rank: int) -> bool:
    """Return whether samples found the rank stopped more than once.

    One stop is within one step, and therefore in one window. By interpolation it can also appear in the window before.
    So two windows that are not adjacent, or three windows, are at least two stops.
    """
    found = [index for index, judged in enumerate(interval) if judged.window.stopped[rank] > 0]
    return len(found) > 1 and found[-1] - found[0] > 1


def _gain_beyond(compute: FloatArray, case: Case, own: list[int]) -> float:
    """Return the time that a step would save without these ranks (`own`), after the other alarmed ranks are removed.

    So the cost of other ranks, which are slow for their own reasons, is not attributed to these ranks.
    """
    alarmed = np.zeros(len(compute), np.bool_)
    alarmed[list(case.alarmed)] = True
    role = case.where.role[case.rank]
    members = case.where.roles[role]
    rest = compute[members][~alarmed[members]]
    slowest = max(float(compute[one]) for one in own if case.where.role[one] == role)
    return slowest - float(rest.max()) if len(rest) else 0.0


def _gain_alone(others: FloatArray, compute: float, expected: float) -> float:
    """Return the time that a step would save if the only rank of a role were as fast as when it was healthy.

    The step would still take as long as the slowest other role needs. Ranks that are slow for their own reasons do not
    count. others: compute times of the other ranks. compute: that of the rank. expected: that of the healthy rank.
    """
    return max(compute - max(expected, float(others.max(initial=0.0))), 0.0)


def _extra_wait(wait: FloatArray, usual: FloatArray | None, where: Places, rank: int) -> float:
    """Return by how much the rank delays the others, in seconds a step.

    This is the others' wait minus the rank's own wait, minus the usual value of this difference (`usual`).
    """
    now = middle_of_others_of(wait, where, rank) - float(wait[rank])
    return now if usual is None else now - (middle_of_others_of(usual, where, rank) - float(usual[rank]))


def _attribute(case: Case, from_start: bool) -> Attribution:
    windows = [judged.window for judged in case.interval]
    if len(windows) < 2:
        return Attribution(Cause.UNKNOWN, False, np.nan)
    interval = AlarmInterval(
        compute=case.kept("compute before the last window", lambda: join(windows[:-1], "compute")),
        per_step=case.kept("consumed per step", lambda: per_step(windows)),
        samples=(windows[-1].began.values - windows[0].began.values)[:, STOPPED : SAMPLES + 1],
        step_seconds=float(case.mean("step_seconds")),
        stopped_again=stopped_again(case.interval, case.rank),
    )
    healthy = (
        None if from_start else HealthyState(case.baseline.parts_compute, case.baseline.parts, case.baseline.faults)
    )
    return attribute(case.rank, interval, healthy, case.on_device)
