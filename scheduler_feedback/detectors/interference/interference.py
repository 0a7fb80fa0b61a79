"""The interference detector: finds jobs that another job slows down, and reports the other job.

Jobs that share a resource (a host, a PCIe switch, a NIC, an uplink) are neighbours. The detector tracks what the victim
loses: its communication time (for an uplink or NIC), or the extra time of its ranks on the shared host. It also tracks
the load of each neighbour on the resource. The correlation of the two must exceed that of circularly shifted copies:
these contain the same starts, stops and pauses of the neighbour, but at the wrong times. No node is quarantined for
interference. Without a known topology the detector abstains.

For a job without step reports, iteration times are inferred from its traffic. The counters of its ranks on the shared
resource must then confirm the correlation, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from agent.schema.sample import Sample
from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray, IntArray
from scheduler_feedback.core.telemetry.telemetry import (
    FEATURE,
    Float32Array,
    JobTelemetry,
    Shape,
    StepTable,
    Telemetry,
)
from scheduler_feedback.core.verdict import Abstention, Cause, Cleared, Evidence, Finding, Kind, Verdict
from scheduler_feedback.detectors.context import DetectionContext
from scheduler_feedback.detectors.counters.counter_statistics import ALARM
from scheduler_feedback.detectors.interference.host_ranks import HostRanks
from scheduler_feedback.detectors.interference.load_history import HOLD_WINDOWS, BlockHistory, LoadHistory
from scheduler_feedback.detectors.interference.rivals import RIVAL_CORRELATION, Series, equal_rivals, not_distinguished
from scheduler_feedback.detectors.interference.shared_resources import SENDING, Resources, Sharing, ranks_of
from scheduler_feedback.detectors.interference.unreported_victim import LEAST_WAIT, Unreported
from scheduler_feedback.detectors.interference.victim_steps import (
    BLOCK_STEP_WINDOWS,
    BLOCK_WINDOWS,
    LONG_STEP_WINDOWS,
    Marks,
    Steps,
)
from scheduler_feedback.detectors.stats import log_odds
from scheduler_feedback.detectors.stats.correlation import (
    CHANCE,
    GUARD_SHARE,
    KEPT_WINDOWS,
    LEAST_CORRELATION,
    LEAST_STATE,
    LEAST_WINDOWS,
    Means,
    correlate,
    grown,
    least,
    pauses,
)
from scheduler_feedback.detectors.stats.medians import median

TEST_SECONDS = 6.0
"""Interval in seconds between two tests of a job for interference."""

LEAST_COST = 0.05
"""Interference is reported only if the victim loses at least this share of its step while the neighbour is busy."""

CONGESTED_RANKS = 0.2
"""If the topology is unknown, the detector abstains only if at least this share of the job's ports is congested.
Otherwise it returns no result."""

LEAST_MARKED = 10.0
"""A port is congested only if its congestion marks a second are more than this many times those of the ports with few,
or more than this number if those have less than one."""

UNKNOWN_COST = 0.10
"""If the topology is unknown, the detector abstains only if communication takes longer by at least this share of a
step. Otherwise it returns no result."""

HOLD_TESTS = 20
"""Number of consecutive tests without a correlation after which a verdict is cleared."""

HOLD_PAUSES = 2
"""A verdict is cleared when the neighbour has been idle for more than HOLD_PAUSES times its longest pause, and for
longer than HOLD_TESTS tests take."""

SNAPSHOT_VERSION = 1
WAITING = np.array([FEATURE["cpu_waiting"], FEATURE["runqueue_wait"]])


@dataclass(slots=True)
class _Course:
    """History of one job: one value for each of the newest KEPT_WINDOWS windows of counters, newest last."""

    shape: Shape
    communication: Means = field(default_factory=Means)
    """Communication time in each window, as a share of the step."""
    excess: dict[str, Means] = field(default_factory=dict)
    """Extra compute time of the job's ranks on each shared host, in each window; NaN where unknown."""
    unshared: dict[str, int] = field(default_factory=dict)
    """Number of the window since which a host in `excess` is not shared any more."""
    hosts: HostRanks | None = None
    """The job's ranks on the hosts in `excess`; None until they are needed."""
    usual_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    steps: Steps = field(default_factory=Steps)
    """Loss of the job in each of its steps. Used to find correlations if a step covers several windows."""
    step: int = -1
    unknown_reported: bool = False
    rivals: frozenset[str] = frozenset()
    """Names of the neighbours that were reported as not distinguishable."""
    unreported: Unreported | None = None
    """State for a job that reports no steps and shares a resource; else None."""


