"""Scripted run of the simulated cluster, which gives the expositions of its agents and its controller.

The agents' frames come from `sim.world`. As in production they go into the exporter, whose expositions are recorded,
and into the detectors, whose results go into the cycle. The cycle places the jobs, and the run checks that the
simulated world has the same placement. The script supplies only facts outside of both: started and stopped processes of
a gang, the state of the controller's streams, a full disk.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from agent.schema.clock import ManualClock
from agent.schema.frame import Frame, Layout, StepRecord
from agent.schema.sample import expanded
from exporter.prometheus.exposition import Exposition, Settings
from exporter.prometheus.text_format import expose_samples
from scheduler_feedback.controller.detection_thread import DetectionThread
from scheduler_feedback.core.actions import Action, StartGang, StopGang
from scheduler_feedback.core.events import AttemptEnded, AttemptRunning, Event, NodeSeen, RankExit, RankSeen, Submitted
from scheduler_feedback.core.fabric import Fabric, Leaf
from scheduler_feedback.core.job import JobSpec, Packing
from scheduler_feedback.core.state import Mode, Policy, Queue, State
from scheduler_feedback.core.state_metrics import measure
from scheduler_feedback.cycle import run as run_cycle
from scheduler_feedback.detectors import make_all
from scheduler_feedback.policies.queue.queue_forecast import queue_metrics
from scheduler_feedback.sim.world import clos_fabric, plan
from scheduler_feedback.sim.world.course import Course
from scheduler_feedback.sim.world.outputs.frame_output import FrameExit, Sent
from scheduler_feedback.sim.world.outputs.node_events import NS, WALL_START_NS

SCRAPE_SECONDS = 15.0
LOOK_SECONDS = 2.0
SLOTS = 8

Sample = tuple[str, tuple[tuple[str, str], ...], float]

POLICY = Policy(
    mode=Mode.OBSERVE,
    preempt=True,
    queues=(Queue("research", quota=24), Queue("production", quota=40)),
)
"""Feedback moves no job, so that a fault lasts as long as the script says; preemption works."""


@dataclass(slots=True)
class Job:
    """Job of the script, its course in the simulated world, and its submission time in simulated seconds."""

    spec: JobSpec
    course: Course
    submitted: float = 0.0

    @property
    def name(self) -> str:
        return self.course.plan.name


def job(
    name: str,
    nodes: Sequence[int],
    begin: float = 0.0,
    spots: tuple[int, ...] = tuple(range(SLOTS)),
    seconds: float = 2.0,
    seed: int = 5,
    priority: int = 0,
    queue: str = "research",
) -> Job:
    """Return a gang on these GPUs (spots) of these nodes. It is submitted shortly before its first step."""
    ranks = len(nodes) * len(spots)
    made = plan.make(name, ranks, "balanced", seconds, np.random.default_rng(1), len(spots), 0.3)
    course = Course(made, clos_fabric.place(np.asarray(nodes), ranks, spots), np.random.default_rng(seed), begin)
    spec = JobSpec(
        name=f"train-{name}", command=("train",), ranks=ranks, queue=queue, priority=priority, restartable=True,
        preemptible=True, time_limit_seconds=7200.0, packing=Packing.PACK if len(spots) == SLOTS else Packing.SPREAD,
    )  # fmt: skip
    return Job(spec, course, max(begin - 5.0, 0.0))


@dataclass(slots=True)
class Members:
    """Counters of the steps collector for each rank."""

    counts: dict[tuple[str, int], Counter[str]] = field(default_factory=dict)

    def take(self, frame: Frame, halted: set[str]) -> None:
        for record in frame.records:
            if isinstance(record, StepRecord) and record.member.gang not in halted:
                count = self.counts.setdefault((record.member.gang, record.member.rank), Counter())
                count["gangwatch_rank_steps_total"] += 1
                count["gangwatch_rank_step_seconds_total"] += record.duration_ns
                count["gangwatch_rank_wait_seconds_total"] += record.wait_ns or 0
                count["gangwatch_rank_tokens_total"] += record.tokens or 0
                count["gangwatch_rank_collectives_entered_total"] += 1
                count["gangwatch_rank_collectives_left_total"] += 1

    def samples(self) -> list[Sample]:
        found: list[Sample] = []
        for (gang, rank), counts in self.counts.items():
            labels = (("attempt", "1"), ("gang", gang), ("rank", str(rank)))
            for name, value in counts.items():
                found.append((name, labels, value / NS if "seconds" in name else value))
        return found


class Agent:
    """Exposition of one node: series of its frames, of steps, and of the agent."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.members = Members()
        self.newest: tuple[Layout, Frame] | None = None
        self.last_frame = 0.0
        self.frames = 0
        self.failing = False
        self._exposition = Exposition(Settings(), own=self._own)

    def take(self, at: float, layout: Layout, frame: Frame, halted: set[str]) -> None:
        self.newest, self.last_frame = (layout, frame), at
        self.frames += 1
        self.members.take(frame, halted)

    def body(self) -> bytes:
        assert self.newest is not None
        return self._exposition.body(*self.newest)

    def _own(self) -> list[Sample]:
        assert self.newest is not None
        frame = self.newest[1]
        return [
            ("gangwatch_agent_info", (("boot_id", frame.boot_id), ("version", "0")), 1),
            ("gangwatch_agent_frames_total", (), self.frames),
            ("gangwatch_collector_success", (("collector", "gpu"),), int(not self.failing)),
            *self.members.samples(),
        ]


