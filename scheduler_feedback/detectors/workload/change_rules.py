"""Rules for changes since a job was new: all ranks or one stage have more work, wait for input, or pause in turn.

The newest steps are compared with the usual ones. Their number depends on their length: short steps are noisy and many
are used; of long steps, four must suffice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scheduler_feedback.core.telemetry.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, IndexArray, JobTelemetry
from scheduler_feedback.core.verdict import Cause, Evidence, Kind
from scheduler_feedback.detectors.counters.counter_statistics import CounterStatistics
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.stats.medians import column_medians, median, row_medians
from scheduler_feedback.detectors.stats.spread import MAD_TO_SIGMA
from scheduler_feedback.detectors.steps.baseline import WARM_UP_STEPS
from scheduler_feedback.detectors.steps.expected_work import fit
from scheduler_feedback.detectors.straggler.alarm_case import HIT_SIGMAS
from scheduler_feedback.detectors.workload.attempt_history import Course, Usual, busy_seconds, tops, unequal_work
from scheduler_feedback.detectors.workload.slow_stage import LEAST_WAITING, slow_node
from scheduler_feedback.detectors.workload.workload_claim import LEAST_SLOWDOWN, STAGE, Claim

LEAST_RECENT, MOST_RECENT = 4, 16
"""Minimum and maximum number of the newest steps that are evaluated."""

RECENT_SECONDS = 12.0
"""Duration of the newest steps that are evaluated, within these limits of their number."""

SHIFT_SIGMAS = 5.0
LONG_SHARE = 0.75
"""A shift requires three quarters of the newest steps beyond five standard deviations of the usual variation. Chance
does not produce this during a job, however heavy the tails."""

SHARE_OF_WORK = 0.6
"""Minimum share of the increase in step time that must be compute time for a cause within the job."""

PATIENCE_STEPS = 5
"""Number of steps to wait for counters before the first stage is reported as waiting for input without them."""

APART = 3.0
"""Only one stage has grown if all others have grown by less than a third of it."""

LEAST_OF_STAGE = 4
IDLE_SHARE, WORK_SHARE = 1 / 3, 2 / 3
"""Limits for the idle share: the part of the increase in compute time in which tensor pipes were not busier. Above two
thirds the ranks were kept from working. Below one third they have more work. Between the two there is no claim."""

UNEQUAL_SIGMAS = 4.0
SHARE_OF_LENGTHS = 1 / 3
"""Minimum share of the increase in step time that unequal sequence lengths explain: a third. In a pipeline of p stages,
a third of 1/p: the stages work on p microbatches at a time and wait for the longest, which a sum over a rank's
microbatches does not show."""

LENGTHS_EXPLAIN = 0.8
"""Lengths have become unequal if the reported work explains four fifths of the variance of each rank's compute time."""

PAUSE = 0.05
PAUSE_STEPS = 6
PAUSE_SIGMAS = 3.0
PAUSE_RANKS = 4
PAUSE_NODE_SHARE = 0.75
ROTATING_SHARE = 0.5
AS_EVER = 1.5
"""Rotating pauses: in three quarters of the newest six or more steps the slowest rank's excess is above its usual one
by five per cent and three standard deviations. The spread of half of the ranks is unchanged (within a half). At least
four ranks were the slowest, none in more than half of the steps, and no node in more than three quarters."""


@dataclass(frozen=True, slots=True)
class Recent:
    """Newest steps of a job."""

    seconds: float
    """Median step time of the newest steps."""
    normal: FloatArray
    """Compute time normalised by work: [k, n]."""
    compute: FloatArray
    shift: FloatArray
    """Log of the median of `normal` over its usual value: [n]."""


