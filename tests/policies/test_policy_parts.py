"""Single functions of the policies: hangs, stops, scores, spares, uplinks, the queue, metrics."""

from __future__ import annotations

import math
from dataclasses import replace as changed
from typing import Any

import pytest

from agent.schema.process_state import ProcessState
from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang, StopGang
from scheduler_feedback.core.cluster import Level, Node
from scheduler_feedback.core.events import (
    CancelRequested,
    FreezeSet,
    NodeCommand,
    NodeCommanded,
    NodeSeen,
    PolicySet,
    Submitted,
    Tick,
    VerdictJudged,
)
from scheduler_feedback.core.job import After, Dependency, Job, JobState, Slot, StopReason
from scheduler_feedback.core.state import Decision, Estimates, Order, Policy, Queue, State
from scheduler_feedback.core.verdict import Evidence, Kind
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index import timeouts, uplink_loss
from scheduler_feedback.policies.index.queue_shares import Shares
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.index.slot_plan import Crossing, Plan
from scheduler_feedback.policies.nodes import spares
from scheduler_feedback.policies.queue import preemption, queue_forecast, resizing
from scheduler_feedback.policies.queue.pending_line import WaitingLine
from scheduler_feedback.policies.queue.placement import shape_of
from scheduler_feedback.policies.queue.queue_forecast import queue_metrics
from scheduler_feedback.policies.remediation import decision_scores, hang_restart, stopping
from tests.cluster.cycle_world import World
from tests.cluster.makers import NOW_NS, SECOND, held, job_of, running, verdict_of

_MOVABLE: dict[str, Any] = {"restartable": True, "preemptible": True, "grace_seconds": 2.0, "restart_cost_seconds": 3.0}


# --- hangs -----------------------------------------------------------------------------------------------------------

_HANG: dict[str, Any] = {"kind": Kind.HANG, "confidence": 0.95, "longest_pause_seconds": 40.0}


def hang_is_kept(
    policy: Policy | None = None, job: Job | None = None, confirmed: bool = False, **verdict: Any
) -> tuple[str, int | None] | None:
    """Return why a gang that has hung for a minute is not restarted: (code, end of the reason's validity)."""
    found = verdict_of(**({"first_wall_ns": NOW_NS - 60 * SECOND} | _HANG | verdict))
    job = job or running("j", 900.0, restartable=True)
    kept = hang_restart.why_not_restarted(policy or Policy(), job, found, confirmed, NOW_NS)
    return None if kept is None else (kept[0], kept[2])


def test_a_hang_that_is_certain_and_longer_than_any_pause_restarts_the_gang() -> None:
    assert hang_is_kept() is None, "a minute is one and a half times forty seconds"
    assert hang_is_kept(longest_pause_seconds=None) is None


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"job": running("j", 900.0)}, ("restartable", None)),
        ({"policy": Policy(restart_on_hang=False)}, ("restart_on_hang", None)),
        ({"confidence": 0.949}, ("confidence", None)),
        ({"policy": Policy(minimum_confidence=0.97)}, ("confidence", None)),
        ({"policy": Policy(minimum_confidence=0.5), "confidence": 0.9}, ("confidence", None)),
        ({"longest_pause_seconds": 50.0}, ("pause", NOW_NS + 15 * SECOND)),
        (
            {"job": running("j", 900.0, restartable=True, last_migration_ns=NOW_NS - 100 * SECOND)},
            ("cooldown", NOW_NS + 200 * SECOND),
        ),
    ],
)
def test_why_a_hanging_gang_is_not_restarted_and_until_when(
    changes: dict[str, Any], kept: tuple[str, int | None]
) -> None:
    assert hang_is_kept(**changes) == kept
    may_be_confirmed = kept[0] in ("restart_on_hang", "confidence", "pause")
    assert hang_is_kept(**changes, confirmed=True) == (None if may_be_confirmed else kept)


@pytest.mark.parametrize(("state", "after"), [(ProcessState.STOPPED, 40), (ProcessState.GONE, 0)])
def test_a_gang_with_a_stopped_process_is_restarted_later_than_one_with_an_ended_process(
    state: ProcessState, after: int
) -> None:
    """Who stopped a process may continue it. The verdict comes after ten seconds."""
    proof = (Evidence("process_state", float(state), float(ProcessState.RUNNING), "state", "in words"),)
    soon: dict[str, Any] = {"first_wall_ns": NOW_NS - 12 * SECOND, "longest_pause_seconds": 1.0, "evidence": proof}
    assert hang_is_kept(**soon) == (("pause", NOW_NS + (after - 12) * SECOND) if after else None)
    assert hang_is_kept(**soon, confirmed=True) is None
    assert hang_is_kept(evidence=proof) is None, "after a minute"


def test_the_reason_names_the_restart_command_only_if_an_operator_may_decide() -> None:
    verdict = verdict_of(**(_HANG | {"first_wall_ns": NOW_NS - 60 * SECOND}))
    for code, offered in (("pause", True), ("confidence", True), ("restart_on_hang", True), ("cooldown", False)):
        words = hang_restart.in_words(verdict, code, "why", 30.0, NOW_NS)
        assert "the hang has cost 60 s so far, a restart would cost about 30 s" in words
        assert ("gangwatch verdict confirm v" in words) is offered
    assert hang_restart.stalled_seconds(verdict, NOW_NS - 100 * SECOND) == 0.0


# --- stops and starts ------------------------------------------------------------------------------------------------


