"""Waiting: why a job waits, for whom, until when, and what would change it."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.explanation import Blocker, Explanation, WaitsFor
from scheduler_feedback.core.job import Job, JobKind, JobState, Slot
from scheduler_feedback.core.plan import Plan, Tier, tier_of
from scheduler_feedback.core.state import State
from scheduler_feedback.core.turn import span
from scheduler_feedback.policies.backfill import Reservation
from scheduler_feedback.policies.estimate import Release, remaining_ns
from scheduler_feedback.policies.ledger import ledger_of
from scheduler_feedback.policies.order import queue
from scheduler_feedback.policies.placement import Capacity, place, where


def free_slots(state: State, beside: Iterable[Slot] = ()) -> Plan:
    """A copy of what is free now: no attempt holds it, no gang on the move claims it, and it is not among `beside`."""
    plan = ledger_of(state).plan.copy()
    plan.hold(beside)
    return plan


# --- one sentence, for the job's record ------------------------------------------------------------------------------


def unholdable(capacity: Capacity, job: Job) -> str:
    """Why not even an empty cluster could run the job as its nodes are now."""
    text = f"asks for {job.spec.ranks} ranks"
    if job.spec.pinned_node is not None:
        return f"{text} on node {job.spec.pinned_node}, which cannot be used now"
    text += f"; the nodes that a gang can share now have {capacity.shared(job)} slots together"
    for names, what in (
        (capacity.unusable, "out of use"),
        (job.excluded_nodes, "to be avoided by its next attempt"),
    ):
        if names:
            text += f"; {what}: {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}"
    return text


def paused(state: State, job: Job, now_ns: int) -> str | None:
    """Why the job may not start now, whatever is free; None where it may."""
    if state.frozen:
        return f"all actions are frozen{f' by {state.frozen_by}' if state.frozen_by else ''}"
    if job.not_before_ns > now_ns:
        return f"{job.failure}; tried again in {span((job.not_before_ns - now_ns) / 1e9)}"
    return None


def why_waits(state: State, job: Job) -> str:
    """Why the job waits, in a sentence, as things are now; '' where it does not wait."""
    if job.state is not JobState.PENDING:
        return ""
    if job.spec.kind is JobKind.PROBE:
        return paused(state, job, state.now_ns) or f"waits until all slots of {job.spec.pinned_node} are free"
    if (why_not := paused(state, job, state.now_ns)) is not None:
        return why_not
    ledger = ledger_of(state)
    if (other := ledger.dependencies.why(job)) is not None:
        return other
    if not job.claim and not ledger.capacity.could_hold(job):
        return unholdable(ledger.capacity, job)
    if job.claim:
        return f"its place on {where(job.claim)} is not free yet"
    if (limit := ledger.shares.room(job.spec.queue, job.spec.min_ranks or job.spec.ranks)) is not None:
        return f"queue {limit[0]} may hold {limit[1]} slots, and holds {ledger.shares.held[limit[0]]}"
    if state.reserved_for == job.job_id and state.reserved_from_ns is not None:
        return head_waits(ledger.plan, job, state.reserved_from_ns, state.now_ns)
    return behind_waits(ledger.plan, job, state.reserved_for)


def _shared_free(plan: Plan, job: Job) -> int:
    """Free slots that a gang over several nodes could have."""
    return plan.free(Tier.HEALTHY, job.excluded_nodes) + plan.free(Tier.SUSPECT, job.excluded_nodes)


def head_waits(plan: Plan, job: Job, from_ns: int, now_ns: int) -> str:
    ranks = job.spec.ranks
    free = _shared_free(plan, job)
    wait = span(max(from_ns - now_ns, 0) / 1e9)
    return f"first in the queue; needs {ranks} slots, {free} can be had now; expected to start in {wait}"


def behind_waits(plan: Plan, job: Job, head: str | None) -> str:
    if head is None:
        return f"needs {job.spec.ranks} slots, which are not free together"
    if _shared_free(plan, job) >= job.spec.ranks:
        return f"there is room, but it is expected to run too long: {head}, first in the queue, would be delayed"
    return f"needs {job.spec.ranks} slots, which are not free together; behind {head} in the queue"


# --- the whole explanation, when somebody asks -----------------------------------------------------------------------


def explain(state: State, job_id: str) -> Explanation | None:
    """Why the job is where it is; None for a job that the state does not know. Reads the state, changes nothing."""
    job = state.jobs.get(job_id)
    if job is None:
        return None
    if job.state is JobState.PENDING:
        if job.spec.kind is JobKind.PROBE:
            return Explanation(job_id, job.state, why_waits(state, job))
        return _explain_waiting(state, job)
    return Explanation(job_id, job.state, _explain_present(state, job), what_would_change_it=_rulings(state, job))


def _explain_present(state: State, job: Job) -> str:
    if job.state.ended:
        return job.end_reason
    text = f"attempt {job.attempt} is {job.state.value} on {where(rank.slot for rank in job.ranks)}"
    if job.attempt_started_ns is not None:
        text += f" since {span((state.now_ns - job.attempt_started_ns) / 1e9)}"
    if job.stop_reason is not None:
        text += f"; it is to stop: {job.stop_reason.value}"
        if job.state is not JobState.STOPPING and state.frozen:
            text += ", which a freeze delays"
    if job.claim:
        text += f"; its restart is kept a place on {where(job.claim)}"
    return text


def _rulings(state: State, job: Job) -> tuple[str, ...]:
    """What was decided on the verdicts that stand against the job's members."""
    return tuple(
        f"verdict {verdict.verdict_id}: {case.reason or 'nothing is decided yet'}"
        for verdict in state.verdicts.values()
        if verdict.gang == job.job_id and (case := state.cases.get(verdict.verdict_id)) is not None
    )