Script = Callable[["ScriptedRun", float], Sequence[Event]]


class ScriptedRun:
    """Run of one cluster. scrapes: for each scrape, the exposition of every target, None if it does not respond.

    A node appears when the script submits the first job on it. script: called every simulated second; the events that
    it returns go into the cycle. detect: whether detectors run.

    A script may set these. unread: nodes whose streams the controller cannot read. failing: nodes with a failing
    collector. halted: jobs that report no more steps. frame_age: age of the telemetry that detection uses, in seconds.
    broken: detectors and parts with a bug. stuck: no cycle runs. leads: leadership of a controller on Kubernetes, which
    serves nothing else without it. missing_rights: number of rights that it lacks there. foreign: records of ranks that
    do not run there, by node. days_left: remaining lifetime of an agent's certificate, by node. Also the counters of
    the cycle's thread. A stopped job reports no more steps; the counters of its GPUs do not change, which no test here
    checks.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        script: Script | None = None,
        detect: bool = True,
        policy: Policy = POLICY,
        frames: Sequence[Sent] | None = None,
    ) -> None:
        """Make the run. A file describes the simulated network to the controller; leaf switches are pods, one per rail.

        frames: of the jobs' simulated world, if they exist already.
        """
        self.jobs = {one.name: one for one in jobs}
        self.state = State(policy=policy)
        self.now = 0.0
        self.counters: Counter[str] = Counter()
        self.foreign: Counter[str] = Counter()
        self.days_left: dict[str, float] = {}
        self.unread: set[str] = set()
        self.failing: set[str] = set()
        self.halted: set[str] = set()
        self.broken: set[str] = set()
        self.frame_age: float | None = None
        self.stuck = False
        self.leads: bool | None = None
        self.missing_rights: int | None = None
        self.scrapes: list[dict[str, bytes | None]] = []
        self.past_events: list[tuple[float, Event]] = []
        self._script, self._detect = script, detect
        self._clock = ManualClock(0, WALL_START_NS)
        self._frames = FrameExit([one.course for one in jobs], 1).until(np.inf) if frames is None else iter(frames)
        self._next = next(self._frames)
        self._found: list[Event] = []
        leaves = [
            Leaf(name, tuple(sorted({node for one in jobs for node in _below(one.course.place, name)})), rail)
            for name, rail in sorted({pair for one in jobs for pair in _leaves(one.course.place)})
        ]
        self._watch = DetectionThread(make_all(), self._found.extend, self._clock, fabric=Fabric(leaves))
        self._agents: dict[str, Agent] = {}
        self._events: list[Event] = []

    def until(self, seconds: float) -> None:
        """Advance second by second to this time, with detection, a cycle, and a scrape every SCRAPE_SECONDS."""
        while self.now < seconds:
            self.now += 1.0
            self._clock.advance(1.0)
            while self._next[0] <= self.now:
                at, layout, frame = self._next
                self._agents.setdefault(frame.node, Agent(frame.node)).take(at, layout, frame, self.halted)
                if self._detect:
                    self._watch.offer(layout, frame, round(at * NS))
                self._next = next(self._frames)
            if self._detect and self.now % LOOK_SECONDS == 0:
                self._watch.run_tick()
            self._submit()
            self._events += self._found
            self._found.clear()
            if self._script is not None:
                self._events += self._script(self, self.now)
            if not self.stuck:
                self._cycle()
            if self.now % SCRAPE_SECONDS == 0:
                self.scrapes.append(self._scrape())

    # --- the cluster --------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        for name, one in self.jobs.items():
            if self.now - 1.0 <= one.submitted < self.now:
                known = {event.node for _, event in self.past_events if isinstance(event, NodeSeen)}
                for number in sorted(set(one.course.place.node.tolist())):
                    if (node := f"node-{number:05d}") not in known:
                        gpus = tuple(f"GPU-{number:08x}-{slot:04x}" for slot in range(SLOTS))
                        rack = f"pod-{number // clos_fabric.NODES_PER_POD}"
                        self._events.append(NodeSeen(node, SLOTS, gpus, f"boot-{node}", rack=rack))
                self._events.append(Submitted(name, one.spec))

    def _cycle(self) -> None:
        events, self._events = self._events, []
        self.past_events += [(self.now, event) for event in events]
        outcome = run_cycle(self.state, events, WALL_START_NS + round(self.now * NS))
        self.counters["gangwatch_cycles_total"] += 1
        for action in outcome.actions:
            self._events += self._carried_out(action)

    def _carried_out(self, action: Action) -> list[Event]:
        """Carry out an action. Return the resulting events for the next cycle."""
        if isinstance(action, StopGang):
            self._watch.forget(action.job_id)
            self.halted.add(action.job_id)
            exits = tuple(RankExit(rank, 75) for rank in range(self.jobs[action.job_id].spec.ranks))
            return [AttemptEnded(action.job_id, action.attempt, exits, signalled=True, why=action.why.value)]
        assert isinstance(action, StartGang)
        if action.job_id not in self.jobs:  # a probe, which remains to be started
            return []
        place = self.jobs[action.job_id].course.place
        actual = sorted(zip(place.nodes, place.local.tolist(), strict=True))
        decided = sorted((slot.node, slot.slot) for slot in action.placement)
        assert actual == decided, f"{action.job_id}: the world runs it on {actual}, the cycle placed it on {decided}"
        seen = tuple(RankSeen(rank, s.node, s.slot, 1000 + rank, 1) for rank, s in enumerate(action.placement))
        return [AttemptRunning(action.job_id, action.attempt, seen)]

    # --- expositions --------------------------------------------------------------------------------------------------

    def _scrape(self) -> dict[str, bytes | None]:
        bodies: dict[str, bytes | None] = {"controller": self._controller()}
        for node, agent in self._agents.items():
            agent.failing = node in self.failing
            bodies[node] = agent.body() if self._answers(agent) else None
        return bodies

    def _answers(self, agent: Agent) -> bool:
        return self.now - agent.last_frame < 5.0

    def _controller(self) -> bytes:
        leads: list[Sample] = [] if self.leads is None else [("gangwatch_leads", (), float(self.leads))]
        if self.leads is False:
            return expose_samples(leads).encode()
        if self.missing_rights is not None:
            leads.append(("gangwatch_missing_rights", (), float(self.missing_rights)))
        samples: list[Sample] = [
            *leads,
            *expanded(measure(self.state)),
            *queue_metrics(self.state),
            *(
                (
                    name,
                    labels,
                    value
                    + (
                        name in ("gangwatch_detector_failures_total", "gangwatch_part_out_of_service")
                        and labels[0][1] in self.broken
                    ),
                )
                for name, labels, value in expanded(self._watch.measures())
            ),
            *((name, (), float(self.counters[name])) for name in COUNTERS),
            ("gangwatch_cycle_duration_seconds", (), 0.001),
            *([] if self.frame_age is None else [("gangwatch_watch_frame_age_seconds", (), self.frame_age)]),
            *(
                ("gangwatch_watch_records_refused_total", (("node", node), ("reason", "not-placed")), float(count))
                for node, count in self.foreign.items()
            ),
            *(
                # Prometheus compares it with its own clock, which shows the real time even in accelerated runs.
                ("gangwatch_feed_certificate_expiry_seconds", (("node", node),), time.time() + days * 86_400.0)
                for node, days in self.days_left.items()
            ),
        ]
        for node, agent in self._agents.items():
            labels = (("node", node),)
            read = self._answers(agent) and node not in self.unread
            samples.append(("gangwatch_feed_connected", labels, float(read)))
            samples.append(("gangwatch_feed_frames_total", labels, float(agent.frames)))
            samples.append(("gangwatch_feed_malformed_total", labels, 0.0))
            samples.append(("gangwatch_feed_frame_age_seconds", labels, self.now - agent.last_frame))
        return expose_samples(samples).encode()


def _leaves(place: clos_fabric.Place) -> set[tuple[str, int]]:
    """Return (name, rail) of each leaf switch to which the ranks' NICs connect."""
    return set(zip(place.uplinks, place.rail.tolist(), strict=True))


def _below(place: clos_fabric.Place, leaf: str) -> set[str]:
    return {node for node, uplink in zip(place.nodes, place.uplinks, strict=True) if uplink == leaf}


COUNTERS = (
    "gangwatch_cycles_total",
    "gangwatch_store_failures_total",
    "gangwatch_backend_failures_total",
    "gangwatch_replay_mismatches_total",
)
"""Counters that the cycle's thread has of itself; here the script sets them."""