def test_a_repeated_stop_counts_from_the_first_request() -> None:
    world = World({"n0": 2}, Policy(start_timeout_seconds=60.0))
    job_id = world.submit(2, 1000.0, grace_seconds=20.0)
    world.running()
    world.cycle(CancelRequested(job_id, "eve"))
    job, began_ns = world.state.jobs[job_id], world.now_ns
    assert (job.state, job.stopping_ns, job.not_before_ns) == (JobState.STOPPING, began_ns, began_ns + 80 * SECOND)

    def stops_after(seconds: float) -> list[StopGang]:
        world.now_ns = began_ns + round(seconds * SECOND)
        return [action for action in world.cycle(Tick()).actions if isinstance(action, StopGang)]

    assert stops_after(79.9) == []
    (again,) = stops_after(80.0)
    assert (again.attempt, again.signal, again.grace_seconds, again.why) == (1, "SIGTERM", 20.0, StopReason.CANCEL)
    assert job.stopping_ns == began_ns
    first, second = [entry.text for entry in world.entries if entry.kind == "stopping"]
    assert first == "stop of attempt 1 requested (cancelled by eve): SIGTERM, 20 s to save"
    assert second.startswith("stop of attempt 1 requested again")


@pytest.mark.parametrize(
    ("why", "state", "saves"),
    [
        (StopReason.MIGRATE, JobState.RUNNING, True),
        (StopReason.RESIZE, JobState.RUNNING, True),
        (StopReason.PREEMPT, JobState.RUNNING, True),
        (StopReason.PREEMPT, JobState.STARTING, False),  # a job that has not begun has nothing to save
        (StopReason.CANCEL, JobState.RUNNING, False),  # a job that does not continue needs no checkpoint
        (StopReason.RANK_FAILED, JobState.RUNNING, False),
    ],
)
def test_gangs_that_resume_are_saved_and_only_cancellations_pass_a_freeze(
    why: StopReason, state: JobState, saves: bool
) -> None:
    world = World({"n0": 2})
    job_id = world.submit(
        2, 1000.0, restartable=True, checkpoint_command=("save", "it"), checkpoint_timeout_seconds=7.0
    )
    if state is JobState.RUNNING:
        world.running()
    job = world.state.jobs[job_id]
    index_of(world.state).stop(job, why)
    context = CycleContext(world.state, world.now_ns)
    world.state.frozen = True
    stopping.ask_for_stops(context)
    if why is not StopReason.CANCEL:
        assert (context.actions, job.state) == ([], state)
    else:
        assert len(context.actions) == 1
    world.state.frozen = False
    stopping.ask_for_stops(context)
    (action,) = context.actions
    assert isinstance(action, StopGang)
    wanted = (("save", "it"), 7.0) if saves else ((), 0.0)
    assert (action.checkpoint_command, action.checkpoint_timeout_seconds) == wanted
    assert ("save within 7.0 s, then SIGTERM" in context.entries[-1].text) is saves
    stopping.ask_for_stops(context)
    assert len(context.actions) == 1, "one stop is enough"


def test_a_start_reports_the_wait_of_the_job_and_the_first_start_is_kept() -> None:
    world = World({"n0": 2})
    full = world.submit(2, 50.0)
    world.running()
    waits = world.submit(2, 20.0, exit_code=1, max_retries=1)
    world.advance(50.0)
    began_ns = world.now_ns
    job = world.state.jobs[waits]
    assert job.state is not JobState.PENDING and world.state.jobs[full].state is JobState.COMPLETED
    (entry,) = [entry for entry in world.entries if entry.kind == "started" and entry.subject == waits]
    assert entry.text == "attempt 1 starts on n0:0,1, 50 s after submission: first in the queue"
    job.failure, job.proposed = "left over", "left over"
    world.advance(30.0)
    assert (job.attempt, job.started_ns) == (2, began_ns)
    assert job.attempt_started_ns is not None and job.attempt_started_ns > began_ns
    assert job.proposed == "" and job.expected_start_ns is None


# --- scores ----------------------------------------------------------------------------------------------------------


def scored(world: World, *decisions: Decision) -> CycleContext:
    world.state.decisions = list(decisions)
    return CycleContext(world.state, NOW_NS)


def decision(**fields: Any) -> Decision:
    usual: dict[str, Any] = {
        "decision_id": "d", "job_id": "j", "verdict_id": "v", "wall_ns": NOW_NS - 100 * SECOND, "applied": False,
        "predicted_gain_seconds": 9.0, "slowdown": 2.0, "cost_seconds": 30.0, "attempt": 1,
    }  # fmt: skip
    return Decision(**(usual | fields))


def test_a_move_not_made_is_scored_by_the_later_cost_of_the_fault() -> None:
    mine, other, applied = decision(), decision(verdict_id="w"), decision(applied=True)
    scored_before = decision(outcome_seconds=1.0)
    context = scored(World({"n0": 2}), mine, other, applied, scored_before)
    decision_scores.score_observed(context, verdict_of(first_wall_ns=NOW_NS - 300 * SECOND), "it cleared")
    assert mine.outcome_seconds == pytest.approx(50.0), "half of the hundred seconds since the decision"
    assert (other.outcome_seconds, applied.outcome_seconds, scored_before.outcome_seconds) == (None, None, 1.0)
    (entry,) = context.entries
    assert entry.text == "not moved: staying cost 50 s (it cleared), moving would have cost 30 s"
    assert dict(entry.detail)["outcome_seconds"] == "50.0"


def test_a_move_is_scored_from_its_decision_to_the_first_step_of_a_later_attempt() -> None:
    job = job_of("j", attempt=2, attempt_ended_ns=NOW_NS - 80 * SECOND)
    mine, same_attempt = decision(applied=True), decision(applied=True, attempt=2)
    others, observed = decision(applied=True, job_id="k"), decision()
    context = scored(World({"n0": 2}), mine, same_attempt, others, observed)
    decision_scores.score_applied(context, job, NOW_NS - 40 * SECOND)
    assert mine.outcome_seconds == 60.0
    assert [one.outcome_seconds for one in (same_attempt, others, observed)] == [None, None, None]
    (entry,) = context.entries
    detail = dict(entry.detail)
    assert (detail["save_seconds"], detail["restart_seconds"]) == ("20.0", "40.0")
    assert entry.text == "moving took 60 s, expected 30 s"
    decision_scores.score_applied(context, job, NOW_NS)
    assert mine.outcome_seconds == 60.0, "scored once"