def _explain_waiting(state: State, job: Job) -> Explanation:
    now_ns = state.now_ns
    ledger = ledger_of(state)
    held = ledger.capacity.could_hold(job)
    is_head = state.reserved_for == job.job_id
    ends = ledger.ends
    expected = forecast(state, ends, job, now_ns) if held else None
    until_ns = expected.from_ns if expected is not None else None
    return Explanation(
        job.job_id,
        job.state,
        why_waits(state, job),
        waits_for=tuple(
            WaitsFor(release.job_id, len(release.slots), release.at_ns)
            for release in ends
            if release.slots and (until_ns is None or now_ns < release.at_ns <= until_ns)
        )
        if until_ns is None or until_ns > now_ns
        else (),
        expected_start_ns=None if state.frozen else until_ns,
        reservation=tuple(job.claim) or (tuple(state.reserved_slots) if is_head else ()),
        blockers=_blockers(state, job),
        what_would_change_it=_changes(state, job, held, until_ns),
    )


def forecast(state: State, ends: list[Release], job: Job, now_ns: int) -> Reservation | None:
    """When the job would start if all before it start in their order, nothing is backfilled and every estimate is met.

    One sweep over the queue and the expected ends: O(jobs log jobs) placements.
    """
    plan, capacity = free_slots(state), ledger_of(state).capacity
    pending = [(release.at_ns, number, release.slots) for number, release in enumerate(ends)]
    heapify(pending)
    at_ns = now_ns
    for number, waiting in enumerate(queue(state), len(pending)):
        if not capacity.could_hold(waiting):
            continue
        at_ns = max(at_ns, waiting.not_before_ns)
        if waiting.claim:
            # Its place is kept already, and the time that it will hold it is among the expected ends.
            if waiting is job:
                return Reservation(job.job_id, at_ns, tuple(waiting.claim))
            continue
        while True:
            while pending and pending[0][0] <= at_ns:
                plan.give(heappop(pending)[2])
            if (slots := place(plan, waiting)) is not None:
                break
            if not pending:
                return None
            at_ns = pending[0][0]
        if waiting is job:
            return Reservation(job.job_id, at_ns, slots)
        heappush(pending, (at_ns + remaining_ns(state.policy, waiting), number, slots))
    return None


def _blockers(state: State, job: Job) -> tuple[Blocker, ...]:
    plan = free_slots(state)
    found: list[Blocker] = []
    kept = state.reserved_nodes if state.reserved_for not in (None, job.job_id) else {}
    for node in state.nodes.values():
        free = plan.free_on(node.name)
        if not node.present:
            reason = "the backend does not report it"
        elif tier_of(node) is None:
            reason = f"{node.state.value}: {node.reason}" + _until(state, node)
        elif node.name in job.excluded_nodes:
            reason = "the job was moved away from it"
        elif node.state is NodeState.PROBATION and node.slots < job.spec.ranks:
            reason = "on probation: takes gangs that fit on it alone" + _until(state, node)
        elif not free:
            reason = "all slots are in use"
        elif node.name in kept:
            reason = f"{kept[node.name]} slots are reserved for {state.reserved_for}"
        else:
            continue
        found.append(Blocker(node.name, node.state.value, free, reason))
    return tuple(found)


def _until(state: State, node: Node) -> str:
    if node.until_ns is None:
        return ""
    return f"; for another {span(max(node.until_ns - state.now_ns, 0) / 1e9)}"


def _changes(state: State, job: Job, held: bool, until_ns: int | None) -> tuple[str, ...]:
    now_ns, found = state.now_ns, []
    if state.frozen:
        found.append("an operator allows actions again (gangwatch thaw)")
    if not held:
        back = [node.name for node in state.nodes.values() if tier_of(node) is None]
        if back:
            found.append(f"one of these nodes comes back into use: {', '.join(back[:8])}")
        if job.excluded_nodes:
            found.append(f"one of the nodes that it is to avoid recovers: {', '.join(job.excluded_nodes)}")
        found.append("it is submitted again with fewer ranks")
        return tuple(found)
    if state.frozen:
        return tuple(found)
    head = state.jobs.get(state.reserved_for) if state.reserved_for is not None else None
    beside = free_slots(state, () if head is job else state.reserved_slots)
    most = _shared_free(beside, job)
    if 0 < most < job.spec.ranks:
        found.append(f"with {most} rank{'' if most == 1 else 's'} or fewer it could start now")
    if head is not None and head is not job and state.reserved_from_ns is not None:
        slack = (state.reserved_from_ns - now_ns) / 1e9
        if slack > 0 and place(free_slots(state), job) is not None:
            found.append(
                f"with a time limit of at most {slack:.0f} s it could start now without delaying {head.job_id}"
            )
    if until_ns is not None and until_ns > now_ns:
        found.append("a running job ends earlier than it is expected to")
    return tuple(found)
