"""Engine: a virtual clock over the production cycle.

It simulates the cluster: arrivals, progress and ends of jobs, and slow nodes. At every time with events, it passes the
events to ``cycle.run``, carries out the decisions, and repeats this with their immediate consequences until the cycle
decides nothing more. It contains no scheduling rules.

::

    next time = the earliest of: an arrival, an end, a completed stop, the timetable, the cycle's timeouts
    events    = what happens at that time, in that order
    cycle.run(state, events, time) -> actions -> starts and stops -> (again, if they had immediate consequences)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

from msgspec.structs import replace

from agent.schema.errors import TraceError
from scheduler_feedback import cycle
from scheduler_feedback.core.actions import Action, StartGang, StopGang
from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.events import (
    AttemptEnded,
    AttemptRunning,
    Event,
    NodeSeen,
    PolicySet,
    Progressed,
    SharedSpeed,
    Submitted,
    Tick,
)
from scheduler_feedback.core.job import JobKind, StopReason
from scheduler_feedback.core.state import Estimates, Policy, State
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.intake.job_admission import malformed, over_limit, oversized
from scheduler_feedback.policies.network.link_speeds import Window
from scheduler_feedback.policies.network.time_shifts import circumstances
from scheduler_feedback.policies.power.account import account_of
from scheduler_feedback.policies.power.gpus import in_force
from scheduler_feedback.policies.power.limits import wanted_limits
from scheduler_feedback.sim.disturbances import Disturbances
from scheduler_feedback.sim.job_trace import LATEST_NS, Trace, TraceJob
from scheduler_feedback.sim.occurrence import Occurrence
from scheduler_feedback.sim.results import Account, Report, report
from scheduler_feedback.sim.speeds.co_location import CoSpeed, equal_shares
from scheduler_feedback.sim.speeds.dataset_loads import DatasetLoads
from scheduler_feedback.sim.speeds.device_memory import DeviceMemory
from scheduler_feedback.sim.speeds.gpu_power import GpuModel, PowerMeter
from scheduler_feedback.sim.speeds.measured_speeds import MEASURED_SECONDS, MeasuredSpeeds, reported
from scheduler_feedback.sim.speeds.shared_links import SharedLinks
from scheduler_feedback.sim.truth import Course, Gang, Machines, saved_ns

ROUNDING_NS = 1000
"""Largest rounding error, in nanoseconds, of times that are summed as float seconds over years of simulated time."""

MOST_TURNS = 10_000
"""Maximum number of cycles at one simulated time. More cycles than that mean that the cycle has a bug."""

KILLED = 128 + 9
"""Exit code of a rank that ended with its node, as if by SIGKILL."""

SAVED_AND_STOPPED = 128 + 15
"""Exit code of a rank that SIGTERM ended, as a shell reports it."""

PROBE_NS = 60 * 10**9
"""Duration of a probe in nanoseconds, including its start (``backends/local/slot_probe.py``)."""

MEASURE_NS = 30 * 10**9
"""Time after which the speed of jobs that share slots is measured, in ns. Gandiva separates interfering jobs within a
minute."""

LIMIT_NS = 2 * 10**9
"""Time in nanoseconds after which an agent has set a power limit and reported it: a second for the order and one for
the frame."""

PROBE_FINDS_SLOWDOWN = 1.1
"""A probe succeeds if its node's slowdown is at most this factor (1.1: 10 % slower than a healthy node)."""


def _report_speed(engine: Engine, now_ns: int, *, job_id: str, attempt: int) -> Iterable[Event]:
    """Return the report of the attempt's speed, in work per second of the trace's unit; none if it has ended."""
    del now_ns
    gang = engine.gangs.get(job_id)
    if gang is None or gang.attempt != attempt or gang.stopping:
        return ()
    spec = gang.course.job.spec
    rate = gang.speed * engine.machines.unit(spec)
    share = engine.machines.wait_share(gang)
    times = engine.machines.step_times(gang) if engine.state.policy.time_shifts else (0.0, 0.0, 0.0)
    return (reported(job_id, attempt, rate, engine.seed, share, times),)


