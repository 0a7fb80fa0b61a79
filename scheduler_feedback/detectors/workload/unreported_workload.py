"""Causes within a job that reports no steps, found by the counters of all its ranks.

Such a job is slower if its iterations take longer to transfer their bytes (job_slowdown.py). Three counters show why:

- Tensor activity per transferred byte measures the work of an iteration.
- SMs of a rank that waits in a collective are busy, because it polls.
- SMs of a rank that has nothing to run are idle.

If a single rank is slow, the others poll, and their work does not change. Therefore a cause is within the job if most
ranks of a role show it alike. The detector reports these causes:

- The ranks of all roles have more work per iteration: another batch, another loss, an evaluation.
- The ranks of one stage have more work, since recently or always.
- The ranks of all roles, or of the first stage, run nothing: they wait for input, or save.

All values are medians or quantiles over the ranks of a role, so that no single rank changes them. A role on a single
node is not used, because a fault of the node affects all its ranks alike.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import (
    FEATURE,
    Float32Array,
    IndexArray,
    JobTelemetry,
    Shape,
)
from scheduler_feedback.core.verdict import Cause, Cleared, Evidence, Finding, Kind, Verdict
from scheduler_feedback.detectors.context import DetectionContext, Published
from scheduler_feedback.detectors.iteration.job_slowdown import RATES, SlowdownTest
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.stats.validity_mask import BoolArray
from scheduler_feedback.detectors.workload.workload_claim import LEAST_SLOWDOWN, STAGE, Claim
from scheduler_feedback.detectors.workload.workload_rules import STAGE_RATIO

KEPT = 512
"""Number of newest windows that are kept, as in the slowdown test."""

LEAST_BEFORE = 6
"""The usual value and its variation are learned only from at least this many earlier averages. Each average covers
several windows, so that it contains whole iterations."""

EACH, LEAST_NEWEST, LONG_WINDOW_SECONDS = 0.5, 3, 20.0
"""A change counts only if every new average of the counters shows at least EACH of the mean change, so that one
checkpoint does not count. At least LEAST_NEWEST new averages are needed if a window is shorter than
LONG_WINDOW_SECONDS, in seconds."""

TENSOR, BUSY, CLOCK, INSIDE, BETWEEN, BUSIEST, POWER = range(7)
"""Indices of the signals in SIGNALS."""

SIGNALS = ("tensor_active", "sm_active", "sm_clock", *RATES, "sm_active", "power")
"""Counters from which the activity of each role is computed."""

SHARES = (0.5, 0.75, 0.5, 0.5, 0.5, 1.0, 0.5)
"""Quantile over the ranks of a role that is used for each signal. For SM activity it is the upper quartile, so that if
it is low, three quarters of the ranks run nothing, and the highest: no rank works on while the others wait."""

MOST_SLOWDOWN = 4.0
"""A slowdown above this ratio is not explained: such a job does other work, or none."""

MORE, NO_MORE = 0.6, 0.3
"""Limits for the growth of the work per iteration, as a share of the growth of the iteration time: from MORE on the
ranks have more work, up to NO_MORE they have not. Between the two nothing is reported."""

LESS_CLOCK = 0.25
"""More work is reported only if lower clocks explain at most this share of the slowdown. Otherwise heat or a power
limit is the cause."""

IDLE, POLLING = 0.1, 0.15
"""Limits for the share of the lost time in which a rank's SMs are busy: up to IDLE the rank runs nothing, from POLLING
on it polls in a collective. NCCL polls with 24 of an H100's 132 SMs."""

MOST_BUSIEST = 0.5
"""All ranks run nothing only if the busiest one, too, works for at most this share of the lost time."""

IDLE_POWER = 0.27
"""A rank that runs nothing draws at most this share of its usual power: an H100 or A100 without work draws 13 to 17 %
of what it draws at work, and a polling one about 40 %."""

SIGMAS = 3.0
LEAST_SIGMA = 0.01

LEAST_WINDOWS, LEAST_SECONDS = 16, 300.0
"""Minimum number of windows, and minimum time in seconds, before a stage is reported that always had more work."""

STAGES_ALIKE = 1.03
"""A single stage is reported only if the busiest of the other stages has at most this many times the activity of their
median."""