# --- spares ----------------------------------------------------------------------------------------------------------


def spares_of(nodes: int, policy: Policy, racks: int = 1) -> set[str]:
    world = World({f"n{i}": 2 for i in range(nodes)}, policy, racks=racks)
    return {name for name, node in world.state.nodes.items() if node.spare}


@pytest.mark.parametrize(
    ("nodes", "kept", "spare"),
    [
        (4, 0, set()),
        (4, 1, {"n3"}),
        (4, 2, {"n2", "n3"}),
        (4, 9, {"n1", "n2", "n3"}),  # one is left for jobs
        (1, 1, set()),
    ],
)
def test_the_configured_spares_but_never_a_whole_domain(nodes: int, kept: int, spare: set[str]) -> None:
    assert spares_of(nodes, Policy(spare_nodes=kept)) == spare


def test_each_domain_has_its_own_spares() -> None:
    assert spares_of(6, Policy(spare_nodes=1), racks=2) == {"n4", "n5"}
    assert spares_of(6, Policy(spare_nodes=1, spare_level=Level.SPINE), racks=2) == {"n5"}


def test_a_known_failure_rate_determines_the_number_of_spares() -> None:
    """On average 2 of 100 nodes are out of use. The probability that more than five are is below 2 % (Poisson)."""
    policy = Policy(spare_failures_per_day=0.02, spare_repair_seconds=86400.0, spare_risk_fraction=0.02)
    assert spares.count(policy, 100) == 5
    assert spares.count(changed(policy, spare_risk_fraction=0.01), 100) == 6
    assert spares.count(changed(policy, spare_nodes=8), 100) == 8, "the larger counts"
    assert spares.count(changed(policy, spare_failures_per_day=1000.0), 3) == 3, "at most the existing nodes"
    assert spares.count(changed(policy, spare_failures_per_day=0.0), 100) == 0


def test_an_unavailable_node_replaces_a_spare() -> None:
    world = World({f"n{i}": 2 for i in range(4)}, Policy(spare_nodes=2), racks=1)
    world.cycle(NodeCommanded("n0", NodeCommand.MAINTENANCE, "eve"))
    assert {name for name, node in world.state.nodes.items() if node.spare} in ({"n3"}, {"n2"})
    world.cycle(NodeCommanded("n0", NodeCommand.RELEASE, "eve"))
    assert sum(node.spare for node in world.state.nodes.values()) == 2


# --- uplinks ---------------------------------------------------------------------------------------------------------


def two_racks() -> Plan:
    return Plan([Node(f"n{i}", 2, rack=f"r{i // 2}", spine="s") for i in range(4)])


def test_a_gang_crosses_the_uplinks_of_domains_with_part_of_its_nodes() -> None:
    plan = two_racks()

    def names(*nodes: str) -> int:
        """Return the number of the nodes' names."""
        return len(uplink_loss.crossed(plan, [Slot(name, 0) for name in nodes]))

    assert names("n0") == names("n0", "n0") == 0
    assert (names("n0", "n1"), names("n0", "n2"), names("n0", "n1", "n2")) == (0, 2, 2)
    assert names("n0", "unknown") == 0


def test_an_uplink_costs_the_slowdown_of_its_worst_active_verdict() -> None:
    plan = two_racks()
    a = held(running("a", 9.0), Slot("n0", 0), Slot("n2", 0))
    b = held(running("b", 9.0), Slot("n1", 0), Slot("n3", 0))
    inside = held(running("c", 9.0), Slot("n0", 1), Slot("n1", 1))
    state = State(jobs={"a": a, "b": b, "c": inside})

    def costs(*verdicts: tuple[str, str, float]) -> set[float]:
        state.verdicts = {
            str(number): verdict_of(verdict_id=str(number), gang=gang, aggressor=aggressor, slowdown=slowdown)
            for number, (gang, aggressor, slowdown) in enumerate(verdicts)
        }
        return set(uplink_loss.congested(state, plan).values())

    assert costs(("a", "b", 1.5), ("b", "a", 1.25)) == {0.5}
    assert costs(("b", "a", 1.25), ("a", "b", 1.5)) == {0.5}
    assert costs(("a", "", 1.5)) == set(), "a verdict about a node, not about another gang"
    assert costs(("a", "gone", 1.5)) == set()
    b.state = JobState.COMPLETED
    assert costs(("a", "b", 1.5)) == set()


def test_domains_whose_worst_uplink_costs_least_are_taken_if_they_hold_the_gang() -> None:
    plan = two_racks()
    plan.uplink_slowdown = 0.1
    holes = [(2, 0), (2, 1), (2, 2)]
    assert uplink_loss.least_burdened(plan, holes, 4, Crossing("g", 4)) == holes, "no gang crosses an uplink"
    gangs = {name: Crossing(name, 4) for name in "ab"}
    plan.crossing = {0: gangs, 1: {"a": gangs["a"]}}
    assert uplink_loss.least_burdened(plan, holes, 2, Crossing("g", 4)) == [(2, 2)]
    assert uplink_loss.least_burdened(plan, holes, 3, Crossing("g", 4)) == [(2, 1), (2, 2)]
    assert uplink_loss.least_burdened(plan, holes, 5, Crossing("g", 4)) == holes
    assert uplink_loss.least_burdened(plan, holes, 7, Crossing("g", 4)) == holes, "together they do not hold it either"


# --- the queue -------------------------------------------------------------------------------------------------------