@dataclass(slots=True)
class _ActiveVerdict:
    verdict: Verdict
    missed: int = 0
    """Number of consecutive tests without a correlation."""


@dataclass(frozen=True, slots=True)
class _Correlated:
    """A neighbour whose load on a shared resource correlates with the victim's loss."""

    aggressor: str
    resource: tuple[str, str]
    """Kind and name of the shared resource, for example a host."""
    ranks: int
    """Number of the victim's ranks that use the shared resource."""
    correlation: float
    chance: float
    """Share of circularly shifted copies of the load that correlate at least as much: the probability of chance."""
    cost: float
    """Loss of the victim while the neighbour is busy, as a share of its usual step."""

    def evidence(self, ranks: int) -> list[Evidence]:
        """Return the correlation as evidence.

        ranks: number of all ranks of the victim.
        """
        kind, place = self.resource
        return [
            Evidence("correlation", self.correlation, LEAST_CORRELATION, "",
                     f"least correlation with the load of {self.aggressor} on {kind} {place}",
                     log_odds.bounded(4.0 * (self.correlation - 0.3), 0.0, 2.5)),
            Evidence("chance", self.chance, CHANCE, "", "limit for the share of circular shifts with as much", 2.0),
            Evidence("step_share_lost_while_it_is_busy", self.cost, LEAST_COST, "ratio", "least loss to report", 1.5),
            Evidence("ranks_there", float(self.ranks), float(ranks), "ranks", "all ranks of the job", 0.0),
        ]  # fmt: skip


