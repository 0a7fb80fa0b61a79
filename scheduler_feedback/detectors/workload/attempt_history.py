"""Attempt history: what the workload detector has learned about one attempt of a job, and its newest steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import Shape, StepTable
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.detectors.stats.medians import column_medians, median, row_medians
from scheduler_feedback.detectors.stats.periodicity import LongSteps
from scheduler_feedback.detectors.stats.spread import MAD_TO_SIGMA, spread
from scheduler_feedback.detectors.steps.baseline import WARM_UP_STEPS
from scheduler_feedback.detectors.steps.expected_work import Work, fit
from scheduler_feedback.detectors.steps.places import Places, middle_of_peers
from scheduler_feedback.detectors.workload.slow_stage import Pressure

RECENT_STEPS = 64
"""Number of newest steps that are kept of a job. For 16,000 ranks they take 16 MB."""

LEAST_STEPS = 5
"""A median step time is computed only from at least this many steps."""

OFFSET_STEPS = 100
"""Number of steps over which constant offsets of ranks from their peers are measured."""

OFFSET_BLOCKS = 4
"""OFFSET_STEPS are divided into this many equal parts. A rank has a constant offset only if it is slower in each
part."""

LEAST_KNOWN = 0.8
"""A step is used only if at least this share of the ranks has reported it."""

SPIKE = 1.5
"""A step is a long step, such as one with a checkpoint, if it takes at least this many times the usual step time."""

LONGER = 1.04
"""Steps are longer than usual if they take at least this many times the usual step time. It is just below the five per
cent from which a slowdown is reported."""


@dataclass(slots=True)
class ActiveVerdict:
    """An active verdict, and when its cause was last detected."""

    verdict: Verdict
    seen: int
    """Number of steps of the job when the verdict's cause was last detected."""
    seen_ns: int
    """Time in ns at which the verdict's cause was last detected."""


LEAST_SWAY = 0.005
"""Smallest assumed variation of step times, as a share: that of the most regular public trace (ByteDance AR)."""


@dataclass(frozen=True, slots=True)
class Usual:
    """Normal values of a job, learned from its warm-up. There are n ranks."""

    seconds: float
    compute: FloatArray
    """Compute time of each rank in seconds a step: [n]."""
    tokens: FloatArray
    """Mean tokens a step of each rank: [n]."""
    normal: FloatArray
    """Compute time of each rank in seconds a step, with the effect of sequence lengths removed: [n]."""
    sway: float
    """Variation of the median rank's compute time from step to step, in log seconds."""
    top: float
    """Usual excess of a step's slowest rank over the median rank, after each rank's time is divided by its own usual
    time."""
    tops_spread: float
    """Variation from step to step of the excess of the slowest rank over the median rank."""
    unlike: float
    """Usual spread of the ranks' times around the median rank, as a standard deviation that outliers hardly change."""
    unequal: float
    """Excess of the largest work of a step over its mean work, as computed from the reported tokens."""
    unequal_spread: float
    """Variation from step to step of the excess of the largest work over the mean work."""
    busy: FloatArray
    """For each role, the seconds a step in which tensor pipes are busy, and the relative standard error: [2, roles].
    NaN without counters."""


@dataclass(frozen=True, slots=True)
class Busy:
    """One window of counters: its end time, its length, and for each role the share of the window in which tensor pipes
    were busy."""

    at_ns: int
    seconds: float
    share: FloatArray


