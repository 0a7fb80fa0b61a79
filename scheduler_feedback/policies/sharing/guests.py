"""Guests: pending jobs that start on slots that other jobs hold, if the rule of ``Policy.sharing`` allows it.

A guest and its host are shareable, the guest may be preempted, the host is running, and the node allows another job on
the slot (`Node.jobs_per_slot`). Declared memory and declared shares of the slot must fit. A guest uses slots of one
host only, and does not delay the head of the queue: it stays off slots that are reserved for another job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.job import Job, JobKind, JobState, Slot
from scheduler_feedback.core.state import Sharing
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.runtime_estimate import left_at_full_speed_ns, remaining_ns
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.queue.placement import attempt_speed, may_borrow, place, types_for, where
from scheduler_feedback.policies.queue.preemption import place_without, stop_for
from scheduler_feedback.policies.queue.starting import release_reservation, start
from scheduler_feedback.policies.queue.waiting_reasons import paused
from scheduler_feedback.policies.remediation.gang_moves import at_limit
from scheduler_feedback.policies.sharing import antman, gandiva, iadeep, muri, pair_speeds, sjf_bsbf
from scheduler_feedback.policies.sharing.case import Case, Chance

RULES: dict[Sharing, Callable[[Case], Chance | None]] = {
    Sharing.GANDIVA: gandiva.chance,
    Sharing.ANTMAN: antman.chance,
    Sharing.SJF_BSBF: sjf_bsbf.chance,
    Sharing.MURI: muri.chance,
    Sharing.IADEEP: iadeep.chance,
}
"""Function of each rule."""

TIMELESS = frozenset({Sharing.GANDIVA, Sharing.IADEEP})
"""Rules that depend only on the workloads and sizes of a pair. Hosts that are alike are compared once."""

MOST_TRIED = 64
"""Maximum number of different pending jobs that one cycle compares with all hosts, so that a cycle stays short."""


def start_guests(context: CycleContext) -> None:
    """Start pending shareable jobs beside running ones, in queue order, each beside the host that the rule prefers."""
    state, index = context.state, context.index
    if state.frozen or state.policy.sharing is Sharing.NONE:
        return
    start_opportunistic(context)
    if not any(node.jobs_per_slot > 1 for node in state.nodes.values()):
        return
    hosts: list[Job] | None = None
    failed: set[tuple[object, ...]] = set()
    for job, ahead in _guests(context):
        if hosts is None:
            hosts = _hosts(index)
        if not hosts or len(failed) >= MOST_TRIED:
            return
        spec = job.spec
        kind: tuple[object, ...] = (
            spec.ranks,
            pair_speeds.workload_of(spec),
            spec.slot_memory_mib,
            spec.slot_share,
            spec.stages,
        )
        if state.policy.sharing is Sharing.SJF_BSBF:
            kind = (*kind, remaining_ns(state.policy, job), ahead)
        if kind in failed or paused(state, job, context.now_ns) is not None or at_limit(index, job):
            continue
        found = _best(context, job, hosts, ahead)
        if found is None:
            failed.add(kind)
            continue
        host, slots, chance = found
        _start(context, job, host, slots, chance)
        if state.policy.sharing is Sharing.MURI:
            failed.clear()  # the larger group may suit another job
        else:
            hosts.remove(host)


def _guests(context: CycleContext) -> Iterator[tuple[Job, int]]:
    """Yield the pending jobs that may join others, in queue order, with the ranks of all jobs ahead of each."""
    state, index = context.state, context.index
    if state.policy.sharing is Sharing.ANTMAN:
        for job_id in sorted(index.opportunists, key=lambda one: (state.jobs[one].submitted_ns, one)):
            yield state.jobs[job_id], 0
        return
    ahead = 0
    for key in list(index.line.order):
        job = state.jobs[key[-1]]
        if job.spec.shareable and may_borrow(job.spec):
            yield job, ahead
        if job.state is JobState.PENDING:
            ahead += job.spec.ranks


def _wait_seconds(index: SchedulingIndex, slots: int, now_ns: int) -> float:
    """Return the expected time until this many more slots have become free, in seconds."""
    for release in index.ends:
        slots -= len(release.slots)
        if slots <= 0:
            return max(release.at_ns - now_ns, 0) / 1e9
    return float("inf")


def _hosts(index: SchedulingIndex) -> list[Job]:
    """Return the running jobs that other jobs may join."""
    jobs = index.state.jobs
    found = [jobs[job_id] for job_id in index.running if jobs[job_id].spec.shareable]
    return sorted([job for job in found if _may_host(index, job)], key=lambda job: job.job_id)


def _may_host(index: SchedulingIndex, job: Job) -> bool:
    """Return whether other jobs may join the running job. The jobs on its slots are compared one by one later."""
    if not job.spec.shareable or job.guest_of or job.stop_reason is not None or job.spec.kind is not JobKind.TRAINING:
        return False
    if index.state.policy.sharing is not Sharing.MURI and index.partners(job.job_id):
        return False  # speeds are measured of pairs
    node = index.state.nodes.get(job.ranks[0].slot.node) if job.ranks else None
    return node is not None and node.jobs_per_slot > 1


def _best(context: CycleContext, job: Job, hosts: list[Job], ahead: int) -> tuple[Job, tuple[Slot, ...], Chance] | None:
    """Return the host, its slots and the chance that the rule prefers; None if no host suits."""
    state, index, now_ns = context.state, context.index, context.now_ns
    rule, policy = RULES[state.policy.sharing], state.policy
    names = index.plan.topology.type_names
    allowed = {names[number] for number in types_for(index.plan, job, policy)}
    reserved = frozenset(state.reserved_slots if state.reserved_for != job.job_id else ())
    mine = remaining_ns(policy, job) / 1e9
    wait = _wait_seconds(index, ahead + job.spec.ranks, now_ns) if policy.sharing is Sharing.SJF_BSBF else 0.0
    best: tuple[Job, tuple[Slot, ...], Chance] | None = None
    known: dict[tuple[int, str], Chance | None] = {}
    timeless = policy.sharing in TIMELESS
    ranks = job.spec.ranks
    for host in hosts:
        if ranks > len(host.ranks):
            continue
        chance: Chance | None = None
        if timeless:
            kind = (len(host.ranks), pair_speeds.workload_of(host.spec))
            if kind not in known:
                known[kind] = rule(Case(state, job, host, (), mine, 0.0, wait))
            chance = known[kind]
            if chance is None or (best is not None and chance.gain <= best[2].gain):
                continue  # no better than a host that was compared before
        if state.nodes[host.ranks[0].slot.node].gpu_type not in allowed:
            continue
        slots = fitting(index, job, host)
        if slots is None or not reserved.isdisjoint(rank.slot for rank in host.ranks):
            continue
        if not timeless:
            others = {one for slot in slots for one in index.sharers.get(slot, ())} - {host.job_id}
            theirs = left_at_full_speed_ns(policy, host, now_ns) / 1e9
            chance = rule(Case(state, job, host, tuple(state.jobs[one] for one in sorted(others)), mine, theirs, wait))
        if chance is not None and (best is None or chance.gain > best[2].gain):
            best = (host, slots, chance)
    return best


def fitting(index: SchedulingIndex, job: Job, host: Job) -> tuple[Slot, ...] | None:
    """Return slots of the host, one per rank, on which the job fits beside all jobs there; None if there are too few.

    It requires healthy nodes that the job may use, and room in every declared dimension: number of jobs, memory, share.
    """
    state, spec = index.state, job.spec
    barred = index.plan.topology.refused.get(spec.constraint, 0)
    found: list[Slot] = []
    for rank in host.ranks:
        node = state.nodes.get(rank.slot.node)
        if node is None or node.name in job.excluded_nodes or (spec.pinned_node or node.name) != node.name:
            continue
        if barred and barred >> index.plan.topology.number[node.name] & 1:
            continue
        here = [state.jobs[one] for one in index.sharers.get(rank.slot, ())]
        if node.present and node.state is NodeState.HEALTHY and has_room(node, job, here):
            found.append(rank.slot)
            if len(found) == spec.ranks:
                break
    if len(found) < spec.ranks or (spec.required_level is not None and len({slot.node for slot in found}) > 1):
        return None
    return None if spec.groups else tuple(found)


def has_room(node: Node, job: Job, here: list[Job]) -> bool:
    """Return whether one slot of the node can hold the job beside the jobs `here`, in every declared dimension."""
    together = [*here, job]
    if len(together) > node.jobs_per_slot or any(one.state is JobState.STOPPING for one in here):
        return False
    if node.slot_memory_mib:
        needed = [one.spec.slot_memory_mib for one in together]
        if not all(needed) or sum(needed) > node.slot_memory_mib:
            return False
    return sum(one.spec.slot_share for one in together) <= 1.0 + 1e-9


def _start(context: CycleContext, job: Job, host: Job, slots: tuple[Slot, ...], chance: Chance) -> None:
    state, index = context.state, context.index
    here = sorted({one for slot in slots for one in index.sharers.get(slot, ())})
    below = "its host becomes slower than 0.98" if job.spec.opportunistic else f"below {state.policy.separate_below:g}x"
    named = ", ".join((host.job_id, *(one for one in here if one != host.job_id)))
    why = f"shares {where(slots)} with {named}: {chance.why}; separated if {below}"
    head = state.reserved_for == job.job_id
    start(context, job, slots, "shares", why, tuple(here))
    if head:
        release_reservation(context)
    for one in here:
        context.record(one, "shares", f"shares {where(slots)} with {job.job_id}: {chance.why}")
    refresh(context)


def refresh(context: CycleContext) -> None:
    """Update speeds and hosts of jobs on whose slots another job has started or ended."""
    state, index = context.state, context.index
    if not index.regrouped:
        return
    regrouped, index.regrouped = index.regrouped, set()
    for job_id in sorted(regrouped):
        job = state.jobs.get(job_id)
        if job is None or not job.state.holds_slots or not job.ranks:
            continue
        partners = index.partners(job_id)
        node = state.nodes.get(job.ranks[0].slot.node)
        alone = job.speed
        if node is not None:
            alone = attempt_speed(state.policy, job, node.gpu_type, len(job.ranks), index.plan.learnt)
        beside = 1.0
        if partners:
            beside = pair_speeds.assumed_speed(state, job.spec, [state.jobs[one].spec for one in partners])
        guest_of = tuple(one for one in job.guest_of if one in partners)
        if job.guest_of and not guest_of:
            context.record(job_id, "alone", f"{', '.join(job.guest_of)} left its slots: it runs alone")
        speed = alone * max(beside, 0.01)
        if guest_of != job.guest_of or speed != job.speed:
            index.share_again(job, guest_of, speed)


def _delays_nobody(context: CycleContext, job: Job, slots: set[Slot]) -> bool:
    """Return whether the job may start on these slots now without a delay of the head: as in EASY backfill."""
    state = context.state
    if state.reserved_for in (None, job.job_id) or state.reserved_from_ns is None:
        return state.reserved_for == job.job_id or context.index.line.order[0][-1] == job.job_id
    ends_ns = context.now_ns + remaining_ns(state.policy, job)
    return ends_ns <= state.reserved_from_ns or slots.isdisjoint(state.reserved_slots)


# --- opportunistic jobs ----------------------------------------------------------------------------------------------


def make_room(context: CycleContext) -> bool:
    """Stop opportunistic jobs that run alone on slots that the first pending job needs; return whether any is stopped.

    It comes before backfill, which would give the other slots to later jobs and so delay the first one.
    """
    state, index = context.state, context.index
    if state.policy.sharing is not Sharing.ANTMAN or state.frozen or state.reserved_for is None:
        return False
    head, alone = state.jobs[state.reserved_for], _alone(index)
    if not alone or paused(state, head, context.now_ns) is not None or at_limit(index, head):
        return False
    return bool(_displaced(context, head, alone))


def _alone(index: SchedulingIndex) -> list[Job]:
    """Return the opportunistic jobs that run on slots that no other job holds."""
    running = [index.state.jobs[one] for one in sorted(index.running)]
    return [one for one in running if one.spec.opportunistic and not one.guest_of and one.stop_reason is None]


def _displaced(context: CycleContext, job: Job, alone: list[Job]) -> list[Job]:
    """Stop those of these opportunistic jobs with whose slots the pending job can start, and return them."""
    state, index = context.state, context.index
    slots = place_without(index, job, alone, state)
    if slots is None:
        return []
    used = set(slots)
    victims = [one for one in alone if not used.isdisjoint(rank.slot for rank in one.ranks)]
    if not victims or not _delays_nobody(context, job, used):
        return []
    for victim in victims:
        stop_for(context, victim, job)
    if any(victim.stop_reason is None for victim in victims):  # observe mode stops no job
        return []
    index.reserve(job, slots)
    if state.reserved_for == job.job_id:
        release_reservation(context)
    return victims


def start_opportunistic(context: CycleContext) -> None:
    """Start opportunistic jobs on idle slots, and stop those that run alone on slots that another job needs."""
    state, index = context.state, context.index
    if state.policy.sharing is not Sharing.ANTMAN:
        return
    alone = _alone(index)
    waiting = [state.jobs[key[-1]] for key in index.line.order]
    for job in waiting[:MOST_TRIED] if alone else ():
        if paused(state, job, context.now_ns) is not None or at_limit(index, job):
            continue
        stopped = _displaced(context, job, alone)
        alone = [one for one in alone if one not in stopped]
    if any(not at_limit(index, job) for job in waiting):  # a job at its queue's limit needs no slots now
        return
    for job_id in sorted(index.opportunists, key=lambda one: (state.jobs[one].submitted_ns, one)):
        job = state.jobs[job_id]
        if paused(state, job, context.now_ns) is not None or at_limit(index, job):
            continue
        if (found := place(index.plan, job, policy=state.policy)) is not None:
            start(context, job, found, "started", "opportunistic: no other job needs these slots")