def test_the_queue_is_ordered_and_removal_is_complete() -> None:
    line = WaitingLine()
    jobs = {name: job_of(name, ranks=ranks, **more) for name, ranks, more in (
        ("a", 4, {}), ("b", 4, {"min_ranks": 2}), ("c", 4, {}), ("d", 1, {"required_level": Level.RACK}),
    )}  # fmt: skip
    lengths = {"a": 1000, "b": 1000, "c": 900_000, "d": 5}
    for name in ("c", "a", "d", "b"):
        line.add(name, (0, name), shape_of(jobs[name]), "q", lengths[name])
    assert [key[-1] for key in line.order] == ["a", "b", "c", "d"]
    assert len(line) == 4 and "a" in line and "e" not in line and line.needs_level()
    kind_of = {name: line.places[name].kind for name in jobs}
    assert kind_of["a"] is kind_of["c"] is not kind_of["b"], "jobs of one shape are placed all or none"
    assert (kind_of["a"].ranks, kind_of["b"].ranks) == (4, 2)
    assert line.places["a"].bucket != line.places["c"].bucket
    line.remove("d")
    assert not line.needs_level()
    line.remove("c")
    assert set(kind_of["a"].buckets) == {line.places["a"].bucket}
    line.remove("a")
    line.remove("b")
    assert (len(line), line.kinds, line.places) == (0, {}, {})


def test_jobs_of_one_shape_and_length_share_a_bucket() -> None:
    line = WaitingLine()
    job = job_of("x", ranks=2)
    for name, length in (("b", 100), ("a", 101), ("c", 99)):
        line.add(name, (0, name), shape_of(job), "q", length)
    bucket = line.places["a"].kind.buckets[line.places["a"].bucket]
    assert ([key[-1] for key in bucket.keys], bucket.lengths_ns) == (["a", "b", "c"], [99, 100, 101])
    line.remove("b")
    assert ([key[-1] for key in bucket.keys], bucket.lengths_ns) == (["a", "c"], [99, 101])
    line.add("d", (0, "d"), shape_of(job), "other", 99)
    assert line.places["d"].kind is not line.places["a"].kind, "another queue may be at its limit"


# --- shares ----------------------------------------------------------------------------------------------------------


def test_a_limit_of_a_queue_or_of_any_above_it_binds() -> None:
    queues = (
        Queue("top", limit=10),
        Queue("mid", "top", quota=6, borrow=False),
        Queue("low", "mid", quota=3, limit=4),
        Queue("free"),
    )
    shares = Shares(Policy(queues=queues))
    assert shares.limited and not Shares(Policy(queues=(Queue("free", quota=3),))).limited
    assert shares.chain("low") == ("low", "mid", "top") and shares.chain("no such id") == ()
    assert [shares.left(name) for name in ("low", "mid", "top", "free", "no such id")] == [4, 6, 10, None, None]
    shares.use("low", 3)
    assert shares.held == {"top": 3, "mid": 3, "low": 3, "free": 0}
    assert [shares.left(name) for name in ("low", "mid", "top")] == [1, 3, 7]
    assert shares.room("low", 1) is None and shares.room("low", 2) == ("low", 4)
    assert shares.room("mid", 3) is None and shares.room("mid", 4) == ("mid", 6)
    assert shares.never("low", 4) is None and shares.never("low", 5) == ("low", 4)
    assert shares.never("mid", 7) == ("mid", 6)
    shares.use("low", -3)
    assert shares.held["top"] == 0


def test_a_cycle_of_parent_queues_ends() -> None:
    assert Shares(Policy(queues=(Queue("a", "b"), Queue("b", "a")))).chain("a") == ("a", "b")


def test_the_usage_of_queues_decays_with_the_half_life() -> None:
    policy = Policy(queues=(Queue("a"), Queue("b", weight=2.0), Queue("c", quota=1)), usage_half_life_seconds=100.0)
    shares, state = Shares(policy), State(policy=policy)
    shares.use("a", 2)
    shares.rank_queues(state, NOW_NS)
    assert state.queue_use == {"a": 0.0, "b": 0.0, "c": 0.0}, "the time before the first pass is unknown"
    shares.rank_queues(state, NOW_NS + 100 * SECOND)
    assert state.queue_use["a"] == 200.0
    shares.use("a", -2)
    shares.use("b", 3)
    shares.rank_queues(state, NOW_NS + 200 * SECOND)
    assert (state.queue_use["a"], state.queue_use["b"]) == (100.0, 300.0)
    assert state.queue_turns == {"c": 0, "a": 1, "b": 2}, "300 for a weight of 2 is more than 100"
    shares.use("c", 1)
    shares.rank_queues(state, NOW_NS + 200 * SECOND)
    assert state.queue_turns["c"] == 2, "at its quota, further slots are borrowed"


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_the_metrics_show_why_gangs_wait_and_when_running_ones_end() -> None:
    world = World({"n0": 4})
    runs = world.submit(4, 900.0, time_limit_seconds=900.0)
    world.running()
    for _ in range(2):
        world.submit(4, 10.0)
    world.submit(8, 10.0)
    world.state.now_ns += 300 * SECOND
    reported = {(name, *labels): value for name, labels, value in queue_metrics(world.state)}
    assert reported == {
        ("gangwatch_gangs_waiting", ("reason", "slots")): 2.0,
        ("gangwatch_gangs_waiting", ("reason", "capacity")): 1.0,
        ("gangwatch_gang_seconds_left", ("gang", runs)): 600.0,
    }
    world.state.verdicts = {
        "v": verdict_of(gang=runs, slowdown=2.0, first_wall_ns=world.state.now_ns, last_wall_ns=world.state.now_ns)
    }
    reported = {(name, *labels): value for name, labels, value in queue_metrics(world.state)}
    assert reported[("gangwatch_gang_seconds_left", ("gang", runs))] == pytest.approx(1200.0)
    world.state.jobs[runs].state = JobState.COMPLETED
    assert not [name for name, _, _ in queue_metrics(world.state) if name == "gangwatch_gang_seconds_left"]


def test_the_metrics_count_the_gangs_whose_reason_is_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_forecast, "MOST_ASKED", 2)
    world = World({"n0": 4})
    for _ in range(6):
        world.submit(4, 10.0)
    reported = {labels: value for name, labels, value in queue_metrics(world.state) if name.endswith("waiting")}
    assert reported == {(("reason", "slots"),): 2.0, (("reason", "not-evaluated"),): 3.0}


# --- evaluations of elastic gangs ------------------------------------------------------------------------------------