@dataclass(slots=True)
class Course:
    """History of one attempt of a job with n ranks. Each deque contains the newest steps, newest last."""

    shape: Shape
    where: Places
    seen_ns: int
    to_skip: int
    taken: int = 0
    evaluated: int = 0
    compute: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Compute seconds of each rank, one row [n] per step."""
    middle: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Compute seconds of the median rank in each step."""
    normal: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Compute seconds of each rank with the effect of sequence lengths removed, one row [n] per step."""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    ends_ns: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    numbers: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    tokens: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    squares: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    forward: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    backward: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    busy: deque[Busy] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Newest windows of counters, each with the share of time in which each role's tensor pipes were busy."""
    work: Work | None = None
    """Fitted model of a rank's compute time for its sequence lengths; None if tokens explain little."""
    last_ns: int = 0
    since_ns: int = 0
    """Time in ns since which steps are longer than usual; 0 if they are not."""
    offsets: deque[tuple[int, FloatArray]] = field(default_factory=lambda: deque(maxlen=OFFSET_BLOCKS))
    block: list[FloatArray] = field(default_factory=list)
    block_step: int = 0
    usual: Usual | None = None
    pressure: Pressure | None = None
    """Share of time that tasks on each of the job's nodes wait; None unless each stage is on a separate node."""
    waits: Pressure | None = None
    """Share of time that tasks on each of the job's nodes wait; None if the job has tensor pipe counters."""
    long_steps: LongSteps = field(default_factory=LongSteps)
    """Long steps of the whole job, and their period."""
    beat_tests: int = 0
    """Number of tests for long steps at a period below five steps. More tests require more evidence."""
    active: dict[str, ActiveVerdict] = field(default_factory=dict)
    ranks: tuple[int, ...] = field(init=False)
    """Rank numbers, as Python integers."""

    def __post_init__(self) -> None:
        self.ranks = tuple(self.shape.ranks.tolist())

    def forget_verdicts(self, verdict_ids: Collection[str]) -> None:
        """Forget these verdicts, which the arbiter refused or withdrew."""
        for key in [key for key, one in self.active.items() if one.verdict.verdict_id in verdict_ids]:
            del self.active[key]


def take_in(course: Course, steps: StepTable) -> bool:
    """Add those steps that nearly every rank reported together with its waits. Return whether there are any."""
    fine = np.isfinite(steps.seconds) & np.isfinite(steps.wait_seconds)
    kept = 0
    for k in np.flatnonzero(fine.mean(axis=1) >= LEAST_KNOWN).tolist():
        if course.to_skip:
            course.to_skip -= 1
            continue
        kept += 1
        seconds, number = float(steps.seconds[k][fine[k]].mean()), int(steps.number[k])
        compute = np.maximum(steps.seconds[k] - steps.wait_seconds[k], 1e-9 * seconds)
        if not fine[k].all():
            before = course.compute[-1] if course.compute else np.full(len(compute), np.median(compute[fine[k]]))
            compute = np.where(fine[k], compute, before)  # a missing report changes nothing
        usual = median(np.array(course.seconds)) if len(course.seconds) >= LEAST_STEPS else seconds
        course.taken += 1
        course.last_ns = int(steps.end_ns[k].max())
        long = seconds >= SPIKE * usual and _of_all(course, compute, seconds)
        course.long_steps.take(number, seconds - usual if long else None)
        course.compute.append(compute)
        course.middle.append(median(compute))
        normal = compute
        if course.work is not None:  # a rank without a report keeps its last value
            normal = np.where(fine[k], compute / _factor(course.work, steps, k), course.normal[-1])
        course.normal.append(normal)
        course.seconds.append(seconds)
        course.ends_ns.append(course.last_ns)
        course.numbers.append(number)
        for store, values in (
            (course.tokens, steps.tokens),
            (course.squares, steps.squares),
            (course.forward, steps.forward_seconds),
            (course.backward, steps.backward_seconds),
        ):
            if values is not None:
                store.append(values[k])
        logs = np.log(compute)
        if not course.block:
            course.block_step = number
        course.block.append(logs - middle_of_peers(logs, course.where))
        if len(course.block) == OFFSET_STEPS // OFFSET_BLOCKS:
            course.offsets.append((course.block_step, column_medians(np.array(course.block))))
            course.block.clear()
        if course.usual is None and course.taken >= WARM_UP_STEPS:
            _learn(course)
        _mark(course)
    return kept > 0


