"""Rules for causes within a job, and for how each differs from faulty hardware."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry
from scheduler_feedback.core.verdict import Cause, Evidence, Kind
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.stats.medians import column_medians, median, row_medians
from scheduler_feedback.detectors.stats.periodicity import FALSE_ALARM, LEAST_PERIOD, beats_needed
from scheduler_feedback.detectors.steps.baseline import WARM_UP_STEPS
from scheduler_feedback.detectors.steps.expected_work import fit
from scheduler_feedback.detectors.steps.windows import MAD_TO_SIGMA, Places
from scheduler_feedback.detectors.workload.attempt_history import (
    LEAST_STEPS,
    OFFSET_BLOCKS,
    OFFSET_STEPS,
    RECENT_STEPS,
    Course,
)
from scheduler_feedback.detectors.workload.workload_claim import LEAST_SLOWDOWN, STAGE, Claim

STAGE_RATIO = 1.10
STAGE_OF_EACH = 1.05
"""A stage has more work if its median rank takes a tenth longer than the other stages, and each of its ranks takes five
per cent longer (the threshold of EROICA and Guard). Trial ST of ByteDance's traces has 1.6."""

OFFSET_RATIO = math.log(1.04)
"""Healthy ranks of public traces vary by four per cent for minutes (PAI job 1). A larger offset in each of four
quarters of a hundred steps is not chance."""

UNLIKE = 0.04
SEQUENCE_COST = 0.05
ALIKE = 0.9
"""Minimum correlation of forward and backward times of a rank: then the rank has more work, not a slower machine
(ByteDance, OSDI'25: a correlation of 0.9)."""

ROTATING_SHARE = 0.5
"""In a healthy long-context job no rank was the slowest in more than 37 % of the steps. A culprit is the slowest in
all."""

EXPLAINED = 0.5
WELL_EXPLAINED = 0.8
LEAST_SEQUENCE_STEPS = 5
SEQUENCE_SECONDS = 30.0
RHYTHM, BEAT = "rhythm", "beat"
"""Keys of claims about periodic long steps: a period of five and more, and a shorter one."""

BEAT_RATIO = 1.1
HELD_BEATS = 3
"""Long steps at a period of two to four. Each must be a tenth longer than every step between them, and their number
must exclude that chance places the longest steps at one phase of the period (``periodicity.beats_needed``). Once
reported, the claim holds while the newest three long steps meet this."""


def claims(course: Course, job: JobTelemetry, crowded: bool) -> Iterator[Claim]:
    """Yield the claims of all rules.

    crowded: whether other jobs use its hosts, which can slow a whole stage.
    """
    if len(course.compute) < LEAST_STEPS:
        return
    newest = np.array([course.compute[row] for row in range(-min(len(course.compute), WARM_UP_STEPS), 0)])
    seconds = float(np.mean(course.seconds))
    ranks = tuple(course.shape.ranks.tolist())
    young = course.taken <= RECENT_STEPS or f"{STAGE}-" in " ".join(course.active)
    if young or not crowded:
        yield from _stages(course, seconds, ranks)
    yield from _sequences(course, newest, seconds)
    yield from _rhythms(course, seconds)
    if job.shared_machine is None or not job.shared_machine.any():  # other load on a shared machine looks the same
        yield from _offsets(course, seconds, ranks)
        if not crowded:  # processes sharing a CPU lengthen every second to fourth step as well
            yield from _beats(course, seconds)


def _stages(course: Course, seconds: float, ranks: tuple[int, ...]) -> Iterator[Claim]:
    """Claim a stage whose ranks all compute longer than those of the other stages."""
    where = course.where
    if not where.layout_known or len(where.roles) < 2:
        return
    if course.usual is not None:  # a stage that has grown is a separate rule
        by_rank = course.usual.compute
        seconds = course.usual.seconds
    else:
        by_rank = column_medians(np.array(course.compute))
    of_stage = np.array([median(by_rank[members]) for members in where.roles])
    worst = int(of_stage.argmax())
    others = float(np.median(np.delete(of_stage, worst)))
    members = where.roles[worst]
    if of_stage[worst] < STAGE_RATIO * others or (by_rank[members] < STAGE_OF_EACH * others).any():
        return
    ratio = float(of_stage[worst] / others)
    stages = course.shape.coordinate("stage")
    compute = np.array(course.compute)
    noise = float(np.std(np.log(compute[:, members]).mean(axis=1))) / math.sqrt(len(compute)) + 0.005
    yield Claim(
        f"{STAGE}-{int(stages[members[0]])}", Kind.STAGE_IMBALANCE, Cause.STAGE_PARTITION, -1,
        tuple(ranks[m] for m in members), seconds - float(of_stage[worst] - of_stage.mean()),
        (
            Evidence("stage_compute_seconds_a_step", float(of_stage[worst]), others, "seconds",
                     f"median of the other {len(where.roles) - 1} stages",
                     log_odds.of_residual(math.log(ratio) / noise)),
            Evidence("slowest_to_fastest_of_the_stage",
                     float(by_rank[members].max() / by_rank[members].min()), ratio, "ratio",
                     "the stage against the other stages: its ranks are alike", 2.0),
        ),
    )  # fmt: skip