_ELASTIC: dict[str, Any] = {"restartable": True, "min_ranks": 2, "max_ranks": 8, "time_limit_seconds": 5000.0}


def elastic_world(policy: Policy, *, waiting: bool, **spec: Any) -> World:
    """Return a cluster of eight slots with two elastic gangs.

    One has its maximum of four slots; the other has two. Two slots are idle. waiting: a job for four slots waits, which
    the idle slots cannot help.
    """
    world = World({"n0": 8}, changed(policy, migration_cooldown_seconds=0.0))
    world.submit(4, 5000.0, **(_ELASTIC | {"max_ranks": 4} | spec))
    world.submit(2, 5000.0, **(_ELASTIC | {"max_ranks": 2 if waiting else 8} | spec))
    world.running()
    if waiting:
        world.submit(4, 10.0, time_limit_seconds=10.0)
    return world


def evaluated_again(world: World) -> bool:
    return bool(list(resizing.timeouts(world.state, index_of(world.state))))


def test_growth_is_evaluated_again_while_an_elastic_gang_could_use_idle_slots() -> None:
    world = World({"n0": 8})
    world.submit(4, 5000.0, **(_ELASTIC | {"max_ranks": 4}))
    assert not evaluated_again(world), "it starts, and no gang runs"
    world.running()
    assert not evaluated_again(world), "it has its maximum"
    jobs = world.state.jobs
    other = world.submit(2, 5000.0, **(_ELASTIC | {"max_ranks": 2}))
    world.running()
    assert not evaluated_again(world)
    jobs[other].spec = type(jobs[other].spec)(**{**_fields(jobs[other].spec), "max_ranks": 8})
    assert evaluated_again(world), "one of the two could have more"
    world.cycle(FreezeSet(True, "eve"))
    assert not evaluated_again(world)


def _fields(spec: Any) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


def test_a_full_cluster_has_nothing_to_grow_into() -> None:
    world = World({"n0": 4})
    job_id = world.submit(4, 5000.0, **(_ELASTIC | {"max_ranks": 4}))
    world.running()
    spec = world.state.jobs[job_id].spec
    world.state.jobs[job_id].spec = type(spec)(**{**_fields(spec), "max_ranks": 8})
    assert not evaluated_again(world)


@pytest.mark.parametrize(
    ("policy", "spec", "again"),
    [
        (Policy(), {}, False),  # a known wait only becomes shorter
        (Policy(), {"checkpoint_interval_seconds": 60.0}, True),  # unsaved work grows
        (Policy(estimates=Estimates.HISTORY), {}, True),  # an estimated wait grows
        (Policy(estimates=Estimates.HISTORY), {"min_ranks": 8}, False),  # no gang can shrink
    ],
)
def test_a_wait_is_evaluated_again_only_if_its_terms_grow(policy: Policy, spec: dict[str, Any], again: bool) -> None:
    world = World({"n0": 8}, changed(policy, migration_margin=1e9))
    world.submit(8, 5000.0, **(_ELASTIC | spec))
    world.running()
    assert not evaluated_again(world), "no job is pending"
    world.submit(4, 10.0, time_limit_seconds=10.0)
    assert evaluated_again(world) is again
    started = [action for action in world.outcomes[-1].actions if isinstance(action, StartGang)]
    assert not started


# --- preemption ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ran", "changes", "may"),
    [
        (60.0, {}, True),
        (59.9, {}, False),
        (59.9, {"min_run_seconds": 30.0}, True),
        (60.0, {"min_run_seconds": 90.0}, False),
        (60.0, {"preemptible": False}, False),
        (60.0, {"restartable": False}, False),
        (60.0, {"stop_reason": StopReason.CANCEL}, False),
    ],
)
def test_which_gangs_may_be_preempted(ran: float, changes: dict[str, Any], may: bool) -> None:
    state = State(policy=Policy(min_run_seconds=60.0))
    job = running("j", ran, **(_MOVABLE | changes))
    assert preemption.may_be_stopped(state, job, NOW_NS) is may
    assert not preemption.may_be_stopped(state, job_of("waits", **_MOVABLE), NOW_NS)


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({}, 2 * 3.0),
        ({"checkpoint_cost_seconds": 4.0}, 2 * 7.0),
        ({"checkpoint_interval_seconds": 60.0}, 2 * (40.0 + 3.0)),
        ({"checkpoint_interval_seconds": 60.0, "checkpoint_command": ("save",)}, 2 * 3.0),
    ],
)
def test_loss_of_a_stop(changes: dict[str, Any], lost: float) -> None:
    job = held(running("j", 100.0, **(_MOVABLE | changes)), Slot("n0", 0), Slot("n0", 1))
    assert preemption.lost_gpu_seconds(job, NOW_NS) == pytest.approx(lost)


def test_a_preemption_pass_is_due_after_its_interval_unless_frozen() -> None:
    state = State(policy=Policy(preempt=True, replan_seconds=60.0), planned_ns=NOW_NS - 60 * SECOND)
    assert preemption.due(state, NOW_NS)
    assert not preemption.due(state, NOW_NS - 1)
    state.frozen = True
    assert not preemption.due(state, NOW_NS)
    state.frozen, state.policy = False, Policy(replan_seconds=60.0)
    assert not preemption.due(state, NOW_NS)


# --- reclaim ---------------------------------------------------------------------------------------------------------

_GUEST: dict[str, Any] = _MOVABLE | {"queue": "guest", "time_limit_seconds": 86400.0}
_RECLAIMING = Policy(
    order=Order.FAIR,
    estimates=Estimates.LIMIT,
    preempt=True,
    preempt_gain=1e9,  # so that only a quota causes stops
    queues=(Queue("owner", quota=8), Queue("guest", quota=0), Queue("other")),
)


def guests(*sizes: int, policy: Policy = _RECLAIMING, **spec: Any) -> World:
    world = World({"n0": 4, "n1": 4}, policy)
    for ranks in sizes:
        world.submit(ranks, 86400.0, **(_GUEST | spec))
    world.running()
    return world


