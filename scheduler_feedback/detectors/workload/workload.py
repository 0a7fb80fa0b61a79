"""The workload detector: reports slowdowns that a job causes itself.

They are reported so that no one searches for faulty hardware; no action follows. The detector evaluates the newest
steps of a job. It finds pipeline stages with unequal work, sequences of unequal length, ranks with a constant offset
from their peers, long steps at a fixed period (checkpoints, evaluation), and jobs whose ranks all have more work than
before.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from agent.schema.sample import Sample
from scheduler_feedback.core.telemetry.telemetry import FEATURE, Grouping, JobTelemetry, Shape, Telemetry
from scheduler_feedback.core.verdict import Cleared, Finding, Kind, Verdict
from scheduler_feedback.detectors.context import DetectionContext
from scheduler_feedback.detectors.counters.counter_statistics import joined
from scheduler_feedback.detectors.resource_users import ResourceUsers
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.stats.group_medians import group_mean
from scheduler_feedback.detectors.steps.baseline import SKIPPED_STEPS
from scheduler_feedback.detectors.steps.places import places
from scheduler_feedback.detectors.workload import change_rules
from scheduler_feedback.detectors.workload.attempt_history import ActiveVerdict, Busy, Course, take_in
from scheduler_feedback.detectors.workload.slow_stage import Pressure, alone
from scheduler_feedback.detectors.workload.unreported_workload import UnreportedWorkloads
from scheduler_feedback.detectors.workload.workload_rules import OFFSET, RHYTHM, claims

EVERY_STEPS = 4
"""Number of steps between two evaluations of a live job. Causes within a job last long, so that more evaluations are
not needed."""

LONG_STEP_SECONDS = 2.0
"""Length of a step, in seconds, from which every step is evaluated."""

HOLD_STEPS, HOLD_SECONDS = 64, 120.0
"""A verdict is cleared if its cause was not detected for this number of steps and for this time. The work of a job
varies by chance: with shorter limits, verdicts would appear and clear every minute."""

HOLD_NODE_STEPS = 8
"""Number of steps, used instead of HOLD_STEPS, for verdicts on nodes or GPUs: they can lead to actions and must end
soon."""

LEAST_CONFIDENCE = 0.5

SNAPSHOT_VERSION = 1


class WorkloadDetector:
    """Detector of slowdowns that a job causes itself. Owned by one thread."""

    name = "workload"

    def __init__(self, timed: bool = True) -> None:
        self._timed = timed
        self._courses: dict[str, Course] = {}
        self._unreported = UnreportedWorkloads()
        self._shapes: tuple[Shape, ...] = ()
        self._roles = Grouping(())
        self._users = ResourceUsers("host")
        self._crowded: set[str] = set()  # hosts that several jobs use
        self._ends: list[int] = []  # end of each job's roles among the roles of all jobs

    def tick(self, context: DetectionContext) -> list[Finding]:
        """Evaluate the steps completed since the last tick, and return the new verdict events."""
        return [result for some in self.tick_in_parts(context) for result in some]

    def tick_in_parts(self, context: DetectionContext) -> Iterator[list[Finding]]:
        """Do the same job by job, and yield the new verdict events of each job with new steps."""
        telemetry = context.telemetry
        present = {job.shape.job for job in telemetry.jobs}
        for name in [name for name in self._courses if name not in present]:
            del self._courses[name]
        if context.published.refused:
            for course in self._courses.values():
                course.forget_verdicts(context.published.refused)
        if self._users.take([job.shape for job in telemetry.jobs]):
            self._crowded = self._users.names()
        self._follow(telemetry)
        self._wait(telemetry)
        for job in telemetry.jobs:
            if len(job.shape) < 2 or job.steps is None or not len(job.steps):
                continue
            course = self._course(job, telemetry.now_ns)
            every = (
                1 if not self._timed or (course.seconds and course.seconds[-1] >= LONG_STEP_SECONDS) else EVERY_STEPS
            )
            if take_in(course, job.steps) and course.taken - course.evaluated >= every:
                course.evaluated = course.taken
                is_crowded = bool(self._crowded) and not self._crowded.isdisjoint(job.shape.sharing.get("host", ()))
                yield self._conclude(course, job, is_crowded, context)
            else:
                yield []
        if self._timed:
            yield self._unreported.evaluate(context)

    def measures(self) -> Iterator[Sample]:
        """Yield no samples: this detector has no metrics."""
        return iter(())

    def snapshot(self) -> bytes:
        """Encode the version only: all state is learned again within a hundred steps."""
        return msgspec.msgpack.encode(SNAPSHOT_VERSION)

    def restore(self, data: bytes) -> None:
        """Restore a snapshot. Raises ValueError if the bytes are not a snapshot of this detector."""
        try:
            version = msgspec.msgpack.decode(data, type=int)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            version = -1
        if version != SNAPSHOT_VERSION:
            raise ValueError(f"workload snapshot of {len(data)} bytes: version {version}")

    def _course(self, job: JobTelemetry, now_ns: int) -> Course:
        course = self._courses.get(job.shape.job)
        if course is None or course.shape is not job.shape:
            skip = SKIPPED_STEPS if self._timed else 0
            course = self._courses[job.shape.job] = Course(job.shape, places(job.shape), now_ns, skip)
            course.pressure = Pressure() if alone(course.where) else None
        course.seen_ns = now_ns
        return course

    def _follow(self, telemetry: Telemetry) -> None:
        """Add the newest tensor pipe activity of each job's roles to the job's history."""
        counters, place = telemetry.counters, FEATURE["tensor_active"]
        if not len(counters.at_ns) or not self._courses or np.isnan(counters.values[place]).all():
            return
        shapes = tuple(job.shape for job in telemetry.jobs)
        if len(shapes) != len(self._shapes) or any(a is not b for a, b in zip(shapes, self._shapes, strict=True)):
            self._shapes, self._roles = shapes, Grouping(joined([shape.roles for shape in shapes]))
            self._ends = np.cumsum([int(shape.roles.max()) + 1 for shape in shapes]).tolist()
        shares = group_mean(counters.values[place], self._roles)  # [windows, roles of all jobs]
        starts = [0, *self._ends[:-1]]
        known = np.logical_and.reduceat(np.isfinite(shares), starts, axis=1).T.tolist()  # by job, for each window
        ends_ns = counters.at_ns.tolist()
        for shape, first, last, of_job in zip(shapes, starts, self._ends, known, strict=True):
            course = self._courses.get(shape.job)
            if course is not None and course.shape is shape:
                for is_known, at_ns, share in zip(of_job, ends_ns, shares, strict=True):
                    if is_known:
                        course.busy.append(Busy(at_ns, counters.seconds, share[first:last]))

    def _wait(self, telemetry: Telemetry) -> None:
        """Add the time that tasks on the nodes wait to the job's history. Needed for jobs with one stage per node and
        for jobs without tensor pipe counters."""
        counters = telemetry.counters
        if not len(counters.at_ns):
            return
        uncounted = np.isnan(counters.values[FEATURE["tensor_active"]])
        all_counted = not uncounted.any()
        if all_counted and all(course.pressure is None for course in self._courses.values()):
            return
        for job, columns in zip(telemetry.jobs, telemetry.columns(), strict=True):
            course = self._courses.get(job.shape.job)
            if course is None or course.shape is not job.shape:
                continue
            pressure = course.pressure
            if pressure is None:
                if all_counted or not uncounted[:, columns].all():
                    continue
                pressure = course.waits = course.waits or Pressure()
            for window, at_ns in enumerate(counters.at_ns.tolist()):
                middle_ns = at_ns - round(counters.seconds * 0.5e9)
                values = counters.values[:, window, columns]
                pressure.take(middle_ns, values, course.where, not course.since_ns)

    def _conclude(self, course: Course, job: JobTelemetry, crowded: bool, context: DetectionContext) -> list[Finding]:
        findings: list[Finding] = []
        name = job.shape.job
        for claim in (*claims(course, job, crowded), *change_rules.claims(course, job, crowded, context.counters)):
            active = course.active.get(claim.key)
            if active is not None:
                active.seen, active.seen_ns = course.taken, course.last_ns
                if claim.key != OFFSET or set(claim.ranks) <= _named(active.verdict):
                    continue  # only a set of ranks can grow
            confidence = log_odds.confidence(claim.evidence)
            if confidence < LEAST_CONFIDENCE:
                continue
            step_seconds = float(np.mean(course.seconds)) if claim.step_seconds is None else claim.step_seconds
            verdict = Verdict(
                verdict_id=(
                    f"{name}.{job.shape.attempt}.{claim.key}.{course.numbers[0]}"
                    if active is None
                    else active.verdict.verdict_id
                ),
                kind=claim.kind,
                gang=name,
                attempt=job.shape.attempt,
                rank=claim.rank,
                node=claim.node,
                level="node" if claim.node else "",
                cause=claim.cause,
                confidence=confidence,
                slowdown=step_seconds / max(min(claim.without_seconds, step_seconds), 1e-9),
                step_seconds_before=claim.without_seconds,
                step_seconds_now=step_seconds,
                first_wall_ns=course.last_ns - round(sum(course.seconds) * 1e9),
                last_wall_ns=course.last_ns,
                evidence=claim.evidence,
                frames=job.frames,
                detector=self.name,
                ranks=claim.ranks,
                first_step=course.numbers[0] if claim.first_step is None else claim.first_step,
                last_step=course.numbers[-1],
                detected_step=course.numbers[-1],
            )
            if claim.kind is Kind.STRAGGLER:
                members = {(name, job.shape.attempt, rank) for rank in claim.ranks}
                if not members.isdisjoint(context.published.accused):
                    continue  # another detector has reported it
            course.active[claim.key] = ActiveVerdict(verdict, course.taken, course.last_ns)
            findings.append(verdict)
        for key, one in list(course.active.items()):
            if key == RHYTHM and course.long_steps.period is None:
                del course.active[key]
                reason = "two expected long steps in a row did not occur"
                findings.append(Cleared(one.verdict.verdict_id, name, course.last_ns, reason, course.numbers[0]))
                continue
            accuses = one.verdict.kind is Kind.STRAGGLER
            hold = HOLD_NODE_STEPS if accuses else HOLD_STEPS
            hold_ns = HOLD_SECONDS * 1e9 if self._timed and not accuses else 0
            steps = course.taken - one.seen
            if steps <= hold or course.last_ns - one.seen_ns < hold_ns:
                continue
            over = course.active.pop(key).verdict
            reason = f"not detected for {steps} steps"
            findings.append(Cleared(over.verdict_id, name, course.last_ns, reason, course.numbers[0]))
        return findings


def _named(verdict: Verdict) -> set[int]:
    return set(verdict.ranks) or {verdict.rank}
