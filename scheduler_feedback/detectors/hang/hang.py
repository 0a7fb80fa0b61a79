"""The hang detector: finds jobs that finish no steps, and the ranks that block them.

Each rank numbers its collectives. While a job hangs, the waiting ranks are in the newest collective. A rank that has
not entered this collective hangs in its own work (Aegis, NSDI'25: the rank with the lowest launch count is the
culprit). If all ranks are in the collective, the transport does not deliver. The detector then accuses a failing port
or link, if there is one, and no rank otherwise. If no rank waits in a collective, the job is busy with other work, such
as saving, and the detector reports nothing.

Process states of the ranks (``process_evidence``) confirm or weaken the evidence. A rank whose process is stopped or
has ended is the culprit, whatever collective it is in. A rank whose process works may be saving. If all processes are
stopped, or a debugger is attached, the detector abstains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from agent.schema.process_state import ProcessState
from agent.schema.sample import Sample
from scheduler_feedback.core.telemetry.steps.blocked_ranks import Blocked
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, IndexArray, JobTelemetry, Shape, Telemetry
from scheduler_feedback.core.verdict import Abstention, Cause, Cleared, Evidence, Finding, Kind, Verdict
from scheduler_feedback.detectors.context import DetectionContext
from scheduler_feedback.detectors.counters.counter_statistics import ALARM
from scheduler_feedback.detectors.counters.peer_outlier import many
from scheduler_feedback.detectors.hang import blocked_evidence
from scheduler_feedback.detectors.hang.blocked_evidence import EARLY_SECONDS
from scheduler_feedback.detectors.hang.certain_hangs import (
    FRESH_SECONDS,
    blocked_before_peers,
    is_inside,
    stopped_since,
)
from scheduler_feedback.detectors.hang.long_step import LongSteps
from scheduler_feedback.detectors.hang.process_evidence import evidence as of_process
from scheduler_feedback.detectors.hang.process_evidence import never_go_on, states_of
from scheduler_feedback.detectors.hang.unreported_hang import UnreportedHangs, never_arrived
from scheduler_feedback.detectors.stats import log_odds

LEAST_SECONDS = 40.0
"""A job hangs only if it has finished no step for at least this time in seconds. For comparison: DLRover waits 300 s,
ByteRobust 600 s."""

TIMES_THE_USUAL = 4.5
"""A job hangs only if it has finished no step for at least this multiple of a usual step."""

TIMES_THE_LONGEST = 1.5
"""A job hangs only if it has finished no step for at least this multiple of its longest step so far: checkpoints recur.
The time of stopped processes and of earlier proven hangs is not counted in the longest step."""

CONFIDENT = 0.95
"""A verdict on a hang with at least this confidence is final: it is not evaluated again."""

AGAIN_SECONDS = 5.0
"""Interval in seconds at which a verdict below CONFIDENT is evaluated again: the state of the culprit's process may
confirm it."""

SURELY_STALLED = 2.0
"""The process states of a job's ranks are tracked once it has finished no step for this multiple of a usual step."""

FEW = 8
"""No rank is called the culprit if more than one rank in eight has not entered the collective and these ranks are on
several nodes."""

RESTORED_SECONDS = 600.0
"""Time in seconds after a restart for which restored state of a job that does not report is kept."""

LEAST_STEPS = 24
"""Number of reported steps from which the usual pauses of a job without collectives are known."""

USUAL_STEPS = 64
PAGED_RANKS = 16
SNAPSHOT_VERSION = 2


_Restored = tuple[float, float, int, float | None]
"""State of a job in a snapshot: its longest step and longest pause in seconds, the number of its attempt, and the usual
step of that attempt in seconds."""