def owned(world: World, ranks: int, **spec: Any) -> str:
    return world.submit(ranks, 100.0, queue="owner", time_limit_seconds=100.0, **spec)


def stopped(world: World) -> list[str]:
    return [job_id for job_id, job in world.state.jobs.items() if job.stop_reason is StopReason.PREEMPT]


def test_a_gang_larger_than_the_rest_of_the_quota_blocks_no_other() -> None:
    world = guests(4)
    world.submit(4, 86400.0, queue="owner", time_limit_seconds=86400.0)
    world.running()
    large = owned(world, 6, priority=1)  # 4 + 6 are more than the quota
    assert stopped(world) == []
    fits = owned(world, 4)
    assert stopped(world) == ["j-000001"]
    assert len(world.state.jobs[fits].claim) == 4 and not world.state.jobs[large].claim


def test_a_queue_reclaims_for_one_gang_after_the_other() -> None:
    world = guests(2, 2, 2, 2)
    events = [Submitted(name, job_of(name, ranks=2, queue="owner", time_limit_seconds=100.0).spec) for name in "ab"]
    world.cycle(*events)
    assert len(stopped(world)) == 1, "the slots of the first change the rest of the quota"
    world.cycle(NodeSeen("n2", 1))
    assert len(stopped(world)) == 2


def test_nothing_is_reclaimed_for_a_gang_that_fits_anyway() -> None:
    world = guests(4)
    job_id = owned(world, 4)
    assert world.job_state(job_id) is JobState.STARTING
    assert stopped(world) == [] and not [entry for entry in world.entries if entry.kind == "reclaim"]


def test_a_queue_gets_back_only_the_slots_it_lacks() -> None:
    world = guests(2, 2, 2, 2)
    owned(world, 4)
    assert len(stopped(world)) == 2


def test_gangs_with_the_least_loss_are_stopped_first_and_the_owner_s_never() -> None:
    world = guests()
    own = world.submit(2, 86400.0, **(_GUEST | {"queue": "owner"}))
    dear = world.submit(2, 86400.0, **(_GUEST | {"restart_cost_seconds": 500.0}))
    cheap = world.submit(2, 86400.0, **_GUEST)
    bound = world.submit(2, 86400.0, **(_GUEST | {"preemptible": False}))
    world.running()
    owned(world, 2)
    assert stopped(world) == [cheap]
    owned(world, 4)
    assert {world.state.jobs[job_id].stop_reason for job_id in (own, bound)} == {None}
    assert world.state.jobs[dear].stop_reason is None, "even with it there would be too little"


def test_a_gang_with_slots_of_its_own_quota_is_stopped_last_at_any_loss() -> None:
    quotas = (Queue("owner", quota=8), Queue("guest", quota=5))
    world = guests(policy=changed(_RECLAIMING, queues=quotas))
    straddles = world.submit(5, 86400.0, **(_GUEST | {"restart_cost_seconds": 0.0}))
    borrows = world.submit(3, 86400.0, **(_GUEST | {"restart_cost_seconds": 500.0}))
    world.running()
    owned(world, 2)
    assert stopped(world) == [borrows]
    world = guests(policy=changed(_RECLAIMING, queues=quotas))
    straddles = world.submit(8, 86400.0, **_GUEST)
    world.running()
    owned(world, 2)
    assert stopped(world) == [straddles], "there is no other gang"


def test_a_gang_whose_slots_do_not_help_continues_even_with_the_least_loss() -> None:
    """A job needs four slots of one node. The cheapest gang shares its node with one that is not preemptible."""
    world = guests()
    bound = world.submit(2, 86400.0, **(_GUEST | {"preemptible": False}))
    cheap = world.submit(2, 86400.0, **(_GUEST | {"restart_cost_seconds": 0.0}))
    others = [world.submit(2, 86400.0, **_GUEST) for _ in range(2)]
    world.running()
    assert world.nodes_of(bound) == world.nodes_of(cheap)
    owned(world, 4, required_level=Level.NODE)
    assert stopped(world) == others


def test_gangs_on_unavailable_nodes_free_no_slots() -> None:
    world = guests(4, 4)
    world.cycle(NodeCommanded("n0", NodeCommand.MAINTENANCE, "eve"))
    on_n1 = next(job_id for job_id in world.state.jobs if world.nodes_of(job_id) == {"n1"})
    owned(world, 4)
    assert stopped(world) == [on_n1]


def test_a_job_in_its_retry_pause_preempts_no_gang() -> None:
    world = guests(4, 4)
    world.state.frozen = True
    job_id = owned(world, 4)
    index_of(world.state).requeue(world.state.jobs[job_id], "", world.now_ns + 10 * SECOND)
    world.cycle(FreezeSet(False, "eve"))
    assert stopped(world) == []
    world.now_ns += 10 * SECOND
    world.cycle(NodeSeen("n2", 1))
    assert len(stopped(world)) == 1, "exactly at the end of the pause"


# --- preemption by order ---------------------------------------------------------------------------------------------


def test_slots_of_an_unavailable_node_are_not_counted_as_capacity() -> None:
    """A gang of four on a node in maintenance would free no usable slots, so it is not preempted for a shorter one."""
    policy = Policy(order=Order.SRTF, estimates=Estimates.EXACT, preempt=True)
    world = World({"n0": 4, "n1": 4, "n2": 4}, policy)
    long = [world.submit(4, 9000.0, exact_seconds=9000.0, **_MOVABLE) for _ in range(3)]
    world.running()
    (out,) = world.nodes_of(long[2])
    world.cycle(NodeCommanded(out, NodeCommand.MAINTENANCE, "eve"))
    world.submit(2, 50.0, exact_seconds=50.0)
    assert stopped(world) == [long[1]]