AGAIN_SECONDS = 4.0
"""Interval between two evaluations of a job, in seconds."""

HOLD_SECONDS = 120.0
"""A verdict is cleared if its cause was not detected for this many seconds, or for four windows if those are longer."""


@dataclass(slots=True)
class ActiveVerdict:
    """An active verdict, and the time in ns at which its cause was last detected."""

    verdict: Verdict
    seen_ns: int


@dataclass(slots=True)
class RoleActivity:
    """Counters of one job without step reports, as quantiles over the ranks of each role, for each window."""

    shape: Shape
    ring: Float32Array = field(init=False)
    """Newest values of each signal: float32 [KEPT, signals, roles], NaN if less than half of a role's ranks are
    known."""
    members: tuple[IndexArray, ...] = field(init=False)
    """Indices of the ranks of each role."""
    nodes: tuple[int, ...] = field(init=False)
    """Number of nodes that each role uses."""
    taken: int = 0
    """Number of windows received so far."""
    active: dict[str, ActiveVerdict] = field(default_factory=dict)
    """Active verdicts, by the key of their claim."""

    def __post_init__(self) -> None:
        roles = self.shape.roles
        self.members = tuple(np.flatnonzero(roles == role) for role in range(int(roles.max(initial=0)) + 1))
        self.nodes = tuple(len({self.shape.nodes[rank] for rank in ranks.tolist()}) for ranks in self.members)
        self.ring = np.full((KEPT, len(SIGNALS), len(self.members)), np.nan, np.float32)

    def take(self, values: Float32Array) -> None:
        """Add one window of counters: [features, ranks]."""
        row = self.ring[self.taken % KEPT]
        for signal, (name, share) in enumerate(zip(SIGNALS, SHARES, strict=True)):
            for role, ranks in enumerate(self.members):
                row[signal, role] = _quantile(values[FEATURE[name], ranks], share)
        self.taken += 1

    def forget_verdicts(self, verdict_ids: Collection[str]) -> None:
        """Forget these verdicts, which the arbiter refused or withdrew."""
        for key in [key for key, one in self.active.items() if one.verdict.verdict_id in verdict_ids]:
            del self.active[key]

    def claims(self, test: SlowdownTest) -> list[Claim]:
        """Return at most one claim: the cause within the job, if the job is slower and its ranks show why."""
        if not LEAST_SLOWDOWN <= test.slower() <= MOST_SLOWDOWN or not test.recent_windows:
            return []
        width, newest = self._whole_iterations(test)
        means = self._means(width)
        if len(means) < newest + LEAST_BEFORE:
            return []
        traffic = means[:, INSIDE if test.judged_by == RATES[0] else BETWEEN]
        rate, _ = _against_the_usual(traffic, newest)
        # Both are of the same windows, so that the cut of iterations affects them alike.
        of_traffic = means[:, TENSOR] / np.where(traffic > 0, traffic, np.nan)
        work, sigma = _against_the_usual(of_traffic, newest)
        clock, _ = _against_the_usual(means[:, CLOCK], newest)
        slower = 1.0 / float(np.median(rate))
        if not np.isfinite([*work, *clock, slower]).all() or slower < LEAST_SLOWDOWN:
            return []
        extra = slower - 1.0
        rates = np.median(_to_the_usual(traffic, newest), axis=1)
        if (clock < 1.0 - LESS_CLOCK * extra / slower).any() or (1.0 - rates < EACH * (1.0 - 1.0 / slower)).any():
            return []
        grown = work - 1.0
        each = _to_the_usual(of_traffic, newest).min(axis=0) - 1.0
        more = (grown >= np.maximum(MORE * extra, SIGMAS * sigma)) & (each >= EACH * MORE * extra)
        no_more = grown <= NO_MORE * extra
        if more.all() and len({*self.shape.nodes}) > 1:
            evidence = _works(float(work.min()), float(clock.min()))
            return [_claim("more-work", Kind.WORKLOAD, Cause.WHOLE_JOB, slower, (), evidence)]
        if more.any() and no_more[~more].all():
            return self._of_stage(more, work, clock, slower)
        if no_more.all():
            return self._idle(means, newest, slower)
        return []

    def stage_claims(self, seconds: float) -> list[Claim]:
        """Return a claim if one stage has always had more work than the others; else nothing.

        seconds: length of a window.
        """
        kept = min(self.taken, KEPT)
        if (
            self.shape.stage is None
            or len(self.members) < 2
            or kept < LEAST_WINDOWS
            or self.taken * seconds < LEAST_SECONDS
        ):
            return []
        known = np.isfinite(self.ring[:kept, [TENSOR, CLOCK]]).all(axis=(1, 2))
        if 2 * int(known.sum()) <= kept:
            return []
        busy, clock = np.median(self.ring[:kept, [TENSOR, CLOCK]][known], axis=0).astype(np.float64)
        most = int(busy.argmax())
        others = np.delete(busy, most)
        middle = float(np.median(others))
        if not middle > 0 or self.nodes[most] < 2:
            return []
        alike = float(others.max()) <= STAGES_ALIKE * middle and float(clock[most]) * STAGES_ALIKE >= float(clock.max())
        ratio = float(busy[most]) / middle
        if ratio < STAGE_RATIO or not alike:
            return []
        words = f"median of the other {len(others)} stages; the busiest of them has {others.max():.2f}"
        evidence = (
            Evidence("tensor_active", float(busy[most]), middle, "ratio", words, 3.5),
            Evidence("sm_clock", float(clock[most]), float(clock.max()), "hertz", "the highest of all stages", 0.5),
        )
        ranks = tuple(self.shape.ranks[self.members[most]].tolist())
        key = f"{STAGE}-{int(self.shape.stage[self.members[most][0]])}"
        return [Claim(key, Kind.STAGE_IMBALANCE, Cause.STAGE_PARTITION, -1, ranks, 1.0 / ratio, evidence)]

    def _whole_iterations(self, test: SlowdownTest) -> tuple[int, int]:
        """Return the number of windows that an average over whole iterations covers, and the number of averages that
        are new."""
        width = test.widths[test.judged_by]
        if test.period_seconds is not None:
            iterations = math.ceil(width * test.window_seconds / test.period_seconds - 0.5)
            width = max(1, round(max(1, iterations) * test.period_seconds / test.window_seconds))
        newest = math.ceil(test.recent_windows / width)
        return width, newest if test.window_seconds >= LONG_WINDOW_SECONDS else max(newest, LEAST_NEWEST)

    def _means(self, width: int) -> FloatArray:
        """Return averages over `width` windows each, newest last: [averages, counters, roles].

        NaN if less than half of the values are known.
        """
        kept = min(self.taken, KEPT)
        course = np.roll(self.ring, -(self.taken % KEPT), axis=0)[KEPT - kept :]
        blocks = kept // width
        cut = course[kept - blocks * width :].reshape(blocks, width, *course.shape[1:]).astype(np.float64)
        known = np.isfinite(cut)
        count = known.sum(axis=1)
        total = np.where(known, cut, 0.0).sum(axis=1)
        found: FloatArray = np.divide(total, count, out=np.full(total.shape, np.nan), where=2 * count >= width)
        return found

    def _of_stage(self, more: BoolArray, work: FloatArray, clock: FloatArray, slower: float) -> list[Claim]:
        """Return a claim if exactly one stage has more work; else nothing.

        more: bool [roles]. work, clock: work per iteration and SM clock of each role, relative to the usual values.
        slower: slowdown of the job.
        """
        found = np.flatnonzero(more)
        if len(found) != 1 or self.shape.stage is None or self.nodes[found[0]] < 2:
            return []
        stage = int(found[0])
        ranks = tuple(self.shape.ranks[self.members[stage]].tolist())
        evidence = _works(float(work[stage]), float(clock[stage]))
        return [_claim(f"{STAGE}-more", Kind.STAGE_IMBALANCE, Cause.STAGE_PARTITION, slower, ranks, evidence)]

    def _idle(self, means: FloatArray, newest: int, slower: float) -> list[Claim]:
        """Return a claim that input is missing, if the ranks lost their time without anything to run; else nothing.

        Time in which ranks poll in a collective does not count, because they wait for another rank.
        """
        works, _ = _against_the_usual(means[:, TENSOR], newest)
        busy, _ = _against_the_usual(means[:, BUSY], newest)
        polls = np.divide(
            means[:, BUSY], means[:, TENSOR], out=np.full_like(means[:, BUSY], np.nan), where=means[:, TENSOR] > 0
        )
        _, sigma = _against_the_usual(polls, newest)
        lost = 1.0 - works
        if not np.isfinite(busy).all() or (lost < SIGMAS * sigma).any():
            return []
        polling = (busy - works) / lost
        idle = (polling <= IDLE) & (sigma <= IDLE * lost * SIGMAS)
        busiest, _ = _against_the_usual(means[:, BUSIEST], newest)
        power, _ = _against_the_usual(means[:, POWER], newest)
        with np.errstate(invalid="ignore"):
            idle &= ~((busiest - works) / lost > MOST_BUSIEST) & ~((power - works) / lost > IDLE_POWER)
        wide = np.array(self.nodes) > 1
        polling_share = Evidence(
            "polling_of_lost_time", float(polling[idle].max(initial=0.0)), POLLING, "ratio",
            "least share of the lost time that the SMs of a waiting rank are busy polling", 3.0,
        )  # fmt: skip
        if idle.all() and wide.any():
            words = "all ranks; three quarters of them run nothing and wait for no rank: they read input or save"
            alike = Evidence("ranks_alike", float(len(self.shape)), float(len(self.shape)), "ranks", words, 2.0)
            return [_claim("idle", Kind.WORKLOAD, Cause.DATA_LOADING, slower, (), (polling_share, alike))]
        if len(idle) > 1 and idle[0] and wide[0] and (polling[1:] >= POLLING).all():
            words = "least share for stages that wait for the first stage, which runs nothing"
            later = Evidence("polling_of_later_stages", float(polling[1:].min()), POLLING, "ratio", words, 2.0)
            return [_claim("input", Kind.WORKLOAD, Cause.DATA_LOADING, slower, (), (polling_share, later))]
        return []


