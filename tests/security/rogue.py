"""Simulated cluster with one rogue agent: honest agents, all detectors, and the scheduling cycle, in virtual time.

The cluster exists with the gang names of each backend: local, Kubernetes and Slurm. The frames of honest agents are
bit-identical with and without the rogue agent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from agent.schema.clock import ManualClock
from agent.schema.frame import (
    AnyLayout,
    Column,
    EventRecord,
    Frame,
    Layout,
    Member,
    OpenRecord,
    Record,
    StepRecord,
    Tier,
    make_layout,
)
from scheduler_feedback.backends.kubernetes.api_server.informer_cache import InformerCache as Pods
from scheduler_feedback.backends.kubernetes.objects.objects import Pod
from scheduler_feedback.backends.kubernetes.objects.rank_names import Place, RankNames
from scheduler_feedback.backends.kubernetes.objects.translate import TopologyLabels
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob, Snapshot
from scheduler_feedback.backends.slurm.slurm_backend import SlurmBackend
from scheduler_feedback.backends.slurm.slurm_commands import Commands
from scheduler_feedback.backends.slurm.slurm_names import job_id_of, renamed
from scheduler_feedback.controller.detection_thread import DetectionThread
from scheduler_feedback.core.actions import Action, StopGang
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.events import Event, Hosted, Tick
from scheduler_feedback.core.job import JobKind, JobSpec, Slot
from scheduler_feedback.core.state import Policy
from scheduler_feedback.core.telemetry.placements import Attest, Placements
from scheduler_feedback.core.telemetry.series.consumption_trail import CONSUMED
from scheduler_feedback.detectors import make_all
from scheduler_feedback.policies.index.scheduling_index import drop_index
from tests.cluster.cycle_world import START_NS, World
from tests.kubernetes.makers import pod_body

SECOND = 1_000_000_000
STEPS_A_SECOND = 4
BOOTED_NS = 100_000 * SECOND
ROGUE = "n7"
NODES = tuple(f"n{number}" for number in range(8))
TOUCHABLE = "on the rogue node"
"""Name of the job with a rank on the rogue node; the other jobs must stay unchanged."""

Kind = Literal["local", "kubernetes", "slurm"]
KINDS: tuple[Kind, ...] = ("local", "kubernetes", "slurm")
PLACEMENT = {"victim": ("n0", "n1", "n2", "n3"), TOUCHABLE: ("n4", ROGUE), "other": ("n5", "n6")}


class Cluster:
    """Eight nodes of one slot each, and three jobs. One of the jobs has a rank on the rogue node."""

    def __init__(self, kind: Kind, folder: Path, seed: int = 1) -> None:
        self.kind = kind
        self.clock = ManualClock(BOOTED_NS, START_NS)
        self.world = World(dict.fromkeys(NODES, 1), policy=Policy(), round_trips=False)
        self.rename_events: Callable[[Sequence[Event]], Sequence[Event]] = lambda events: events
        self._random = random.Random(seed)
        self._second = 0
        self._steps: dict[str, int] = {}
        self._seq: Counter[str] = Counter()
        self._record_seq: Counter[str] = Counter()
        self._naming: RankNames | None = None
        self._found: list[Event] = []
        attest: Attest | None = None
        if kind == "slurm":
            attest = self._host_in_slurm(folder)
        else:
            self._place()
            attest = self._bind_pods() if kind == "kubernetes" else None
        self.placements = Placements(attest)
        self.placements.follow(self.world.state.jobs.values())
        self.watch = DetectionThread(make_all(), self._found.extend, self.clock, placements=self.placements)
        self.jobs = {job.spec.name: job_id for job_id, job in self.world.state.jobs.items()}

    # --- placement ----------------------------------------------------------------------------------------------------

    def _place(self) -> None:
        """Place three jobs on chosen nodes: while a job starts, all other nodes are in maintenance."""
        for name, nodes in PLACEMENT.items():
            job_id = self.world.submit(len(nodes), true_seconds=1e6, restartable=True, time_limit_seconds=1e6)
            job = self.world.state.jobs[job_id]
            job.spec = msgspec.structs.replace(job.spec, name=name)
            job.ranks = [
                msgspec.structs.replace(rank, slot=Slot(node, 0)) for rank, node in zip(job.ranks, nodes, strict=True)
            ]
            self.world.alive[job_id, 1].placement = tuple(rank.slot for rank in job.ranks)
            drop_index(self.world.state)
        self.world.running()

    def _host_in_slurm(self, folder: Path) -> Attest:
        backend = SlurmBackend(folder, Commands())
        jobs = {}
        for number, (name, nodes) in enumerate(PLACEMENT.items(), 7):
            placement = tuple(Slot(node, 0) for node in nodes)
            spec = JobSpec(
                name, ("slurm",), len(nodes), kind=JobKind.EXTERNAL, restartable=True, time_limit_seconds=1e6
            )
            self.world.cycle(Hosted(job_id_of(number), 0, spec, placement, START_NS))
            jobs[number] = SlurmJob(number, "RUNNING", nodes=nodes, gpus=((0,),) * len(nodes))
        backend._snapshot = Snapshot(BOOTED_NS - SECOND, {}, jobs)
        self._backend = backend
        self.rename_events = lambda events: renamed(events)
        return backend.attest

    def _bind_pods(self) -> Attest:
        pods = Pods("gangwatch", TopologyLabels())
        for job_id, job in self.world.state.jobs.items():
            for rank in job.ranks:
                body = pod_body(f"{job_id}-{rank.rank}", nodeName=rank.slot.node)
                body["metadata"]["uid"] = self.uid_of(job_id, rank.rank)
                pod = msgspec.convert(body, Pod)
                pods.pod_changed(pod.metadata.key, None, pod)
                pods.hold(pod.metadata.uid, Place(job_id, 1, rank.slot.node, range(rank.rank, rank.rank + 1)))
        self._naming = RankNames(pods.place_of, lambda: pods.places_version)
        return lambda node, gang, _received_ns: pods.attest(node, gang)

    @staticmethod
    def uid_of(job_id: str, rank: int) -> str:
        return f"{job_id}-{rank:04d}"

    def poll_slurm(self) -> None:
        """Record a poll of Slurm that found no change."""
        snapshot = self._backend._snapshot
        assert snapshot is not None
        self._backend._snapshot = Snapshot(self.clock.monotonic_ns(), snapshot.nodes, snapshot.jobs)

    # --- frames that agents send --------------------------------------------------------------------------------------

    def member(self, job_id: str, rank: int) -> Member:
        """Return the rank under the name that the agent of its node reports."""
        if self.kind == "local":
            return Member(job_id, 1, rank)
        if self.kind == "kubernetes":
            return Member(f"pod-{self.uid_of(job_id, rank)}", 0, 0)
        return Member(f"{job_id}.0", 0, rank)

    def gang(self, name: str) -> str:
        """Return the job's name in the fleet."""
        return f"{self.jobs[name]}.0" if self.kind == "slurm" else self.jobs[name]

    def honest(self, node: str) -> Iterator[tuple[Layout, Frame]]:
        """Yield the current second's frame of a node's honest agent."""
        at_ns = self.clock.monotonic_ns()
        members: list[Member] = []
        records: list[Record] = []
        for name, nodes in PLACEMENT.items():
            if node in nodes:
                member = self.member(self.jobs[name], nodes.index(node))
                for part in range(STEPS_A_SECOND):
                    self._steps[node] = self._steps.get(node, 0) + 1
                    duration_ns = SECOND // STEPS_A_SECOND - self._random.randrange(SECOND // 200)
                    end_ns = at_ns - 1000 - (STEPS_A_SECOND - 1 - part) * SECOND // STEPS_A_SECOND
                    records.append(
                        StepRecord(member, self._steps[node], end_ns - duration_ns, duration_ns, duration_ns // 10)
                    )
                records.append(OpenRecord(member, "step", self._steps[node] + 1, at_ns - 500))
                members.append(member)
        layout = layout_of(node, members)
        self._seq[node] += 1
        yield layout, frame_of(layout, self._seq[node], at_ns, records, record_seq=self._record_seq[node])
        self._record_seq[node] += len(records)

    def send(self, layout: Layout, frame: Frame) -> None:
        """Pass a received frame to the fleet."""
        received: tuple[AnyLayout, Frame] = (layout, frame)
        if self._naming is not None:
            received = self._naming(*received)
        self.watch.offer(*received, self.clock.monotonic_ns())

    # --- time ---------------------------------------------------------------------------------------------------------

    def run(self, seconds: int, rogue: Callable[[Cluster], Sequence[tuple[Layout, Frame]]] | None = None) -> None:
        """Run for some seconds. rogue: returns the frames that the rogue node sends in each second instead of its
        honest ones."""
        for _ in range(seconds):
            self._second += 1
            sent: list[tuple[Layout, Frame]] = []
            for node in NODES:
                for made in self.honest(node):
                    sent += [made] if node != ROGUE or rogue is None else []
            if rogue is not None:
                sent += rogue(self)
            for layout, frame in sent:
                self.send(layout, frame)
            for _ in range(2):
                self.clock.advance(0.5)
                self.watch.run_tick()
                events = list(self.rename_events(self._found)) or [Tick()]
                self._found.clear()
                self.world.now_ns = self.clock.wall_ns()
                self.world.cycle(*events)
                self.placements.follow(self.world.state.jobs.values())
            if self.kind == "slurm" and self._second % 10 == 0:
                self.poll_slurm()

    # --- results ------------------------------------------------------------------------------------------------------

    def actions(self) -> list[Action]:
        return [action for outcome in self.world.outcomes for action in outcome.actions if isinstance(action, StopGang)]

    def jobs_with_actions(self) -> set[str]:
        """Return the names of the jobs for which the cycle has requested an action."""
        names = {job_id: name for name, job_id in self.jobs.items()}
        return {names[action.job_id] for action in self.actions()} - {TOUCHABLE}

    def unhealthy_nodes(self) -> set[str]:
        """Return the nodes that are not healthy, without the rogue one."""
        nodes = self.world.state.nodes.values()
        return {node.name for node in nodes if node.state is not NodeState.HEALTHY} - {ROGUE}

    def recorded_data(self) -> dict[str, Any]:
        """Return all recorded data about gangs without a rank on the rogue node, and about these gangs' nodes."""
        fleet, found = self.watch._fleet, {}
        for name in PLACEMENT:
            if name != TOUCHABLE:
                gang = fleet.gangs[self.gang(name)]
                steps = gang.completed()
                assert steps is not None
                found[name] = (
                    gang.attempt, gang.ranks, gang.nodes, steps.number.tolist(), steps.seconds.tolist(),
                    gang.newest_steps().tolist(), gang.open_steps().tolist(),
                    gang._trails._total[gang._slots[: len(gang)]].tolist(),
                    fleet.process_states(gang).tolist(),
                )  # fmt: skip
                found[f"story of {name}"] = [
                    (entry.kind, entry.text) for entry in self.world.entries if entry.subject == self.jobs[name]
                ]
        for node in NODES[:-1]:
            view = fleet.nodes[node]
            found[node] = view.seq, view.frames_missed, view.frames_refused, fleet.shares_machine(node)
        return found


# --- frames -----------------------------------------------------------------------------------------------------------


def gpu_of(node: str) -> str:
    return f"GPU-{node}"


def layout_of(node: str, members: Sequence[Member], gpu: str | None = None, states: bool = True) -> Layout:
    """Return a layout with counters, steps, state, GPU and place of each rank. gpu: UUID; None for the node's GPU."""

    def whose(member: Member, **more: str) -> tuple[tuple[str, str], ...]:
        fields = {"attempt": str(member.attempt), "gang": member.gang, "rank": str(member.rank), **more}
        return tuple(sorted(fields.items()))

    part = gpu_of(node) if gpu is None else gpu
    gauges = [
        Column("gangwatch_gpu_info", (("gpu", part), ("pci_address", "0000:17:00.0"))),
        Column("gangwatch_gpu_recovery_action", (("action", "gpu_reset"), ("gpu", part))),
    ]
    gauges += [Column("gangwatch_gpu_owner_info", whose(one, gpu=part)) for one in members]
    if states:
        gauges += [Column("gangwatch_rank_process_state", whose(one)) for one in members]
    metrics = (*CONSUMED, "gangwatch_rank_steps_total")
    counters = [Column(metric, whose(one)) for one in members for metric in metrics]
    return make_layout(node, (Tier("all", 1.0),), gauges, counters)


def frame_of(
    layout: Layout, seq: int, at_ns: int, records: Sequence[Record], boot: str = "", **changes: object
) -> Frame:
    """Return a frame of the current time. Its counters grow with time."""
    tiers, _, counters = layout.sizes
    values = np.array([float(column.metric == "gangwatch_rank_process_state") for column in layout.gauges])
    frame = Frame(
        layout.node, boot or f"boot-{layout.node}", f"agent-{layout.node}", seq, layout.layout_id,
        at_ns - BOOTED_NS + START_NS, at_ns, np.full(tiers, at_ns, np.int64), values,
        np.full(counters, (at_ns - BOOTED_NS) // 2, np.uint64), np.ones(counters, np.bool_), 0, tuple(records),
    )  # fmt: skip
    return msgspec.structs.replace(frame, **changes)


EVENTS = ("xid", "gpu_lost", "nic_link", "recovery-action", "device-lost", "link", "part-replaced", "no-such-event")


class Rogue:
    """Frames with false content in every part. Each names the rogue node, because the feed refuses other names
    (tests/feed/test_feed.py)."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._seq = self._record_seq = 0
        self._lie = 0

    def __call__(self, cluster: Cluster) -> Sequence[tuple[Layout, Frame]]:
        if not self._lie or self.random.random() < 0.15:
            self._lie = self.random.randrange(1, 1 << 30)  # a lie lasts some seconds, so that detectors see it
        choose = random.Random(self._lie)
        return [self._frame(cluster, choose) for _ in range(choose.choice((1, 1, 3)))]

    def _members(self, cluster: Cluster, choose: random.Random) -> list[Member]:
        if choose.random() < 0.3:  # all ranks of one job, as its own agents report them
            name = choose.choice(("victim", "other"))
            return [cluster.member(cluster.jobs[name], rank) for rank in range(len(PLACEMENT[name]))]
        found: list[Member] = []
        for _ in range(choose.randrange(1, 6)):
            name = choose.choice(("victim", "victim", "other", TOUCHABLE))
            honest = cluster.member(cluster.jobs[name], choose.randrange(len(PLACEMENT[name])))
            gang = choose.choice((
                honest.gang, honest.gang, cluster.jobs[name], cluster.gang(name), "j-000009", "slurm-9.0", "pod-none",
                "uid-0/x", f"uid-0/x@{choose.choice(NODES)}", "uid-1000/" + "y" * 300, "",
            ))  # fmt: skip
            attempt = choose.choice((honest.attempt, honest.attempt, 1, 0, 2, -1, 2**61, 2**63 - 1))
            rank = choose.choice((honest.rank, honest.rank, 0, 3, 4, -1, 99, 1 << 40))
            found.append(Member(gang, attempt, rank))
        return found

    def _frame(self, cluster: Cluster, choose: random.Random) -> tuple[Layout, Frame]:
        at_ns = cluster.clock.monotonic_ns()
        members = self._members(cluster, choose)
        records: list[Record] = []
        number = STEPS_A_SECOND * ((at_ns - BOOTED_NS) // SECOND) + choose.choice((0, 0, 1, 5, -5, 1000, 2**61))
        for member in members:
            slow = choose.choice((1, 1, 5, 60))
            wait_ns = choose.choice((None, 0, SECOND // 2))
            duration_ns = slow * SECOND
            start_ns = at_ns - duration_ns - 1000
            records.append(StepRecord(member, max(0, number), start_ns, duration_ns, wait_ns))
            what = choose.choice(("step", "collective"))
            records.append(OpenRecord(member, what, max(0, number), at_ns - slow * SECOND))  # type: ignore[arg-type]
        for _ in range(choose.randrange(4)):
            part = choose.choice((*map(gpu_of, NODES), "0000:17:00.0", "n0/mlx5_0", "mlx5_0", *NODES))
            kind = choose.choice(EVENTS)
            detail = {"code": "79", "action": choose.choice(("RESET_GPU", "gpu-reset")), "state": "down", "gpu": part,
                      "event": "gpu_unavailable"}  # fmt: skip
            records.append(EventRecord(kind, part, at_ns - BOOTED_NS + START_NS, detail))
        layout = layout_of(ROGUE, members, choose.choice((None, *map(gpu_of, NODES))), choose.random() < 0.5)
        self._seq += 1
        boot = choose.choice(("", f"boot-{choose.choice(NODES)}"))
        self._record_seq += len(records)
        return layout, frame_of(layout, self._seq, at_ns, records, boot, record_seq=self._record_seq - len(records))
