"""The straggler detector: finds the rank that delays its gang for its own reason.

1. Completed steps are grouped into windows (steps/windows.py).
2. From the windows of the warm-up a baseline is learned, and frozen (steps/baseline.py).
3. In each later window, each rank's excess over its own history and its peers is measured, in standard deviations. A
CUSUM (a running sum) adds up the excess over windows (cusum.py).
4. If the CUSUM of a rank reaches the alarm threshold, the alarm must pass the checks (alarm_checks.py). It becomes a
verdict, or is refused with a reason.
5. A verdict stays active until its rank has run at normal speed for a while.

The method was chosen in trials on public step traces. Each constant documents its source.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from agent.schema.sample import SampleColumn
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry, StepTable
from scheduler_feedback.core.verdict import Cause
from scheduler_feedback.detectors.context import DetectionContext, Proposal
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.stats.group_intersection import intersected
from scheduler_feedback.detectors.stats.spread import spread_of_others
from scheduler_feedback.detectors.steps.baseline import (
    SKIPPED_STEPS,
    WARM_UP_SECONDS,
    WARM_UP_STEPS,
    Baseline,
    learn,
    learn_early,
    log_compute,
)
from scheduler_feedback.detectors.steps.expected_work import Work, fit
from scheduler_feedback.detectors.steps.places import places
from scheduler_feedback.detectors.steps.shared_sequences import judged_by_sequences
from scheduler_feedback.detectors.steps.windows import Window, blame_stopped, cut, join, prepare
from scheduler_feedback.detectors.straggler.alarm_case import HIT_SIGMAS, Case, Means, times_its_usual
from scheduler_feedback.detectors.straggler.alarm_checks import judge
from scheduler_feedback.detectors.straggler.cusum import ALARM, LEAST_HITS, judge_window, mates_of, persistent
from scheduler_feedback.detectors.straggler.gang_state import RECENT_WINDOWS, GangState, dump, load, rest
from scheduler_feedback.detectors.straggler.lasting_set import lasting_set
from scheduler_feedback.detectors.straggler.own_level import learn_levels, note_refusal
from scheduler_feedback.detectors.straggler.persistence import doubt, doubt_of_work, extend, is_own_work
from scheduler_feedback.detectors.straggler.popular_experts import may_be_popular
from scheduler_feedback.detectors.straggler.rotating_slowness import judged_by_rotation
from scheduler_feedback.detectors.straggler.shown_from_start import learn_shown
from scheduler_feedback.detectors.straggler.straggler_causes import Causes
from scheduler_feedback.detectors.straggler.verdict_building import (
    DETECTOR,
    UNEASY_SCORE,
    abstention,
    cleared,
    cover,
    is_settled,
    not_yet_sure,
    too_weak,
    under_suspicion,
    verdict,
    whole_gang,
)

LEAST_CONFIDENCE = 0.5
"""An alarm with a lower confidence by the unfitted weights becomes an abstention instead of a verdict. The fitted line
(log_odds.WITHOUT_COUNTERS) holds for the verdicts above this threshold: it was fitted to them."""

PATIENCE_WINDOWS = 3
"""An alarm is reported as an abstention only after the checks have refused it in this many consecutive windows."""

FIRST_WINDOWS = 8
"""Number of windows from which a preliminary baseline is learned. The rest of the warm-up is judged by it."""

WORK_FIELDS = ("compute", "tokens", "squares")

PREPARED_TOGETHER = 32
"""Number of gangs whose counters are read together. More save little: an array of all gangs exceeds a CPU's cache."""

ABSENT_NS = 600_000_000_000
"""Time in ns without telemetry after which a gang counts as ended: ten minutes."""