@dataclass(slots=True)
class _AttemptState:
    """State of one attempt of a job."""

    shape: Shape
    finished_ns: int
    """Time in ns at which the newest step ended."""
    step: int = -1
    seconds: list[float] = field(default_factory=list)
    """Lengths of the newest steps, in seconds."""
    median: tuple[list[float] | None, float] = (None, 0.0)
    """A list of lengths and its median: the last result of `usual`."""
    restored_usual: float | None = None
    """Usual step of this attempt in seconds, from a snapshot."""
    longest: float = 0.0
    """Longest step of the job in seconds, without steps that a proven hang lengthened."""
    longest_pause: float = 0.0
    """Longest step of the job in seconds, including steps that a proven hang lengthened."""
    stopped_ns: int = 0
    """Time in ns for which a process of the job was stopped since the newest step ended."""
    stopped_since: Mapping[int, int] = field(default_factory=dict)
    """Time in ns since which the process of a rank has been stopped without a break, by the index of the rank."""
    evaluated_ns: int = 0
    """Time of the last evaluation of the attempt, in ns."""
    judged_ns: int = 0
    """Time in ns of the last evaluation that found the attempt without steps for long enough and searched for the
    culprits."""
    active: Verdict | None = None
    """Active hang verdict on the attempt."""
    abstained: bool = False
    early: bool = False
    """Whether the job has been without steps for less than LEAST_SECONDS. A verdict then needs the reports of its
    ranks."""

    @property
    def usual(self) -> float | None:
        """Length of a usual step in seconds; None if no step of the attempt was received.

        Read every tick, so the median is computed only for new steps. The list is replaced, never changed in place.
        """
        if not self.seconds:
            return self.restored_usual
        of, median = self.median
        if of is not self.seconds:
            ordered, middle = sorted(self.seconds), len(self.seconds) // 2
            median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
            self.median = self.seconds, median
        return median

    def steps(self, lengths: FloatArray) -> None:
        """Add the lengths of finished steps, in seconds."""
        own = lengths.copy()
        own[int(own.argmax())] -= min(self.stopped_ns * 1e-9, float(own.max()))
        longest = float(own.max())
        self.longest_pause = max(self.longest_pause, longest)
        if self.active is None or self.active.confidence < CONFIDENT:
            self.longest = max(self.longest, longest)
        self.seconds = [*self.seconds, *lengths.tolist()][-USUAL_STEPS:]
        self.stopped_ns = 0