def test_time_alone_triggers_a_pass_only_in_an_order_that_drifts() -> None:
    drifts = ((Order.THEMIS, 60.0, [60.0]), (Order.THEMIS, 90.0, [90.0]), (Order.THEMIS, math.inf, []))
    for order, drift, at in (*drifts, (Order.SRTF, 60.0, []), (Order.FAIR, 60.0, [])):
        policy = Policy(order=order, estimates=Estimates.EXACT, preempt=True, drift_seconds=drift)
        world = World({"n0": 2}, policy)
        for _ in range(2):
            world.submit(2, 100.0, exact_seconds=100.0)
        world.running()
        world.state.replan_owed = False
        found = list(preemption.timeouts(world.state, index_of(world.state)))
        assert [(one - world.state.planned_ns) / SECOND for one in found] == at
        world.state.frozen = True
        assert list(preemption.timeouts(world.state, index_of(world.state))) == []


def test_jobs_that_start_anyway_or_pause_preempt_no_gang() -> None:
    policy = Policy(order=Order.FAIR, estimates=Estimates.LIMIT, preempt=True)
    world = World({"n0": 4}, policy)
    world.submit(2, 50_000.0, time_limit_seconds=50_000.0, **_MOVABLE)
    world.running()
    starts = world.submit(2, 10.0, time_limit_seconds=10.0)
    assert stopped(world) == [] and world.job_state(starts) is JobState.STARTING
    world.state.frozen = True
    waits = world.submit(4, 10.0, time_limit_seconds=10.0)
    world.end(starts, 0)
    index_of(world.state).requeue(world.state.jobs[waits], "", world.now_ns + 10 * SECOND)
    world.cycle(FreezeSet(False, "eve"))
    assert stopped(world) == []
    world.now_ns += 10 * SECOND
    world.cycle(NodeSeen("n9", 1))
    assert stopped(world) == ["j-000001"]


# --- explaining ------------------------------------------------------------------------------------------------------


def test_reasons_of_nodes_that_a_job_cannot_use_now() -> None:
    world = World({"n0": 4, "n1": 4, "n2": 4})
    running_one = world.submit(4, 500.0, time_limit_seconds=500.0)
    world.running()
    (full,) = world.nodes_of(running_one)
    first, _ = sorted({"n0", "n1", "n2"} - {full})
    world.cycle(NodeCommanded(first, NodeCommand.MAINTENANCE, "eve", "fan"))
    waits = world.submit(8, 10.0)
    explained = cycle.explain(world.state, waits)
    assert explained is not None
    reported = {blocker.node: (blocker.state, blocker.free, blocker.reason) for blocker in explained.blockers}
    assert reported == {
        first: ("maintenance", 4, "maintenance: by eve: fan"),
        full: ("healthy", 0, "all slots are in use"),
    }
    assert [one.job_id for one in explained.waits_for] == [running_one]
    present = cycle.explain(world.state, running_one)
    world.now_ns += 90 * SECOND
    world.cycle(Tick())
    present = cycle.explain(world.state, running_one)
    assert present is not None and present.why == f"attempt 1 is running on {full}:0,1,2,3 for 90 s"


def test_an_explanation_lists_only_ends_before_the_expected_start() -> None:
    world = World({"n0": 4})
    ends = [world.submit(1, seconds, time_limit_seconds=seconds) for seconds in (100.0, 200.0, 300.0, 400.0)]
    world.running()
    waits = world.submit(2, 10.0)
    explained = cycle.explain(world.state, waits)
    assert explained is not None
    assert [one.job_id for one in explained.waits_for] == ends[:2]
    assert explained.expected_start_ns == world.now_ns + 200 * SECOND


def test_the_next_member_of_an_array_is_explained() -> None:
    world = World({"n0": 2})
    array = world.submit(1, 1000.0, array_size=4, array_parallel=2)
    world.running()
    world.end(f"{array}.0", 0)
    explained = cycle.explain(world.state, array)
    assert explained is not None
    assert explained.why.startswith(f"an array: 1 completed, 1 running, 1 starting, 1 pending; the next, {array}.3: ")


# --- user requests ---------------------------------------------------------------------------------------------------


def test_a_repeated_submission_is_ignored() -> None:
    world = World({"n0": 2})
    spec = job_of("j", ranks=2, time_limit_seconds=50.0).spec
    world.cycle(Submitted("j", spec))
    before = world.state.jobs["j"].submitted_ns
    world.now_ns += SECOND
    world.cycle(Submitted("j", spec), Submitted("bad", job_of("bad", ranks=0).spec))
    job = world.state.jobs["j"]
    assert (job.submitted_ns, job.attempt, world.entry_kinds("j").count("submitted")) == (before, 1, 1)
    bad = world.state.jobs["bad"]
    assert (bad.state, bad.end_reason) == (JobState.FAILED, "asks for 0 ranks; at least 1 is needed")


def test_a_repeated_cancellation_is_ignored_and_an_ended_job_keeps_its_end() -> None:
    world = World({"n0": 2})
    runs, waits = world.submit(2, 50.0), world.submit(2, 50.0)
    world.running()
    world.cycle(CancelRequested(waits, "eve"))
    job = world.state.jobs[waits]
    assert (job.state, job.end_reason) == (JobState.CANCELLED, "cancelled while pending by eve")
    world.cycle(CancelRequested(waits, "bob"))
    assert job.end_reason == "cancelled while pending by eve"
    world.cycle(CancelRequested(runs, "eve"))
    world.cycle(CancelRequested(runs, "bob"))
    assert world.state.jobs[runs].failure == "cancelled by eve"
    assert world.entry_kinds(runs).count("cancel") == 1
    world.end(runs, 143, signalled=True)
    assert world.job_state(runs) is JobState.CANCELLED


