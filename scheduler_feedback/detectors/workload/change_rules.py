"""Rules for changes since a job was new: all ranks or one stage have more work, wait for input, or pause in turn.

The newest steps are compared with the usual ones. Short steps are noisy, so that many of them are used; of long steps,
four must suffice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, IndexArray, JobTelemetry
from scheduler_feedback.core.verdict import Cause, Evidence, Kind
from scheduler_feedback.detectors.counters.counter_statistics import CounterStatistics
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.stats.medians import column_medians, median, row_medians
from scheduler_feedback.detectors.stats.spread import MAD_TO_SIGMA
from scheduler_feedback.detectors.steps.baseline import WARM_UP_STEPS
from scheduler_feedback.detectors.steps.expected_work import fit
from scheduler_feedback.detectors.straggler.alarm_case import HIT_SIGMAS
from scheduler_feedback.detectors.straggler.popular_experts import has_experts
from scheduler_feedback.detectors.straggler.rotating_slowness import LEAST_SHARE, NODE_WINDOWS
from scheduler_feedback.detectors.workload.attempt_history import Course, Usual, busy_seconds, tops, unequal_work
from scheduler_feedback.detectors.workload.slow_stage import LEAST_WAITING, NODE, slow_node
from scheduler_feedback.detectors.workload.throttled_group import throttled_group
from scheduler_feedback.detectors.workload.workload_claim import LEAST_SLOWDOWN, STAGE, Claim

LEAST_RECENT, MOST_RECENT = 4, 16
"""A change is evaluated over at least LEAST_RECENT and at most MOST_RECENT of the newest steps."""

RECENT_SECONDS = 12.0
"""Total duration, in seconds, of the newest steps that are evaluated. LEAST_RECENT and MOST_RECENT limit their
number."""

SHIFT_SIGMAS = 5.0
"""Compute time has changed only if it grew by at least this many standard deviations of its usual variation from step
to step."""

LONG_SHARE = 0.75
"""Compute time has changed only if it was longer than usual in at least this share of the newest steps."""

SHARE_OF_WORK = 0.6
"""A change is the job's own only if compute time makes up at least this share of the increase in step time. With less,
the cause is not within the job."""

MOST_UNCHANGED = 0.1
"""The whole job has changed only if at most this share of its ranks grew by less than half as much as the median rank.
With more, for example where the ranks of all nodes but one grew, the cause is not shared by all ranks."""

PATIENCE_STEPS = 5
"""Number of steps for which to wait for counters. Then a slow first stage is reported as waiting for input without
them."""

ALIKE_STAGES = 0.7
"""The stages of a node have become slower by about the same factor if the least growth is at least this share of the
largest."""

APART = 3.0
"""Only one stage has changed if its compute time grew at least this many times as much as that of any other stage."""

THROTTLED = 0.2
"""The GPUs of a stage are held back if their clocks are throttled for this share of the time more than those of the
median stage. A rack under a power cap may hold one stage."""

LEAST_OF_STAGE = 4
"""A change of a single stage is reported only if the stage has at least this many ranks."""

IDLE_SHARE, WORK_SHARE = 1 / 3, 2 / 3
"""Limits for the idle share: the part of the increase in compute time in which tensor pipes were not busier. Above
WORK_SHARE the ranks waited for input. Below IDLE_SHARE they have more work. Between the two nothing is reported."""

UNEQUAL_SIGMAS = 4.0
"""Sequence lengths have become more unequal if their inequality grew by at least this many standard deviations of its
usual variation from step to step."""

SHARE_OF_LENGTHS = 1 / 3
"""Unequal sequence lengths are the cause only if they explain at least this share of the increase in step time. It is
divided by the number of pipeline stages, because a stage waits for the longest microbatch, which the sum of a rank's
microbatches does not show."""

LENGTHS_EXPLAIN = 0.8
"""If the reported tokens explained little of a rank's compute time when the job was new, they are used only if they now
explain at least this share of its variance."""

PAUSE = 0.05
"""Ranks pause in turn (rotating pauses) only if the slowest rank of a step now takes at least this much longer than the
median rank, compared with the usual excess: 0.05 is five per cent."""

PAUSE_STEPS = 6
"""Rotating pauses are detected only if at least this many of the newest steps are available."""

PAUSE_SIGMAS = 3.0
"""Rotating pauses are detected only if the excess of the slowest rank over the median rank grew by at least this many
standard deviations."""

PAUSE_RANKS = 4
"""Rotating pauses are detected only if at least this many different ranks have paused."""

PAUSE_NODE_SHARE = 0.75
"""Rotating pauses are detected only if the slowest rank is on one and the same node in at most this share of the
steps."""

ROTATING_SHARE = 0.5
"""Rotating pauses are detected only if one and the same rank is the slowest in at most this share of the steps. A
faulty rank is the slowest in all."""

AS_EVER = 1.5
"""Rotating pauses are detected only if the ranks' spread is at most this many times their usual spread. A larger spread
has another cause."""


@dataclass(frozen=True, slots=True)
class Recent:
    """Newest steps of a job: k steps of n ranks."""

    seconds: float
    """Median duration of the newest steps, in seconds."""
    normal: FloatArray
    """Compute seconds of each rank with the effect of sequence lengths removed: [k steps, n]."""
    compute: FloatArray
    shift: FloatArray
    """Increase of each rank's compute time over its usual value, in log seconds: [n]."""


