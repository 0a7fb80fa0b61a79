"""Attempt history: state of the workload detector for one attempt of a job."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray
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
"""Number of steps that are kept; for 16,000 ranks they take 16 MB a job."""

LEAST_STEPS = 5
OFFSET_STEPS = 100
OFFSET_BLOCKS = 4
LEAST_KNOWN = 0.8
SPIKE = 1.5
LONGER = 1.04
"""Minimum ratio of a long step to a usual one: just below the five per cent from which a slowdown is reported."""


@dataclass(slots=True)
class ActiveVerdict:
    """An active verdict."""

    verdict: Verdict
    seen: int
    """Number of steps of the job when the verdict's cause was last detected."""
    seen_ns: int
    """Time at which the verdict's cause was last detected."""


LEAST_SWAY = 0.005
"""Steps of the most regular public trace (ByteDance AR) vary by half a per cent."""


@dataclass(frozen=True, slots=True)
class Usual:
    """Normal values of a job, from its warm-up."""

    seconds: float
    compute: FloatArray
    """Compute time of each rank: [n]."""
    tokens: FloatArray
    """Tokens of each rank: [n]."""
    normal: FloatArray
    """Compute time of each rank for its usual work: [n]."""
    sway: float
    """Variation of the median rank's compute time from step to step, in log seconds."""
    top: float
    """Excess of a step's slowest rank over the median rank, each relative to its own usual time."""
    tops_spread: float
    """Variation from step to step of the excess of the slowest rank over the median rank."""
    unlike: float
    """Spread of half of the ranks around the median rank."""
    unequal: float
    """Excess of a step's largest work over its mean, by tokens."""
    unequal_spread: float
    """Variation from step to step of the excess of the largest work over the mean work."""
    busy: FloatArray
    """Seconds a step in which tensor pipes are busy, and their relative standard error: [2, roles], NaN without
    counters."""


@dataclass(frozen=True, slots=True)
class Busy:
    """One window of counters: its end, its length, and the share of it in which tensor pipes were busy, [roles]."""

    at_ns: int
    seconds: float
    share: FloatArray


@dataclass(slots=True)
class Course:
    """History of one attempt of a job. The deques hold rows of the newest steps."""

    shape: Shape
    where: Places
    seen_ns: int
    to_skip: int
    taken: int = 0
    evaluated: int = 0
    compute: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Compute seconds: [n]."""
    middle: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Compute seconds of the median rank."""
    normal: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Compute seconds for the usual work of each rank: [n]."""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    ends_ns: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    numbers: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    tokens: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    squares: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    forward: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    backward: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    busy: deque[Busy] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Newest windows of counters."""
    work: Work | None = None
    """Fitted model of the compute time for a given amount of work."""
    last_ns: int = 0
    since_ns: int = 0
    """Time since which the newest steps are longer than usual; 0 if they are not."""
    offsets: deque[tuple[int, FloatArray]] = field(default_factory=lambda: deque(maxlen=OFFSET_BLOCKS))
    block: list[FloatArray] = field(default_factory=list)
    block_step: int = 0
    usual: Usual | None = None
    pressure: Pressure | None = None
    """Share of time that tasks wait on the job's nodes, if each stage is on a separate node."""
    waits: Pressure | None = None
    """Share of time that tasks wait on the job's nodes, if there are no tensor pipe counters."""
    long_steps: LongSteps = field(default_factory=LongSteps)
    """Long steps of the whole job, and their period."""
    beat_tests: int = 0
    """Number of tested patterns with a period below five."""
    active: dict[str, ActiveVerdict] = field(default_factory=dict)

    def forget_verdicts(self, verdict_ids: Collection[str]) -> None:
        """Forget these verdicts, which the arbiter refused or withdrew."""
        for key in [key for key, one in self.active.items() if one.verdict.verdict_id in verdict_ids]:
            del self.active[key]


def take_in(course: Course, steps: StepTable) -> bool:
    """Add the steps that nearly every rank reported with its wait. Return whether there are any."""
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
    """Return whether the whole job was slow: the median rank as well, not just one rank that the others waited for."""
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
    """Update the time since which steps are longer than usual."""
    if course.usual is None:
        return
    longer = len(course.seconds) >= 2 and min(list(course.seconds)[-2:]) >= LONGER * course.usual.seconds
    calm = len(course.seconds) >= 2 and max(list(course.seconds)[-2:]) < LONGER * course.usual.seconds
    if longer and not course.since_ns:
        course.since_ns = course.ends_ns[-2] - round(course.seconds[-2] * 1e9)
    elif calm:
        course.since_ns = 0


def busy_seconds(course: Course, since_ns: int, step_seconds: float) -> FloatArray:
    """Return the seconds a step in which tensor pipes are busy, and their relative standard error: [2, roles].

    Uses windows of counters that began at or after `since_ns`; NaN without any.
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
    """Return the excess of each step's largest work over its mean: [k, n] -> [k]."""
    found: FloatArray = given.max(axis=1) - given.mean(axis=1)
    return found


def tops(ratio: FloatArray) -> tuple[FloatArray, float]:
    """Return the excess of each step's slowest rank over the median rank [k], and the spread of half of the ranks."""
    middle = row_medians(ratio)
    return ratio.max(axis=1) - middle, MAD_TO_SIGMA * median(np.abs(ratio - middle[:, None]))