class InterferenceDetector:
    """Detector of jobs that other jobs slow down. Owned by one thread."""

    name = "interference"

    def __init__(self, timed: bool = True) -> None:
        self._timed = timed
        self._courses: dict[str, _Course] = {}
        self._ends: deque[int] = deque(maxlen=KEPT_WINDOWS)
        self._loads = LoadHistory(KEPT_WINDOWS)
        self._blocks = BlockHistory(KEPT_WINDOWS, BLOCK_WINDOWS)
        self._of: Resources = {}
        self._active: dict[tuple[str, str], _ActiveVerdict] = {}
        self._idle: set[tuple[str, str]] = set()
        self._windows = 0
        self._tested = 0
        self._sharing = Sharing()

    def tick(self, context: DetectionContext) -> list[Finding]:
        """Update the history of all jobs that share a resource, and return the new verdict events."""
        return [result for some in self.tick_in_parts(context) for result in some]

    def tick_in_parts(self, context: DetectionContext) -> Iterator[list[Finding]]:
        """Do the same job by job, and yield the new verdict events of each tested job."""
        if not self._timed:
            return
        telemetry, self._counters = context.telemetry, context.counters
        present = {job.shape.job: job for job in telemetry.jobs}
        for gone in self._courses.keys() - present.keys():
            del self._courses[gone]
            self._forget_loads(gone)
        refused = context.published.refused
        for key, active in list(self._active.items()):
            if key[0] not in present or active.verdict.verdict_id in refused:
                del self._active[key]
        self._idle = {key for key in self._idle if present.keys() >= set(key)}
        resources = self._sharing.of(telemetry)
        self._advance(telemetry, resources, context.by_counters)
        ends = np.fromiter(self._ends, np.int64, len(self._ends))
        for job in telemetry.jobs:
            if job.steps is not None and len(job.steps) and len(ends):
                self._steps(job, job.steps, ends, telemetry.counters.seconds)
                yield []
        apart = (self._windows - self._tested) * telemetry.counters.seconds
        if (
            not self._windows > self._tested
            or apart < TEST_SECONDS
            or len(self._ends) < least(telemetry.counters.seconds)[0]
        ):
            return
        self._tested = self._windows
        accusing = {name for name, _ in (*self._active, *self._idle)}
        for name, course in self._courses.items():
            self._forget_hosts(course)
            if name in accusing or self._may_be_disturbed(present[name], course):
                yield self._judge(present[name], course, telemetry)

    def measures(self) -> Iterator[Sample]:
        """Yield no samples: this detector has no metrics."""
        return iter(())

    def snapshot(self) -> bytes:
        """Encode the version only. After a restart, the load of neighbours is learned again."""
        return msgspec.msgpack.encode(SNAPSHOT_VERSION)

    def restore(self, data: bytes) -> None:
        """Restore a snapshot. Raises ValueError if the bytes are not a snapshot of this detector."""
        try:
            version = msgspec.msgpack.decode(data, type=int)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            version = -1
        if version != SNAPSHOT_VERSION:
            raise ValueError(f"interference snapshot of {len(data)} bytes: version {version}")

    # --- following --------------------------------------------------------------------------------------------------

    def _advance(self, telemetry: Telemetry, resources: Resources, by_counters: frozenset[str]) -> None:
        """Append a value to every history for each new window of counters, so that all histories have the same
        times."""
        values, ends = telemetry.counters.values, telemetry.counters.at_ns
        for window in range(len(ends)):
            self._windows += 1
            for job in telemetry.jobs:
                course = self._courses.get(job.shape.job)
                if course is None or course.shape.attempt != job.shape.attempt:
                    course = self._courses[job.shape.job] = _Course(job.shape)
                    self._forget_loads(job.shape.job)
                course.shape = job.shape
                course.communication.window(len(self._ends) + 1)
                for means in course.excess.values():
                    means.window(len(self._ends) + 1)
            self._unreported(telemetry, values[:, window], resources, by_counters)
            sent = self._sharing.sums(values[:, window])
            if self._blocks.take(int(ends[window]), sent, resources):
                self._marks(telemetry, values[FEATURE["nic_congestion"], window])
            self._loads.take(sent, resources)
            if resources is not self._of:
                self._of = resources
                self._follow_hosts(resources)
            self._ends.append(int(ends[window]))

    def _follow_hosts(self, resources: Resources) -> None:
        """Begin to collect the extra compute time of jobs on hosts that they now share. Note which hosts they do not
        share any more."""
        now: dict[str, set[str]] = {}
        for (kind, place), members in resources.items():
            for name in members if kind == "host" else ():
                now.setdefault(name, set()).add(place)
                course = self._courses[name]
                if place not in course.excess:
                    course.excess[place] = Means()
                    course.excess[place].window(len(self._ends) + 1)
                    course.hosts = None
        for name, course in self._courses.items():
            if course.excess:
                shared = now.get(name, set())
                course.unshared = {
                    place: course.unshared.get(place, self._windows) for place in course.excess if place not in shared
                }

    def _forget_hosts(self, course: _Course) -> None:
        """Delete the history of hosts that the job has not shared for HOLD_WINDOWS windows."""
        for place in [place for place, since in course.unshared.items() if self._windows - since >= HOLD_WINDOWS]:
            del course.unshared[place], course.excess[place]
            course.steps.lost.pop(place, None)
            course.hosts = None

    def _forget_loads(self, job: str) -> None:
        """Delete the load of a job that has ended or restarted."""
        self._loads.forget(job)
        self._blocks.loads.forget(job)

    def _marks(self, telemetry: Telemetry, marked: Float32Array) -> None:
        """Update the newest and usual congestion marks of jobs with long steps that share a network path.

        marked: congestion marks per second, [ranks of all jobs].
        """
        for job, columns in zip(telemetry.jobs, telemetry.columns(), strict=True):
            steps = self._courses[job.shape.job].steps
            if not steps.end_ns or job.shape.job not in self._sharing.senders:
                continue
            if steps.marks is None or len(steps.marks.usual) != len(job.shape):
                steps.marks = Marks(*np.full((2, len(job.shape)), np.nan, np.float32))
            steps.marks.take(marked[columns])

    def _unreported(
        self, telemetry: Telemetry, values: Float32Array, resources: Resources, by_counters: frozenset[str]
    ) -> None:
        """Add one window of counters for jobs without steps or waits that share a resource.

        values: [features, ranks of all jobs]. by_counters: names of these jobs.
        """
        if not by_counters:
            for course in self._courses.values():
                course.unreported = None
            return
        for job, columns in zip(telemetry.jobs, telemetry.columns(), strict=True):
            course = self._courses[job.shape.job]
            if job.shape.job not in by_counters:
                course.unreported = None
                continue
            if course.unreported is None or course.unreported.shape is not job.shape:
                course.unreported = Unreported(job.shape)
            course.unreported.take(values[:, columns], resources)

    def _steps(self, job: JobTelemetry, steps: StepTable, ends: IntArray, window_seconds: float) -> None:
        """Add finished steps of a job to the windows that each step covered.

        ends: end times of all kept windows, in ns.
        """
        course = self._courses.get(job.shape.job)
        if course is None:
            return
        known = np.isfinite(steps.seconds) & np.isfinite(steps.wait_seconds)
        if course.hosts is None or course.hosts.shape is not job.shape:
            course.hosts = HostRanks(job.shape, course.excess)
        for k in range(len(steps)):
            fine = known[k]
            if not fine.any():
                continue
            whole = bool(fine.all())
            own = steps.seconds[k] - steps.wait_seconds[k]
            seconds = float((steps.seconds[k] if whole else steps.seconds[k][fine]).mean())
            if not whole:
                own = np.where(fine, own, np.nan)
            course.usual_seconds.append(seconds)
            course.step = int(steps.number[k])
            last_ns = int((steps.end_ns[k] if whole else steps.end_ns[k][fine]).max())
            first = int(ends.searchsorted(last_ns - round(seconds * 1e9), side="right"))
            until = min(int(ends.searchsorted(last_ns, side="right")) + 1, len(ends))
            usual = median(np.array(course.usual_seconds))
            communication = (seconds - float(np.fmax.reduce(own))) / usual
            course.communication.add(first, max(first, until), communication)
            lost = {"": communication}
            for place, excess in course.hosts.excess(own, fine):
                over = excess / usual
                course.excess[place].add(first, max(first, until), over)
                lost[place] = over
            if usual >= LONG_STEP_WINDOWS * window_seconds:
                course.steps.add(last_ns - round(seconds * 1e9), last_ns, lost)

    # --- judging ----------------------------------------------------------------------------------------------------

    def _may_be_disturbed(self, job: JobTelemetry, course: _Course) -> bool:
        """Return whether a test of the job can have a result: it shares a resource, or its ports may be congested."""
        name = job.shape.job
        if self._sharing.of_job(name) or course.rivals:
            return True
        if course.unknown_reported or "uplink" in job.shape.sharing:
            return False
        level = self._counters.newest[FEATURE["nic_congestion"], self._counters.of(name)]
        return bool((level > LEAST_MARKED).any())

    def _judge(
        self,
        job: JobTelemetry,
        course: _Course,
        telemetry: Telemetry,
    ) -> list[Finding]:
        name = job.shape.job
        over = self._ended(name, telemetry)
        enough = least(telemetry.counters.seconds)
        inferred = course.unreported
        lost = None if inferred is None else inferred.lost()
        courses = [course.communication.values(), *(ring.values() for ring in course.excess.values())]
        long = course.steps if lost is None and len(course.steps.end_ns) >= LEAST_WINDOWS else None
        growth = max(grown(values, *enough) for values in (courses if lost is None else [lost]))
        if long is not None and growth < LEAST_COST:
            growth = max(grown(long.values(key), LEAST_WINDOWS, LEAST_STATE) for key in long.lost)
        if growth < LEAST_COST:
            return over + self._clear(name, telemetry.now_ns)
        tried = list(self._neighbours(job, course, telemetry, lost, long))
        sure = [(found, series) for found, series in tried if found is not None]
        others = tuple(dict.fromkeys(found.aggressor for found, _ in sure))
        over += self._clear(name, telemetry.now_ns, others)
        if not sure:
            course.rivals = frozenset()
            return over + self._unknown(job, course, telemetry)
        best, of_best = max(sure, key=lambda one: one[0].correlation)  # ties: the first by name
        equal = equal_rivals(of_best, [series for _, series in tried])
        if not equal:
            return over + self._report(job, course, best, others, telemetry)
        names = frozenset((best.aggressor, *equal))
        if names <= course.rivals or any((name, one) in self._active for one in names):
            return over
        course.rivals |= names
        return [*over, not_distinguished(job, sorted(names), telemetry.now_ns, self.name)]

    def _neighbours(
        self,
        job: JobTelemetry,
        course: _Course,
        telemetry: Telemetry,
        lost: FloatArray | None,
        long: Steps | None,
    ) -> Iterator[tuple[_Correlated | None, Series]]:
        """Yield the neighbours whose load correlates with the job's loss, ordered by name for each resource.

        The first value is None if the correlation is too low for a verdict. lost: loss of a job that has no step
        reports; else None. long: the job's steps if there are enough long ones; else None.
        """
        name, inferred, seconds = job.shape.job, course.unreported, telemetry.counters.seconds
        for (kind, place), members in self._sharing.of_job(name):
            own = course.excess.get(place) if kind == "host" else course.communication
            if own is None:
                continue
            victim = own.values() if lost is None else lost
            for aggressor in sorted(members.keys() - {name}):
                sent = self._loads.of(aggressor, (kind, place))
                if inferred is not None:
                    sent = inferred.averaged_load(sent)
                series, tried = Series(aggressor, victim, sent), correlate(victim, sent, *least(seconds))
                if _sure(tried) is None and long is not None:
                    series = self._by_steps(long, aggressor, (kind, place), members[name], seconds)
                    tried = correlate(series.lost, series.load, LEAST_WINDOWS, LEAST_STATE, series.late)
                if tried is None or tried[0] < RIVAL_CORRELATION:
                    continue
                if _sure(tried) is None:
                    yield None, series
                    continue
                correlation, chance, cost = tried
                known = (name, aggressor) in self._active
                if kind == "host" and not known and self._at_ease(job.shape, members[name], cost):
                    continue
                if inferred is None or inferred.witnessed((kind, place), sent, victim, cost):
                    ranks = len(members[name])
                    yield _Correlated(aggressor, (kind, place), ranks, correlation, chance, cost), series

    def _at_ease(self, shape: Shape, ranks: IntArray, cost: float) -> bool:
        """Return whether the ranks wait for CPUs too little to explain the job's loss.

        The correlation may then be chance. ranks: ranks of the job on the shared host. cost: loss of the job, as a
        share of its usual step.
        """
        columns = self._counters.of(shape.job)
        waits = self._counters.newest[WAITING, columns][:, ranks]
        known = waits[np.isfinite(waits)]
        return bool(len(known)) and float(known.max()) < max(LEAST_WAIT, cost / (1.0 + cost))

    def _by_steps(
        self, steps: Steps, aggressor: str, resource: tuple[str, str], ranks: IntArray, window_seconds: float
    ) -> Series:
        """Return the victim's loss in each of its steps, and the neighbour's mean load during the step.

        ranks: ranks of the victim on the resource. If these ranks have congestion marks, the two series may be shifted
        by a few steps: a neighbour sends less once both jobs are slowed.
        """
        kind, place = resource
        long_ns, loads = window_seconds * 1e9, self._loads
        ends_ns = np.fromiter(self._ends, np.int64, len(self._ends))
        if steps.usual_ns() >= BLOCK_STEP_WINDOWS * long_ns:
            long_ns, loads, ends_ns = BLOCK_WINDOWS * long_ns, self._blocks.loads, self._blocks.ends_ns
        load = steps.during(loads.of(aggressor, resource), ends_ns, round(long_ns))
        marked = kind in SENDING and steps.marks is not None and steps.marks.more(ranks)
        late = round(GUARD_SHARE * len(load)) if marked else 0
        return Series(aggressor, steps.values(place if kind == "host" else ""), load, late)

    def _report(
        self,
        job: JobTelemetry,
        course: _Course,
        best: _Correlated,
        others: tuple[str, ...],
        telemetry: Telemetry,
    ) -> list[Finding]:
        """Report a verdict against the neighbour, unless one is active or the neighbour is idle.

        others: all neighbours whose load correlates.
        """
        shape, aggressor, (kind, place) = job.shape, best.aggressor, best.resource
        key = (shape.job, aggressor)
        if key in self._active or key in self._idle:
            return []
        members = ranks_of(shape, kind, place)
        evidence = [*best.evidence(len(shape)), *(self._of_ports(shape.job, members) if kind in SENDING else ())]
        confidence = log_odds.confidence(evidence)
        if confidence < log_odds.LEAST_CONFIDENCE:
            return []
        usual = median(np.array(course.usual_seconds)) if course.usual_seconds else float("nan")
        lost = min(best.cost, 0.9)
        verdict = Verdict(
            verdict_id=f"{shape.job}.{shape.attempt}.interference.{aggressor}.{telemetry.now_ns}",
            kind=Kind.INTERFERENCE,
            gang=shape.job,
            attempt=shape.attempt,
            rank=-1,
            node="",
            cause=Cause.HOST_CONTENTION if kind == "host" else Cause.CONGESTION,
            confidence=confidence,
            slowdown=1.0 / max(1.0 - lost, 0.1),
            step_seconds_before=usual * (1.0 - lost),
            step_seconds_now=usual,
            first_wall_ns=self._ends[0],
            last_wall_ns=telemetry.now_ns,
            evidence=tuple(evidence),
            frames=job.frames,
            detector=self.name,
            ranks=tuple(shape.ranks[members].tolist())[:64],
            suspects=tuple(f"job:{other}" for other in others if other != aggressor),
            aggressor=aggressor,
            resource=f"{kind}:{place}",
            first_step=course.step,
            last_step=course.step,
            detected_step=course.step,
        )
        self._active[key] = _ActiveVerdict(verdict)
        return [verdict]

    def _of_ports(self, job: str, members: IntArray) -> list[Evidence]:
        """Return evidence from the network ports of these ranks of the job: congestion marks and physical errors."""
        columns = self._counters.of(job)
        congested = self._counters.peers[FEATURE["nic_congestion"], columns][members]
        congestion = float(np.nanmean(congested)) if np.isfinite(congested).any() else 0.0
        errors = float(self._counters.score[FEATURE["nic_physical_errors"], columns][members].max(initial=0.0))
        return [
            Evidence("congestion_over_peers", congestion, 0.0, "log 1/s", "ranks elsewhere",
                     0.5 if congestion > 0 else 0.0),
            Evidence("physical_errors", errors, ALARM, "sigma", "alarm threshold for a faulty port",
                     -3.0 if errors >= ALARM else 0.5),
        ]  # fmt: skip

    def _ended(self, name: str, telemetry: Telemetry) -> list[Finding]:
        """Clear verdicts against neighbours that have been idle for long. A verdict is reported again once its
        neighbour is busy."""
        seconds = telemetry.counters.seconds
        hold = round(HOLD_TESTS * max(TEST_SECONDS, seconds) / seconds)
        over: list[Finding] = []
        for key in [key for key in (*self._active, *self._idle) if key[0] == name]:
            loads = [
                self._loads.of(key[1], resource)
                for resource, members in self._sharing.of_job(name)
                if key[1] in members
            ]
            if not loads:  # the neighbour has ended, or shares nothing with the victim
                self._idle.discard(key)
                continue
            idle, longest = min(map(pauses, loads))
            if key in self._idle:
                if idle <= hold:
                    self._idle.discard(key)
            elif idle > max(hold, HOLD_PAUSES * longest):
                self._idle.add(key)
                verdict = self._active.pop(key).verdict
                words = f"{key[1]} has been idle for {idle * seconds:.0f} s"
                over.append(Cleared(verdict.verdict_id, name, telemetry.now_ns, words))
        return over

    def _clear(self, name: str, now_ns: int, still: Sequence[str] = ()) -> list[Finding]:
        """Clear verdicts against neighbours whose load no longer correlates with the job's loss.

        still: names of the neighbours whose load correlates in this test.
        """
        over: list[Finding] = []
        for key, active in list(self._active.items()):
            if key[0] == name and key[1] in still:
                active.missed = 0
            elif key[0] == name:
                active.missed += 1
                if active.missed > HOLD_TESTS:
                    del self._active[key]
                    over.append(
                        Cleared(active.verdict.verdict_id, name, now_ns, "the two jobs are no longer correlated")
                    )
        return over

    def _unknown(self, job: JobTelemetry, course: _Course, telemetry: Telemetry) -> list[Finding]:
        """Return an abstention if the job is slower and many of its ports are congested, but the jobs on the same
        network are unknown."""
        if course.unknown_reported or "uplink" in job.shape.sharing or len(telemetry.jobs) < 2:
            return []
        victim = course.communication.values() if course.unreported is None else course.unreported.lost()
        known = victim[np.isfinite(victim)]
        if len(known) < LEAST_WINDOWS:
            return []
        more = float(np.median(known[-8:]) - np.quantile(known, 0.2))
        level = self._counters.newest[FEATURE["nic_congestion"], self._counters.of(job.shape.job)]
        if not np.isfinite(level).any():
            return []
        marked = level > LEAST_MARKED * max(float(np.nanquantile(level, 0.1)), 1.0)
        if more < UNKNOWN_COST or float(np.mean(marked)) < CONGESTED_RANKS:
            return []
        course.unknown_reported = True
        shape = job.shape
        share = float(np.mean(marked))
        words = (
            f"communication takes {more:.0%} of a step longer than before and {share:.0%} of its ports are marked for "
            "congestion; the jobs that share its uplinks are unknown"
        )
        return [Abstention(shape.job, shape.attempt, None, telemetry.now_ns, words, (), self.name)]


def _sure(found: tuple[float, float, float] | None) -> tuple[float, float, float] | None:
    """Return the three values (the correlation, its probability by chance, the loss) if they suffice for a verdict;
    else None."""
    if found is None or found[0] < LEAST_CORRELATION or found[1] >= CHANCE or found[2] < LEAST_COST:
        return None
    return found