def claims(course: Course, job: JobTelemetry, crowded: bool, counters: CounterStatistics) -> Iterator[Claim]:
    """Yield the claims of all rules for changes since the job was new.

    crowded: whether other jobs use the job's hosts. They may then cause a slowdown of all ranks on a host, and nothing
    is claimed.
    """
    usual = course.usual
    if usual is None or crowded:
        return
    if job.shared_machine is not None and bool(job.shared_machine.any()):
        return  # other load on a shared machine looks the same
    count = min(max(math.ceil(RECENT_SECONDS / usual.seconds), LEAST_RECENT), MOST_RECENT)
    if course.taken < WARM_UP_STEPS + count:
        return
    seconds = median(np.array(list(course.seconds)[-count:]))
    if seconds >= LEAST_SLOWDOWN * usual.seconds:
        normal = np.array(list(course.normal)[-count:])
        compute = np.array(list(course.compute)[-count:])
        recent = Recent(seconds, normal, compute, np.log(column_medians(normal) / usual.normal))
        slow = (
            _throttled_group(course, job, usual, recent, counters)
            or _slow_node(course, usual, recent)
            or _slow_stages_of_node(course, usual)
        )
        if slow is not None:
            yield slow
            return
        idle = _idle(course, usual, recent)
        yield from _grown(course, usual, recent, idle)
        yield from _stage_grown(course, usual, recent, idle, lambda: _pressed(course, job, counters))
        yield from _lengths_grown(course, usual, recent)
    yield from _pauses(course, usual, max(count, PAUSE_STEPS))


def _throttled_group(
    course: Course, job: JobTelemetry, usual: Usual, recent: Recent, counters: CounterStatistics
) -> Claim | None:
    """Return a claim that ranks on several nodes are held back together, if their clocks are throttled; else None."""
    if job.shape.job not in counters.columns:
        return None
    newest = counters.newest[:, counters.of(job.shape.job)]
    least = max(SHIFT_SIGMAS * usual.sway, math.log(LEAST_SLOWDOWN))
    claim = throttled_group(course.shape, course.where, usual, recent.shift, least, newest)
    if claim is None:
        return None
    members = np.flatnonzero(np.isin(course.shape.ranks, claim.ranks))
    return replace(claim, step_seconds=recent.seconds) if _shifted(usual, recent.normal, members) else None


def _slow_node(course: Course, usual: Usual, recent: Recent) -> Claim | None:
    """Return a claim that a node is slow, if a stage is on one node and the node's tasks wait more than before; else
    None."""
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