def _offsets(course: Course, seconds: float, ranks: tuple[int, ...]) -> Iterator[Claim]:
    """Claim ranks that are slightly slower than their peers in every quarter of the newest hundred steps."""
    if len(course.offsets) < OFFSET_BLOCKS:
        return
    blocks = np.array([block for _, block in course.offsets])
    low, mean = blocks.min(axis=0), blocks.mean(axis=0)
    with np.errstate(invalid="ignore"):
        found = np.flatnonzero((low >= OFFSET_RATIO / 2) & (mean >= OFFSET_RATIO))
    if not len(found) or len(found) > len(ranks) // 2:
        return
    compute = np.array(course.compute)
    alike = compute.copy()
    alike[:, found] = row_medians(np.delete(compute, found, axis=1))[:, None]
    without = seconds - float(np.mean(compute.max(axis=1) - np.minimum(alike, compute).max(axis=1)))
    if seconds < LEAST_SLOWDOWN * without:
        return  # some rank is always the slowest; the cost is too small to report
    for rank in found.tolist():
        offset, lowest = float(mean[rank]), float(low[rank])
        residual = log_odds.of_residual(offset / max(float(blocks[:, rank].std()), 0.005))
        evidence = (
            Evidence(
                "compute_to_peers",
                math.exp(offset),
                1.0,
                "ratio",
                f"ranks of its role, over {OFFSET_STEPS} steps",
                residual,
            ),
            Evidence(
                "compute_to_peers_at_least",
                math.exp(lowest),
                1.0,
                "ratio",
                f"the same in the lowest of {OFFSET_BLOCKS} parts of these steps: it is a constant offset",
                1.5,
            ),
        )
        yield Claim(
            f"offset-{ranks[rank]}",
            Kind.WORKLOAD,
            Cause.STANDING_OFFSET,
            ranks[rank],
            (),
            without,
            evidence,
            course.offsets[0][0],
        )


def _sequences(course: Course, compute: FloatArray, seconds: float) -> Iterator[Claim]:
    """Claim ranks that are slow in turn because of more work."""
    whole = len(course.compute)
    if whole < WARM_UP_STEPS // 2:
        return
    # Use recent steps only, so that a new cause is found soon; fewer if steps are long.
    newest_steps = int(np.clip(SEQUENCE_SECONDS / max(seconds, 1e-9), LEAST_SEQUENCE_STEPS, WARM_UP_STEPS))
    compute = compute[-newest_steps:]
    cost = float(np.mean(compute.max(axis=1) - compute.mean(axis=1))) / seconds
    if cost < SEQUENCE_COST:
        return
    apart = _within_roles(np.log(compute), course.where)
    high = float((apart > math.log(1.1)).mean(axis=0).max())
    few = len(compute) < WARM_UP_STEPS // 2  # too few steps to see a rotation: tokens must explain it
    if high > ROTATING_SHARE and not few:
        return
    own = apart - column_medians(apart)
    unlike = MAD_TO_SIGMA * median(np.abs(own))
    if unlike < UNLIKE:
        return
    evidence = [
        Evidence("unlike", unlike, UNLIKE, "log seconds", "least spread of the ranks around their usual offsets", 0.5),
        Evidence("slow_steps_of_the_slowest_rank", high, ROTATING_SHARE, "ratio", "a faulty rank is slow in all", 1.0),
    ]
    newest = slice(-len(compute), None)
    if len(course.forward) == whole == len(course.backward):
        alike = _correlation(np.array(course.forward)[newest], np.array(course.backward)[newest], course.where)
        if alike < ALIKE:
            return
        evidence.append(Evidence("forward_backward_correlation", alike, ALIKE, "", "published threshold", 2.0))
    elif len(course.tokens) == whole:
        tokens = np.array(course.tokens)[newest]
        squares = np.array(course.squares)[newest] if len(course.squares) == whole else np.full_like(tokens, np.nan)
        work = fit(compute, tokens, squares)
        if work is None:
            return
        left = _within_roles(np.log(compute / work.factor(tokens, squares)), course.where)
        explained = 1.0 - float(np.var(left - left.mean(axis=0)) / max(float(np.var(own)), 1e-12))
        if explained < (WELL_EXPLAINED if few else EXPLAINED):
            return
        against = "least variance explained by reported tokens and squared lengths"
        evidence.append(Evidence("explained_by_tokens", explained, EXPLAINED, "ratio", against, 2.0))
    else:
        return
    yield Claim(
        "sequence", Kind.SEQUENCE_IMBALANCE, Cause.SEQUENCE_LENGTH, -1, (), seconds * (1 - cost), tuple(evidence)
    )