def claims(course: Course, job: JobTelemetry, crowded: bool, counters: CounterStatistics) -> Iterator[Claim]:
    """Yield the claims of all rules.

    crowded: whether other jobs use its hosts; a slowdown of all ranks on a host may then be caused by them.
    """
    usual = course.usual
    if usual is None or crowded:
        return
    if job.shared_machine is not None and bool(job.shared_machine.any()):
        return  # other load on a shared machine looks the same
    count = int(np.clip(math.ceil(RECENT_SECONDS / usual.seconds), LEAST_RECENT, MOST_RECENT))
    if course.taken < WARM_UP_STEPS + count:
        return
    seconds = median(np.array(list(course.seconds)[-count:]))
    if seconds >= LEAST_SLOWDOWN * usual.seconds:
        normal = np.array(list(course.normal)[-count:])
        compute = np.array(list(course.compute)[-count:])
        recent = Recent(seconds, normal, compute, np.log(column_medians(normal) / usual.normal))
        node = _slow_node(course, usual, recent)
        if node is not None:
            yield node
            return
        idle = _idle(course, usual, recent)
        yield from _grown(course, usual, recent, idle)
        yield from _stage_grown(course, usual, recent, idle, _pressed(course, job, counters))
        yield from _lengths_grown(course, usual, recent)
    yield from _pauses(course, usual, max(count, PAUSE_STEPS))


def _slow_node(course: Course, usual: Usual, recent: Recent) -> Claim | None:
    """Claim the node of a stage, if the node is what became slow."""
    if course.pressure is None or not course.since_ns or not course.where.layout_known:
        return None
    ranks, stages = tuple(course.shape.ranks.tolist()), course.shape.coordinate("stage")
    first = np.asarray(stages == stages.min())
    claim = slow_node(
        course.where, ranks, first, recent.shift, usual.sway, course.pressure, course.since_ns, usual.seconds
    )
    if claim is None:
        return None
    members = np.flatnonzero(np.isin(course.shape.ranks, claim.ranks))
    return claim if _shifted(usual, recent.normal, members) else None


def _shifted(usual: Usual, normal: FloatArray, members: IndexArray | slice) -> bool:
    """Return whether the median of these ranks is longer than usual, in most of the steps and beyond chance."""
    middle = row_medians(np.log(normal[:, members] / usual.normal[members]))
    least = max(SHIFT_SIGMAS * usual.sway, math.log(LEAST_SLOWDOWN) / 2)
    return float((middle >= least).mean()) >= LONG_SHARE


def _idle(course: Course, usual: Usual, recent: Recent) -> FloatArray:
    """Return the share of the increase in compute time in which tensor pipes were not busier: [roles].

    NaN if counters are missing or not exact enough.
    """
    busy = busy_seconds(course, course.since_ns, recent.seconds) if course.since_ns else np.nan * usual.busy
    shift = np.array([median(recent.shift[members]) for members in course.where.roles])
    with np.errstate(invalid="ignore", divide="ignore"):
        grown = np.expm1(np.maximum(shift, 1e-3))
        found: FloatArray = 1.0 - (busy[0] / usual.busy[0] - 1.0) / grown
        noise = np.hypot(busy[1], usual.busy[1]) / grown
    return np.where(noise < (WORK_SHARE - IDLE_SHARE) / 2, found, np.nan)


def _pressed(course: Course, job: JobTelemetry, counters: CounterStatistics) -> list[bool]:
    """Return whether hosts of each role wait for CPUs or disks more than other hosts of the job: [roles]."""
    if job.shape.job not in counters.columns:
        return [False] * len(course.where.roles)
    columns = counters.of(job.shape.job)
    rows = [FEATURE[name] for name in ("cpu_waiting", "io_waiting")]
    sigmas = np.nan_to_num(counters.newest_sigmas(rows, columns))
    return [bool((np.median(sigmas[:, members], axis=1) >= HIT_SIGMAS).any()) for members in course.where.roles]


def _grown(course: Course, usual: Usual, recent: Recent, idle: FloatArray) -> Iterator[Claim]:
    """Claim that all ranks compute longer than when the job was new, by about the same factor."""
    shift = recent.shift
    middle = median(shift)
    if middle <= 0 or middle < SHARE_OF_WORK * math.log(recent.seconds / usual.seconds):
        return
    if not _shifted(usual, recent.normal, slice(None)):
        return
    spread_of_shift = float(MAD_TO_SIGMA * median(np.abs(shift - middle)))
    if float(shift.max()) > 2 * middle or spread_of_shift > middle / 2:
        return
    evidence = [
        Evidence("compute_to_usual", math.exp(middle), 1.0, "ratio", "usual compute time of each rank, median",
                 log_odds.of_residual(middle / usual.sway)),
        Evidence("spread_of_compute_to_usual", spread_of_shift, middle / 2, "log seconds",
                 "half of the shift; all ranks are alike", 1.5),
    ]  # fmt: skip
    cause, kept = Cause.WHOLE_JOB, float(np.median(idle))
    if _hosts_may_be_busier(course, usual):
        return
    if kept > WORK_SHARE:
        cause = Cause.DATA_LOADING
        evidence.append(_kept_waiting(kept))
    elif len(course.tokens) >= len(recent.normal) and np.isfinite(usual.tokens).all() and (usual.tokens > 0).all():
        given = float(np.median(np.mean(list(course.tokens)[-len(recent.normal) :], axis=0) / usual.tokens))
        if math.log(max(given, 1e-9)) > middle / 2:
            cause = Cause.SEQUENCE_LENGTH
            evidence.append(Evidence("tokens_to_usual", given, 1.0, "ratio", "usual tokens", 1.0))
    yield Claim("grown", Kind.WORKLOAD, cause, -1, (), usual.seconds, tuple(evidence))


