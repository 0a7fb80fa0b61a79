"""CPU, memory and other resources of gangs that have started since the last report of their nodes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.cluster import Limit
from scheduler_feedback.core.events import ActionFailed, AttemptRunning, Event, NodeSeen, RankSeen, Submitted
from scheduler_feedback.core.job import Group, JobSpec, JobState
from scheduler_feedback.core.state import Backfilling, Policy, State
from scheduler_feedback.cycle import run
from scheduler_feedback.policies.index.scheduling_index import drop_index, index_of

SECOND = 1_000_000_000
PODS = {"wide": (40, 1), "narrow": (8, 1), "large": (4, 300)}
"""Processors and GiB of memory of one pod, by constraint."""


def spec(kind: str, ranks: int = 1, seconds: float | None = None, a_pod: int = 1) -> JobSpec:
    processors, gigabytes = PODS[kind]
    groups = tuple(Group(f"pod-{n}", a_pod, same_node=True) for n in range(ranks // a_pod)) if a_pod > 1 else ()
    requests = (("cpu", processors), ("memory", gigabytes))
    return JobSpec(kind, (kind,), ranks, constraint=kind, requests=requests, time_limit_seconds=seconds, groups=groups)


def node(cpu: int = 64, memory: int = 512, name: str = "n1", slots: int = 8) -> NodeSeen:
    """Return the report of a node with 64 processors, 512 GiB of memory and 8 slots; cpu, memory: free amounts."""
    limits = tuple(
        Limit(kind, now, most, max(processors / 64, gigabytes / 512))
        for kind, (processors, gigabytes) in PODS.items()
        if (now := min(cpu // processors, memory // gigabytes)) < slots
        and (most := min(64 // processors, 512 // gigabytes)) <= slots
    )
    return NodeSeen(name, slots, limits=limits, free=(("cpu", cpu), ("memory", memory)))


def started(state: State, events: list[Event], at: int) -> list[str]:
    return [one.job_id for one in run(state, events, at * SECOND).actions if isinstance(one, StartGang)]


def running(job_id: str, slot: int) -> AttemptRunning:
    return AttemptRunning(job_id, 1, (RankSeen(0, "n1", slot, 0, 0),))


def test_two_gangs_of_one_cycle_do_not_both_get_the_processors_of_a_node() -> None:
    state = State()
    assert started(state, [node(), Submitted("a", spec("wide")), Submitted("b", spec("wide"))], 1) == ["a"]
    assert started(state, [node(cpu=24, memory=511)], 2) == []
    assert state.jobs["b"].state is JobState.PENDING


def test_the_second_gang_goes_to_another_node_in_the_same_cycle() -> None:
    state = State()
    both = [Submitted("a", spec("wide")), Submitted("b", spec("wide"))]
    assert started(state, [node(), node(name="n2"), *both], 1) == ["a", "b"]
    assert {state.jobs[job].ranks[0].slot.node for job in ("a", "b")} == {"n1", "n2"}


@pytest.mark.parametrize(("ranks", "starts"), [(3, ["a", "b"]), (4, ["a"])])
def test_a_gang_that_slots_alone_limit_leaves_what_another_gang_of_its_cycle_uses(
    ranks: int, starts: list[str]
) -> None:
    state = State()
    both = [Submitted("a", spec("wide")), Submitted("b", spec("narrow", ranks))]
    assert started(state, [node(), *both], 1) == starts, "24 processors are left, for three pods of eight"


def test_gangs_that_need_different_resources_share_a_node_in_one_cycle() -> None:
    state = State()
    both = [Submitted("a", spec("wide")), Submitted("b", spec("large"))]
    assert started(state, [node(), *both], 1) == ["a", "b"], "40 + 4 processors, 1 + 300 GiB"


def test_a_pod_of_several_ranks_counts_once() -> None:
    state = State()
    both = [Submitted("a", spec("narrow", 4, a_pod=2)), Submitted("b", spec("wide"))]
    assert started(state, [node(), *both], 1) == ["a", "b"], "two pods of 8 and one of 40 processors"


def test_a_report_after_the_start_includes_the_gang() -> None:
    state = State()
    assert started(state, [node(), Submitted("a", spec("narrow", 2))], 1) == ["a"]
    assert started(state, [node(cpu=48, memory=510), Submitted("b", spec("wide"))], 2) == ["b"]


def test_without_a_report_the_gang_counts_until_it_runs() -> None:
    """Its end and another start can cancel each other out, so that the node reports the same amounts."""
    state = State()
    assert started(state, [node(), Submitted("a", spec("narrow", 4)), Submitted("b", spec("wide"))], 1) == ["a"]
    assert started(state, [Submitted("c", spec("wide"))], 2) == []
    ranks = tuple(RankSeen(rank, "n1", rank, 0, 0) for rank in range(4))
    assert started(state, [AttemptRunning("a", 1, ranks)], 3) == ["b"], "once a runs, only the node's report counts"


def test_a_running_gang_does_not_count_in_a_rebuilt_index() -> None:
    state = State()
    assert started(state, [node(), Submitted("a", spec("narrow", 4))], 1) == ["a"]
    ranks = tuple(RankSeen(rank, "n1", rank, 0, 0) for rank in range(4))
    assert started(state, [AttemptRunning("a", 1, ranks)], 2) == []
    drop_index(state)
    assert index_of(state).plan.unreported == {}, "it started after the only report, but runs"


def test_a_failed_start_gives_its_processors_back() -> None:
    state = State(policy=Policy(retry_backoff_seconds=600.0))
    short = spec("wide", seconds=60.0)
    assert started(state, [node(), Submitted("a", spec("wide")), Submitted("b", short)], 1) == ["a"]
    failed = ActionFailed(state.jobs["a"].action_id, "a", "its pods do not exist yet")
    assert started(state, [failed], 2) == ["b"]


def test_a_rebuilt_index_counts_the_same_gangs() -> None:
    state = State()
    events = [node(), node(name="n2"), Submitted("a", spec("narrow", 4)), Submitted("b", spec("wide", 1))]
    assert started(state, events, 1) == ["a", "b"]
    before = index_of(state).plan.unreported
    assert before
    drop_index(state)
    assert index_of(state).plan.unreported == before


def test_gangs_without_amounts_are_limited_by_reports_alone() -> None:
    """Journals of earlier releases have no amounts."""
    state = State()
    old = replace(spec("wide"), requests=())
    assert started(state, [node(), Submitted("a", old), Submitted("b", old)], 1) == ["a", "b"]


# --- conservative backfill -------------------------------------------------------------------------------------------


def conservative() -> State:
    """Return a state in which a gang uses 30 of the node's 64 processors until 10 minutes have passed."""
    state = State(policy=Policy(backfill=Backfilling.CONSERVATIVE))
    busy = replace(spec("narrow", 4, seconds=600.0), requests=(("cpu", 30), ("memory", 1)), groups=(GROUP_OF_4,))
    assert started(state, [node(), Submitted("busy", busy)], 1) == ["busy"]
    ranks = tuple(RankSeen(rank, "n1", rank, 0, 0) for rank in range(4))
    assert started(state, [AttemptRunning("busy", 1, ranks), node(cpu=34, memory=511)], 2) == []
    return state