def _works(work: float, clock: float) -> tuple[Evidence, ...]:
    words = "usual: tensor pipe activity per byte that an iteration transfers, median of a role"
    return (
        Evidence("work_an_iteration", work, 1.0, "ratio", words, 3.5),
        Evidence("sm_clock_to_usual", clock, 1.0, "ratio", "usual: no clock fell", 0.5),
    )


def _claim(
    key: str, kind: Kind, cause: Cause, slower: float, ranks: tuple[int, ...], more: tuple[Evidence, ...]
) -> Claim:
    words = "least slowdown; inferred from traffic: the job reports no steps"
    evidence = (Evidence("iteration_to_usual", slower, LEAST_SLOWDOWN, "ratio", words, 1.0), *more)
    return Claim(key, kind, cause, -1, ranks, 1.0 / slower, evidence)


class UnreportedWorkloads:
    """Activity of all jobs that report no steps. Owned by the workload detector."""

    def __init__(self) -> None:
        self._activities: dict[str, RoleActivity] = {}

    def evaluate(self, context: DetectionContext) -> list[Finding]:
        """Evaluate jobs that report no steps. Return new verdicts and cleared verdicts."""
        telemetry = context.telemetry
        windows, seconds = telemetry.counters.values.shape[1], telemetry.counters.seconds
        unreported = context.by_counters
        for gone in self._activities.keys() - unreported:
            del self._activities[gone]
        for activity in self._activities.values() if context.published.refused else ():
            activity.forget_verdicts(context.published.refused)
        findings: list[Finding] = []
        if not windows or not unreported:
            return findings
        for job, columns in zip(telemetry.jobs, telemetry.columns(), strict=True):
            name = job.shape.job
            if name not in unreported:
                continue
            if name not in self._activities or self._activities[name].shape is not job.shape:
                self._activities[name] = RoleActivity(job.shape)
            activity = self._activities[name]
            before = activity.taken
            for window in range(windows):
                activity.take(telemetry.counters.values[:, window, columns])
            every = max(1, round(AGAIN_SECONDS / seconds))
            if before // every < activity.taken // every:
                findings += self._judge(job, activity, context)
        return findings

    def _judge(self, job: JobTelemetry, activity: RoleActivity, context: DetectionContext) -> list[Finding]:
        name, telemetry = job.shape.job, context.telemetry
        now_ns = telemetry.now_ns
        findings: list[Finding] = []
        test = context.speeds.slowdown_tests.get(name)
        hold_ns = round(max(HOLD_SECONDS, 4.0 * telemetry.counters.seconds) * 1e9)
        steps_are_slower = job.steps is None or context.speeds.slower(name) >= LEAST_SLOWDOWN
        for claim in _claims(name, test, activity, context.published, steps_are_slower):
            active = activity.active.get(claim.key)
            if active is not None:
                active.seen_ns = now_ns
                continue
            assert test is not None
            verdict = _verdict(claim, job, test, now_ns, telemetry.counters.seconds)
            if verdict.confidence >= log_odds.LEAST_CONFIDENCE:
                activity.active[claim.key] = ActiveVerdict(verdict, now_ns)
                findings.append(verdict)
        for key in [key for key, one in activity.active.items() if now_ns - one.seen_ns > hold_ns]:
            over = activity.active.pop(key).verdict
            reason = f"not detected for {hold_ns * 1e-9:.0f} s"
            findings.append(Cleared(over.verdict_id, name, now_ns, reason))
        return findings