def _of_all(course: Course, compute: FloatArray, seconds: float) -> bool:
    """Return whether the whole job was slow in a step: the median rank too, and not only a rank that the others waited
    for."""
    usual = course.usual
    return usual is not None and float(np.median(compute - usual.compute)) >= (seconds - usual.seconds) / 2


def _factor(work: Work, steps: StepTable, k: int) -> FloatArray | float:
    if steps.tokens is None:
        return 1.0
    return work.factor(steps.tokens[k], None if steps.squares is None else steps.squares[k])


def _learn(course: Course) -> None:
    """Learn the usual state of the job from its first steps."""
    compute = np.array(course.compute)
    unknown = np.full_like(compute, np.nan)
    tokens = np.array(course.tokens) if len(course.tokens) == len(compute) else unknown
    squares = np.array(course.squares) if len(course.squares) == len(compute) else unknown
    course.work = fit(compute, tokens, squares)
    normal = compute
    if course.work is not None:
        normal = compute / course.work.factor(tokens, squares)
        course.normal.clear()
        course.normal.extend(normal)
    usual_normal = column_medians(normal)
    above, unlike = tops(normal / usual_normal)
    unequal = unequal_work(compute / normal)
    course.usual = Usual(
        seconds=float(np.median(course.seconds)),
        compute=column_medians(compute),
        tokens=tokens.mean(axis=0),
        normal=usual_normal,
        sway=max(LEAST_SWAY, spread(row_medians(np.log(normal / usual_normal)))),
        top=float(np.median(above)),
        tops_spread=spread(above),
        unlike=unlike,
        unequal=float(unequal.mean()),
        unequal_spread=float(unequal.std()),
        busy=busy_seconds(course, course.last_ns - round(sum(course.seconds) * 1e9), float(np.mean(course.seconds))),
    )


def _mark(course: Course) -> None:
    """Update the time since which steps have been longer than usual."""
    if course.usual is None or len(course.seconds) < 2:
        return
    newest = course.seconds[-2], course.seconds[-1]
    longer = min(newest) >= LONGER * course.usual.seconds
    calm = max(newest) < LONGER * course.usual.seconds
    if longer and not course.since_ns:
        course.since_ns = course.ends_ns[-2] - round(course.seconds[-2] * 1e9)
    elif calm:
        course.since_ns = 0


def busy_seconds(course: Course, since_ns: int, step_seconds: float) -> FloatArray:
    """Return, for each role, the seconds a step in which tensor pipes are busy, and the relative standard error: [2,
    roles].

    Only windows of counters that began at or after `since_ns` are used; NaN if there are none.
    """
    windows = [one for one in course.busy if one.at_ns - round(one.seconds * 1e9) >= since_ns]
    if not windows:
        return np.full((2, len(course.where.roles)), np.nan)
    shares = np.array([one.share for one in windows])
    mean = shares.mean(axis=0)
    # A window shorter than a step covers a part of it: compare groups of windows that cover a whole step.
    together = math.ceil(step_seconds / windows[0].seconds)
    whole = len(shares) // together
    if whole < 2:
        error = np.full(len(mean), np.inf if together > 1 else 0.0)
    else:
        parts = shares[-whole * together :].reshape(whole, together, -1).mean(axis=1)
        error = parts.std(axis=0) / math.sqrt(whole) / np.maximum(mean, 1e-9)
    return np.stack([mean * step_seconds, error])


def unequal_work(given: FloatArray) -> FloatArray:
    """Return, for each step, the ratio of the largest work to the mean work, minus one: [k steps, n] -> [k]."""
    found: FloatArray = given.max(axis=1) - given.mean(axis=1)
    return found


def tops(ratio: FloatArray) -> tuple[FloatArray, float]:
    """Return two values: for each step, the excess of the slowest rank over the median rank [k]; and the spread of
    the ranks around it, as a standard deviation that outliers hardly change.

    ratio: [k steps, n].
    """
    middle = row_medians(ratio)
    return ratio.max(axis=1) - middle, MAD_TO_SIGMA * median(np.abs(ratio - middle[:, None]))
