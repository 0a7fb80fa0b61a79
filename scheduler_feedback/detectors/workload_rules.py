"""Rules: what a job does to itself, and how each of it is told from bad hardware."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.gangs import FloatArray
from scheduler_feedback.core.telemetry import JobTelemetry
from scheduler_feedback.core.verdict import Cause, Evidence, Kind
from scheduler_feedback.detectors import weighing
from scheduler_feedback.detectors.baseline import WARM_UP_STEPS
from scheduler_feedback.detectors.windows import MAD_TO_SIGMA, Places
from scheduler_feedback.detectors.work import fit
from scheduler_feedback.detectors.workload_course import (
    LEAST_STEPS,
    OFFSET_BLOCKS,
    OFFSET_STEPS,
    RECENT_STEPS,
    Course,
    tops,
)

STAGE_RATIO = 1.10
STAGE_OF_EACH = 1.05
"""A stage is larger where its median rank takes a tenth longer than the other stages, and every one of its ranks takes
longer: five per cent is where slowness begins to matter (EROICA, Guard); trial ST of ByteDance's traces has 1.6."""

STAGE = "stage"
LEAST_SLOWDOWN = 1.05

OFFSET_RATIO = math.log(1.04)
"""Ranks of public traces wander by four per cent for minutes (PAI job 1); what stands above that in each of four
quarters of a hundred steps is no chance."""

UNLIKE = 0.04
SEQUENCE_COST = 0.05
ALIKE = 0.9
"""Forward and backward times that rise and fall together on one rank mean more work, not a slower machine (ByteDance,
OSDI'25: a correlation of 0.9)."""

ROTATING_SHARE = 0.5
"""In a healthy long-context job no rank was the slow one in more than 37 % of the steps; a culprit is in all."""

EXPLAINED = 0.5
SPIKES = 3
RHYTHM_STEPS = 5
BEATS = 6
BEAT_RATIO = 1.1
"""Steps that are long in a rhythm of two to four: each long one of six beats a tenth above every other step between.
Chance does that once in 18,564 for a rhythm of three, the tenth left aside."""

GROWN = 1.10
GROWN_STEPS = 16
PAUSE = 0.05
PAUSE_SIGMAS = 5.0
PAUSE_SPREADS = 2.0
PAUSE_RANKS = 4
PAUSE_NODE_SHARE = 0.75
AS_EVER = 1.5
"""Pauses that go round: the slowest rank of a step is five per cent further off than it used to be, by five standard
errors and by twice the usual spread of the ranks, which is wide where sequences are unequal; half of the ranks are
spread as ever (within a half); and at least four ranks were the slowest in sixteen steps,
none in more than half of them, no node in more than three quarters."""

SHARE_OF_WORK = 0.6
"""Of what the steps grew by, at least this share must be the ranks' own work for the work to have grown."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a rule says: about which rank (-1: the job), what the steps would be without, and why."""

    key: str
    kind: Kind
    cause: Cause
    rank: int
    ranks: tuple[int, ...]
    without_seconds: float
    evidence: tuple[Evidence, ...]
    first_step: int | None = None


def claims(course: Course, job: JobTelemetry, crowded: bool) -> Iterator[Claim]:
    """What the rules say. crowded: whether other jobs stand on its hosts, which may slow a whole stage."""
    if len(course.compute) < LEAST_STEPS:
        return
    compute = np.array(course.compute)
    seconds = float(np.mean(course.seconds))
    ranks = tuple(course.shape.ranks.tolist())
    young = course.taken <= RECENT_STEPS or f"{STAGE}-" in " ".join(course.standing)
    if young or not crowded:
        yield from _stages(course, compute, seconds, ranks)
    yield from _sequences(course, compute, seconds)
    yield from _rhythms(course, seconds)
    yield from _beats(course, compute, seconds)
    if not crowded:
        yield from _pauses(course, compute)
    shared = job.shared_machine is not None and bool(job.shared_machine.any())
    if not shared:  # other load on a shared machine looks alike
        yield from _offsets(course, compute, seconds, ranks)
        yield from _grown(course, compute)


