"""Rules that find causes within a job, and distinguish each cause from faulty hardware."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import IndexArray, JobTelemetry
from scheduler_feedback.core.verdict import Cause, Evidence, Kind
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.stats.medians import column_medians, median, row_medians
from scheduler_feedback.detectors.stats.periodicity import FALSE_ALARM, LEAST_PERIOD, beats_needed
from scheduler_feedback.detectors.stats.spread import MAD_TO_SIGMA
from scheduler_feedback.detectors.steps.baseline import FROM_START_SELF, WARM_UP_STEPS
from scheduler_feedback.detectors.steps.expected_work import fit
from scheduler_feedback.detectors.steps.places import Places, middle_of_peers
from scheduler_feedback.detectors.workload.attempt_history import (
    LEAST_STEPS,
    OFFSET_BLOCKS,
    OFFSET_STEPS,
    RECENT_STEPS,
    Course,
)
from scheduler_feedback.detectors.workload.workload_claim import LEAST_SLOWDOWN, STAGE, Claim

STAGE_RATIO = 1.10
"""A stage has more work only if its median compute time is at least this many times that of the other stages."""

STAGE_OF_EACH = 1.05
"""A stage has more work only if the compute time of each of its ranks is at least this many times that of the other
stages. In a public trace with unequal stages (ByteDance ST) it is 1.6."""

OFFSET_RATIO = math.log(1.04)
"""A constant offset of a rank from its peers is reported only if it is at least this large: 4 %, as a logarithm.
Healthy ranks of public traces vary by that much for minutes, but not over a hundred steps."""

UNLIKE = 0.04
"""Unequal sequences are reported only if the ranks' times spread by at least this much around their usual offsets, in
log seconds."""

SEQUENCE_COST = 0.05
"""Unequal sequences are reported only if they cost at least this share of a step."""

ALIKE = 0.9
"""A rank has more work, and not a slower machine, if its forward and backward times correlate at least this well
(ByteDance, OSDI'25)."""

ROTATING_SHARE = 0.5
"""Unequal sequences are the cause only if one and the same rank is slow in at most this share of the steps. In a
healthy long-context job it was 37 %; a faulty rank is slow in all."""

EXPLAINED = 0.5
"""Unequal sequences are the cause only if the reported tokens explain at least this share of the ranks' variation."""

WELL_EXPLAINED = 0.8
"""With only few steps, unequal sequences are the cause only if the reported tokens explain at least this share of the
ranks' variation."""

LEAST_SEQUENCE_STEPS = 5
"""Unequal sequences are detected only from at least this many steps."""

SEQUENCE_SECONDS = 30.0
"""Total duration in seconds of the newest steps that are evaluated for unequal sequences."""

RHYTHM, BEAT = "rhythm", "beat"
"""Keys of claims (suspected causes) about periodic long steps: RHYTHM for a period of five steps or more, BEAT for a
shorter one."""

BEAT_RATIO = 1.1
"""At a period of two to four steps, a step is long only if it takes at least this many times as long as each step
between two long steps."""

OFFSET = "offset"
"""Key of the claim (suspected cause) about constant offsets."""

WANDER_SIGMAS = 2.0
"""Half of a constant offset may have begun after the warm-up if that is at most this many standard deviations of such
changes in the job: the offsets of all its ranks wander (PAI job 1)."""

OFFSET_OF_NEXT = 2.0
"""A constant offset is far from those of all other ranks if it is at least this many times the next largest one."""

LISTED_OFFSETS = 4
"""Maximum number of ranks with a constant offset for which the evidence contains the cost of the rank alone."""

HELD_BEATS = 3
"""A verdict on a period of two to four steps stays active only while this many of the newest long steps are
periodic."""


def claims(course: Course, job: JobTelemetry, crowded: bool) -> Iterator[Claim]:
    """Yield the claims of all rules about the newest steps.

    crowded: whether other jobs use the job's hosts. They can slow a whole stage.
    """
    if len(course.compute) < LEAST_STEPS:
        return
    seconds = float(np.mean(course.seconds))
    young = course.taken <= RECENT_STEPS or f"{STAGE}-" in " ".join(course.active)
    if young or not crowded:
        yield from _stages(course, seconds, course.ranks)
    yield from _sequences(course, seconds)
    yield from _rhythms(course, seconds)
    if job.shared_machine is None or not job.shared_machine.any():  # other load on a shared machine looks the same
        yield from _offsets(course, seconds, course.ranks)
        if not crowded:  # processes sharing a CPU lengthen every second to fourth step as well
            yield from _beats(course, seconds)


def _stages(course: Course, seconds: float, ranks: tuple[int, ...]) -> Iterator[Claim]:
    """Yield a claim that a stage has more work, if all its ranks compute longer than those of the other stages."""
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
    if by_rank[members].max() > ratio * by_rank[members].min():
        return  # the ranks of the stage differ more than the stages: some of its ranks are slow
    stages = course.shape.coordinate("stage")
    compute = np.array(course.compute)
    noise = float(np.std(np.log(compute[:, members]).mean(axis=1))) / math.sqrt(len(compute)) + 0.005
    if len(members) > 1:
        alike = Evidence("slowest_to_fastest_of_the_stage", float(by_rank[members].max() / by_rank[members].min()),
                         ratio, "ratio", "the stage against the other stages: its ranks are alike", 2.0)  # fmt: skip
    else:
        alike = Evidence("ranks_of_the_stage", 1.0, 2.0, "ranks", "with one rank, a slower GPU would look the same",
                         log_odds.STAGE_OF_ONE)  # fmt: skip
    yield Claim(
        f"{STAGE}-{int(stages[members[0]])}", Kind.STAGE_IMBALANCE, Cause.STAGE_PARTITION, -1,
        tuple(ranks[m] for m in members), seconds - float(of_stage[worst] - of_stage.mean()),
        (
            Evidence("stage_compute_seconds_a_step", float(of_stage[worst]), others, "seconds",
                     f"median of the other {len(where.roles) - 1} stages",
                     log_odds.of_residual(math.log(ratio) / noise)),
            alike,
        ),
    )  # fmt: skip


def _offsets(course: Course, seconds: float, ranks: tuple[int, ...]) -> Iterator[Claim]:
    """Yield one claim about all ranks that are slightly slower than their peers in each quarter of the newest hundred
    steps.

    A rank is excluded if a tenth, or half of its offset, began after the warm-up: it may have a fault.
    """
    if len(course.offsets) < OFFSET_BLOCKS:
        return
    blocks = np.array([block for _, block in course.offsets])
    low, mean = blocks.min(axis=0), blocks.mean(axis=0)
    always = (low >= OFFSET_RATIO / 2) & (mean >= OFFSET_RATIO)
    if course.usual is not None:
        first = np.log(course.usual.compute)
        began = mean - (first - middle_of_peers(first, course.where))
        others = began[~always] if not always.all() else began
        wander = MAD_TO_SIGMA * median(np.abs(others - median(others)))  # changes by chance
        always &= began < np.minimum(FROM_START_SELF, np.maximum(mean / 2, WANDER_SIGMAS * wander))
    found = np.flatnonzero(always)
    if not len(found) or len(found) > len(ranks) // 2:
        return
    compute = np.array(course.compute)
    alike = compute.copy()
    alike[:, found] = row_medians(np.delete(compute, found, axis=1))[:, None]
    without_all = np.minimum(alike, compute).max(axis=1)
    if seconds < LEAST_SLOWDOWN * (seconds - float(np.mean(compute.max(axis=1) - without_all))):
        return  # some rank is always the slowest; the cost is too small to report
    yield _offset_claim(found, compute, without_all, blocks, seconds, ranks, course.offsets[0][0])


def _offset_claim(
    found: IndexArray, compute: FloatArray, without: FloatArray, blocks: FloatArray, seconds: float,
    ranks: tuple[int, ...], first_step: int,
) -> Claim:  # fmt: skip
    """Return one claim about all ranks with a constant offset.

    found: indices of these ranks. compute: [k steps, n]. without: compute time of the slowest rank in each step if
    these ranks were like their peers: [k]. blocks: offset of each rank in each part of the newest steps: [parts, n].
    """
    mean, low = blocks.mean(axis=0), blocks.min(axis=0)
    worst = int(found[mean[found].argmax()])
    cost = float(np.mean(np.maximum(compute[:, found].max(axis=1), without) - without))
    items = [
        Evidence(
            "compute_to_peers", math.exp(float(mean[worst])), 1.0, "ratio",
            f"ranks of its role, over {OFFSET_STEPS} steps",
            log_odds.of_residual(float(mean[worst]) / max(float(blocks[:, worst].std()), 0.005)),
        ),
        Evidence(
            "compute_to_peers_at_least", math.exp(float(low[worst])), 1.0, "ratio",
            f"the same in the lowest of {OFFSET_BLOCKS} parts of these steps: it is a constant offset", 1.5,
        ),
    ]  # fmt: skip
    rest = np.delete(mean, worst)
    slowest = np.maximum(compute[:, found[found != worst]].max(axis=1, initial=0.0), without)
    cost_of_rest = float(np.mean(slowest - without))
    if len(found) > 1 and seconds >= LEAST_SLOWDOWN * (seconds - cost + cost_of_rest):
        items.append(
            Evidence("step_seconds_without_one_rank", seconds - cost + cost_of_rest, seconds, "seconds",
                     f"rank {ranks[worst]} alone slows the job down: its hardware may be slow", log_odds.OFFSET_APART)
        )  # fmt: skip
    elif mean[worst] >= OFFSET_OF_NEXT * max(float(rest.max()), 0.0):
        against = "the next largest offset of a rank: the hardware of this rank may be slow"
        items.append(
            Evidence("offset_to_next", math.exp(float(mean[worst])), math.exp(float(rest.max())), "ratio", against,
                     log_odds.OFFSET_APART)
        )  # fmt: skip
    if len(found) == 1:
        return Claim(
            OFFSET, Kind.WORKLOAD, Cause.STANDING_OFFSET, ranks[worst], (), seconds - cost, tuple(items), first_step
        )
    by_cost = sorted(found.tolist(), key=lambda rank: -float(mean[rank]))
    for rank in by_cost[:LISTED_OFFSETS]:
        alone = float(np.mean(np.maximum(compute[:, rank], without) - without))
        words = f"with rank {ranks[rank]} as it is, and the others of these ranks like their peers; without all of them"
        items.append(Evidence("step_seconds_of_one_rank", seconds - cost + alone, seconds - cost, "seconds", words))
    return Claim(
        OFFSET, Kind.WORKLOAD, Cause.STANDING_OFFSET, -1, tuple(ranks[rank] for rank in found.tolist()),
        seconds - cost, tuple(items), first_step,
    )  # fmt: skip


def _sequences(course: Course, seconds: float) -> Iterator[Claim]:
    """Yield a claim about unequal sequences, if ranks are slow one after the other because they have more work."""
    whole = len(course.compute)
    passes_known, tokens_known = len(course.forward) == whole == len(course.backward), len(course.tokens) == whole
    if whole < WARM_UP_STEPS // 2 or not (passes_known or tokens_known):
        return
    # Use recent steps only, so that a new cause is found soon; fewer if steps are long.
    newest_steps = int(min(max(SEQUENCE_SECONDS / max(seconds, 1e-9), LEAST_SEQUENCE_STEPS), WARM_UP_STEPS))
    compute = np.array([course.compute[row] for row in range(-min(whole, newest_steps), 0)])
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
    if passes_known:
        alike = _correlation(np.array(course.forward)[newest], np.array(course.backward)[newest], course.where)
        if alike < ALIKE:
            return
        evidence.append(Evidence("forward_backward_correlation", alike, ALIKE, "", "published threshold", 2.0))
    else:
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
    yield Claim(
        "sequence", Kind.SEQUENCE_IMBALANCE, Cause.SEQUENCE_LENGTH, -1, (), seconds * (1 - cost), tuple(evidence)
    )


def _rhythms(course: Course, seconds: float) -> Iterator[Claim]:
    """Yield a claim about checkpoints or evaluation, if long steps of the whole job occur at a fixed period."""
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
    """Yield a claim about checkpoints, if every second, third or fourth step is long for all ranks alike."""
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