def _set_limits(engine: Engine, now_ns: int, *, nodes: tuple[str, ...]) -> Iterator[Event]:
    """Let the agents of these nodes set the limits that the scheduler wants now, and yield their reports."""
    index = index_of(engine.state)
    wanted = wanted_limits(engine.state, account_of(engine.state, index), index, nodes)
    for node, limits in wanted.items():
        yield from engine.limit(node, limits, now_ns)


class Journal:
    """Journal of finished cycles. This base class discards them."""

    def write(self, now_ns: int, events: Sequence[Event], outcome: cycle.Outcome, state: State) -> None:
        """Write a finished cycle."""

    def close(self) -> None:
        """Close the journal."""


@dataclass(frozen=True, slots=True)
class Span:
    """One finished attempt of a job, as the chart of the HTML page shows it."""

    job_id: str
    """Job of the attempt."""
    began_ns: int
    """Simulated time of the attempt's start, in nanoseconds."""
    ended_ns: int
    """Simulated time of the attempt's end, in nanoseconds."""
    nodes: dict[str, int]
    """Number of ranks on each node."""
    why: str
    """Why the attempt ended: 'ended' if the job is done, else the reason for which it was stopped."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a simulation."""

    policy: Policy
    """Scheduling settings that the cycle applies."""
    restart_cost_seconds: float | None = None
    """Seconds without progress at the start of every attempt except a job's first. None: each job's own value is
    used."""
    stall_seconds: Callable[[TraceJob], float] | None = None
    """Returns the seconds that a job's running gang loses each time the cycle runs, to reproduce Muri's published runs.
    The gang loses at most its progress since the previous run of the cycle."""
    apart_slowdown: float = 1.0
    """Run time of a gang outside of one domain of its preferred level, divided by its run time inside."""
    co_speed: CoSpeed = equal_shares
    """Returns the true speed of a job beside the jobs that share its slots."""
    speeds: MeasuredSpeeds | None = None
    """Real speeds of gangs, which they report after each start; None: proportional to their ranks, not reported."""
    links: SharedLinks | None = None
    """Uplinks that gangs share. With them, gangs report their speeds and waits; None: no gang slows another down."""
    datasets: DatasetLoads | None = None
    """Caches of datasets on the nodes; None: gangs start without loading."""
    memory: DeviceMemory | None = None
    """Device memory of the jobs; None: it never runs out."""
    power: GpuModel | None = None
    """Power limits of the GPUs. With them, gangs report their speeds after each change; None: GPUs have no limits."""
    seed: int = 0
    """Seed of the errors of reported speeds."""
    spans: bool = False
    """Whether to keep every finished attempt, so that the HTML page can draw its chart."""


