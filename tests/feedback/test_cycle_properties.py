"""What must hold whatever happens: random wishes, failures, verdicts and restarts on a simulated cluster.

``World`` checks after every cycle that gangs take all their slots or none, that no slot has two owners, that nothing
but a probe starts on a node in quarantine, that every waiting job knows why, and that the state survives its byte form.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.codec import decode_state, encode_state
from scheduler_feedback.core.events import (
    ActionFailed,
    AttemptEnded,
    AttemptUnknown,
    CancelRequested,
    FirstStep,
    FreezeSet,
    NodeCommand,
    NodeCommanded,
    NodeSeen,
    RankExit,
    RankFailed,
    Tick,
    VerdictJudged,
)
from scheduler_feedback.core.job import JobKind, JobState
from scheduler_feedback.core.measures import measure
from scheduler_feedback.core.state import Mode, Policy, State
from scheduler_feedback.core.verdict import Abstention, Cause, Cleared, Kind
from scheduler_feedback.policies.outlook import outlook
from scheduler_feedback.replay import replay
from tests.feedback.world import SECOND, World

_POLICY = Policy(
    default_time_limit_seconds=200.0,
    migration_cooldown_seconds=20.0,
    suspect_seconds=30.0,
    quarantine_seconds=40.0,
    quarantine_max_seconds=400.0,
    probation_seconds=30.0,
    start_timeout_seconds=20.0,
    probe_timeout_seconds=50.0,
)

_small = st.integers(0, 7)
_submit = st.tuples(
    st.just("submit"), st.integers(1, 6), st.floats(0.2, 1.5), st.booleans(), st.sampled_from([0, 0, 0, 1, 75])
)
_advance = st.tuples(st.just("advance"), st.sampled_from([0.5, 5.0, 21.0, 41.0, 90.0]))
_verdict = st.tuples(
    st.just("verdict"),
    _small,
    st.floats(1.0, 6.0),
    st.sampled_from(list(Cause)),
    st.sampled_from([Kind.STRAGGLER, Kind.STRAGGLER, *Kind]),
)
_about = ["cancel", "crash", "clear", "confirm", "reject", "vanish", "refuse", "unknown", "first step", "gone"]
_other = st.one_of(
    st.tuples(st.sampled_from(_about), _small),
    st.tuples(st.just("node"), _small, st.sampled_from([NodeCommand.RELEASE, *NodeCommand])),
    st.tuples(st.sampled_from(["freeze", "thaw", "thaw", "again", "again", "abstain"])),
)
# A round: a job comes, time passes, a verdict may follow, and something else happens. Most of what is interesting needs
# a few jobs that run, so a list of rounds finds more than a list of single steps.
_ROUNDS = st.lists(st.tuples(_submit, _submit, _advance, _verdict, _verdict, _advance, _other, _advance), max_size=8)
_STEPS = _ROUNDS.map(lambda rounds: [step for one in rounds for step in one])
_NODES = st.lists(st.integers(1, 4), min_size=1, max_size=6).map(
    lambda n: {f"n{i}": slots for i, slots in enumerate(n)}
)


def _pick(items: Any, number: int) -> Any:
    items = list(items)
    return items[number % len(items)] if items else None


def _held(world: World) -> list[str]:
    return [job.job_id for job in world.state.jobs.values() if job.state.holds_slots]


def _do(world: World, step: tuple[Any, ...]) -> None:
    state, what, number = world.state, step[0], step[1] if len(step) > 1 else 0
    gang = _pick(_held(world), number) if what not in ("submit", "advance") else None
    if what == "submit":
        _, ranks, share, restartable, code = step
        world.submit(
            ranks,
            60.0 * share,
            code,
            time_limit_seconds=60.0,
            restartable=restartable,
            grace_seconds=2.0,
            max_retries=1,
        )
        world.running()
    elif what == "advance":
        world.advance(step[1])
    elif what == "verdict" and gang is not None:
        world.cycle(world.verdict(gang, slowdown=step[2], cause=step[3], kind=step[4]))
    elif what == "cancel" and (job_id := _pick(state.jobs, number)) is not None:
        world.cycle(CancelRequested(job_id))
    elif what == "crash" and gang is not None:
        world.cycle(RankFailed(gang, state.jobs[gang].attempt, 0, 1))
    elif what == "gone" and gang is not None:
        world.end(gang, 137)
    elif what == "clear" and (verdict := _pick(state.verdicts.values(), number)) is not None:
        world.cycle(Cleared(verdict.verdict_id, verdict.gang, world.now_ns, "it kept pace"))
    elif what in ("confirm", "reject") and (verdict_id := _pick(state.verdicts, number)) is not None:
        world.cycle(VerdictJudged(verdict_id, what == "confirm"))
    elif what == "vanish":
        node = _pick(state.nodes.values(), number)
        world.cycle(NodeSeen(node.name, node.slots, present=not node.present))
    elif what == "refuse" and gang is not None and (action_id := state.jobs[gang].action_id):
        if state.jobs[gang].state is JobState.STARTING:
            world.alive.pop((gang, state.jobs[gang].attempt), None)
        world.cycle(ActionFailed(action_id, gang, "no more processes"))
    elif what == "unknown" and gang is not None:
        world.alive.pop((gang, state.jobs[gang].attempt), None)
        world.cycle(AttemptUnknown(gang, state.jobs[gang].attempt))
    elif what == "first step" and gang is not None:
        world.cycle(FirstStep(gang, state.jobs[gang].attempt, 1, world.now_ns))
    elif what == "node":
        world.cycle(NodeCommanded(_pick(state.nodes, number), step[2]))
    elif what in ("freeze", "thaw"):
        world.cycle(FreezeSet(what == "freeze"))
    elif what == "abstain":
        world.cycle(Abstention("j-000001", 1, None, world.now_ns, "too much load"))
    elif what == "again":
        _observe_again(world)


def _observe_again(world: World) -> None:
    """After a restart the backend tells everything again: nothing is decided, told or changed."""
    world.running()
    before = decode_state(encode_state(world.state))
    outcome = world.running()
    assert not outcome.actions and not outcome.entries
    outcome = world.cycle(
        *(NodeSeen(n.name, n.slots, n.devices, n.machine, n.present) for n in before.nodes.values() if n.present)
    )
    assert not outcome.actions and not outcome.entries
    ended = [job for job in before.jobs.values() if job.attempt and not job.state.holds_slots]
    exits = {job.job_id: tuple(RankExit(rank.rank, rank.exit_code) for rank in job.ranks) for job in ended}
    outcome = world.cycle(
        *(AttemptEnded(job_id, before.jobs[job_id].attempt, codes) for job_id, codes in exits.items())
    )
    assert not outcome.actions and not outcome.entries
    assert _without_clock(world.state) == _without_clock(before)


def _without_clock(state: State) -> State:
    """The state without what follows from it and the time: what an idle cycle may change and no journal need hold."""
    copy = decode_state(encode_state(state))
    copy.now_ns = copy.cycle = 0
    copy.idle = False
    copy.reserved_for, copy.reserved_from_ns, copy.reserved_nodes, copy.reserved_slots = None, None, {}, []
    for job in copy.jobs.values():
        job.expected_start_ns = None
    return copy


def _play(nodes: dict[str, int], steps: list[tuple[Any, ...]], policy: Policy = _POLICY) -> World:
    world = World(nodes, replace(policy))
    for step in steps:
        _do(world, step)
    return world


@settings(max_examples=80, deadline=None)
@given(_NODES, _STEPS)
def test_whatever_happens_every_job_ends_or_waits_with_a_reason(
    nodes: dict[str, int], steps: list[tuple[Any, ...]]
) -> None:
    world = _play(nodes, steps)
    world.cycle(FreezeSet(False))
    world.cycle(*(NodeSeen(name, slots) for name, slots in nodes.items()))
    world.cycle(*(NodeCommanded(name, NodeCommand.RELEASE) for name in nodes))
    for _ in range(60):
        world.running()
        world.advance(100.0)
    for job in world.state.jobs.values():
        assert job.state.ended or (job.state is JobState.PENDING and job.spec.ranks > sum(nodes.values())), job
    assert not world.alive
    for job_id in world.state.jobs:
        assert cycle.explain(world.state, job_id) is not None


@settings(max_examples=30, deadline=None)
@given(_NODES, _STEPS)
def test_a_replay_decides_what_was_decided(nodes: dict[str, int], steps: list[tuple[Any, ...]]) -> None:
    world = _play(nodes, steps)
    state, outcomes = replay(world.initial, world.journal)
    assert state == world.state
    assert outcomes == world.outcomes


@settings(max_examples=30, deadline=None)
@given(_NODES, _STEPS)
def test_cycles_that_changed_nothing_need_no_journal(nodes: dict[str, int], steps: list[tuple[Any, ...]]) -> None:
    world = _play(nodes, steps)
    kept = [entry for entry, outcome in zip(world.journal, world.outcomes, strict=True) if outcome.changed]
    state, outcomes = replay(world.initial, kept)
    assert _without_clock(state) == _without_clock(world.state)
    assert outcomes == [outcome for outcome in world.outcomes if outcome.changed]


@settings(max_examples=30, deadline=None)
@given(_NODES, _STEPS)
def test_at_rest_a_tick_changes_nothing_but_the_clock(nodes: dict[str, int], steps: list[tuple[Any, ...]]) -> None:
    world = _play(nodes, steps)
    outcome = world.cycle(Tick())
    for _ in range(4):  # what one cycle decides may let the next one start more
        if not outcome.changed:
            break
        outcome = world.cycle(Tick())
    before = decode_state(encode_state(world.state))
    outcome = world.cycle(Tick())
    assert not outcome.changed and not outcome.actions and not outcome.entries
    before.cycle += 1
    assert world.state == before


@settings(max_examples=30, deadline=None)
@given(_NODES, _STEPS)
def test_frozen_nothing_is_done_but_what_an_operator_cancels(
    nodes: dict[str, int], steps: list[tuple[Any, ...]]
) -> None:
    half = len(steps) // 2
    world = _play(nodes, steps[:half])
    world.cycle(FreezeSet(True))
    for step in steps[half:]:
        if step[0] in ("thaw", "freeze", "node", "confirm", "reject"):
            continue
        cancelled = {j.job_id for j in world.state.jobs.values() if j.stop_reason is not None}
        states = {node.name: node.state for node in world.state.nodes.values()}
        first = len(world.outcomes)
        _do(world, step)
        actions = [action for outcome in world.outcomes[first:] for action in outcome.actions]
        assert not any(isinstance(action, StartGang) for action in actions)
        if step[0] != "cancel":
            assert {action.job_id for action in actions} <= cancelled, "only stops that were asked for before"
        assert states == {node.name: node.state for node in world.state.nodes.values()}


@settings(max_examples=30, deadline=None)
@given(_NODES, _STEPS)
def test_in_observe_mode_feedback_moves_nothing(nodes: dict[str, int], steps: list[tuple[Any, ...]]) -> None:
    world = _play(nodes, [s for s in steps if s[0] not in ("node", "confirm")], replace(_POLICY, mode=Mode.OBSERVE))
    assert {node.state for node in world.state.nodes.values()} == {NodeState.HEALTHY}
    assert not any(decision.applied for decision in world.state.decisions)
    assert len({d.verdict_id for d in world.state.decisions}) == len(world.state.decisions), "once a verdict"
    stops = [a for o in world.outcomes for a in o.actions if not isinstance(a, StartGang)]
    assert not any(stop.why.value == "migrate" for stop in stops)


@settings(max_examples=40, deadline=None)
@given(_NODES, _STEPS)
def test_feedback_never_quarantines_more_than_the_cap(nodes: dict[str, int], steps: list[tuple[Any, ...]]) -> None:
    world = World(nodes, replace(_POLICY))
    cap = max(1, int(_POLICY.quarantine_max_fraction * len(nodes)))
    for step in steps:
        if step[0] in ("node", "confirm"):
            continue  # operators are not capped
        _do(world, step)
        assert sum(node.state is NodeState.QUARANTINE for node in world.state.nodes.values()) <= cap


@settings(max_examples=30, deadline=None)
@given(_NODES, _STEPS)
def test_the_metrics_agree_with_the_state(nodes: dict[str, int], steps: list[tuple[Any, ...]]) -> None:
    world = _play(nodes, steps)
    samples = list(measure(world.state))
    assert len({(name, labels) for name, labels, _ in samples}) == len(samples), "no series twice"
    slots = {dict(labels)["use"]: value for name, labels, value in samples if name == "gangwatch_slots"}
    assert sum(slots.values()) == sum(node.slots for node in world.state.nodes.values())
    gangs = sum(value for name, _, value in samples if name == "gangwatch_gangs")
    assert gangs == len(world.state.jobs)
    value = {(name, labels): value for name, labels, value in samples}
    queues = {dict(labels)["queue"] for name, labels in value if name == "gangwatch_queue_slots"}
    held = sum(len(job.ranks) for job in world.state.jobs.values() if job.state.holds_slots)
    assert sum(value["gangwatch_queue_slots", (("queue", queue),)] for queue in queues) == held
    assert value["gangwatch_slots_fragmented", ()] <= slots["free"]
    assert value["gangwatch_lost_slots", (("reason", "idle"),)] == slots["free"]
    assert 0 <= value["gangwatch_lost_slots", (("reason", "accused"),)] <= held
    ahead = list(outlook(world.state))
    pending = sum(job.state is JobState.PENDING for job in world.state.jobs.values())
    assert sum(value for name, _, value in ahead if name == "gangwatch_gangs_waiting") == pending
    assert all(value >= 0 for name, _, value in ahead if name == "gangwatch_gang_seconds_left")


# --- backfill --------------------------------------------------------------------------------------------------------

_JOBS = st.lists(
    st.tuples(st.integers(1, 8), st.integers(5, 120), st.floats(0.1, 1.0), st.integers(0, 30)), min_size=2, max_size=14
)


@settings(max_examples=80, deadline=None)
@given(_NODES, _JOBS)
def test_the_head_starts_no_later_than_was_ever_promised(
    nodes: dict[str, int], jobs: list[tuple[int, int, float, int]]
) -> None:
    """True run times up to the limits: no backfilled job moves the reservation of the head back."""
    world = World(nodes, round_trips=False)
    promised: dict[str, int] = {}

    def note() -> None:
        if (head := world.state.reserved_for) is not None:
            assert world.state.reserved_from_ns is not None
            assert world.state.reserved_from_ns <= promised.get(head, world.state.reserved_from_ns)
            promised[head] = world.state.reserved_from_ns

    for ranks, limit, share, gap in jobs:
        world.submit(ranks, limit * share, time_limit_seconds=float(limit))
        world.running()
        note()
        for _ in range(gap):
            world.advance(1.0)
            note()
    for _ in range(400):
        world.advance(5.0)
        note()
        if all(job.state.ended or job.spec.ranks > sum(nodes.values()) for job in world.state.jobs.values()):
            break
    for job_id, at_ns in promised.items():
        assert world.started[job_id] <= at_ns


@settings(max_examples=80, deadline=None)
@given(_NODES, _JOBS)
def test_without_those_behind_it_the_head_would_not_have_started_earlier(
    nodes: dict[str, int], jobs: list[tuple[int, int, float, int]]
) -> None:
    """Run times that are exactly the limits: the first that must wait starts when it would have without the rest."""

    def head_and_start(only: int | None) -> tuple[int | None, int | None, int]:
        world = World(nodes, round_trips=False)
        head: int | None = None
        for number, (ranks, limit, _, _) in enumerate(jobs[:only]):
            job_id = world.submit(ranks, float(limit), time_limit_seconds=float(limit))
            if head is None and world.state.reserved_for == job_id:
                head = number
        world.running()
        world.advance(2000.0)
        start = None if head is None else world.started[f"j-{head + 1:06d}"]
        backfilled = sum(entry.kind == "backfilled" for entry in world.entries)
        return head, start, backfilled

    head, start, _ = head_and_start(None)
    if head is not None:
        assert head_and_start(head + 1)[:2] == (head, start)


def test_backfill_does_happen_in_these_worlds() -> None:
    world = World({"n0": 2, "n1": 2})
    world.submit(3, time_limit_seconds=100.0)
    head = world.submit(4, time_limit_seconds=100.0)
    small = world.submit(1, time_limit_seconds=90.0)
    assert world.job_state(head) is JobState.PENDING
    assert world.told(small) == ["submitted", "backfilled"]
    assert world.state.jobs[small].spec.kind is JobKind.TRAINING
    assert world.state.reserved_from_ns == world.started["j-000001"] + 100 * SECOND
