"""Frames of a rogue agent: it can report ranks of its own node only, and no verdict moves the jobs of other nodes.

Each of these attacks worked once; SECURITY.md lists them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import msgspec
import pytest

from agent.schema.clock import ManualClock
from agent.schema.frame import (
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
from agent.schema.sample import expanded
from scheduler_feedback.controller.detection_thread import DetectionThread
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.job import Job, JobSpec, JobState, RankRecord, Slot
from scheduler_feedback.core.state_metrics import measure
from scheduler_feedback.core.telemetry import membership
from scheduler_feedback.core.telemetry.device_locations import Parts
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.membership import Membership
from scheduler_feedback.core.telemetry.placements import Attest, Placed, Placements, Refusal
from scheduler_feedback.core.telemetry.series.occurrences import Occurrences
from scheduler_feedback.core.telemetry.steps.fleet_records import HELD_NS, WAITS_NS
from scheduler_feedback.core.telemetry.telemetry_update import Look
from scheduler_feedback.cycle import explain
from tests.cluster.cycle_world import START_NS, World
from tests.security.rogue import (
    BOOTED_NS,
    KINDS,
    PLACEMENT,
    SECOND,
    Cluster,
    Kind,
    Rogue,
    frame_of,
    gpu_of,
    layout_of,
)

SECONDS = 40


# --- the property -----------------------------------------------------------------------------------------------------


@cache
def undisturbed(kind: Kind) -> dict[str, Any]:
    """Return all recorded data after a run in which the rogue node's agent sends nothing."""
    return after(kind, lambda _: ()).recorded_data()


def after(kind: Kind, rogue: Any) -> Cluster:
    cluster = Cluster(kind, Path(mkdtemp(prefix="gangwatch-test-")))
    for name, nodes in PLACEMENT.items():
        for number, node in enumerate(nodes):
            cluster.placements.reached(node, f"10.0.{len(name)}.{number}")
    cluster.run(8)
    cluster.run(SECONDS, rogue)
    return cluster


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_a_rogue_agent_changes_nothing_about_other_nodes_and_their_jobs(kind: Kind, seed: int) -> None:
    """Steps, usage, process states, stories and clocks are bit-identical with and without its frames."""
    cluster = after(kind, Rogue(seed))
    assert cluster.jobs_with_actions() == set()
    assert cluster.unhealthy_nodes() == set()
    assert cluster.recorded_data() == undisturbed(kind)


# --- single attacks ---------------------------------------------------------------------------------------------------


def job_of(job_id: str, *nodes: str, attempt: int = 1, state: JobState = JobState.RUNNING) -> Job:
    ranks = [RankRecord(rank, Slot(node, 0)) for rank, node in enumerate(nodes)]
    return Job(job_id, JobSpec(job_id, ("train",), len(nodes)), state, 0, attempt, ranks)


class Bed:
    """Fleet that has the placement of some jobs."""

    def __init__(self, *jobs: Job, attest: Attest | None = None) -> None:
        self.placements = Placements(attest)
        self.placements.follow(jobs)
        self.fleet = Fleet(self.placements)
        self.now_ns = BOOTED_NS
        self._seq: dict[str, int] = {}

    def send(
        self,
        node: str,
        *members: Member,
        step: int = 1,
        seconds: float = 0.5,
        layout: Layout | None = None,
        records: Sequence[Record] | None = None,
        record_seq: int | None = None,
    ) -> None:
        """Send a frame of the node. Each of these ranks has finished step `step` and begun the next."""
        self.now_ns += SECOND // 100
        duration_ns = round(seconds * SECOND)
        made: list[Record] = []
        for member in members:
            made.append(StepRecord(member, step, self.now_ns - duration_ns - 10, duration_ns, 0))
            made.append(OpenRecord(member, "step", step + 1, self.now_ns - 5))
        layout = layout or layout_of(node, members)
        seq = self._seq[node] = self._seq.get(node, 0) + 1
        frame = frame_of(layout, seq, self.now_ns, made if records is None else records)
        first = seq * 100_000 if record_seq is None else record_seq
        frame = msgspec.structs.replace(frame, record_seq=first)
        assert self.fleet.observe(layout, frame, self.now_ns)

    @property
    def wall_ns(self) -> int:
        return self.now_ns - BOOTED_NS + START_NS

    def refused(self, node: str) -> dict[str, float]:
        found = {}
        for name, labels, value in self.fleet.measures():
            by_label = dict(labels)
            if name == "gangwatch_watch_records_refused_total" and by_label["node"] == node:
                found[by_label["reason"]] = value
        return found

    def where(self, gang: str) -> dict[int, str]:
        known = self.fleet.gangs[gang]
        return dict(zip(known.ranks, known.nodes, strict=True))


