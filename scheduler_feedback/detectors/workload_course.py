"""Course: what the workload detector remembers of one attempt of a job, and how a step is taken into it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.gangs import FloatArray
from scheduler_feedback.core.telemetry import Shape, StepTable
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.detectors.baseline import WARM_UP_STEPS
from scheduler_feedback.detectors.windows import MAD_TO_SIGMA, Places, middle_of_peers

RECENT_STEPS = 64
"""Steps that are looked at; at 16,000 ranks they are 16 MB a job."""

LEAST_STEPS = 5
OFFSET_STEPS = 100
OFFSET_BLOCKS = 4
LEAST_KNOWN = 0.8
SPIKE = 1.5
KEPT_SPIKES = 16


@dataclass(slots=True)
class Standing:
    verdict: Verdict
    seen: int


@dataclass(frozen=True, slots=True)
class Usual:
    """What a job was like when it was new. compute, tokens: [n] of each rank. top, unlike: how far the slowest rank of
    a step was from the middle one, and half of them from it, each over its own usual time."""

    seconds: float
    compute: FloatArray
    tokens: FloatArray
    top: float
    unlike: float


@dataclass(slots=True)
class Course:
    """One attempt of a job. Rows of the newest steps: own seconds [n], step seconds, number, tokens, squares [n]."""

    shape: Shape
    where: Places
    seen_ns: int
    to_skip: int
    taken: int = 0
    looked: int = 0
    compute: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    numbers: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    tokens: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    squares: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    forward: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    backward: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    last_ns: int = 0
    offsets: deque[tuple[int, FloatArray]] = field(default_factory=lambda: deque(maxlen=OFFSET_BLOCKS))
    block: list[FloatArray] = field(default_factory=list)
    block_step: int = 0
    usual: Usual | None = None
    spikes: deque[tuple[int, int, float]] = field(default_factory=lambda: deque(maxlen=KEPT_SPIKES))
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
        usual = float(np.median(course.seconds)) if len(course.seconds) >= LEAST_STEPS else seconds
        course.taken += 1
        course.last_ns = int(steps.end_ns[k].max())
        if seconds >= SPIKE * usual:
            course.spikes.append((course.taken, number, seconds - usual))
        course.compute.append(compute)
        course.seconds.append(seconds)
        course.numbers.append(number)
        for store, values in (
            (course.tokens, steps.tokens),
            (course.squares, steps.squares),
            (course.forward, steps.forward_seconds),
            (course.backward, steps.backward_seconds),
        ):
            if values is not None:
                store.append(values[k])
        peers = middle_of_peers(np.log(compute), course.where)
        if not course.block:
            course.block_step = number
        course.block.append(np.log(compute) - peers)
        if len(course.block) == OFFSET_STEPS // OFFSET_BLOCKS:
            course.offsets.append((course.block_step, np.median(course.block, axis=0)))
            course.block.clear()
        if course.usual is None and course.taken >= WARM_UP_STEPS:
            tokens = np.mean(course.tokens, axis=0) if course.tokens else np.full(len(compute), np.nan)
            usual_compute = np.median(course.compute, axis=0)
            above, unlike = tops(np.array(course.compute) / usual_compute)
            course.usual = Usual(
                float(np.median(course.seconds)), usual_compute, tokens, float(np.median(above)), unlike
            )
    return kept > 0


def tops(ratio: FloatArray) -> tuple[FloatArray, float]:
    """[k, n] -> by how much each step's slowest rank is above its middle one [k], and the spread of half of them."""
    middle = np.median(ratio, axis=1, keepdims=True)
    return ratio.max(axis=1) - middle[:, 0], float(MAD_TO_SIGMA * np.median(np.abs(ratio - middle)))
