"""Course: what the workload detector remembers of one attempt of a job, and how a step is taken into it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import Shape, StepTable
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.detectors.stats.medians import column_medians, median, row_medians
from scheduler_feedback.detectors.stats.periodicity import LongSteps
from scheduler_feedback.detectors.steps.baseline import WARM_UP_STEPS
from scheduler_feedback.detectors.steps.expected_work import Work, fit
from scheduler_feedback.detectors.steps.windows import MAD_TO_SIGMA, Places, middle_of_peers, spread
from scheduler_feedback.detectors.workload.slow_stage import Pressure

RECENT_STEPS = 64
"""Steps that are looked at; at 16,000 ranks they are 16 MB a job."""

LEAST_STEPS = 5
OFFSET_STEPS = 100
OFFSET_BLOCKS = 4
LEAST_KNOWN = 0.8
SPIKE = 1.5
LONGER = 1.04
"""Steps of four per cent more than usual are long: just below the five from which a slowdown is told."""


@dataclass(slots=True)
class Standing:
    """What is told and holds. seen, seen_ns: the step and the time at which it was last found again."""

    verdict: Verdict
    seen: int
    seen_ns: int


LEAST_SWAY = 0.005
"""Steps of the most regular public trace (ByteDance AR) vary by half a per cent."""


@dataclass(frozen=True, slots=True)
class Usual:
    """What a job was like when it was new.

    compute, tokens: [n] of each rank. normal: [n], its own time had it been given its usual work. sway: by how much the
    middle rank's own time varies from step to step, as log seconds. top, tops_spread, unlike: how far the slowest rank
    of a step was from the middle one, how that varies, and half of the ranks from it, each over its own usual time.
    unequal: by how much the largest work given in a step is above its mean, as the tokens have it, and how that varies.
    busy: [2, roles], seconds a step in which the tensor pipes work and their standard error as a share, NaN where no
    counter tells.
    """

    seconds: float
    compute: FloatArray
    tokens: FloatArray
    normal: FloatArray
    sway: float
    top: float
    tops_spread: float
    unlike: float
    unequal: float
    unequal_spread: float
    busy: FloatArray


@dataclass(frozen=True, slots=True)
class Busy:
    """One window of counters: when it ended, how long it was, the share of it in which tensor pipes worked [roles]."""

    at_ns: int
    seconds: float
    share: FloatArray


@dataclass(slots=True)
class Course:
    """One attempt of a job. Rows of the newest steps: own seconds [n] and the middle rank's, the same had all ranks
    been given their usual work, step seconds, number, when it ended, tokens, squares [n]. work: what they should take
    for what they are given. busy: newest windows of counters. since_ns: from when on newest steps have been longer than
    usual; 0: they are not. pressure: on its nodes, where each stage stands on one. waits: on its nodes, where nothing
    counts how busy tensor pipes are. long_steps: those that the whole job took, and their period. beat_tests: how many
    patterns of periods below five were tried.
    """

    shape: Shape
    where: Places
    seen_ns: int
    to_skip: int
    taken: int = 0
    looked: int = 0
    compute: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    middle: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    normal: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    ends_ns: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    numbers: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    tokens: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    squares: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    forward: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    backward: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    busy: deque[Busy] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    work: Work | None = None
    last_ns: int = 0
    since_ns: int = 0
    offsets: deque[tuple[int, FloatArray]] = field(default_factory=lambda: deque(maxlen=OFFSET_BLOCKS))
    block: list[FloatArray] = field(default_factory=list)
    block_step: int = 0
    usual: Usual | None = None
    pressure: Pressure | None = None
    waits: Pressure | None = None
    long_steps: LongSteps = field(default_factory=LongSteps)
    beat_tests: int = 0
    standing: dict[str, Standing] = field(default_factory=dict)


def take_in(course: Course, steps: StepTable) -> bool:
    """Keep the steps that nearly every rank reported with its wait; whether there are any."""
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
            compute = np.where(fine[k], compute, before)  # a report that is missing says nothing new
        usual = median(np.array(course.seconds)) if len(course.seconds) >= LEAST_STEPS else seconds
        course.taken += 1
        course.last_ns = int(steps.end_ns[k].max())
        long = seconds >= SPIKE * usual and _of_all(course, compute, seconds)
        course.long_steps.take(number, seconds - usual if long else None)
        course.compute.append(compute)
        course.middle.append(median(compute))
        normal = compute
        if course.work is not None:  # a rank that was not heard is as it was
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
    """Whether it was the whole job that took so long: the middle rank as well, not one that the others waited for."""
    usual = course.usual
    return usual is not None and float(np.median(compute - usual.compute)) >= (seconds - usual.seconds) / 2


def _factor(work: Work, steps: StepTable, k: int) -> FloatArray | float:
    if steps.tokens is None:
        return 1.0
    return work.factor(steps.tokens[k], None if steps.squares is None else steps.squares[k])


def _learn(course: Course) -> None:
    """What is usual of the job, from its first steps."""
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
    """Since when the steps are longer than usual."""
    if course.usual is None:
        return
    longer = len(course.seconds) >= 2 and min(list(course.seconds)[-2:]) >= LONGER * course.usual.seconds
    calm = len(course.seconds) >= 2 and max(list(course.seconds)[-2:]) < LONGER * course.usual.seconds
    if longer and not course.since_ns:
        course.since_ns = course.ends_ns[-2] - round(course.seconds[-2] * 1e9)
    elif calm:
        course.since_ns = 0


def busy_seconds(course: Course, since_ns: int, step_seconds: float) -> FloatArray:
    """[2, roles]: seconds a step in which tensor pipes work, by the windows of counters that began since, and their
    standard error as a share; NaN without."""
    windows = [one for one in course.busy if one.at_ns - round(one.seconds * 1e9) >= since_ns]
    if not windows:
        return np.full((2, len(course.where.roles)), np.nan)
    shares = np.array([one.share for one in windows])
    mean = shares.mean(axis=0)
    # A window shorter than a step shows a part of one: only those of a whole step or more can be compared.
    together = math.ceil(step_seconds / windows[0].seconds)
    whole = len(shares) // together
    if whole < 2:
        error = np.full(len(mean), np.inf if together > 1 else 0.0)
    else:
        parts = shares[-whole * together :].reshape(whole, together, -1).mean(axis=1)
        error = parts.std(axis=0) / math.sqrt(whole) / np.maximum(mean, 1e-9)
    return np.stack([mean * step_seconds, error])


def unequal_work(given: FloatArray) -> FloatArray:
    """[k, n] -> [k]: by how much the largest work of a step is above its mean."""
    found: FloatArray = given.max(axis=1) - given.mean(axis=1)
    return found


def tops(ratio: FloatArray) -> tuple[FloatArray, float]:
    """[k, n] -> by how much each step's slowest rank is above its middle one [k], and the spread of half of them."""
    middle = row_medians(ratio)
    return ratio.max(axis=1) - middle, MAD_TO_SIGMA * median(np.abs(ratio - middle[:, None]))