class StragglerDetector:
    """Detector of the rank for which a gang waits. Owned by one thread.

    timed: whether times are real seconds, so that a window lasts about a second. If not (in a recorded trace with
    another unit of time), each step is one window, and the first steps are not skipped.
    """

    name = DETECTOR
    _context: DetectionContext

    def __init__(self, timed: bool = True) -> None:
        self._timed = timed
        self._causes = Causes()
        self._watched: dict[str, GangState] = {}
        self._roles: dict[str, tuple[tuple[int, ...], FloatArray]] = {}

    def suspected(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield each gang with ranks that are on their way to a verdict, or to the cause of one, and their nodes."""
        for name, gang in self._watched.items():
            if gang.score.size and float(gang.score.max()) >= UNEASY_SCORE and (ranks := under_suspicion(gang)):
                yield name, frozenset(gang.where.names[gang.where.index[rank]] for rank in ranks)

    def tick(self, context: DetectionContext) -> list[Proposal]:
        """Process the steps completed since the last tick, and return the new results."""
        return [result for some in self.tick_in_parts(context) for result in some]

    def tick_in_parts(self, context: DetectionContext) -> Iterator[list[Proposal]]:
        """Do the same gang by gang, and yield the new results of each gang with new steps."""
        present = set()
        telemetry, published = context.telemetry, context.published
        self._causes.begin(context)
        self._context = context
        if published.refused:
            for gang in self._watched.values():
                gang.forget_verdicts(published.refused)
        ready: list[tuple[JobTelemetry, GangState, StepTable]] = []
        for job in telemetry.jobs:
            present.add(job.shape.job)
            watched = self._watch(job, telemetry.now_ns)
            if watched is None or job.steps is None or not len(job.steps):
                continue
            ready.append((job, watched, watched.take_in(job.steps)))
            if len(ready) == PREPARED_TOGETHER:
                yield from self._judge(ready)
                ready = []
        yield from self._judge(ready)
        gone = [n for n, w in self._watched.items() if n not in present and telemetry.now_ns - w.seen_ns > ABSENT_NS]
        for name in gone:
            del self._watched[name]
            self._roles.pop(name, None)

    def measures(self) -> Iterator[SampleColumn]:
        """Yield metric samples: how much each rank slows its gang down, over the newest windows."""
        for name, watched in list(self._watched.items()):
            if watched.samples[0] != watched.counted:
                watched.samples = watched.counted, _slowdowns(name, watched)
            if watched.samples[1] is not None:
                yield watched.samples[1]

    def snapshot(self) -> bytes:
        """Encode baselines, CUSUMs and active verdicts. Without them, a restart during a fault would learn the fault as
        normal."""
        return dump(self._watched, self._roles)

    def restore(self, data: bytes) -> None:
        """Restore a snapshot. Raises ValueError if the bytes are not a snapshot of this detector."""
        self._watched, self._roles = load(data)

    def _judge(self, ready: list[tuple[JobTelemetry, GangState, StepTable]]) -> Iterator[list[Proposal]]:
        """Judge the new windows of some gangs, and yield the results of each gang."""
        prepared = prepare([(steps, job.consumed) for job, _, steps in ready], self._timed)
        for (job, watched, steps), consumed in zip(ready, prepared, strict=True):
            windows, used = cut(steps, watched.where, consumed, self._timed, watched.work)
            watched.pending = rest(steps, used) if used < len(steps) else None
            name = job.shape.job
            yield [result for window in windows for result in self._take(name, watched, window, job)]

    # --- one gang -----------------------------------------------------------------------------------------------------

    def _watch(self, job: JobTelemetry, now_wall_ns: int) -> GangState | None:
        """Return the state of the gang's attempt; None if there are no ranks to compare. The state is new for a new
        attempt or for other ranks."""
        shape = job.shape
        name, watched = shape.job, self._watched.get(shape.job)
        if watched is not None and watched.shape is shape:
            watched.seen_ns = now_wall_ns
            return watched
        if len(shape) < 2:
            return None
        ranks = tuple(shape.ranks.tolist())
        if watched is not None and watched.attempt == shape.attempt:
            watched.seen_ns = now_wall_ns
            if watched.ranks == ranks:
                watched.where = places(shape)  # placement and roles may have just arrived
                watched.shape = shape
                return watched
            if set(ranks) < set(watched.ranks):
                return None  # after a restart, nodes resume reporting one by one
        elif watched is not None and watched.attempt > shape.attempt:
            return None
        elif watched is not None and watched.baseline is not None and watched.baseline.known:
            base = log_compute(watched.baseline.compute, watched.baseline.step_seconds)
            self._roles[name] = (watched.ranks, base - np.median(base))
        watched = GangState(shape.attempt, ranks, places(shape), now_wall_ns, shape)
        watched.to_skip = SKIPPED_STEPS if self._timed else 0
        watched.forget_course()
        self._watched[name] = watched
        return watched

    def _take(self, name: str, watched: GangState, window: Window, job: JobTelemetry) -> list[Proposal]:
        findings: list[Proposal] = []
        baseline = watched.baseline
        if baseline is not None:
            blamed = blame_stopped(window, baseline.shared_wait, watched.where)
            judge_window(watched, baseline, blamed, self._context.switches)
            findings += self._conclude(name, watched, baseline, job)
        if baseline is None or not baseline.final:
            findings += self._warm_up(name, watched, window, job)
        return findings

    def _warm_up(self, name: str, watched: GangState, window: Window, job: JobTelemetry) -> list[Proposal]:
        """Learn the baseline from the windows of the warm-up, and return results of ranks that are already slow.

        Before the end of the warm-up, the baseline is learned from the windows so far, while no rank is suspected. If a
        rank becomes slow, the earlier baseline is kept, so that the slow rank is not learned as healthy.
        """
        if watched.warm_up and watched.warm_up[-1].known != window.known:
            watched.warm_up.clear()  # a baseline has known waits in all windows or in none
        watched.warm_up.append(window)
        windows, before = watched.warm_up, watched.baseline
        seconds = sum(w.steps * w.step_seconds for w in windows)
        role = self._roles.get(name)
        known_role = role[1] if role is not None and role[0] == watched.ranks else None
        long_enough = not self._timed or seconds >= WARM_UP_SECONDS
        final = long_enough and sum(w.steps for w in windows) >= WARM_UP_STEPS
        uneasy = bool((watched.score >= UNEASY_SCORE).any()) or bool(watched.active)
        if before is not None and uneasy:
            watched.baseline = replace(before, final=final)
        elif long_enough and (final or (len(windows) >= FIRST_WINDOWS and len(windows) % 4 == 0)):
            if watched.work is None:
                compute, tokens, squares = (np.array([getattr(w, field) for w in windows]) for field in WORK_FIELDS)
                watched.work = fit(compute, tokens, squares)
                windows[:] = _given_usual_work(windows, watched.work)
            watched.baseline = learn(windows, known_role, watched.where, final)
        elif before is None:
            watched.baseline = learn_early(windows, known_role, watched.where)
        if watched.baseline is None:
            return []
        if final:
            watched.warm_up = []
        watched.best_step_seconds = min(watched.best_step_seconds, watched.baseline.step_seconds)
        if before is not None or not watched.baseline.from_start.any():
            return []
        for past in windows:  # a rank slow from the start was slow in these windows too
            judge_window(watched, watched.baseline, past, self._context.switches)
        return self._conclude(name, watched, watched.baseline, job)

    def _conclude(self, name: str, watched: GangState, baseline: Baseline, job: JobTelemetry) -> list[Proposal]:
        findings: list[Proposal] = []
        window = watched.history[-1].window
        over = watched.score >= ALARM
        alarmed = (
            [rank for rank in np.flatnonzero(over).tolist() if persistent(watched, rank, self._timed)]
            if over.any()
            else []
        )
        raised = frozenset(alarmed)
        if self._context.switches.group_intersection and len(alarmed) > 1:
            newest = np.array([judged.sigmas for judged in list(watched.history)[-LEAST_HITS:]])
            alarmed = intersected(newest.mean(axis=0) >= HIT_SIGMAS, job.shape, alarmed)
        refused, watched.refused = watched.refused, np.zeros_like(watched.refused)
        if alarmed:
            watched.refused[alarmed] = refused[alarmed]
        lasting = lasting_set(watched, job.shape, alarmed)
        means: Means = {}
        for rank in alarmed:
            active = watched.active_on(rank)
            if active is not None and is_settled(active, watched.counted, rank in watched.active):
                findings += cover(watched, active, (rank,))
                extend(watched, rank)
                continue
            if watched.refused[rank] > PATIENCE_WINDOWS and watched.counted % PATIENCE_WINDOWS:
                continue  # after repeated refusals, evaluate less often
            case = self._case(watched, baseline, rank, alarmed, raised, job, means, lasting)
            judgement = self._causes.judged_by(judge(case), job, baseline, times_its_usual(case), case.seconds)
            judgement = judged_by_sequences(judgement, case, job, watched.episode(rank), watched.longest_episode)
            judgement = judged_by_rotation(judgement, case, self._context.published.rotating.get(name))
            if not judgement.refusal and log_odds.confidence(judgement.evidence) < LEAST_CONFIDENCE:
                judgement = too_weak(judgement)
            note_refusal(watched, baseline, rank, bool(judgement.refusal))
            if not judgement.refusal:
                judgement = self._causes.with_past(judgement, job.shape)
                why = ""
                if judgement.cause is Cause.UNKNOWN:
                    why = doubt(watched, case, job.shape, judgement.counters)
                elif judgement.cause is Cause.COMPUTE or (judgement.asleep and judgement.cause is Cause.SUSPENDED):
                    why = doubt_of_work(watched, case, job.shape)  # counters show no other cause
                elif baseline.from_start[rank] and self._causes.may_be_load(judgement, job):
                    why = doubt_of_work(watched, case, job.shape)
                if why:
                    windows, mates = watched.spells[rank][-1].windows, mates_of(watched, rank)
                    own_work = is_own_work(watched, case, job.shape)
                    routed = may_be_popular(watched, case, job.shape)
                    judgement = not_yet_sure(judgement, why, windows, mates, own_work, routed)
            if not judgement.refusal:
                watched.refused[rank] = 0
                findings += verdict(name, watched, judgement, job)
            elif not judgement.harmless and rank not in watched.accused:
                watched.refused[rank] += 1
                if judgement.in_doubt:  # only time decides: report it at once, and evaluate it in each window
                    watched.refused[rank] = PATIENCE_WINDOWS
                if watched.refused[rank] >= PATIENCE_WINDOWS and rank not in watched.abstained:
                    watched.abstained |= {rank, *judgement.about}
                    findings.append(abstention(name, watched, judgement))
        findings += cleared(name, watched, window)
        findings += whole_gang(name, watched, baseline, bool(alarmed), self._timed)
        learn_levels(watched, baseline, raised)
        learn_shown(watched, watched.baseline or baseline, lambda rank: self._causes.shown(job, rank))
        return findings

    def _case(
        self,
        watched: GangState,
        baseline: Baseline,
        rank: int,
        alarmed: list[int],
        raised: frozenset[int],
        job: JobTelemetry,
        means: Means,
        lasting: frozenset[int],
    ) -> Case:
        return Case(
            rank=rank,
            ranks=watched.ranks,
            where=watched.where,
            interval=watched.interval(rank),
            baseline=baseline,
            best_step_seconds=watched.best_step_seconds,
            alarmed=frozenset(alarmed),
            explained=raised.difference(alarmed),
            others_spread=spread_of_others(np.array(watched.shifts), rank),
            shared_machine=job.shared_machine is not None and bool(job.shared_machine[rank]),
            switches=self._context.switches,
            for_work=watched.work is not None,
            accused=frozenset(alarmed) & (watched.accused - {rank}),
            lasting=lasting,
            shown=self._causes.shown(job, rank) if baseline.from_start[rank] else Cause.UNKNOWN,
            on_device=self._causes.on_device(job, rank),
            means=means,
        )


def _slowdowns(name: str, watched: GangState) -> SampleColumn | None:
    """Return metric samples: how much each rank slows its gang down; None if it is not known."""
    newest = [judged.window for judged in list(watched.history)[-RECENT_WINDOWS:] if judged.window.known]
    if not newest:
        return None
    step_seconds, gain = float(join(newest, "step_seconds")), join(newest, "gain")
    ratios = array("d", step_seconds / np.maximum(step_seconds - gain, 1e-9))
    return SampleColumn("gangwatch_rank_slowdown_ratio", (("gang", name),), "rank", watched.ranks, ratios)


def _given_usual_work(windows: list[Window], work: Work | None) -> list[Window]:
    """Return the windows of the warm-up with the effect of sequence lengths removed from compute times, as in later
    windows."""
    if work is None:
        return windows
    return [replace(w, compute=w.compute / work.longest(w.tokens, w.squares)) for w in windows]