def _stages(course: Course, compute: FloatArray, seconds: float, ranks: tuple[int, ...]) -> Iterator[Claim]:
    """A stage all of whose ranks compute longer than those of the other stages."""
    where = course.where
    if not where.layout_known or len(where.roles) < 2:
        return
    by_rank = np.median(compute, axis=0)
    of_stage = np.array([np.median(by_rank[members]) for members in where.roles])
    worst = int(of_stage.argmax())
    others = float(np.median(np.delete(of_stage, worst)))
    members = where.roles[worst]
    if of_stage[worst] < STAGE_RATIO * others or (by_rank[members] < STAGE_OF_EACH * others).any():
        return
    ratio = float(of_stage[worst] / others)
    stages = course.shape.coordinate("stage")
    noise = float(np.std(np.log(compute[:, members]).mean(axis=1))) / math.sqrt(len(compute)) + 0.005
    yield Claim(
        f"{STAGE}-{int(stages[members[0]])}", Kind.STAGE_IMBALANCE, Cause.STAGE_PARTITION, -1,
        tuple(ranks[m] for m in members), seconds - float(of_stage[worst] - of_stage.mean()),
        (
            Evidence("stage_compute_seconds_a_step", float(of_stage[worst]), others, "seconds",
                     f"median of the other {len(where.roles) - 1} stages",
                     weighing.of_residual(math.log(ratio) / noise)),
            Evidence("slowest_to_fastest_of_the_stage",
                     float(by_rank[members].max() / by_rank[members].min()), ratio, "ratio",
                     "the stage against the others: its ranks are alike, so it is the stage and no rank", 2.0),
        ),
    )  # fmt: skip


