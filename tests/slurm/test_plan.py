"""Plan of changes in Slurm, computed from one snapshot of its state. No Slurm needed."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_feedback.backends.slurm.changed_objects import Touched, Weighed
from scheduler_feedback.backends.slurm.desired_state import DesiredNode, DesiredState
from scheduler_feedback.backends.slurm.node_plan import Plan, plan, weight_for
from scheduler_feedback.backends.slurm.parsing.slurm_objects import SlurmJob, SlurmNode, Snapshot
from scheduler_feedback.backends.slurm.slurm_names import host_waits
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.job import HostedWait

NOW = 1_700_000_000.0
NAMES = tuple(f"n{number}" for number in range(8))


def node(name: str, **changed: object) -> SlurmNode:
    idle = SlurmNode(name, 8, states=frozenset({"IDLE"}), weight=10, features=("h200",), partitions=("batch",))
    return dataclasses.replace(idle, **changed)


def goal(name: str, state: NodeState, **changed: object) -> DesiredNode:
    return dataclasses.replace(DesiredNode(name, state, "it is slow", "1/quarantine", 1.3), **changed)


def planned(
    goals: list[DesiredNode], seen: list[SlurmNode] | None = None, touched: Touched | None = None, *,
    acts: bool = True, frozen: bool = False, share: float = 0.5, jobs: tuple[SlurmJob, ...] = (),
) -> Plan:  # fmt: skip
    nodes = {name: node(name) for name in NAMES} | {one.name: one for one in seen or ()}
    by_name = {one.node: one for one in goals}
    desired = DesiredState(acts, frozen, by_name if acts else {}, frozenset(nodes), {} if acts else by_name)
    snapshot = Snapshot(0, nodes, {job.number: job for job in jobs})
    return plan(desired, snapshot, touched or Touched(), share, comments=False, now_seconds=NOW)


def actions(found: Plan) -> list[tuple[str, str]]:
    return [(change.action, change.target) for change in found.changes]


def test_quarantine_drains_once() -> None:
    found = planned([goal("n1", NodeState.QUARANTINE)])
    assert actions(found) == [("drain", "n1")]
    assert found.changes[0].command == (
        "scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=gangwatch: it is slow"
    )  # fmt: skip
    drained = node("n1", states=frozenset({"IDLE", "DRAIN"}), reason="gangwatch: it is slow")
    assert actions(planned([goal("n1", NodeState.QUARANTINE)], [drained], Touched({"n1": "1/quarantine"}))) == []


def test_our_drains_are_resumed_and_drains_of_others_are_not() -> None:
    ours = node("n1", states=frozenset({"DRAINED"}), reason="gangwatch: it is slow")
    theirs = node("n2", states=frozenset({"IDLE", "DRAIN"}), reason="fan 3 is broken")
    renamed = node("n3", states=frozenset({"IDLE", "DRAIN"}), reason="mine now")
    touched = Touched({"n1": "1", "n3": "1"})
    assert actions(planned([], [ours, theirs, renamed], touched)) == [("resume", "n1")]
    # A drain of gangwatch that is missing in this state folder: it is unknown whether it is still needed.
    assert actions(planned([], [ours], Touched())) == []
    assert actions(planned([goal("n2", NodeState.QUARANTINE)], [theirs])) == []


def test_an_operators_resume_counts_and_the_next_quarantine_drains_again() -> None:
    touched = Touched({"n1": "1/quarantine"})
    found = planned([goal("n1", NodeState.QUARANTINE)], touched=touched)
    assert (found.released, found.changes) == (["n1"], [])
    assert actions(planned([goal("n1", NodeState.QUARANTINE, episode="2/quarantine")], touched=touched)) == [
        ("drain", "n1")
    ]


def test_a_probed_node_is_left_to_its_probe() -> None:
    ours = node("n1", states=frozenset({"IDLE", "DRAIN"}), reason="gangwatch: its probe has ended")
    probed = goal("n1", NodeState.QUARANTINE, probed=True)
    assert actions(planned([probed], [ours], Touched({"n1": "probed"}))) == []
    assert actions(planned([probed])) == []


def test_a_suspect_gets_a_weight_and_gets_it_again_after_slurm_dropped_it() -> None:
    suspect = goal("n1", NodeState.SUSPECT)
    change = planned([suspect]).changes[0]
    features = "h200,gangwatch_suspect,gangwatch_slow_30"
    assert change.command[2:] == (
        "NodeName=n1", "Weight=310", f"Features={features}", f"ActiveFeatures={features}"
    )  # fmt: skip
    touched = Touched(weighed={"n1": Weighed(10, 310)})
    set_ = node("n1", weight=310, features=tuple(features.split(",")))
    assert planned([suspect], [set_], touched).changes == []
    assert actions(planned([suspect], [node("n1")], touched)) == [("weigh", "n1")]  # scontrol reconfigure
    back = planned([], [set_], touched).changes[0]
    assert back.command[2:] == ("NodeName=n1", "Weight=10", "Features=h200", "ActiveFeatures=h200")
    # An operator has set another weight meanwhile: it is now the node's own weight.
    assert planned([], [node("n1", weight=99)], touched).changes[0].command == ()
    assert planned([suspect], [node("n1", weight=99)], touched).changes[0].weighs == (99, weight_for(99, 1.3))


def test_no_more_nodes_than_the_share_are_drained() -> None:
    goals = [goal(name, NodeState.QUARANTINE) for name in NAMES]
    found = planned(goals, share=0.25)
    assert actions(found) == [("drain", "n0"), ("drain", "n1")]
    assert [why for _, why in found.withheld] == ["2 nodes of partition batch are drained, which is the limit"] * 6
    assert actions(planned(goals[:2], share=0.0)) == [("drain", "n0")]


def test_nothing_changes_while_frozen_and_advise_only_reports() -> None:
    goals = [goal("n1", NodeState.QUARANTINE)]
    assert planned(goals, frozen=True) == Plan()
    found = planned(goals, acts=False)
    assert found.changes == []
    assert [change.action for change in found.advised] == ["drain"]


@given(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)), st.floats(0, 1))
def test_the_plan_converges(bad: set[str], theirs: set[str], share: float) -> None:
    """After a plan is carried out, the next one is empty. No plan contains nodes that others have drained."""
    goals = [goal(name, NodeState.QUARANTINE) for name in sorted(bad)]
    drained = [node(name, states=frozenset({"DOWN", "DRAIN"}), reason="theirs") for name in sorted(theirs)]
    touched = Touched()
    found = planned(goals, drained, touched, share=share)
    assert not {change.target for change in found.changes} & theirs
    after = list(drained)
    for change in found.changes:
        touched.drained[change.target] = change.episode
        after.append(node(change.target, states=frozenset({"IDLE", "DRAIN"}), reason="gangwatch: it is slow"))
    again = planned(goals, after, touched, share=share)
    assert again.changes == []
    assert again.released == []
    assert len(touched.drained) <= max(1, int(len(NAMES) * share))


def pending(number: int, **changed: object) -> SlurmJob:
    waits = SlurmJob(number, "PENDING", comment="gangwatch:restartable", partition="batch", least_nodes=4)
    return dataclasses.replace(waits, **changed)


def test_pending_gangs_exclude_slow_nodes_if_enough_nodes_are_left() -> None:
    suspect = [goal("n1", NodeState.SUSPECT, slowdown=1.4)]
    jobs = (
        pending(1, excluded=("n7",)),
        pending(2, comment="not managed"),
        pending(3, least_nodes=8),
        pending(4, least_nodes=1),
        pending(5, partition="other"),
    )
    found = [change for change in planned(suspect, jobs=jobs).changes if change.action == "exclude"]
    assert [(change.target, change.command[-1], change.nodes) for change in found] == [
        ("1", "ExcNodeList=n1,n7", ("n1",))
    ]
    touched = Touched(excluded={"1": ["n1"]})
    set_ = pending(1, excluded=("n1", "n7"))
    assert [change.action for change in planned(suspect, touched=touched, jobs=(set_,)).changes] == ["weigh"]
    back = planned([], touched=touched, jobs=(set_,)).changes[0]
    assert (back.action, back.command[-1]) == ("include", "ExcNodeList=n7")


@pytest.mark.parametrize(
    ("slowdown", "nodes", "limit_seconds", "kept_off"),
    [
        (1.4, 4, 36_000.0, True),  # waits 100 s, and would lose hours
        (1.4, 4, 100.0, False),  # waits as long as it may run
        (1.3, 4, 36_000.0, False),  # 4 nodes at 1/1.3 are worth more than 3
        (1.3, 5, 36_000.0, True),
        (1.3, 5, 300.0, False),
        (1.0, 4, 100.0, True),  # its verdict is not about slowness
    ],
)
def test_a_slow_node_is_better_than_a_long_wait(
    slowdown: float, nodes: int, limit_seconds: float, kept_off: bool
) -> None:
    """Six of eight nodes are in use for another 100 s, and n1 is slow."""
    runs = SlurmJob(
        9, "RUNNING", nodes=NAMES[2:], partition="batch", started_seconds=NOW - 50.0, time_limit_seconds=150.0
    )
    waits = pending(1, least_nodes=nodes, time_limit_seconds=limit_seconds)
    found = planned([goal("n1", NodeState.SUSPECT, slowdown=slowdown)], jobs=(runs, waits))
    assert (("exclude", "1") in actions(found)) is kept_off


def test_pending_demand_is_reported_by_partition_and_size() -> None:
    jobs = [
        pending(1, gpus_wanted=16, reason="Priority", time_limit_seconds=600.0),
        pending(2, gpus_wanted=16, reason="Resources", time_limit_seconds=60.0),
        pending(3, gpus_wanted=8, partition="batch,large", reason="Priority"),
        pending(4, gpus_wanted=8, reason="Dependency"),
        pending(5, gpus_wanted=8, held=True),
        pending(6, gpus_wanted=32, reason="Priority"),
        pending(7, reason="Priority"),  # requests no GPU
        pending(9, gpus_wanted=24),  # just submitted
        dataclasses.replace(pending(8, gpus_wanted=64, reason="Priority"), state="RUNNING"),
    ]
    assert host_waits(jobs, {"6": None}).waiting == (
        HostedWait("batch", 8), HostedWait("batch", 16, 60.0), HostedWait("large", 8)
    )  # fmt: skip


def test_only_nodes_whose_jobs_have_changed_are_decided_again() -> None:
    """Kept decisions about what nodes may report depend on it (`SlurmBackend.attest_data`)."""

    def runs(number: int, *nodes: str, restarts: int = 0) -> SlurmJob:
        return SlurmJob(number, "RUNNING", nodes=nodes, restarts=restarts)

    before = Snapshot(0, jobs={5: runs(5, "a", "b"), 6: runs(6, "c"), 7: pending(7)})
    names = ("a", "b", "c", "d", "e")
    assert Snapshot(0) == Snapshot(0)
    assert Snapshot(1, jobs=before.jobs).jobs_of("a") is not before.jobs_of("a"), "another controller"
    assert Snapshot(1, jobs=before.jobs).after(None).jobs_of("a") is not before.jobs_of("a")
    for jobs, changed in (
        ({5: runs(5, "a", "b"), 6: runs(6, "c"), 7: pending(7)}, ""),
        ({5: runs(5, "a", "b"), 6: runs(6, "c"), 7: runs(7, "d")}, "d"),  # started
        ({5: runs(5, "a", "b"), 7: pending(7)}, "c"),  # gone
        ({5: runs(5, "a", "d"), 6: runs(6, "c"), 7: pending(7)}, "abd"),  # on other nodes
        ({5: runs(5, "a", "b", restarts=1), 6: runs(6, "c"), 7: pending(7)}, "ab"),
        ({}, "abc"),
    ):
        now = Snapshot(1, jobs=jobs).after(before)
        assert "".join(name for name in names if now.jobs_of(name) is not before.jobs_of(name)) == changed
        again = Snapshot(2, jobs=dict(jobs)).after(now)
        assert [again.jobs_of(name) for name in names] == [now.jobs_of(name) for name in names]