VICTIM = ("n0", "n1", "n2", "n3")


def victim(bed: Bed, step: int, gang: str = "j-1", attempt: int = 1) -> None:
    for rank, node in enumerate(VICTIM):
        bed.send(node, Member(gang, attempt, rank), step=step)


def test_a_node_without_ranks_of_a_gang_cannot_report_them() -> None:
    bed = Bed(job_of("j-1", *VICTIM))
    victim(bed, 1)
    bed.send("evil", Member("j-1", 1, 2), step=2, seconds=5.0)
    bed.send("evil", Member("j-1", 1, 4), step=2)
    assert bed.where("j-1") == dict(enumerate(VICTIM))
    assert set(bed.refused("evil")) == {"not-placed"}
    victim(bed, 2)
    steps = bed.fleet.gangs["j-1"].completed()
    assert steps is not None
    assert steps.number.tolist() == [1, 2], "honest records count, and no step waits for the invented rank"
    assert not bed.refused("n2")


@pytest.mark.parametrize("attempt", [0, 2, 2**61, -1])
def test_records_of_another_attempt_do_not_replace_the_running_one(attempt: int) -> None:
    bed = Bed(job_of("j-1", *VICTIM))
    victim(bed, 1)
    for node in ("evil", "n0"):  # a node of the gang may not do it either
        bed.send(node, Member("j-1", attempt, 0), step=2)
    assert bed.fleet.gangs["j-1"].newest_steps().tolist() == [1, 1, 1, 1]
    victim(bed, 2)
    assert bed.fleet.gangs["j-1"].attempt == 1
    assert len(bed.fleet.gangs["j-1"].ranks) == 4
    assert not bed.fleet.records_of_ended_attempts
    assert set(bed.refused("evil")) == {"not-placed"}
    if attempt >= 0:  # records without a valid attempt have another reason
        assert set(bed.refused("n0")) == {"attempt" if attempt > 1 else "ended"}


def test_a_node_of_a_gang_can_report_only_its_own_ranks() -> None:
    bed = Bed(job_of("j-1", *VICTIM))
    victim(bed, 1)
    bed.send("n0", Member("j-1", 1, 0), Member("j-1", 1, 2), Member("j-1", 1, 7), step=2, seconds=9.0)
    assert bed.where("j-1") == dict(enumerate(VICTIM))
    assert set(bed.refused("n0")) == {"rank"}
    assert bed.fleet.gangs["j-1"].newest_steps().tolist() == [2, 1, 1, 1]