def _rhythms(course: Course, seconds: float) -> Iterator[Claim]:
    """Claim long steps of the whole job at a fixed period: checkpoints or evaluation."""
    period = course.long_steps.period
    if period is None:
        return
    lost = period.lost_seconds_a_step
    if seconds < LEAST_SLOWDOWN * (seconds - lost):
        return
    yield Claim(
        RHYTHM, Kind.WORKLOAD, Cause.EVALUATION if period.steps_each > 1 else Cause.CHECKPOINT, -1, (), seconds - lost,
        (
            Evidence("rhythm", float(period.steps), float(period.beats), "steps",
                     "slow steps of the whole job, exactly this many steps apart", 3.0),
            Evidence("chance_of_such_a_rhythm", period.chance, FALSE_ALARM, "probability",
                     "false-alarm bound, for all periods tried", 0.0),
            Evidence("seconds_each", period.lost_seconds / period.beats, seconds, "seconds", "mean step", 0.5),
        ),
    )  # fmt: skip


def _beats(course: Course, seconds: float) -> Iterator[Claim]:
    """Claim that every second, third or fourth step is long for all ranks alike: checkpoints."""
    middle, in_a_row = list(course.middle), _in_a_row(list(course.numbers))
    active = course.active.get(BEAT)
    for apart in range(2, LEAST_PERIOD):
        beats = beats_needed(apart, course.beat_tests + 1) if active is None else HELD_BEATS
        count = beats * apart
        if in_a_row < count:
            continue
        rising = sorted(middle[-count:])
        if rising[-beats] < BEAT_RATIO * rising[-beats - 1]:
            continue  # periodic long steps would be the longest, by a tenth
        course.beat_tests += active is None
        phases = np.array(middle[-count:]).reshape(beats, apart)
        high = int(column_medians(phases).argmax())
        long, others = phases[:, high], np.delete(phases, high, axis=1)
        if long.min() < BEAT_RATIO * others.max():
            continue
        lost = float(long.mean() - others.mean()) / apart
        yield Claim(
            BEAT, Kind.WORKLOAD, Cause.CHECKPOINT, -1, (), seconds - lost,
            (
                Evidence("rhythm", float(apart), float(beats), "steps",
                         "long steps, each longer than every step between them, for all ranks", 3.0),
                Evidence("long_to_other_steps", float(long.mean() / others.mean()), BEAT_RATIO, "ratio",
                         "least ratio, by the compute time of the median rank", 0.5),
            ),
        )  # fmt: skip
        return


def _in_a_row(numbers: list[int]) -> int:
    """Return how many of the newest step numbers are consecutive."""
    most = len(numbers)
    return next((count for count in range(1, most) if numbers[-count] - numbers[-count - 1] != 1), most)


def _within_roles(logs: FloatArray, where: Places) -> FloatArray:
    result = np.empty_like(logs)
    for members in where.roles:
        of_role = logs[:, members]
        result[:, members] = of_role - row_medians(of_role)[:, None]
    return result


def _correlation(forward: FloatArray, backward: FloatArray, where: Places) -> float:
    parts = []
    for values in (forward, backward):
        apart = _within_roles(np.log(np.maximum(values, 1e-12)), where)
        parts.append((apart - apart.mean(axis=0, keepdims=True)).ravel())
    both = float(parts[0].std() * parts[1].std())
    return float(np.mean(parts[0] * parts[1])) / both if both > 0 else 0.0