def _hosts_may_be_busier(course: Course, usual: Usual) -> bool:
    """Return whether tasks wait longer than usual on half of the job's hosts, or no counters have arrived since.

    False with tensor pipe counters, which separate more work from busier hosts: both slow all ranks of a host alike.
    """
    waits = course.waits
    if waits is None or waits.usual is None or np.isfinite(usual.busy[0]).any():
        return False
    more = waits.more(course.since_ns) if course.since_ns else None
    return more is None or float(np.median(more.max(axis=0))) >= LEAST_WAITING


def _kept_waiting(idle: float) -> Evidence:
    return Evidence("not_busier_share", idle, WORK_SHARE, "ratio",
                    "least share of its growth without tensor activity", 2.0)  # fmt: skip


def _stage_grown(
    course: Course, usual: Usual, recent: Recent, idle: FloatArray, pressed: list[bool]
) -> Iterator[Claim]:
    """Claim a stage whose ranks all take longer than when the job was new, while the others do not: more work, or no
    input."""
    where = course.where
    if not where.layout_known or len(where.roles) < 2:
        return
    shifts = np.array([median(recent.shift[members]) for members in where.roles])
    worst = int(shifts.argmax())
    members, shift = where.roles[worst], float(shifts[worst])
    others = float(np.abs(np.delete(shifts, worst)).max())
    if len(members) < LEAST_OF_STAGE or shift < APART * others or pressed[worst]:
        return
    if not _shifted(usual, recent.normal, members) or float(recent.shift[members].min()) < shift / 2:
        return
    nodes = np.isin(np.arange(len(where.names)), where.index[members])
    if course.pressure is not None and course.pressure.open(course.since_ns, nodes):
        return
    stage = int(course.shape.coordinate("stage")[members[0]])
    first = stage == int(course.shape.coordinate("stage").min())
    kept = float(idle[worst])
    on_nodes = len(set(where.index[members].tolist()))
    if np.isnan(kept) and np.isfinite(usual.busy[0]).any():
        lasts = (course.last_ns - course.since_ns) * 1e-9 if course.since_ns else 0.0
        if (first and lasts < PATIENCE_STEPS * usual.seconds) or (on_nodes == 1 and not first):
            return  # the next counters separate missing input from a slow node
    evidence = (
        Evidence("compute_to_usual", math.exp(shift), math.exp(others), "ratio",
                 "growth since warm-up; the next slowest stage has this", log_odds.of_residual(shift / usual.sway)),
        Evidence("least_of_the_stage", math.exp(float(recent.shift[members].min())), 1.0, "ratio",
                 "usual; all ranks of the stage take longer", 1.5),
    )  # fmt: skip
    ranks = tuple(course.shape.ranks[members].tolist())
    if first and (kept > WORK_SHARE or np.isnan(kept)):
        # The work of the first stage seldom changes; its input does often.
        facts = evidence if np.isnan(kept) else (*evidence, _kept_waiting(kept))
        yield Claim("loading", Kind.WORKLOAD, Cause.DATA_LOADING, -1, ranks, usual.seconds, facts)
    elif not kept > IDLE_SHARE:
        yield Claim(f"{STAGE}-grown-{stage}", Kind.STAGE_IMBALANCE, Cause.STAGE_PARTITION, -1, ranks, usual.seconds,
                    evidence)  # fmt: skip