def test_late_frames_after_a_jobs_end_or_move_are_not_logged_as_an_attack(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed(job_of("j-1", *VICTIM))
    victim(bed, 1)
    bed.placements.follow([job_of("j-1", *VICTIM, state=JobState.COMPLETED)])
    bed.fleet.forget("j-1")
    bed.send("n0", Member("j-1", 1, 0), step=2)
    assert set(bed.refused("n0")) == {"ended"}
    assert "j-1" not in bed.fleet.gangs
    moved = job_of("j-1", "n4", "n5", "n6", "n7", attempt=2)
    bed.placements.follow([moved])
    bed.send("n1", Member("j-1", 1, 1), step=2)
    bed.send("n4", Member("j-1", 2, 0), step=2)
    bed.send("n4", Member("j-1", 1, 0), step=2)
    assert set(bed.refused("n1")) == {"ended"}
    assert set(bed.refused("n4")) == {"ended"}
    assert bed.where("j-1") == {0: "n4"}
    bed.send("n8", Member("j-1", 1, 0), step=2)
    assert set(bed.refused("n8")) == {"not-placed"}


def test_open_collectives_of_an_ended_attempt_are_refused() -> None:
    """The records equal those of the previous frame, and unchanged records are not checked one by one."""
    bed = Bed(job_of("j-1", "n0"))
    member = Member("j-1", 1, 0)
    opened = (OpenRecord(member, "collective", 7, bed.now_ns),)
    layout = layout_of("n0", ())
    for seq in range(3):
        bed.send("n0", layout=layout, records=opened, record_seq=seq)
    last_ns = bed.fleet.gangs["j-1"].received_ns
    assert last_ns == bed.now_ns
    bed.placements.follow(())
    bed.send("n0", layout=layout, records=opened, record_seq=3)
    assert bed.fleet.gangs["j-1"].received_ns == last_ns
    assert bed.refused("n0") == {"ended": 1.0}


def test_jobs_that_ended_before_the_controller_started_count_as_ended() -> None:
    bed = Bed(job_of("j-1", "n0", state=JobState.FAILED))
    bed.send("n0", Member("j-1", 1, 0))
    bed.send("n1", Member("j-1", 1, 0))
    bed.send("n1", Member("j-2", 1, 0))
    assert set(bed.refused("n0")) == {"ended"}
    assert set(bed.refused("n1")) == {"not-placed", "unknown"}


def test_pids_do_not_change_the_placement_and_an_elastic_attempt_does() -> None:
    job = job_of("j-1", "n0", "n1")
    bed = Bed(job)
    before = bed.placements.of("n0")
    job.ranks = [msgspec.structs.replace(rank, pid=7) for rank in job.ranks]
    bed.placements.follow([job])
    assert bed.placements.of("n0") is before
    bed.placements.follow([job_of("j-1", "n1", attempt=2)])
    assert not bed.placements.of("n0")
    assert bed.placements.of("n1") == {"j-1": Placed(2, frozenset({0}))}


# --- gangs without a placement ----------------------------------------------------------------------------------------


def test_unattested_processes_form_one_gang_per_node() -> None:
    bed = Bed()
    honest, same = Member("uid-1000/run", 0, 0), Member("uid-1000/run", 0, 0)
    bed.send("n0", honest)
    bed.send("evil", same, Member("uid-1000/run", 2**61, 0), Member("uid-1000/run@evil", 0, 0), step=2)
    bed.send("n0", honest, step=2)
    assert bed.where("uid-1000/run") == {0: "n0"}
    steps = bed.fleet.gangs["uid-1000/run"].completed()
    assert steps is not None
    assert steps.number.tolist() == [1, 2]
    assert {gang.nodes for name, gang in bed.fleet.gangs.items() if name != "uid-1000/run"} == {("evil",)}


def test_a_rogue_agent_cannot_occupy_the_name_of_an_honest_gang() -> None:
    bed = Bed()
    bed.send("evil", Member("uid-1000/run", 0, 0), Member("uid-1000/run@n0", 0, 0))
    bed.send("n0", Member("uid-1000/run", 0, 0))
    found = {name: gang.nodes for name, gang in bed.fleet.gangs.items()}
    assert sorted(found.values()) == [("evil",), ("evil",), ("n0",)]


def test_the_names_and_ranks_of_one_node_are_bounded() -> None:
    bed = Bed(job_of("j-1", *VICTIM))
    for start in range(0, 1000, 100):
        bed.send("evil", *(Member(f"uid-{number}/x", 0, 0) for number in range(start, start + 100)))
        bed.send("crowd", *(Member("uid-1/x", 0, rank) for rank in range(start, start + 100)))
    gangs = bed.fleet.gangs
    assert sum(gang.nodes == ("evil",) for gang in gangs.values()) == membership.MOST_OUTSIDE_GANGS
    assert sum(len(gang) for gang in gangs.values() if "crowd" in gang.nodes) == membership.MOST_OUTSIDE_RANKS
    assert set(bed.refused("evil")) == set(bed.refused("crowd")) == {"limit"}
    victim(bed, 1)
    assert bed.where("j-1") == dict(enumerate(VICTIM))
    bed.now_ns += 601 * SECOND
    bed.fleet.forget_silent(bed.now_ns)
    bed.send("evil", Member("uid-5000/x", 0, 0))
    assert "uid-5000/x" in bed.fleet.gangs, "names that are no longer reported are free again"


# --- Slurm: the nodes of a job are known, the node of a rank is not ---------------------------------------------------


class Slurm:
    """Slurm's jobs in the form in which the Slurm backend keeps them."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[int, tuple[str, ...]]] = {}
        self.looked_ns = 0

    def attest(self, node: str, gang: str, came_ns: int) -> Placed | Refusal | None:
        if not gang.startswith("slurm-"):
            return None
        restarts, nodes = self.jobs.get(gang.partition(".")[0], (0, ()))
        if node in nodes:
            return Placed(restarts, None)
        return Refusal.NOT_KNOWN_YET if self.looked_ns <= came_ns else Refusal.NOT_PLACED


def test_records_of_a_slurm_job_wait_for_the_poll_that_lists_it() -> None:
    slurm = Slurm()
    bed = Bed(attest=slurm.attest)
    for step in range(1, 11):
        for rank in (0, 1):
            bed.send(f"n{rank}", Member("slurm-7.0", 0, rank), step=step)
        bed.send("evil", Member("slurm-7.0", 2**61, 0), Member("slurm-7.0", 0, 1), step=step, seconds=9.0)
    assert not bed.fleet.gangs
    slurm.jobs["slurm-7"], slurm.looked_ns = (0, ("n0", "n1")), bed.now_ns
    bed.now_ns += 2 * SECOND
    for node in ("n0", "n1", "evil"):
        bed.send(node)
    steps = bed.fleet.gangs["slurm-7.0"].completed()
    assert steps is not None
    assert steps.number.tolist() == list(range(1, 11))
    assert bed.where("slurm-7.0") == {0: "n0", 1: "n1"}
    assert bed.fleet.first_steps()[0][:3] == ("slurm-7.0", 0, 1)
    assert set(bed.refused("evil")) == {"not-placed"}


def test_backend_decides_once_a_second_for_all_ranks_of_a_node() -> None:
    asked: list[str] = []
    slurm = Slurm()
    slurm.jobs["slurm-7"] = 0, ("n0",)

    def attest(node: str, gang: str, came_ns: int) -> Placed | Refusal | None:
        asked.append(gang)
        return slurm.attest(node, gang, came_ns)

    ranks = [(("attempt", "0"), ("gang", "slurm-7.0"), ("rank", str(rank))) for rank in range(8)]
    columns = [Column("gangwatch_rank_steps_total", labels) for labels in ranks]
    layout = make_layout("n0", (Tier("t", 1.0),), (), columns)
    membership = Membership(Placements(attest), Parts(lambda _: 0))
    for at_ns in (0, SECOND // 2, SECOND):
        assert membership.layout_of(layout, membership.here("n0"), at_ns) is layout
    assert asked == ["slurm-7.0"] * 2
    slurm.jobs.clear()
    renamed = membership.layout_of(layout, membership.here("n0"), 2 * SECOND)
    assert renamed is not layout, "a refused rank stayed in the layout"


def test_backend_decides_about_the_ranks_of_a_node_again_only_after_news() -> None:
    asked: list[str] = []
    slurm = Slurm()
    slurm.jobs["slurm-7"] = 0, ("n0",)
    data: object = "first"

    def attest(node: str, gang: str, came_ns: int) -> Placed | Refusal | None:
        asked.append(gang)
        return slurm.attest(node, gang, came_ns)

    columns = [Column("gangwatch_rank_steps_total", (("attempt", "0"), ("gang", "slurm-7.0"), ("rank", "0")))]
    layout = make_layout("n0", (Tier("t", 1.0),), (), columns)
    membership = Membership(Placements(attest, lambda _node: data), Parts(lambda _: 0))
    for second in range(4):
        assert membership.layout_of(layout, membership.here("n0"), second * SECOND) is layout
    assert asked == ["slurm-7.0"] * 2, "once for the layout and once to keep the decision"
    slurm.jobs.clear()
    data = "second"
    assert membership.layout_of(layout, membership.here("n0"), 4 * SECOND) is not layout
    slurm.looked_ns = 10 * SECOND
    for second in (5, 6, 7):  # refusals are never kept, because the job may appear without news of this node
        asked.clear()
        membership.layout_of(layout, membership.here("n0"), second * SECOND)
        assert asked


def test_another_node_that_lists_a_gpu_counts_as_news() -> None:
    ranks = (("attempt", "0"), ("gang", "slurm-7.0"), ("gpu", "GPU-1"), ("rank", "0"))
    columns = [Column("gangwatch_gpu_owner_info", ranks)]
    layouts = {node: make_layout(node, (Tier("t", 1.0),), columns, ()) for node in ("n0", "n1")}
    received = {"n0": 0, "n1": 0}
    membership = Membership(
        Placements(lambda *_: Placed(0, None), lambda _node: "unchanged"), Parts(received.__getitem__)
    )

    def own_name(node: str, now_ns: int) -> bool:
        return membership.layout_of(layouts[node], membership.here(node), now_ns) is layouts[node]

    assert all(own_name("n0", second * SECOND) for second in range(3))
    assert not own_name("n1", 3 * SECOND)
    received["n1"] = 700 * SECOND
    assert own_name("n1", 700 * SECOND), "n0 has not reported for ten minutes"
    assert not own_name("n0", 701 * SECOND)


def test_records_of_a_job_that_slurm_never_lists_are_bounded_and_dropped() -> None:
    bed = Bed(attest=Slurm().attest)
    for step in range(1, 700):
        bed.send("evil", Member("slurm-8.0", 0, 0), step=step)
    assert len(bed.fleet.nodes["evil"]._waiting) == 512
    bed.now_ns += WAITS_NS
    bed.send("evil")
    assert not bed.fleet.nodes["evil"]._waiting
    assert bed.refused("evil") == {"unknown": 512.0}


def test_a_rank_of_a_slurm_job_stays_with_the_node_that_reports_it() -> None:
    slurm = Slurm()
    slurm.jobs["slurm-7"] = 0, ("n0", "n1")
    bed = Bed(attest=slurm.attest)
    for step in (1, 2):
        bed.send("n1", Member("slurm-7.0", 0, 1), step=step)
        bed.send("n0", Member("slurm-7.0", 0, 0), Member("slurm-7.0", 0, 1), step=step + 5, seconds=9.0)
    assert bed.where("slurm-7.0") == {0: "n0", 1: "n1"}
    assert set(bed.refused("n0")) == {"rank"}
    assert bed.fleet.gangs["slurm-7.0"].newest_steps().tolist() == [7, 2]
    # Its consumption and its place are not accepted from the other node either.
    Look(bed.fleet).next(bed.now_ns)
    counts = bed.fleet.counting.nodes["n0"]
    assert counts.kind is not None
    assert counts.kind.columns[counts.row].tolist() == [0, -1]
    # A launcher may restart its ranks on other nodes: a node that stops reporting a rank has lost it.
    bed.send("n1", layout=layout_of("n1", ()))
    bed.now_ns += HELD_NS + SECOND
    bed.send("n1", layout=layout_of("n1", ()))
    bed.send("n0", Member("slurm-7.0", 0, 0), Member("slurm-7.0", 0, 1), step=9)
    assert bed.where("slurm-7.0") == {0: "n0", 1: "n0"}


def test_restarts_counted_by_a_launcher_are_mapped_to_the_schedulers_attempts() -> None:
    """torchrun counts restarts that Slurm does not count, and each node counts for itself."""
    slurm = Slurm()
    slurm.jobs["slurm-7"] = 1, ("n0", "n1")
    bed = Bed(attest=slurm.attest)
    bed.send("n0", Member("slurm-7.0", 0, 0), step=1)
    assert set(bed.refused("n0")) == {"ended"}, "Slurm has requeued the job since"
    bed.send("n0", Member("slurm-7.0", 1, 0), Member("slurm-7.0", 3, 0), step=2)
    bed.send("n1", Member("slurm-7.0", 2**61, 1), step=2)
    bed.send("n0", Member("slurm-7.0", 3, 0), step=3)
    assert bed.fleet.gangs["slurm-7.0"].attempt == 1
    assert bed.fleet.gangs["slurm-7.0"].newest_steps().tolist() == [3, 2]
    assert not bed.fleet.records_of_ended_attempts


# --- devices and machines of other nodes ------------------------------------------------------------------------------


def test_events_about_another_nodes_gpu_concern_only_the_senders_own_device() -> None:
    bed = Bed(job_of("j-1", *VICTIM))
    victim(bed, 1)
    replaced = EventRecord("part-replaced", gpu_of("n1"), bed.wall_ns, {"gpu": "x"})
    bed.send("n7", layout=layout_of("n7", (), gpu_of("n1")), records=[replaced])
    bed.send(
        "n1", Member("j-1", 1, 1), step=2, records=[EventRecord("xid", "0000:17:00.0", bed.wall_ns, {"code": "79"})]
    )
    events = Look(bed.fleet).next(bed.now_ns).events
    assert [(one.node, one.event.entity) for one in events] == [("n7", f"n7/{gpu_of('n1')}"), ("n1", gpu_of("n1"))]
    counted = bed.fleet.counting.nodes
    bed.send("n7", Member("uid-0/x", 0, 0), layout=layout_of("n7", (Member("uid-0/x", 0, 0),), gpu_of("n1")))
    assert [one.gpu for one in (*counted["n1"].devices, *counted["n7"].devices)] == [gpu_of("n1"), f"n7/{gpu_of('n1')}"]
    # A device that was moved belongs to its new node as soon as the old node no longer lists it.
    bed.send("n1", layout=layout_of("n1", (), gpu_of("n5")))
    bed.now_ns += 2 * SECOND
    bed.send("n7", layout=layout_of("n7", (), gpu_of("n1")), records=[replaced])
    last = bed.fleet.occurrences.take()[-1]
    assert (last.node, last.event.entity) == ("n7", gpu_of("n1"))


def test_a_foreign_boot_id_does_not_mark_a_shared_machine() -> None:
    bed = Bed()
    for node, host in (("n0", "10.0.0.1"), ("n1", "10.0.0.1"), ("n2", "10.0.0.2"), ("evil", "10.0.0.9")):
        bed.placements.reached(node, host)
        layout = layout_of(node, ())
        frame = frame_of(layout, 1, BOOTED_NS, (), boot="boot-of-n2" if node in ("n2", "evil") else "boot-of-n0")
        assert bed.fleet.observe(layout, frame, BOOTED_NS)
    assert bed.fleet.shares_machine("n0"), "virtual nodes of one machine share it"
    assert not bed.fleet.shares_machine("n2")
    assert not bed.fleet.shares_machine("evil")


def test_a_flood_of_events_does_not_delay_other_nodes_events() -> None:
    bed = Bed()
    bed.send("n0", records=[EventRecord("xid", "0000:17:00.0", bed.wall_ns, {"code": "79"})])
    for _ in range(40):
        bed.send("evil", records=[EventRecord("xid", "x", bed.wall_ns, {"code": "13"})] * 1000)
    events = Look(bed.fleet).next(bed.now_ns).events
    assert events[0].node == "n0"
    assert len(events) == 1 + Occurrences.MOST_OF_NODE
    assert bed.refused("evil")["limit"] == 40_000 - Occurrences.MOST_OF_NODE


# --- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accused", ["a node of no rank", "another rank's node"])
def test_a_verdict_on_a_node_without_the_rank_is_refused_and_moves_no_job(accused: str) -> None:
    world = World({f"n{number}": 1 for number in range(7)})
    job_id = world.submit(4, true_seconds=1e5, restartable=True, time_limit_seconds=1e5)
    world.running()
    world.advance(60)
    job = world.state.jobs[job_id]
    free = next(node for node in world.state.nodes if node not in world.nodes_of(job_id))
    node = free if accused == "a node of no rank" else job.ranks[1].slot.node
    verdict = world.verdict(job_id, rank=2, node=node, slowdown=5.0, lasts_seconds=5000.0)
    for _ in range(3):
        world.cycle(verdict)
    world.advance(120)
    assert not world.state.verdicts
    assert job.stop_reason is None
    assert job.attempt == 1
    assert {one.state for one in world.state.nodes.values()} == {NodeState.HEALTHY}
    (refusal,) = [entry for entry in world.entries if entry.kind == "verdict-refused"]
    assert refusal.subject == job_id
    assert not refusal.applied
    assert node in refusal.text
    explained = explain(world.state, job_id)
    assert explained is not None
    assert any("refused" in words and verdict.verdict_id in words for words in explained.what_would_change_it)
    counted = {
        labels: value for name, labels, value in expanded(measure(world.state)) if name == "gangwatch_decisions_total"
    }
    assert counted[("kind", "verdict-refused"), ("outcome", "refused")] == 1.0
    world.cycle(world.verdict(job_id, rank=2, slowdown=5.0, lasts_seconds=5000.0))
    assert job.stop_reason is not None, "the controller acts on a correct verdict"


# --- logs and metrics -------------------------------------------------------------------------------------------------


def test_each_reason_is_logged_once_per_node_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(BOOTED_NS)
    placements = Placements()
    placements.follow([job_of("j-1", "n0")])
    watch = DetectionThread((), lambda _: None, clock, placements=placements)
    with caplog.at_level(logging.INFO):
        for layout, frame in frames_of("evil", clock, 20):
            watch.offer(layout, frame, clock.monotonic_ns())
            watch.run_tick()
    lines = [record.getMessage() for record in caplog.records if "node=evil" in record.getMessage()]
    assert len(lines) == 1
    assert "reason=not-placed gang=j-1" in lines[0]
    counted = [
        value for name, labels, value in expanded(watch.measures()) if name == "gangwatch_watch_records_refused_total"
    ]
    assert counted == [21.0], "every record is counted, in one series"


def frames_of(node: str, clock: ManualClock, count: int) -> Iterator[tuple[Layout, Frame]]:
    layout = bare(node, (Member("j-1", 1, 0),))
    for seq in range(1, count + 1):
        clock.advance(1.0)
        at_ns = clock.monotonic_ns()
        record = StepRecord(Member("j-1", 1, 0), seq, at_ns - SECOND // 2, SECOND // 4, 0)
        yield layout, frame_of(layout, seq, at_ns, [record], record_seq=seq)


def bare(node: str, members: Sequence[Member]) -> Layout:
    columns = [
        Column(
            "gangwatch_rank_steps_total",
            (("attempt", str(one.attempt)), ("gang", one.gang), ("rank", str(one.rank))),
        )
        for one in members
    ]
    return make_layout(node, (Tier("steps", 1.0),), (), columns)