def _slow_stages_of_node(course: Course, usual: Usual) -> Claim | None:
    """Return a claim that a node is slow, if whole stages are on it and on no other node, and all of them have become
    slower by about the same factor, but no other stage has; else None.

    Work seldom changes by the same factor in exactly the stages of one node. The first stage alone is not accused: it
    may wait for input. The other stages get their input from the stage before. A stall of the node's data loader looks
    the same until it ends: the stages must be slow in nearly all of the newest NODE_WINDOWS steps. If counters are
    known, they decide instead: they show whether the node is slow, or its stages have more work.
    """
    where = course.where
    if not where.layout_known or _has_pressure(course) or course.taken < WARM_UP_STEPS + NODE_WINDOWS:
        return None
    newest = np.log(np.array(list(course.normal)[-NODE_WINDOWS:]) / usual.normal)
    shift = column_medians(newest)
    by_node = np.array([median(shift[where.index == node]) for node in range(len(where.names))])
    worst = int(by_node.argmax())
    there = where.index == worst
    inside = [members for members in where.roles if there[members].all()]
    if not inside or sum(map(len, inside)) < int(there.sum()) or there.all():
        return None
    stages = course.shape.coordinate("stage")
    if len(inside) == 1 and (len(inside[0]) < LEAST_OF_STAGE or stages[there].min() == stages.min()):
        return None
    of_stage = [median(shift[members]) for members in inside]
    others = float(np.abs(shift[~there]).max())
    least = max(SHIFT_SIGMAS * usual.sway, math.log(LEAST_SLOWDOWN))
    if min(of_stage) < max(least, APART * others, ALIKE_STAGES * max(of_stage)):
        return None
    if float((newest[:, there].min(axis=1) >= min(of_stage) / 2).mean()) < LEAST_SHARE:
        return None
    ranks = tuple(course.shape.ranks[there].tolist())
    evidence = (
        Evidence("compute_to_usual", math.exp(min(of_stage)), math.exp(others), "ratio",
                 "growth since warm-up; the next slowest rank of another node has this",
                 log_odds.of_residual(min(of_stage) / usual.sway)),
        Evidence("slow_stages_of_the_node", float(len(inside)), float(len(where.roles)), "stages",
                 f"all stages; all stages of {where.names[worst]} grew alike, and no other stage grew", 2.0),
    )  # fmt: skip
    kept = np.log(np.array(course.normal)[:, there] / usual.normal[there])
    usual_steps = np.flatnonzero(row_medians(kept) < min(of_stage) / 2)
    first_step = course.numbers[int(usual_steps[-1]) + 1 if len(usual_steps) and usual_steps[-1] + 1 < len(kept) else 0]
    return Claim(f"{NODE}-{where.names[worst]}", Kind.STRAGGLER, Cause.UNKNOWN, ranks[0], ranks,
                 usual.seconds, evidence, first_step, node=where.names[worst])  # fmt: skip


def _has_pressure(course: Course) -> bool:
    """Return whether counters show how long the tasks of the job's nodes wait."""
    return course.pressure is not None and course.pressure.usual is not None


def _shifted(usual: Usual, normal: FloatArray, members: IndexArray | slice) -> bool:
    """Return whether the median of these ranks takes longer than usual in most of the steps, beyond chance."""
    middle = row_medians(np.log(normal[:, members] / usual.normal[members]))
    least = max(SHIFT_SIGMAS * usual.sway, math.log(LEAST_SLOWDOWN) / 2)
    return float((middle >= least).mean()) >= LONG_SHARE


