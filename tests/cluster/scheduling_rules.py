"""Invariants after every cycle, shared by ``World`` and ``Ordeal``.

A start is checked against the attempts that really run, not against the cycle's own state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.codec import decode_state, encode_state
from scheduler_feedback.core.events import Tick
from scheduler_feedback.core.job import JobKind, JobState, Slot
from scheduler_feedback.core.state import Order, State
from scheduler_feedback.core.state_metrics import measure
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex, drop_index, index_of
from scheduler_feedback.policies.queue.queue_forecast import queue_metrics

SECOND = 1_000_000_000


def check_start(state: State, action: StartGang, held_before: Collection[Slot], held_now: Mapping[Slot, str]) -> None:
    """Check that a start has all ranks, on existing slots that no other attempt holds.

    held_before: slots that attempts held before the cycle. held_now: these, and those of the cycle's earlier starts.
    """
    slots = set(action.placement)
    assert not state.frozen, f"{action.job_id} starts while actions are frozen"
    assert len(action.placement) == len(slots) == action.spec.ranks, "all ranks or none, one slot a rank"
    wanted = state.jobs[action.job_id].spec
    least, most = wanted.min_ranks or wanted.ranks, wanted.max_ranks or wanted.ranks
    assert least <= len(slots) <= most, f"{action.job_id} starts with {len(slots)} ranks of {least} to {most}"
    for slot in slots:
        assert slot not in held_before, f"{slot} is given to {action.job_id}, and an attempt still holds it"
        assert slot not in held_now, f"{slot} is given to {action.job_id} and, in the same cycle, to {held_now[slot]}"
        node = state.nodes[slot.node]
        assert node.present and slot.slot < node.slots, f"{slot} is not there"
    nodes = {slot.node for slot in slots}
    if action.spec.kind is JobKind.PROBE:
        assert nodes == {action.spec.pinned_node}
        return
    # A verdict may quarantine a node after the start in the same cycle: step 7 comes before step 8.
    states = {state.nodes[name].state for name in nodes}
    fresh = {name for name in nodes if state.nodes[name].since_ns == state.now_ns}
    assert NodeState.MAINTENANCE not in states, f"{action.job_id} starts on a node in maintenance"
    assert not any(state.nodes[name].state is NodeState.QUARANTINE for name in nodes - fresh)
    assert NodeState.PROBATION not in states or len(nodes) == 1


def check_claims(state: State, owners: Mapping[Slot, str]) -> None:
    """Check that no slot is reserved twice, or while its gang stays. owners: the job that really runs on each slot."""
    claims: dict[Slot, str] = {}
    for job in state.jobs.values():
        for slot in job.claim:
            assert slot not in claims, f"{slot} is claimed by {claims[slot]} and {job.job_id}"
            claims[slot] = job.job_id
            holder = owners.get(slot, job.job_id)
            leaves = holder == job.job_id or state.jobs[holder].stop_reason is not None
            assert leaves, f"{slot} is claimed by {job.job_id}, and {holder} stays on it"


def check_books(state: State) -> None:
    """Check that no slot is held by two jobs, and that every pending job has a reason."""
    owners: dict[Slot, str] = {}
    for job in state.jobs.values():
        for slot in {rank.slot for rank in job.ranks} if job.state.holds_slots else ():
            assert slot not in owners, f"{slot} is held by {owners[slot]} and {job.job_id}"
            owners[slot] = job.job_id
        if job.state is JobState.PENDING:
            assert cycle.why_waits(state, job), f"{job.job_id} is pending without a reason"


def check_index(state: State) -> None:
    """Check that the updated index equals an index that is built from the state."""
    kept, rebuilt = index_of(state), SchedulingIndex(state)
    assert [kept.plan.free_on(name) for name in state.nodes] == [rebuilt.plan.free_on(name) for name in state.nodes]
    assert kept.plan.free_in == rebuilt.plan.free_in
    assert kept.plan.with_free == rebuilt.plan.with_free
    assert (kept.plan.crossing, kept.plan.congested) == (rebuilt.plan.crossing, rebuilt.plan.congested)
    assert kept.line.order == rebuilt.line.order
    assert {job: place.length_ns for job, place in kept.line.places.items()} == {
        job: place.length_ns for job, place in rebuilt.line.places.items()
    }
    assert [end for end in kept.ends if end.at_ns > state.now_ns] == [
        end for end in rebuilt.ends if end.at_ns > state.now_ns
    ]
    for name in ("held", "claims", "claimants", "probes", "stopping", "doubtful", "running", "elastic"):
        assert getattr(kept, name) == getattr(rebuilt, name), name
    for name in ("excluders", "unheld", "hopeless"):
        assert getattr(kept, name) == getattr(rebuilt, name), name
    assert kept.shares.held == rebuilt.shares.held
    assert sorted(kept.ended) == rebuilt.ended


def check_metrics(state: State) -> None:
    """Check that the metrics agree with the state."""
    samples = list(measure(state))
    value = {(name, labels): value for name, labels, value in samples}
    assert len(value) == len(samples), "no series twice"
    slots = {dict(labels)["use"]: value for name, labels, value in samples if name == "gangwatch_slots"}
    assert sum(slots.values()) == sum(node.slots for node in state.nodes.values())
    assert sum(value for name, _, value in samples if name == "gangwatch_gangs") == len(state.jobs)
    queues = {dict(labels)["queue"] for name, labels in value if name == "gangwatch_queue_slots"}
    held = sum(len(job.ranks) for job in state.jobs.values() if job.state.holds_slots)
    assert sum(value["gangwatch_queue_slots", (("queue", queue),)] for queue in queues) == held
    assert value["gangwatch_slots_fragmented", ()] <= slots["free"]
    assert value["gangwatch_lost_slots", (("reason", "idle"),)] == slots["free"]
    assert 0 <= value["gangwatch_lost_slots", (("reason", "accused"),)] <= held
    ahead = list(queue_metrics(state))
    pending = sum(job.state is JobState.PENDING for job in state.jobs.values())
    assert sum(value for name, _, value in ahead if name == "gangwatch_gangs_waiting") == pending
    assert all(value >= 0 for name, _, value in ahead if name == "gangwatch_gang_seconds_left")


# --- no decision by time alone without a timeout ---------------------------------------------------------------------

STEADY = frozenset({"grow", "shrink", "defragment", "migrate", "separate", "requeue", "stay"})
"""Decisions that are evaluated at growing intervals, because they depend on durations."""


def check_timeouts(state: State, after_ns: int, evaluate_all: bool) -> bool:
    """Check that a cycle without events after after_ns decides nothing unless a timeout was registered.

    evaluate_all: the later cycle evaluates everything, as after an event. A decision that becomes possible by then must
    not wait for an event. Returns whether anything was decided. The state is unchanged afterwards.
    """
    later = decode_state(encode_state(state))
    wake_ns = cycle.next_wake_ns(later)
    if wake_ns is not None and wake_ns <= state.now_ns + after_ns:
        return False
    if evaluate_all:
        drop_index(later)
    outcome = cycle.run(later, [Tick()], state.now_ns + after_ns)
    # The expected needs of running gangs grow with time; quotas do not depend on them.
    fair = later.policy.order is Order.FAIR and not any(entry.kind == "reclaim" for entry in outcome.entries)
    steady = STEADY | ({"preempt"} if fair else set())
    decided = [entry for entry in outcome.entries if not (evaluate_all and entry.kind in steady)]
    if evaluate_all and len(decided) < len(outcome.entries):
        return True  # other entries follow from that decision
    assert not outcome.actions and not decided, (
        f"{after_ns / SECOND} s after {state.now_ns} it decides {[(e.subject, e.kind, e.text) for e in decided]}, and "
        f"the next timeout is {'none' if wake_ns is None else f'{(wake_ns - state.now_ns) / SECOND} s after it'}"
    )
    return bool(outcome.entries)