def test_a_command_without_effect_is_not_logged_and_a_removal_is_always_done() -> None:
    world = World({"n0": 2, "n1": 2})

    def commanded(command: NodeCommand, drain: bool = False) -> int:
        """Return the number of log entries that the event adds."""
        before = len(world.entry_kinds("node:n0"))
        world.cycle(NodeCommanded("n0", command, "eve", drain=drain))
        return len(world.entry_kinds("node:n0")) - before

    assert commanded(NodeCommand.RELEASE) == 0, "it is healthy"
    assert (commanded(NodeCommand.QUARANTINE), commanded(NodeCommand.QUARANTINE)) == (1, 0)
    world.state.nodes["n0"].until_ns = world.now_ns + 900 * SECOND
    assert commanded(NodeCommand.QUARANTINE) == 1, "its quarantine would have expired"
    assert (commanded(NodeCommand.MAINTENANCE), commanded(NodeCommand.MAINTENANCE)) == (1, 0)
    assert (commanded(NodeCommand.MAINTENANCE, True), commanded(NodeCommand.MAINTENANCE, True)) == (1, 0)
    assert commanded(NodeCommand.RELEASE) == 1
    world.state.nodes["n0"].backoff = 2
    assert commanded(NodeCommand.RELEASE) == 1, "its backoff is cleared"
    commanded(NodeCommand.MAINTENANCE)
    index_of(world.state).report_node(NodeSeen("n0", 2, present=False))
    commanded(NodeCommand.REMOVE)
    assert "n0" not in world.state.nodes


def test_a_freeze_and_a_policy_change_are_logged_if_they_change_something() -> None:
    world = World({"n0": 2})
    for frozen, by in ((True, "eve"), (True, "bob"), (False, "bob"), (False, "eve")):
        world.cycle(FreezeSet(frozen, by))
        assert world.state.frozen_by == ("eve" if frozen else "")
    assert [kind for kind in world.entry_kinds("cluster") if kind in ("frozen", "thawed")] == ["frozen", "thawed"]
    world.cycle(PolicySet(changed(world.state.policy, min_run_seconds=5.0)))
    world.cycle(PolicySet(world.state.policy))
    (entry,) = [entry for entry in world.entries if entry.kind == "policy"]
    assert entry.detail == (("min_run_seconds", "0.0 -> 5.0"),)


def test_a_judgement_is_logged_once_even_for_a_past_verdict() -> None:
    world = World({"n0": 2, "n1": 2})
    job_id = world.submit(2, 500.0)
    world.running()
    verdict = world.verdict(job_id)
    world.cycle(verdict)
    for confirmed in (True, True, False):
        world.cycle(VerdictJudged(verdict.verdict_id, confirmed, "eve"))
    words = [entry.text for entry in world.entries if entry.kind.startswith("verdict-") and "by eve" in entry.text]
    assert [text.split()[3] for text in words] == ["confirmed", "rejected"]
    assert verdict.verdict_id not in world.state.verdicts
    world.cycle(VerdictJudged(verdict.verdict_id, True, "bob"))
    assert any("was confirmed by bob" in entry.text for entry in world.entries)
    world.cycle(VerdictJudged("no such id", True, "bob"))
    assert world.state.judged["no such id"]


# --- dependencies and drains -----------------------------------------------------------------------------------------


def test_a_dependency_that_can_no_longer_be_met_is_explained() -> None:
    world = World({"n0": 4})
    first, second = world.submit(1, 500.0), world.submit(1, 500.0)
    waits = {
        name: world.submit(1, after=(Dependency(name, condition),))
        for name, condition in ((first, After.OK), (second, After.FAILED))
    }
    world.running()
    world.cycle(CancelRequested(first, "eve"))
    world.end(first, 143, signalled=True)
    world.end(second, 0)
    reasons = [world.state.jobs[waits[name]].end_reason for name in (first, second)]
    assert reasons == [
        f"it waits until {first} completes, but {first} was cancelled",
        f"it waits until {second} fails, but {second} completed",
    ]


def test_a_chain_of_dependencies_ends_in_the_cycle_in_which_its_first_job_is_cancelled() -> None:
    world = World({"n0": 1})
    first = world.submit(1, 10.0)
    second = world.submit(1, after=(Dependency(first),))
    third = world.submit(1, after=(Dependency(second),))
    fourth = world.submit(1, after=(Dependency(third),))
    world.cycle(CancelRequested(first))
    world.end(first, 143, signalled=True)
    assert [world.job_state(job_id) for job_id in (second, third, fourth)] == [JobState.CANCELLED] * 3


def test_a_drain_moves_running_restartable_gangs_without_a_stop_reason() -> None:
    world = World({"n0": 4, "n1": 4})
    leaves = world.submit(1, 500.0, restartable=True)
    stays = world.submit(1, 500.0)
    world.running()
    (node,) = world.nodes_of(leaves)
    assert world.nodes_of(stays) == {node}
    stopping_one = world.submit(1, 500.0, restartable=True)
    world.running()
    assert world.nodes_of(stopping_one) == {node}
    starts = world.submit(1, 500.0, restartable=True)
    assert world.nodes_of(starts) == {node}
    world.cycle(CancelRequested(stopping_one, "eve"), NodeCommanded(node, NodeCommand.MAINTENANCE, "eve", drain=True))
    reasons = {job_id: world.state.jobs[job_id].stop_reason for job_id in (leaves, stays, stopping_one, starts)}
    assert reasons == {leaves: StopReason.MIGRATE, stays: None, stopping_one: StopReason.CANCEL, starts: None}
    assert (world.state.jobs[leaves].migrations, world.entry_kinds(leaves).count("drain")) == (1, 1)
    world.running()
    assert world.state.jobs[starts].stop_reason is StopReason.MIGRATE, "as soon as it runs"


def test_the_next_timeout_is_after_the_given_instant() -> None:
    world = World({"n0": 2}, Policy(start_timeout_seconds=60.0))
    world.submit(2, 500.0, time_limit_seconds=500.0)
    world.submit(2, 10.0)
    index, at_ns = index_of(world.state), world.now_ns
    found = []
    while (next_ns := timeouts.next_ns(world.state, index, at_ns)) is not None and len(found) < 20:
        assert next_ns > at_ns
        at_ns = next_ns
        found.append((at_ns - world.now_ns) / SECOND)
    assert found and len(found) < 20