def _lengths_grown(course: Course, usual: Usual, recent: Recent) -> Iterator[Claim]:
    """Claim that the work of the ranks has become more unequal: the excess of the largest work explains the loss."""
    if len(course.tokens) < len(recent.compute):
        return
    given = recent.compute / recent.normal if course.work is not None else _newly_given(course, recent)
    if given is None:
        return
    normal = median(np.abs(np.log(column_medians(recent.compute / given) / usual.normal)))
    top = float(unequal_work(given).mean())  # expected compute time for this work, over usual
    lost = (recent.seconds - usual.seconds) / float(np.median(usual.compute))
    grown = top - usual.unequal
    noise = usual.unequal_spread / math.sqrt(len(recent.normal))
    share = SHARE_OF_LENGTHS / (len(course.where.roles) if course.where.layout_known else 1)
    if grown < max(share * lost, UNEQUAL_SIGMAS * noise) or normal > math.log1p(lost) / 2:
        return
    yield Claim(
        "sequence-grown", Kind.SEQUENCE_IMBALANCE, Cause.SEQUENCE_LENGTH, -1, (), usual.seconds,
        (
            Evidence("slowest_work_over_mean_work", top, usual.unequal, "ratio",
                     "usual, by the reported tokens", 3.0),
            Evidence("own_time_for_the_same_work", math.exp(normal), 1.0, "ratio",
                     "usual; ranks are not slower for the same work", 2.0),
        ),
    )  # fmt: skip


def _newly_given(course: Course, recent: Recent) -> FloatArray | None:
    """Return the expected work over its usual value, [k, n], for a job whose lengths explained nothing when it was new.

    None if they still explain nothing.
    """
    count = len(recent.compute)
    tokens = np.array(list(course.tokens)[-count:])
    squares = np.array(list(course.squares)[-count:]) if len(course.squares) >= count else np.full_like(tokens, np.nan)
    work = fit(recent.compute, tokens, squares)
    if work is None:
        return None
    given = work.factor(tokens, squares)
    own, left = np.log(recent.compute), np.log(recent.compute / given)
    varies = float(np.var(own - own.mean(axis=0)))
    if varies <= 0 or float(np.var(left - left.mean(axis=0))) > (1.0 - LENGTHS_EXPLAIN) * varies:
        return None
    return given


def _pauses(course: Course, usual: Usual, count: int) -> Iterator[Claim]:
    """Claim rotating pauses: ranks stop for a moment, one after the other, and all others wait each time."""
    if course.taken < WARM_UP_STEPS + count or len(course.where.names) < 2:
        return
    now = median(np.array(list(course.seconds)[-count:]))
    if now < LEAST_SLOWDOWN * usual.seconds:
        return
    normal = np.array(list(course.normal)[-count:])
    ratio = normal / column_medians(normal)  # relative to the step's median: the load of experts drifts
    above, unlike = tops(ratio)
    least = usual.top + max(PAUSE, PAUSE_SIGMAS * usual.tops_spread)
    if float((above > least).mean()) < LONG_SHARE:
        return
    slowest = ratio.argmax(axis=1)
    often = float(np.bincount(slowest).max()) / count
    on_node = float(np.bincount(course.where.index[slowest]).max()) / count
    of_role = float(np.bincount(course.where.role[slowest]).max()) / count
    excess = float(np.median(above)) - usual.top
    if len(course.where.roles) > 1 and of_role > PAUSE_NODE_SHARE:
        return  # a slow stage
    grown = abs(float(np.median(normal / usual.normal)) - 1.0)
    alike = unlike <= AS_EVER * max(usual.unlike, 0.01) and grown < excess / 2
    who_paused = set(slowest[above > least].tolist())
    if not alike or often > ROTATING_SHARE or len(who_paused) < PAUSE_RANKS or on_node > PAUSE_NODE_SHARE:
        return
    noise = max(usual.tops_spread, 0.01)
    yield Claim(
        "pauses", Kind.WORKLOAD, Cause.PAUSES, -1, (), usual.seconds,
        (
            Evidence("slowest_above_the_middle", float(np.median(above)), usual.top, "ratio",
                     "usual excess of the slowest rank in a step", log_odds.of_residual(excess / noise)),
            Evidence("slow_steps_of_the_slowest_rank", often, ROTATING_SHARE, "ratio", "a faulty rank is slow in all",
                     1.5),
            Evidence("spread_of_the_others", unlike, usual.unlike, "ratio", "usual; the work has not changed", 0.5),
        ),
    )  # fmt: skip