class Engine:
    """One simulation. ``run`` may be called once."""

    def __init__(
        self,
        trace: Trace,
        nodes: Sequence[NodeSeen],
        settings: Settings,
        disturbances: Disturbances | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.state = State()
        self.courses: dict[str, Course] = {}
        self.gangs: dict[str, Gang] = {}
        self.machines = Machines(
            apart_slowdown=settings.apart_slowdown,
            co_speed=settings.co_speed,
            speeds=settings.speeds,
            links=settings.links,
            datasets=settings.datasets,
            largest=max((node.slots for node in nodes), default=0),
        )
        self.account = Account({node.node: node.slots for node in nodes})
        self.refused: list[dict[str, str | int]] = [
            {"job": one.job_id, "line": one.line, "reason": one.reason} for one in trace.refused
        ]
        self.spans: list[Span] = []
        self._failed: dict[str, str] = {}
        self._given_up: dict[str, str] = {}
        self.waiting = 0
        self._trace = trace
        self._nodes = tuple(nodes)
        self._settings = settings
        self._journal = journal if journal is not None else Journal()
        self._exact = settings.policy.estimates is Estimates.EXACT
        self._base_ns = trace.first_ns - trace.jobs[0].submitted_ns if trace.jobs else 0
        self._start_events: list[Event] = []
        self._heap: list[tuple[int, int, str]] = []
        self._disturbances = disturbances
        self._later: list[tuple[int, int, Occurrence]] = []
        self._sequence = 0
        self._probes: dict[str, StartGang] = {}
        self.meter = None
        if settings.power is not None:
            self.meter = PowerMeter(settings.power, self._nodes, settings.policy.power_budget_watts > 0)
        self._power_changed: set[str] = set()
        self._circumstances: dict[str, tuple[object, ...]] = {}
        """On what the speed of each measured gang depends (``time_shifts.circumstances``)."""

    @property
    def seed(self) -> int:
        """Seed of the errors of reported speeds."""
        return self._settings.seed

    @property
    def memory(self) -> DeviceMemory | None:
        """Device memory of the jobs; None: it is not simulated."""
        return self._settings.memory

    @property
    def first_ns(self) -> int:
        """Simulated time of the first job submission, in nanoseconds."""
        return self._trace.first_ns

    def run(self, progress: Callable[[int, int], None] | None = None) -> Report:
        """Simulate until every job has ended or no more can start.

        progress: called with (ended jobs, all jobs). Raises TraceError if the simulation passes the year 2200.
        """
        began = time.perf_counter()
        jobs, next_job = self._admitted(), 0
        if self._disturbances is not None:
            self._disturbances.begin(self)
        ended = 0
        if progress is not None:
            progress(0, len(jobs))
        while True:
            arrival_ns = self._base_ns + jobs[next_job].submitted_ns if next_job < len(jobs) else None
            now_ns = self._next_instant(arrival_ns)
            if now_ns is None:
                break
            if now_ns > LATEST_NS:
                raise TraceError(f"{self._trace.name}: {ended} of {len(jobs)} jobs have ended by the year 2200")
            events = self._start_events
            self._start_events = []
            if self._settings.stall_seconds is not None:
                self._stall(now_ns, events)
            ended_now = self._take_ends(now_ns, events)
            ended += ended_now
            while next_job < len(jobs) and self._base_ns + jobs[next_job].submitted_ns <= now_ns:
                events.append(self._submit(jobs[next_job], now_ns))
                next_job += 1
            self._take_occurrences(now_ns, events)
            self._settle(now_ns, events or [Tick()])
            if progress is not None and ended_now:
                progress(ended, len(jobs))
        self._journal.close()
        if self.meter is not None:
            self.meter.pass_time(self.state.now_ns)
        self._name_the_unfinished()
        self.account.backfilled = self.state.counts.get("decisions/backfilled/applied", 0)
        return report(
            self.account,
            list(self.courses.values()),
            time.perf_counter() - began,
            self.refused,
            self._trace.notes,
            None
            if self.meter is None
            else {"energy_kwh": self.meter.joules / 3.6e6, "most_watts": self.meter.most_watts},
        )

    def _name_the_unfinished(self) -> None:
        """Add each job that never ended to `refused`, with the reason. Called when no event is left."""
        for job_id, course in self.courses.items():
            if course.ended_ns is None:
                job = self.state.jobs.get(job_id)
                why = "" if job is None else job.end_reason or cycle.why_waits(self.state, job)
                why = self._given_up.get(job_id, why)
                reason = f"never ended: {why}" if why else "never ended"
                self.refused.append({"job": job_id, "line": course.job.line, "reason": reason})

    # --- arrivals -----------------------------------------------------------------------------------------------------

    def _admitted(self) -> list[TraceJob]:
        """Pass the settings and nodes to the cycle, and return only the jobs that this cluster can run."""
        reports = [] if self.meter is None else [self.meter.report(node.node) for node in self._nodes]
        self._settle(self.first_ns, [PolicySet(self._settings.policy, "simulation"), *self._nodes, *reports])
        jobs = []
        known: dict[tuple[object, ...], str | None] = {}
        for job in self._trace.jobs:
            spec = job.spec
            shape = (spec.ranks, spec.min_ranks, spec.pinned_node, spec.gpu_types, spec.required_level, spec.groups)
            if shape not in known:
                known[shape] = oversized(self.state, spec)
            why_not = malformed(spec) or known[shape] or over_limit(self.state.policy, spec)
            if why_not is None:
                jobs.append(job)
            else:
                self.refused.append({"job": job.job_id, "line": job.line, "reason": why_not})
        return jobs

    def _next_instant(self, arrival_ns: int | None) -> int | None:
        heap = self._heap
        while heap and self._outdated(heap[0]):
            heappop(heap)
        if not heap and arrival_ns is None and not self.waiting:
            return None
        next_ns = arrival_ns
        if heap and (next_ns is None or heap[0][0] < next_ns):
            next_ns = heap[0][0]
        if self._later and (next_ns is None or self._later[0][0] < next_ns):
            next_ns = self._later[0][0]
        wake_ns = cycle.next_wake_ns(self.state, self.state.now_ns)  # the last cycle has handled everything due by now
        if wake_ns is not None:
            # The cycle computes ends from seconds, so it may expect one some nanoseconds too early.
            if heap and 0 <= heap[0][0] - wake_ns < ROUNDING_NS:
                wake_ns = heap[0][0]
            if next_ns is None or wake_ns < next_ns:
                next_ns = wake_ns
        return next_ns

    def _outdated(self, entry: tuple[int, int, str]) -> bool:
        gang = self.gangs.get(entry[2])
        return entry[2] not in self._probes and (gang is None or gang.due != entry[1])

    def _submit(self, job: TraceJob, now_ns: int) -> Submitted:
        spec = job.submitted_spec(self._settings.restart_cost_seconds, self._exact)
        work_ns = nanoseconds(job.run_seconds)
        ids = [f"{job.job_id}.{index}" for index in range(spec.array_size)] if spec.array_size else [job.job_id]
        for job_id in ids:
            one = TraceJob(job_id, job.line, job.submitted_ns, job.run_seconds, spec)
            self.courses[job_id] = Course(one, work_ns, work_ns, now_ns, waits_since_ns=now_ns)
        self.waiting += len(ids)
        return Submitted(job.job_id, spec)

    def _take_occurrences(self, now_ns: int, events: list[Event]) -> None:
        while self._later and self._later[0][0] <= now_ns:
            events += heappop(self._later)[2].happen(self, now_ns)

    def later(self, occurrence: Occurrence) -> None:
        """Schedule a function call at the simulated time that `occurrence` contains."""
        self._sequence += 1
        heappush(self._later, (occurrence.at_ns, self._sequence, occurrence))

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _take_ends(self, now_ns: int, events: list[Event]) -> int:
        ended = 0
        heap = self._heap
        while heap and heap[0][0] <= now_ns:
            entry = heappop(heap)
            if self._outdated(entry):
                continue
            job_id = entry[2]
            if job_id in self._probes:
                events.append(self._probe_ended(job_id, now_ns))
            else:
                ended += not self.gangs[job_id].stopping
                self._end(job_id, now_ns, events)
        return ended

    def _end(self, job_id: str, now_ns: int, events: list[Event]) -> None:
        """End an attempt. Either its job is done, or the attempt was stopped and loses its unsaved work."""
        gang = self.gangs.pop(job_id)
        course = gang.course
        if gang.stopping:
            course.left_ns = saved_ns(gang)
            course.waits_since_ns = now_ns
            self.waiting += 1
        else:
            course.left_ns, course.ended_ns = 0, now_ns
        self._release(job_id, gang, now_ns)
        stopped = gang.stopping
        reason = self.state.jobs[job_id].stop_reason if stopped else None
        self._keep_span(job_id, gang, now_ns, reason.value if reason is not None else "ended")
        events.append(
            AttemptEnded(
                job_id,
                gang.attempt,
                (),
                ended_wall_ns=now_ns,
                all_exited_with=SAVED_AND_STOPPED if stopped else 0,
                signalled=stopped,
                why=reason.value if reason is not None else "",
                done_seconds=(course.work_ns - course.left_ns) / 1e9,
            )
        )

    def fail(self, job_id: str, now_ns: int, why: str) -> AttemptEnded:
        """End an attempt because a node failed, and return the event. why: the failure, in words.

        Work since the last checkpoint is lost. A job without checkpoints at intervals loses the work of the attempt,
        and a job that is not restartable all of its work.
        """
        gang = self.gangs.pop(job_id)
        course, spec = gang.course, gang.course.job.spec
        gang.advance(now_ns)
        if not spec.restartable:
            course.left_ns = course.work_ns
        elif spec.checkpoint_interval_seconds is not None:
            course.left_ns = saved_ns(gang)
        course.waits_since_ns = now_ns
        self.waiting += 1
        self.account.failures += 1
        self._release(job_id, gang, now_ns)
        self._keep_span(job_id, gang, now_ns, "failed")
        self._failed[job_id] = why
        done = (course.work_ns - course.left_ns) / 1e9
        return AttemptEnded(
            job_id, gang.attempt, (), reason=why, ended_wall_ns=now_ns, all_exited_with=KILLED, done_seconds=done
        )

    def node(self, name: str, present: bool) -> NodeSeen:
        """Return the event that a node has gone or is back."""
        if not present and self.machines.datasets is not None:
            self.machines.datasets.forget(name)
        return replace(next(node for node in self._nodes if node.node == name), present=present)

    def _give_up(self) -> None:
        """Stop counting jobs as pending that have failed for good: they had no retry left."""
        for job_id, why in self._failed.items():
            job = self.state.jobs.get(job_id)
            if job is None or job.state.ended:
                self.waiting -= 1
                self.courses[job_id].waits_since_ns = None
                self._given_up[job_id] = why
        self._failed.clear()

    def _release(self, job_id: str, gang: Gang, now_ns: int) -> None:
        if self.meter is not None:
            self.meter.leave(job_id, gang.placement, now_ns)
            self._power_changed.update(gang.nodes)
        partners = self.machines.partners(gang)
        self.account.pass_time(now_ns)
        occupied = self.machines.occupies(gang)
        self.account.give(occupied)
        self.account.doubled_slots -= gang.slots - sum(occupied.values())
        others = self.machines.on_same_links(gang)
        self.machines.leave(job_id, gang)
        others.pop(job_id, None)
        self._share_links(others, now_ns)
        if partners:
            self._regroup(partners, now_ns)
        self.account.held_slot_ns += gang.slots * (now_ns - gang.began_ns)

    def _keep_span(self, job_id: str, gang: Gang, now_ns: int, why: str) -> None:
        if self._settings.spans:
            self.spans.append(Span(job_id, gang.began_ns, now_ns, gang.nodes, why))

    def _stall(self, now_ns: int, events: list[Event]) -> None:
        """Delay every gang by the time that `stall_seconds` returns, except gangs that end at this time."""
        stall = self._settings.stall_seconds
        assert stall is not None
        for job_id, gang in self.gangs.items():
            if gang.end_ns <= now_ns:
                continue
            lost_ns = min(nanoseconds(stall(gang.course.job)), now_ns - gang.since_ns)
            gang.advance(now_ns, lost_ns)
            if lost_ns:
                self.reschedule(job_id, gang)
                events.append(Progressed(job_id, gang.attempt, gang.done_seconds))

    # --- decisions ----------------------------------------------------------------------------------------------------

    def _settle(self, now_ns: int, events: list[Event]) -> None:
        """Run the cycle repeatedly at one simulated time, until its actions have no immediate consequences."""
        for _ in range(MOST_TURNS):
            began = time.perf_counter()
            outcome = cycle.run(self.state, events, now_ns)
            self.account.cycle_seconds.append(time.perf_counter() - began)
            if self._failed:
                self._give_up()
            if outcome.changed:
                self._journal.write(now_ns, events, outcome, self.state)
            events = []
            for action in outcome.actions:
                self._carry_out(action, now_ns, events)
            self.account.decisions += len(outcome.actions)
            if self.meter is not None:
                self._follow_power(outcome, now_ns)
            if self.machines.links is not None and self.state.policy.time_shifts and outcome.changed:
                self._follow_shifts(now_ns)
            if not events and (self.state.idle or not outcome.changed):
                return
        raise RuntimeError(f"{MOST_TURNS} cycles at {now_ns} ns still led to new decisions: this is a bug in the cycle")

    def _follow_power(self, outcome: cycle.Outcome, now_ns: int) -> None:
        """Let the agents of all nodes whose wanted limits may have changed set them a moment later."""
        for entry in outcome.entries:
            if entry.kind == "power" and (gang := self.gangs.get(entry.subject)) is not None:
                self._power_changed.update(gang.nodes)
        if self._power_changed and in_force(self.state):
            nodes, self._power_changed = tuple(sorted(self._power_changed)), set()
            self.later(Occurrence(now_ns + LIMIT_NS, partial(_set_limits, nodes=nodes)))

    def _follow_shifts(self, now_ns: int) -> None:
        """Apply the scheduler's time shifts, and measure the gangs again whose speed depends on something else now."""
        before, self._circumstances = self._circumstances, circumstances(self.state, index_of(self.state))
        changed = {
            job_id: gang
            for job_id, present in self._circumstances.items()
            if present != before.get(job_id) and (gang := self.gangs.get(job_id)) is not None and not gang.stopping
        }
        for job_id, gang in changed.items():
            shift = self.state.jobs[job_id].time_shift
            gang.window = None if shift is None else Window(shift.offset_ns / 1e9, shift.period_ns / 1e9)
        self._share_links(changed, now_ns)
        for job_id, gang in changed.items():
            self._measure_later(job_id, gang, now_ns)

    def limit(self, node: str, limits: Sequence[float], now_ns: int) -> Iterator[Event]:
        """Set the power limits of a node's GPUs, and yield what its agent reports."""
        meter = self.meter
        assert meter is not None
        if not meter.set(node, limits):
            return
        for job_id, gang in self.machines.on_node.get(node, {}).items():
            speed = meter.draw(job_id, gang.spec.workload, gang.placement, now_ns)
            if self.machines.limit(gang, speed, now_ns):
                self.reschedule(job_id, gang)
                self._measure_later(job_id, gang, now_ns)
        yield meter.report(node)

    def _measure_later(self, job_id: str, gang: Gang, now_ns: int) -> None:
        """Let the gang report its speed after it has been measured for long enough."""
        at_ns = now_ns + gang.warm_ns + nanoseconds(MEASURED_SECONDS) + LIMIT_NS
        self.later(Occurrence(at_ns, partial(_report_speed, job_id=job_id, attempt=gang.attempt)))

    def _carry_out(self, action: Action, now_ns: int, events: list[Event]) -> None:
        if isinstance(action, StopGang):
            self._stop(action, now_ns, events)
        elif action.spec.kind is JobKind.PROBE:
            self._start_probe(action, now_ns)
        else:
            self._start(action, now_ns, events)

    def _start(self, action: StartGang, now_ns: int, events: list[Event]) -> None:
        course = self.courses[action.job_id]
        gang = self.machines.start(action, course, self.state.nodes, now_ns)
        self.gangs[action.job_id] = gang
        if self.meter is not None:
            self.machines.limit(
                gang, self.meter.draw(action.job_id, gang.spec.workload, gang.placement, now_ns), now_ns
            )
            self._measure_later(action.job_id, gang, now_ns)
        self.account.pass_time(now_ns)
        occupied = self.machines.occupies(gang)
        self.account.take(occupied)
        self.account.doubled_slots += gang.slots - sum(occupied.values())
        if partners := self.machines.partners(gang):
            self._regroup({action.job_id: gang, **partners}, now_ns)
        assert course.waits_since_ns is not None
        course.waiting_ns += now_ns - course.waits_since_ns
        course.waits_since_ns = None
        course.first_start_ns = now_ns if course.first_start_ns is None else course.first_start_ns
        self.waiting -= 1
        self._start_events.append(AttemptRunning(action.job_id, action.attempt, ()))
        self.reschedule(action.job_id, gang)
        if gang.flow is not None:
            self._share_links(self.machines.on_same_links(gang), now_ns)
        if self._settings.speeds is not None or self._settings.links is not None:
            at_ns = now_ns + gang.warm_ns + nanoseconds(MEASURED_SECONDS)
            self.later(Occurrence(at_ns, partial(_report_speed, job_id=action.job_id, attempt=action.attempt)))
        if self._settings.memory is not None:
            self._settings.memory.started(self, action.job_id, gang, now_ns)
        if self._disturbances is not None:
            events += self._disturbances.started(self, action.job_id, gang, now_ns)

    def _regroup(self, gangs: Mapping[str, Gang], now_ns: int) -> None:
        """Apply the speeds of gangs whose partners have changed, and measure the speeds of those that share slots."""
        for job_id, gang in self.machines.regroup(gangs, now_ns):
            self.reschedule(job_id, gang)
            self._start_events.append(Progressed(job_id, gang.attempt, gang.done_seconds))
            partners = self.machines.partners(gang)
            if partners:
                warm_ns = max(one.warm_ns for one in (gang, *partners.values()))
                at_ns = now_ns + warm_ns + MEASURE_NS
                self.later(Occurrence(at_ns, partial(_measured, job_id, gang, tuple(sorted(partners)))))

    def _share_links(self, gangs: Mapping[str, Gang], now_ns: int) -> None:
        """Apply the speeds of gangs after a start or an end of a gang on their uplinks."""
        for job_id, gang in self.machines.share_links(gangs, now_ns) if gangs else ():
            self.reschedule(job_id, gang)

    def reschedule(self, job_id: str, gang: Gang) -> None:
        """Update the expected end of a gang."""
        self._due(job_id, gang, gang.end_ns)

    def _due(self, job_id: str, gang: Gang, at_ns: int) -> None:
        """Set the time at which a gang ends. It replaces earlier times of this gang."""
        self._sequence += 1
        gang.due = self._sequence
        heappush(self._heap, (at_ns, self._sequence, job_id))

    def _stop(self, action: StopGang, now_ns: int, events: list[Event]) -> None:
        """Stop a gang after it has saved a checkpoint. The job's specification contains the time to save."""
        if action.job_id in self._probes:
            events.append(self._probe_ended(action.job_id, now_ns))
            return
        gang = self.gangs.get(action.job_id)
        if gang is None or gang.stopping or gang.attempt != action.attempt:
            return
        self.account.preemptions += action.why is StopReason.PREEMPT
        self.account.migrations += action.why is StopReason.MIGRATE
        gang.advance(now_ns)
        gang.stopping = True
        save_ns = nanoseconds(min(gang.course.job.spec.checkpoint_cost_seconds, action.grace_seconds))
        if save_ns:
            self._due(action.job_id, gang, now_ns + save_ns)
        else:
            # The cycle must process the start before the end.
            events += self._start_events
            self._start_events = []
            self._end(action.job_id, now_ns, events)

    # --- probes -------------------------------------------------------------------------------------------------------

    def _start_probe(self, action: StartGang, now_ns: int) -> None:
        self._probes[action.job_id] = action
        self._sequence += 1
        at_ns = now_ns + PROBE_NS
        heappush(self._heap, (at_ns, self._sequence, action.job_id))
        self._start_events.append(AttemptRunning(action.job_id, action.attempt, ()))

    def _probe_ended(self, job_id: str, now_ns: int) -> AttemptEnded:
        """End a probe and return the event. The probe fails if its node is still slow."""
        action = self._probes.pop(job_id)
        slow = self.machines.worst(slot.node for slot in action.placement) > PROBE_FINDS_SLOWDOWN
        return AttemptEnded(job_id, action.attempt, (), ended_wall_ns=now_ns, all_exited_with=1 if slow else 0)


def _measured(job_id: str, gang: Gang, partners: tuple[str, ...], engine: Engine, now_ns: int) -> Iterator[Event]:
    """Yield the measured speed of a gang that has shared its slots with the same jobs since."""
    del now_ns
    runs = engine.gangs.get(job_id) is gang and not gang.stopping
    if runs and tuple(sorted(engine.machines.partners(gang))) == partners:
        yield SharedSpeed(job_id, gang.attempt, partners, gang.beside)