def _offsets(course: Course, compute: FloatArray, seconds: float, ranks: tuple[int, ...]) -> Iterator[Claim]:
    """Ranks that stand somewhat above their peers in every quarter of the newest hundred steps."""
    if len(course.offsets) < OFFSET_BLOCKS:
        return
    blocks = np.array([block for _, block in course.offsets])
    low, mean = blocks.min(axis=0), blocks.mean(axis=0)
    with np.errstate(invalid="ignore"):
        found = np.flatnonzero((low >= OFFSET_RATIO / 2) & (mean >= OFFSET_RATIO))
    if not len(found) or len(found) > len(ranks) // 2:
        return
    alike = compute.copy()
    alike[:, found] = np.median(np.delete(compute, found, axis=1), axis=1)[:, None]
    without = seconds - float(np.mean(compute.max(axis=1) - np.minimum(alike, compute).max(axis=1)))
    if seconds < LEAST_SLOWDOWN * without:
        return  # some rank is always the slowest; it costs nothing worth telling
    for rank in found.tolist():
        offset, lowest = float(mean[rank]), float(low[rank])
        residual = weighing.of_residual(offset / max(float(blocks[:, rank].std()), 0.005))
        evidence = (
            Evidence(
                "compute_to_peers", math.exp(offset), 1.0, "ratio", f"its role, over {OFFSET_STEPS} steps", residual
            ),
            Evidence(
                "compute_to_peers_at_least",
                math.exp(lowest),
                1.0,
                "ratio",
                f"the same in the lowest of {OFFSET_BLOCKS} parts of them: it stands, it did not begin",
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
    """Ranks that take turns in being slow, with more work as the reason."""
    if len(compute) < WARM_UP_STEPS // 2:
        return
    whole, compute = len(compute), compute[-WARM_UP_STEPS:]  # one that has just begun must not wait for old steps
    apart = _within_roles(np.log(compute), course.where)
    own = apart - np.median(apart, axis=0, keepdims=True)
    unlike = float(MAD_TO_SIGMA * np.median(np.abs(own)))
    cost = float(np.mean(compute.max(axis=1) - compute.mean(axis=1))) / seconds
    high = float((apart > math.log(1.1)).mean(axis=0).max())
    if unlike < UNLIKE or cost < SEQUENCE_COST or high > ROTATING_SHARE:
        return
    evidence = [
        Evidence(
            "unlike", unlike, UNLIKE, "log seconds", "spread of ranks about their own usual place, each step", 0.5
        ),
        Evidence(
            "slow_steps_of_the_slowest_rank", high, ROTATING_SHARE, "ratio", "a rank at fault is slow in all", 1.0
        ),
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
        if explained < EXPLAINED:
            return
        against = "variance explained by reported tokens and squared lengths"
        evidence.append(Evidence("explained_by_tokens", explained, EXPLAINED, "ratio", against, 2.0))
    else:
        return
    yield Claim(
        "sequence", Kind.SEQUENCE_IMBALANCE, Cause.SEQUENCE_LENGTH, -1, (), seconds * (1 - cost), tuple(evidence)
    )


def _rhythms(course: Course, seconds: float) -> Iterator[Claim]:
    """Long steps of the whole job that come every so many steps: it saves or evaluates."""
    if len(course.spikes) < SPIKES:
        return
    begun, runs = [course.spikes[0][0]], [1]
    for (before, _, _), (now, _, _) in zip(list(course.spikes), list(course.spikes)[1:], strict=False):
        if now == before + 1:
            runs[-1] += 1
        else:
            begun.append(now)
            runs.append(1)
    if len(begun) < SPIKES:
        return
    apart = np.diff(begun[-SPIKES - 1 :])
    rhythm = int(np.gcd.reduce(apart))
    if rhythm < RHYTHM_STEPS or apart.max() > 2 * rhythm or course.taken - course.spikes[-1][0] > 2 * rhythm:
        return
    evaluates = min(runs[-SPIKES:]) > 1
    lost = sum(spike[2] for spike in course.spikes) / max(begun[-1] - begun[0] + rhythm, 1)
    yield Claim(
        "rhythm", Kind.WORKLOAD, Cause.EVALUATION if evaluates else Cause.CHECKPOINT, -1, (), seconds - lost,
        (
            Evidence("rhythm", float(rhythm), float(len(begun)), "steps",
                     "times that the whole job was slow for a moment, exactly so many steps apart", 3.0),
            Evidence("seconds_each", float(np.mean([spike[2] for spike in course.spikes])), seconds, "seconds",
                     "a usual step", 0.5),
        ),
    )  # fmt: skip


def _beats(course: Course, compute: FloatArray, seconds: float) -> Iterator[Claim]:
    """Every second, third or fourth step is long, for all ranks alike: the job saves after so many."""
    middle = np.median(compute, axis=1)
    numbers = np.array(course.numbers)
    for apart in range(2, RHYTHM_STEPS):
        count = BEATS * apart
        if len(middle) < count or (np.diff(numbers[-count:]) != 1).any():
            return
        phases = middle[-count:].reshape(BEATS, apart)
        high = int(np.median(phases, axis=0).argmax())
        long, others = phases[:, high], np.delete(phases, high, axis=1)
        if long.min() < BEAT_RATIO * others.max():
            continue
        lost = float(long.mean() - others.mean()) / apart
        yield Claim(
            "beat", Kind.WORKLOAD, Cause.CHECKPOINT, -1, (), seconds - lost,
            (
                Evidence("rhythm", float(apart), float(BEATS), "steps",
                         "each of so many long steps is longer than all between, for every rank alike", 3.0),
                Evidence("long_to_other_steps", float(long.mean() / others.mean()), BEAT_RATIO, "ratio",
                         "own time of the middle rank", 0.5),
            ),
        )  # fmt: skip
        return


def _pauses(course: Course, compute: FloatArray) -> Iterator[Claim]:
    """Now one rank stops for a moment, now another, and each time all wait for it: nobody's hardware."""
    usual = course.usual
    if usual is None or course.taken < WARM_UP_STEPS + GROWN_STEPS:
        return
    ratio = compute[-GROWN_STEPS:] / usual.compute
    slowest_above, unlike = tops(ratio)
    excess = float(np.median(slowest_above)) - usual.top
    noise = float(slowest_above.std()) / math.sqrt(len(slowest_above))
    now = float(np.median(list(course.seconds)[-GROWN_STEPS:]))
    if excess < max(PAUSE, PAUSE_SIGMAS * noise, PAUSE_SPREADS * usual.unlike) or now < LEAST_SLOWDOWN * usual.seconds:
        return
    slowest = ratio.argmax(axis=1)
    often = float(np.bincount(slowest).max()) / len(slowest)
    on_node = float(np.bincount(course.where.index[slowest]).max()) / len(slowest)
    alike = unlike <= AS_EVER * max(usual.unlike, 0.01) and abs(float(np.median(ratio)) - 1.0) < excess / 2
    if not alike or often > ROTATING_SHARE or len(set(slowest.tolist())) < PAUSE_RANKS:
        return
    if len(course.where.names) < 2 or on_node > PAUSE_NODE_SHARE:
        return
    yield Claim(
        "pauses", Kind.WORKLOAD, Cause.PAUSES, -1, (), usual.seconds,
        (
            Evidence("slowest_above_the_middle", float(np.median(slowest_above)), usual.top, "ratio",
                     "of its own usual time, in each step; when the job was new", weighing.of_residual(excess / noise)),
            Evidence("slow_steps_of_the_slowest_rank", often, ROTATING_SHARE, "ratio", "a rank at fault is slow in all",
                     1.5),
            Evidence("spread_of_the_others", unlike, usual.unlike, "ratio", "as ever: the work has not changed", 0.5),
        ),
    )  # fmt: skip


def _grown(course: Course, compute: FloatArray) -> Iterator[Claim]:
    """Every rank's own work takes longer than when the job was new, by about the same factor."""
    if course.usual is None or course.taken < WARM_UP_STEPS + GROWN_STEPS:
        return
    usual_seconds, usual_compute, usual_tokens = course.usual.seconds, course.usual.compute, course.usual.tokens
    newest = list(course.seconds)[-GROWN_STEPS:]
    now = float(np.median(newest))
    if now < GROWN * usual_seconds:
        return
    present = np.median(compute[-GROWN_STEPS:], axis=0)
    shift = np.log(present / usual_compute)
    middle = float(np.median(shift))
    if middle <= 0 or float(np.median(present - usual_compute)) < SHARE_OF_WORK * (now - usual_seconds):
        return
    spread_of_shift = float(MAD_TO_SIGMA * np.median(np.abs(shift - middle)))
    if float(shift.max()) > 2 * middle or spread_of_shift > middle / 2:
        return
    evidence = [
        Evidence("compute_to_usual", math.exp(middle), 1.0, "ratio", "each rank's own when the job was new, the median",
                 2.0),
        Evidence("spread_of_compute_to_usual", spread_of_shift, middle / 2, "log seconds",
                 "half of the shift: all ranks alike", 1.5),
    ]  # fmt: skip
    cause = Cause.WHOLE_JOB
    if len(course.tokens) >= GROWN_STEPS and np.isfinite(usual_tokens).all() and (usual_tokens > 0).all():
        more = float(np.median(np.mean(list(course.tokens)[-GROWN_STEPS:], axis=0) / usual_tokens))
        if math.log(max(more, 1e-9)) > middle / 2:
            cause = Cause.SEQUENCE_LENGTH
            evidence.append(Evidence("tokens_to_usual", more, 1.0, "ratio", "when the job was new", 1.0))
    yield Claim("grown", Kind.WORKLOAD, cause, -1, (), usual_seconds, tuple(evidence))


def _within_roles(logs: FloatArray, where: Places) -> FloatArray:
    result = np.empty_like(logs)
    for members in where.roles:
        result[:, members] = logs[:, members] - np.median(logs[:, members], axis=1, keepdims=True)
    return result


def _correlation(forward: FloatArray, backward: FloatArray, where: Places) -> float:
    parts = []
    for values in (forward, backward):
        apart = _within_roles(np.log(np.maximum(values, 1e-12)), where)
        parts.append((apart - apart.mean(axis=0, keepdims=True)).ravel())
    both = float(parts[0].std() * parts[1].std())
    return float(np.mean(parts[0] * parts[1])) / both if both > 0 else 0.0