def _claims(
    name: str, test: SlowdownTest | None, activity: RoleActivity, published: Published, steps_are_slower: bool
) -> list[Claim]:
    """Return the suspected workload causes of the job; none if a rank, node or other job is already accused.

    steps_are_slower: whether the reported steps, if any, are slower too.
    """
    accused = any(gang == name for gang, _, _ in published.accused)
    if test is None or accused or name in published.disturbed:
        return []
    changed = activity.claims(test) if steps_are_slower else []
    return [*changed, *activity.stage_claims(test.window_seconds)]


def _verdict(claim: Claim, job: JobTelemetry, test: SlowdownTest, now_ns: int, seconds: float) -> Verdict:
    before = float("nan") if test.period_seconds is None else test.period_seconds
    slowdown = 1.0 / claim.without_seconds
    return Verdict(
        verdict_id=f"{job.shape.job}.{job.shape.attempt}.{claim.key}.{now_ns}",
        kind=claim.kind,
        gang=job.shape.job,
        attempt=job.shape.attempt,
        rank=claim.rank,
        node="",
        cause=claim.cause,
        confidence=log_odds.confidence(claim.evidence),
        slowdown=slowdown,
        step_seconds_before=before,
        step_seconds_now=before * slowdown,
        first_wall_ns=now_ns - round(test.recent_windows * seconds * 1e9),
        last_wall_ns=now_ns,
        evidence=claim.evidence,
        frames=job.frames,
        detector="workload",
        ranks=claim.ranks,
    )