GROUP_OF_4 = Group("pod-0", 4, same_node=True)


def sixteen(seconds: float) -> JobSpec:
    requests = (("cpu", 16), ("memory", 1))
    return JobSpec("later", ("x",), 1, constraint="later", requests=requests, time_limit_seconds=seconds)


@pytest.mark.parametrize(("seconds", "count"), [(7200.0, 1), (60.0, 2)])
def test_conservative_backfill_leaves_the_processors_of_planned_jobs(seconds: float, count: int) -> None:
    """The first job waits for 40 processors and can have them in 10 minutes; two long jobs of 16 would take them."""
    state = conservative()
    assert started(state, [Submitted("first", spec("wide", seconds=600.0))], 3) == []
    limits = (*node(cpu=34).limits, Limit("later", 2, 4, 16 / 64))
    found = started(state, [replace(node(cpu=34, memory=511), limits=limits)], 4)
    assert found == []
    for number in range(2):
        found += started(state, [Submitted(f"later-{number}", sixteen(seconds))], 5 + number)
    assert len(found) == count


def test_conservative_backfill_protects_planned_jobs_behind_the_head_too() -> None:
    """The head waits for slots, and the second job for processors, which a long job behind it must leave."""
    state = conservative()
    head = JobSpec("head", ("x",), 8, time_limit_seconds=600.0)
    assert started(state, [Submitted("head", head), Submitted("second", spec("wide", seconds=3600.0))], 3) == []
    limits = (*node(cpu=34).limits, Limit("later", 2, 4, 16 / 64))
    assert started(state, [replace(node(cpu=34, memory=511), limits=limits)], 4) == []
    found = [
        job for number in range(2) for job in started(state, [Submitted(f"later-{number}", sixteen(300.0))], 5 + number)
    ]
    assert len(found) == 2, "they end before the head starts"