class HangDetector:
    """Detector of jobs that hang. Owned by one thread."""

    name = "hang"

    def __init__(self, timed: bool = True) -> None:
        self._timed = timed
        self._watched: dict[str, _AttemptState] = {}
        self._restored: dict[str, _Restored] = {}
        self._restored_until_ns = 0
        self._unreported = UnreportedHangs()
        self._long_steps: dict[str, LongSteps] = {}

    def tick(self, context: DetectionContext) -> list[Finding]:
        """Evaluate all jobs, and return the new verdict events. For a recorded trace, which has no clock, return only
        results about pauses that ended."""
        findings: list[Finding] = []
        if not self._timed:
            return self._pauses(context.telemetry)
        telemetry, self._counters = context.telemetry, context.counters
        self._forget(telemetry.now_ns)
        present = {job.shape.job for job in telemetry.jobs}
        for name in [name for name in self._watched if name not in present]:
            del self._watched[name]
        by_counters = {job.shape.job for job in telemetry.jobs if job.shape.job in context.by_counters and _silent(job)}
        self._unreported.keep(by_counters)
        columns = telemetry.columns() if by_counters else []
        for place, job in enumerate(telemetry.jobs):
            findings += self._evaluate(job, telemetry)
            if job.shape.job in by_counters:
                findings += self._evaluate_unreported(job, columns[place], telemetry)
        return findings

    def _pauses(self, telemetry: Telemetry) -> list[Finding]:
        findings: list[Finding] = []
        for job in telemetry.jobs:
            shape = job.shape
            known = self._long_steps.get(shape.job)
            if known is None or known.attempt != shape.attempt:
                known = self._long_steps[shape.job] = LongSteps(shape.attempt)
            findings += known.take(job, telemetry.now_ns)
        return findings

    def _forget(self, now_ns: int) -> None:
        """Drop restored state of jobs that have not reported for ten minutes after the restart."""
        if self._restored and not self._restored_until_ns:
            self._restored_until_ns = now_ns + round(RESTORED_SECONDS * 1e9)
        elif self._restored and now_ns > self._restored_until_ns:
            self._restored = {}

    def measures(self) -> Iterator[Sample]:
        """Yield no samples: this detector has no metrics."""
        return iter(())

    def snapshot(self) -> bytes:
        """Encode the longest step, the longest pause and the usual step of each job.

        Without the longest step and pause, a restarted controller would report the next long pause as a hang. Without
        the usual step it would never find a hang that began before the restart: a hanging job finishes no steps to
        learn from.
        """
        longest = {
            name: (one.longest, one.longest_pause, one.shape.attempt, one.usual) for name, one in self._watched.items()
        }
        return msgspec.msgpack.encode((SNAPSHOT_VERSION, self._restored | longest))

    def restore(self, data: bytes) -> None:
        """Restore a snapshot. Raises ValueError if the bytes are not a snapshot of this detector."""
        try:
            if msgspec.msgpack.decode(data) == 1:  # written by a release without hang state
                return
            version, longest = msgspec.msgpack.decode(data, type=tuple[int, dict[str, _Restored]])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            version, longest = -1, {}
        if version != SNAPSHOT_VERSION:
            raise ValueError(f"hang snapshot of {len(data)} bytes: version {version}")
        self._restored, self._restored_until_ns = longest, 0

    def _evaluate(self, job: JobTelemetry, telemetry: Telemetry) -> list[Finding]:
        name, now_ns = job.shape.job, telemetry.now_ns
        watched = self._watch(job.shape, now_ns)
        findings: list[Finding] = []
        since_ns, watched.evaluated_ns = max(watched.evaluated_ns, watched.finished_ns), now_ns
        if job.steps is not None and len(job.steps):
            seconds = job.steps.seconds
            watched.steps(np.where(np.isfinite(seconds), seconds, 0.0).max(axis=1))
            watched.finished_ns = max(watched.finished_ns, int(job.steps.end_ns.max()))
            watched.step = int(job.steps.number[-1])
            watched.abstained, watched.stopped_since = False, {}
            if watched.active is not None:
                over, watched.active = watched.active, None
                findings.append(Cleared(over.verdict_id, name, now_ns, "the job finishes steps again"))
            return findings
        proven = watched.active is not None and watched.active.confidence >= CONFIDENT
        if job.given_open_collectives is None:
            return findings
        stalled_seconds = (now_ns - watched.finished_ns) * 1e-9
        usual = watched.usual
        if usual is not None and stalled_seconds < SURELY_STALLED * usual:
            return findings
        states = states_of(job)
        watched.stopped_since = stopped_since(watched.stopped_since, states, now_ns)
        if usual is None:
            # No step of the attempt was received: it may be compiling. Only a stopped process is unambiguous.
            if not (states == ProcessState.STOPPED).any():
                return findings
            usual = LEAST_SECONDS / TIMES_THE_USUAL
        if never_go_on(states).any():
            watched.stopped_ns += max(now_ns - since_ns, 0)
        if proven or stalled_seconds < max(EARLY_SECONDS, TIMES_THE_USUAL * usual, TIMES_THE_LONGEST * watched.longest):
            return findings
        watched.early = stalled_seconds < LEAST_SECONDS
        if watched.active is None:
            return self._judge(job, watched, telemetry, stalled_seconds, usual, states)
        if now_ns - watched.judged_ns < AGAIN_SECONDS * 1e9:
            return findings
        return self._judge_again(watched.active, job, watched, telemetry, stalled_seconds, usual, states)

    def _watch(self, shape: Shape, now_ns: int) -> _AttemptState:
        """Return the state of the job's attempt. A new attempt inherits the longest step and pause of earlier
        attempts."""
        watched = self._watched.get(shape.job)
        if watched is None or watched.shape.attempt != shape.attempt:
            longest, pause, attempt, usual = self._restored.pop(shape.job, (0.0, 0.0, -1, None))
            if watched is not None:
                longest, pause = max(longest, watched.longest), max(pause, watched.longest_pause)
            watched = self._watched[shape.job] = _AttemptState(
                shape, now_ns, longest=longest, longest_pause=pause,
                restored_usual=usual if attempt == shape.attempt else None,
            )  # fmt: skip
        watched.shape = shape
        return watched

    def _judge_again(
        self, earlier: Verdict, job: JobTelemetry, watched: _AttemptState, telemetry: Telemetry, stalled_seconds: float,
        usual: float, states: IntArray,
    ) -> list[Finding]:  # fmt: skip
        """Evaluate an uncertain verdict again. Report it again if new evidence confirms it."""
        abstained, watched.abstained = watched.abstained, True  # a problem was reported already
        findings = self._judge(job, watched, telemetry, stalled_seconds, usual, states)
        watched.abstained = abstained
        newer = next((one for one in findings if isinstance(one, Verdict)), None)
        surer = newer is not None and newer.confidence > blocked_evidence.EARLY_CONFIDENCE >= earlier.confidence
        if newer is None or (newer.confidence < CONFIDENT and not surer):
            watched.active = earlier
            return []
        if newer.verdict_id == earlier.verdict_id:
            return [newer]
        return [Cleared(earlier.verdict_id, earlier.gang, telemetry.now_ns, "another rank is the culprit"), newer]

    def _evaluate_unreported(self, job: JobTelemetry, columns: slice, telemetry: Telemetry) -> list[Finding]:
        """Evaluate a job that reports no steps, by its traffic and by the SM activity of its ranks."""
        watched, counters = self._watched[job.shape.job], telemetry.counters
        watched.early = False
        if not len(counters.at_ns):
            return []
        traffic = self._unreported.take(job, counters.values[:, :, columns], counters.at_ns.tolist())
        if not traffic.idle_windows:
            watched.abstained = False
            if watched.active is None:
                return []
            over, watched.active = watched.active, None
            return [Cleared(over.verdict_id, job.shape.job, telemetry.now_ns, "the job's network traffic has resumed")]
        made_steps = job.steps is not None and len(watched.seconds) >= LEAST_STEPS
        stuck = None if watched.active is not None else traffic.stuck(int(counters.at_ns[-1]), made_steps)
        if made_steps and stuck is not None and stuck.seconds < TIMES_THE_USUAL * (watched.usual or 0.0):
            return []
        if stuck is None:
            return []
        watched.finished_ns = traffic.moved_ns
        if job.steps is None:
            watched.seconds = [max(stuck.usual_pause, counters.seconds)]
        watched.longest_pause = max(watched.longest_pause, stuck.usual_pause)
        if not len(stuck.ranks):
            if stuck.unknown:
                return self._abstain(job, watched, telemetry, "some ranks send no counters; see the health verdicts")
            return self._transport(job, watched, telemetry, stuck.evidence)
        if many(stuck.ranks, job.shape):
            return self._abstain(job, watched, telemetry, f"{len(stuck.ranks)} ranks are not polling in a collective")
        cause, apart = never_arrived(stuck)
        return [
            self._verdict(job, watched, telemetry, int(stuck.ranks[0]), stuck.ranks, cause, (*stuck.evidence, apart))
        ]

    def _judge(
        self, job: JobTelemetry, watched: _AttemptState, telemetry: Telemetry, stalled_seconds: float, usual: float,
        states: IntArray,
    ) -> list[Finding]:  # fmt: skip
        opened, now_ns = job.open_collectives, telemetry.now_ns
        assert opened is not None
        watched.judged_ns = now_ns
        against = "the usual step" if watched.usual is not None else "assumed: no step of this attempt was received"
        silence = Evidence("seconds_without_a_step", stalled_seconds, usual, "seconds", against, 2.0)
        reports = blocked_evidence.current(job, watched.finished_ns)
        if (
            watched.early
            and len(reports) < 2
            and not blocked_before_peers(states, watched.stopped_since, opened, now_ns).any()
        ):
            return []
        if (states == ProcessState.TRACED).any():
            return self._abstain(job, watched, telemetry, "a debugger has stopped one of its processes")
        stopped = np.flatnonzero(never_go_on(states))
        if len(stopped) == len(job.shape):
            return self._abstain(job, watched, telemetry, "all of its processes are stopped or gone")
        if len(stopped):
            return self._of_ranks(job, watched, telemetry, stopped, int(stopped[0]), (silence,), states)
        inside = is_inside(opened, now_ns)
        if not inside.any():
            return []
        newest = int(opened[inside, 0].max())
        absent = np.flatnonzero(~inside)
        if not len(absent):
            absent = np.flatnonzero(_behind(opened[:, 0], job.shape))
            if (by_group := blocked_evidence.behind(reports, job.shape.ranks)) is not None:
                absent = by_group
            if not len(absent) and _mismatched(reports, job.shape.ranks):
                return self._mismatch(job, watched, telemetry, (silence,), reports)
        entered = float(np.mean((telemetry.now_ns - opened[inside, 1]) * 1e-9))
        if entered < (EARLY_SECONDS if watched.early else LEAST_SECONDS) / 2:
            return []
        reported_ns = np.array([telemetry.last_received_ns.get(node, 0) for node in job.shape.nodes])
        lost = (
            (telemetry.now_ns - reported_ns) * 1e-9 > FRESH_SECONDS
            if telemetry.last_received_ns
            else np.zeros(len(reported_ns), bool)
        )
        waiting = Evidence(
            "ranks_in_the_newest_collective", float(inside.sum()), float(len(inside)), "ranks",
            f"all ranks; they have been in collective {newest} for {entered:.0f} s on average", 2.0,
        )  # fmt: skip
        if not len(absent):
            return self._transport(job, watched, telemetry, (silence, waiting))
        if lost[absent].all() and lost.any():
            reason = "the agents of the absent ranks are stale; see the health verdicts"
            return self._abstain(job, watched, telemetry, reason)
        absent = at_fault(absent, lost, job.shape)
        behind = opened[absent, 0]
        who = absent[int(np.argmin(behind))]
        arrived = Evidence(
            "collective_entered",
            float(opened[who, 0]),
            float(newest),
            "",
            "the collective in which the other ranks are blocked",
            4.0,
        )
        return self._of_ranks(job, watched, telemetry, absent, int(who), (silence, waiting, arrived), states)

    def _of_ranks(
        self, job: JobTelemetry, watched: _AttemptState, telemetry: Telemetry, absent: IndexArray, who: int,
        found: tuple[Evidence, ...], states: IntArray,
    ) -> list[Finding]:  # fmt: skip
        """Report a verdict on the ranks that have not entered the collective (`absent`); `who` is the first of them."""
        nodes = {job.shape.nodes[index] for index in absent.tolist()}
        if len(nodes) > 1 and len(absent) > max(1, len(job.shape) // FEW):
            return self._abstain(
                job, watched, telemetry, f"{len(absent)} of {len(job.shape)} ranks on {len(nodes)} nodes are absent"
            )
        stalled_seconds = found[0].value
        evidence = (*found, *of_process(job, states, who, stalled_seconds, telemetry.now_ns))
        reports, accused = blocked_evidence.current(job, watched.finished_ns), job.shape.ranks[absent].tolist()
        opened = job.open_collectives
        assert opened is not None
        if (
            watched.early
            and not blocked_before_peers(states, watched.stopped_since, opened, telemetry.now_ns)[absent].all()
        ):
            if not blocked_evidence.confirms(job, reports, accused, states, telemetry.now_ns):
                return []
            evidence = blocked_evidence.capped(evidence, stalled_seconds, LEAST_SECONDS)
        evidence = (*evidence, *blocked_evidence.blocked_at(job, reports, accused))
        return [self._verdict(job, watched, telemetry, who, absent, Cause.NEVER_ARRIVED, evidence)]

    def _mismatch(
        self, job: JobTelemetry, watched: _AttemptState, telemetry: Telemetry, found: tuple[Evidence, ...],
        reports: Mapping[int, Blocked],
    ) -> list[Finding]:  # fmt: skip
        """Report a verdict on the ranks that called another operation than their group."""
        who = blocked_evidence.in_another_operation(reports, job.shape.ranks)
        against = "all ranks, each twice at the same place in a collective: most called another operation"
        called = Evidence("ranks_in_another_operation", float(len(who)), float(len(job.shape)), "ranks", against, 4.0)
        where = blocked_evidence.blocked_at(job, reports, job.shape.ranks[who].tolist())
        evidence = (*found, called, *where)
        return [self._verdict(job, watched, telemetry, int(who[0]), who, Cause.NEVER_ARRIVED, evidence)]

    def _transport(
        self, job: JobTelemetry, watched: _AttemptState, telemetry: Telemetry, evidence: tuple[Evidence, ...]
    ) -> list[Finding]:
        """Report a verdict on the failing port or link, if all ranks are in the collective and exactly one node has
        errors."""
        if watched.early:
            return []
        columns = self._counters.of(job.shape.job)
        features = {Cause.NIC: ("nic_physical_errors", "nic_sequence_errors"), Cause.NVLINK: ("nvlink_errors",),
                    Cause.PCIE: ("pcie_errors", "pcie_link")}  # fmt: skip
        found = []
        for cause, names in features.items():
            score = np.max([self._counters.score[FEATURE[name], columns] for name in names], axis=0)
            failing = np.flatnonzero(score >= ALARM)
            if len({job.shape.nodes[index] for index in failing.tolist()}) == 1:
                found.append((float(score[failing].max()), cause, failing))
        if not found:
            reason = "all ranks are in one collective, and no port or link reports errors: suspect the transport"
            return self._abstain(job, watched, telemetry, reason)
        score, cause, failing = max(found, key=lambda one: one[0])
        errors = Evidence(
            "error_counters", score, ALARM, "sigma", "alarm threshold of the CUSUM against its peers", 3.0
        )
        return [self._verdict(job, watched, telemetry, int(failing[0]), failing, cause, (*evidence, errors))]

    def _abstain(self, job: JobTelemetry, watched: _AttemptState, telemetry: Telemetry, reason: str) -> list[Finding]:
        if watched.abstained or watched.early:
            return []
        watched.abstained = True
        shape = job.shape
        text = f"the job has stopped finishing steps: {reason}"
        found = blocked_evidence.blocked_at(job, blocked_evidence.current(job, watched.finished_ns), ())
        text = "; ".join([text, *(one.against for one in found)])
        return [Abstention(shape.job, shape.attempt, None, telemetry.now_ns, text, found, self.name)]

    def _verdict(
        self,
        job: JobTelemetry,
        watched: _AttemptState,
        telemetry: Telemetry,
        who: int,
        all_of_them: IntArray,
        cause: Cause,
        evidence: tuple[Evidence, ...],
    ) -> Verdict:
        shape = job.shape
        gpu = shape.gpus[who] if shape.gpus else ""
        nic = shape.nics[who] if shape.nics else ""
        level, device = ("nic", nic) if cause is Cause.NIC and nic else ("gpu", gpu) if gpu else ("node", "")
        rank = int(shape.ranks[who])
        ranks = tuple(shape.ranks[all_of_them].tolist()) if 1 < len(all_of_them) <= PAGED_RANKS else ()
        usual = LEAST_SECONDS / TIMES_THE_USUAL if watched.usual is None else watched.usual
        watched.active = Verdict(
            verdict_id=f"{shape.job}.{shape.attempt}.hang.{rank}.{watched.finished_ns}",
            kind=Kind.HANG,
            gang=shape.job,
            attempt=shape.attempt,
            rank=rank,
            node=shape.nodes[who],
            cause=cause,
            confidence=log_odds.confidence(evidence),
            slowdown=max(1.0, (telemetry.now_ns - watched.finished_ns) * 1e-9 / max(usual, 1e-9)),
            step_seconds_before=usual,
            step_seconds_now=(telemetry.now_ns - watched.finished_ns) * 1e-9,
            first_wall_ns=watched.finished_ns,
            last_wall_ns=telemetry.now_ns,
            evidence=evidence,
            frames=job.frames,
            detector=self.name,
            ranks=ranks,
            level=level,
            device=device,
            suspects=(f"node:{shape.nodes[who]}",) if level != "node" else (),
            first_step=watched.step,
            last_step=watched.step,
            detected_step=watched.step,
            longest_pause_seconds=watched.longest_pause,
        )
        return watched.active


def _mismatched(reports: Mapping[int, Blocked], ranks: IntArray) -> bool:
    """Return whether all ranks are in collectives that can't complete, because some called another operation."""
    return blocked_evidence.all_wait(reports, ranks) and len(blocked_evidence.in_another_operation(reports, ranks)) > 0


def _silent(job: JobTelemetry) -> bool:
    """Return whether no rank of the job has ever reported a collective."""
    return job.steps is None or job.open_collectives is None or bool((job.open_collectives[:, 0] < 0).all())


def _behind(numbers: IntArray, shape: Shape) -> npt.NDArray[np.bool_]:
    """Return whether each rank is in an earlier collective than the newest one of its role. Each role has its own
    numbering."""
    roles = shape.roles
    newest = np.zeros(int(roles.max()) + 1, np.int64)
    np.maximum.at(newest, roles, numbers)
    result: npt.NDArray[np.bool_] = numbers < newest[roles]
    return result


def at_fault(absent: IndexArray, lost: npt.NDArray[np.bool_], shape: Shape) -> IndexArray:
    """Return the indices of those absent ranks for which the others may be waiting.

    absent: ranks that are not known to be in the collective. lost: bool [n], ranks whose agents are not reporting; the
    position of such a rank is unknown. Other ranks of its replica may wait for its data, and are excluded.
    """
    replicas, stale = shape.groups.get("pipeline"), absent[lost[absent]]
    if replicas is None or not len(stale):
        return absent
    seen = absent[~lost[absent] & ~np.isin(replicas[absent], replicas[stale])]
    return seen if len(seen) else absent