def _quantile(row: Float32Array, share: float) -> float:
    """Return the quantile `share` of the known values; NaN if less than half of the values are known."""
    known = row[np.isfinite(row)]
    if 2 * len(known) <= len(row):
        return float("nan")
    place = int(share * (len(known) - 1))
    return float(np.partition(known, place)[place])


def _to_the_usual(means: FloatArray, newest: int) -> FloatArray:
    """Return each new average, divided by the median of the earlier averages: [averages, roles] -> [newest, roles].

    newest: number of new averages. NaN if less than half of the earlier averages are known.
    """
    before = means[:-newest]
    known = np.isfinite(before).mean(axis=0) >= 0.5
    usual = np.nanmedian(np.where(known, before, 1.0), axis=0)
    found: FloatArray = means[-newest:] / np.where(known & (usual > 0), usual, np.nan)
    return found


def _against_the_usual(means: FloatArray, newest: int) -> tuple[FloatArray, FloatArray]:
    """Return two values for each role: the mean of the new averages divided by the median of the earlier ones, and the
    relative spread of the earlier ones.

    means: [averages, roles]. newest: number of new averages.
    """
    before = np.where(np.isfinite(means[:-newest]).mean(axis=0) >= 0.5, means[:-newest], 1.0)
    usual = np.nanmedian(before, axis=0)
    spread = 1.4826 * np.nanmedian(np.abs(before - usual), axis=0) / np.maximum(np.abs(usual), 1e-30)
    return _to_the_usual(means, newest).mean(axis=0), np.maximum(spread, LEAST_SIGMA)