def _idle(course: Course, usual: Usual, recent: Recent) -> FloatArray:
    """Return, for each role, the share of the increase in compute time in which tensor pipes were not busier.

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
    """Return, for each role, whether its hosts or GPUs are held back: tasks on its hosts wait more for CPUs or disks
    than usual, or its GPUs are throttled more than those of the other roles."""
    if job.shape.job not in counters.columns:
        return [False] * len(course.where.roles)
    columns = counters.of(job.shape.job)
    rows = [FEATURE[name] for name in ("cpu_waiting", "io_waiting")]
    sigmas = np.nan_to_num(counters.newest_sigmas(rows, columns))
    throttled = np.nan_to_num(counters.newest[[FEATURE["power_throttle"], FEATURE["thermal_throttle"]], columns])
    of_roles = np.array([np.median(throttled[:, members], axis=1).max() for members in course.where.roles])
    waiting = [(np.median(sigmas[:, members], axis=1) >= HIT_SIGMAS).any() for members in course.where.roles]
    return [bool(found) for found in waiting | (of_roles >= median(of_roles) + THROTTLED)]


def _grown(course: Course, usual: Usual, recent: Recent, idle: FloatArray) -> Iterator[Claim]:
    """Yield a claim about the whole job, if all ranks compute longer than when it was new, by about the same factor."""
    shift = recent.shift
    middle = median(shift)
    if middle <= 0 or middle < SHARE_OF_WORK * math.log(recent.seconds / usual.seconds):
        return
    if not _shifted(usual, recent.normal, slice(None)):
        return
    spread_of_shift = float(MAD_TO_SIGMA * median(np.abs(shift - middle)))
    if float(shift.max()) > 2 * middle or spread_of_shift > middle / 2:
        return
    if float((shift < middle / 2).mean()) > MOST_UNCHANGED:
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
    if cause is Cause.WHOLE_JOB and len(course.where.names) == 1 and not kept <= IDLE_SHARE:
        against = "the whole job is on one node, and no counter shows that the node is not slow"
        evidence.append(Evidence("node_counters", 0.0, 1.0, "", against, log_odds.JOB_IS_NODE))
    yield Claim("grown", Kind.WORKLOAD, cause, -1, (), usual.seconds, tuple(evidence))


def _hosts_may_be_busier(course: Course, usual: Usual) -> bool:
    """Return whether tasks wait longer than usual on half of the job's hosts, or no counters have arrived since the
    slowdown began.

    Returns False if there are tensor pipe counters, which already distinguish more work from busy hosts.
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
    course: Course, usual: Usual, recent: Recent, idle: FloatArray, pressed: Callable[[], list[bool]]
) -> Iterator[Claim]:
    """Yield a claim about one stage, if its ranks all take longer than when the job was new, and the other ranks do
    not.

    The cause is more work, or missing input. pressed: returns for each role whether its hosts or GPUs are held back.
    """
    where = course.where
    if not where.layout_known or len(where.roles) < 2:
        return
    shifts = np.array([median(recent.shift[members]) for members in where.roles])
    worst = int(shifts.argmax())
    members, shift = where.roles[worst], float(shifts[worst])
    others = float(np.abs(np.delete(shifts, worst)).max())
    if len(members) < LEAST_OF_STAGE or shift < APART * others or pressed()[worst]:
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
    evidence: tuple[Evidence, ...] = (
        Evidence("compute_to_usual", math.exp(shift), math.exp(others), "ratio",
                 "growth since warm-up; the next slowest stage has this", log_odds.of_residual(shift / usual.sway)),
        Evidence("least_of_the_stage", math.exp(float(recent.shift[members].min())), 1.0, "ratio",
                 "usual; all ranks of the stage take longer", 1.5),
    )  # fmt: skip
    if on_nodes == 1 and np.isnan(kept) and not _has_pressure(course):
        against = "the whole stage is on one node, and no counter shows that the node is not slow"
        evidence = (*evidence, Evidence("node_counters", 0.0, 1.0, "", against, log_odds.STAGE_IS_NODE))
    ranks = tuple(course.shape.ranks[members].tolist())
    if first and (kept > WORK_SHARE or np.isnan(kept)):
        # The work of the first stage seldom changes; its input does often.
        facts = evidence if np.isnan(kept) else (*evidence, _kept_waiting(kept))
        yield Claim("loading", Kind.WORKLOAD, Cause.DATA_LOADING, -1, ranks, usual.seconds, facts)
    elif not kept > IDLE_SHARE:
        yield Claim(f"{STAGE}-grown-{stage}", Kind.STAGE_IMBALANCE, Cause.STAGE_PARTITION, -1, ranks, usual.seconds,
                    evidence)  # fmt: skip


def _lengths_grown(course: Course, usual: Usual, recent: Recent) -> Iterator[Claim]:
    """Yield a claim if sequence lengths have become more unequal and the rank with the most work explains the
    slowdown."""
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
    """Return the work of each rank relative to its usual work, [k steps, n ranks]; None if tokens explain too little.

    It is for a job in whose warm-up tokens explained too little.
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
    """Yield a claim about rotating pauses, if ranks stop for a moment, one after the other, and all others wait each
    time."""
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
    excess = median(above) - usual.top
    if len(course.where.roles) > 1 and of_role > PAUSE_NODE_SHARE:
        return  # a slow stage
    grown = abs(median(normal / usual.normal) - 1.0)
    alike = unlike <= AS_EVER * max(usual.unlike, 0.01) and grown < excess / 2
    who_paused = set(slowest[above > least].tolist())
    if not alike or often > ROTATING_SHARE or len(who_paused) < PAUSE_RANKS or on_node > PAUSE_NODE_SHARE:
        return
    noise = max(usual.tops_spread, 0.01)
    routed: tuple[Evidence, ...] = ()
    if has_experts(course.shape) and len(course.tokens) < count:
        against = "the job routes tokens to experts and does not report them: popular experts slow ranks in turn, too"
        routed = (Evidence("tokens_reported", 0.0, 1.0, "", against, log_odds.ROUTED_IN_TURN),)
    yield Claim(
        "pauses", Kind.WORKLOAD, Cause.PAUSES, -1, (), usual.seconds,
        (
            *routed,
            Evidence("slowest_above_the_middle", float(np.median(above)), usual.top, "ratio",
                     "usual excess of the slowest rank in a step", log_odds.of_residual(excess / noise)),
            Evidence("slow_steps_of_the_slowest_rank", often, ROTATING_SHARE, "ratio", "a faulty rank is slow in all",
                     1.5),
            Evidence("spread_of_the_others", unlike, usual.unlike, "ratio", "usual; the work has not changed", 0.5),
        ),
    )  # fmt: skip
