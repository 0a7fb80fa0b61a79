"""Explanations of pending jobs: why a job waits, for which jobs, until when, and what would start it earlier."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from heapq import heapify, heappop, heappush

from msgspec import structs

from scheduler_feedback.core.cluster import Node, NodeState, Tier, tier_of
from scheduler_feedback.core.durations import span
from scheduler_feedback.core.explanation import Blocker, Explanation, LearntSpeed, WaitsFor
from scheduler_feedback.core.job import Job, JobKind, JobState
from scheduler_feedback.core.state import Estimates, Order, Policy, Sharing, State
from scheduler_feedback.core.verdict import Kind
from scheduler_feedback.core.verdict_text import sentence
from scheduler_feedback.policies.cells import cell_text
from scheduler_feedback.policies.cells.virtual_cluster import uses_cells
from scheduler_feedback.policies.gpu_types import type_quotas
from scheduler_feedback.policies.index.queue_shares import Shares
from scheduler_feedback.policies.index.runtime_estimate import remaining_ns
from scheduler_feedback.policies.index.scheduling_index import index_of
from scheduler_feedback.policies.index.slot_plan import NOWHERE, Plan
from scheduler_feedback.policies.intake.job_admission import over_limit
from scheduler_feedback.policies.mig import words as mig_words
from scheduler_feedback.policies.network import network_class, time_shifts
from scheduler_feedback.policies.power import limits
from scheduler_feedback.policies.power.admission import waits_for_power
from scheduler_feedback.policies.queue.backfill import reserve
from scheduler_feedback.policies.queue.order import round_robin
from scheduler_feedback.policies.queue.placement import Capacity, may_borrow, place, prefers_now, relaxes_ns, where
from scheduler_feedback.policies.shares import part_placement
from scheduler_feedback.policies.sharing import muxflow
from scheduler_feedback.policies.speeds import learnt_memory
from scheduler_feedback.policies.speeds.learnt_speeds import LEVELS, learnt_of

MOST_NAMED = 100
"""Maximum number of nodes, and of jobs, that one explanation names."""


# --- the reason in one sentence --------------------------------------------------------------------------------------


def unholdable(capacity: Capacity, job: Job) -> str:
    """Return why the job would not fit even if all nodes were empty, as a sentence."""
    text = _needs(job)
    if capacity.exceeds(job):
        return f"{text}; even with the lowest power limits, that exceeds the cluster's power budget"
    if job.spec.required_level is not None:
        text += f" within one {job.spec.required_level.value}"
    if job.spec.gpu_types:
        text += f" on {' or '.join(job.spec.gpu_types)}"
    if job.spec.pinned_node is not None:
        return f"{text} on node {job.spec.pinned_node}, which is not available now"
    text += f"; the available nodes have {slots(capacity.shared(job))} in total"
    for names, what in (
        (capacity.unusable, "not available"),
        (() if may_borrow(job.spec) else capacity.spares, "reserved as spares"),
        (job.excluded_nodes, "excluded for its next attempt"),
    ):
        if names:
            text += f"; {what}: {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}"
    return text


def paused(state: State, job: Job, now_ns: int) -> str | None:
    """Return why the job must not start now even if slots are free; None if it may start."""
    if state.frozen:
        return f"all actions are frozen{f' by {state.frozen_by}' if state.frozen_by else ''}"
    if job.not_before_ns > now_ns:
        return f"{job.failure}; next try in {span((job.not_before_ns - now_ns) / 1e9)}"
    if job.spec.kind is JobKind.PROBE:
        name = job.spec.pinned_node or ""
        if (node := state.nodes.get(name)) is None or not node.present:  # a probe starts whatever its node's state is
            return f"waits until the backend reports {name} again"
    return None


def why_waits(state: State, job: Job) -> str:
    """Return why the job is pending, as a sentence; '' if it is not pending."""
    return what_binds(state, job)[1]


def what_binds(state: State, job: Job) -> tuple[str, str]:
    """Return why the job is pending, as (short code, sentence); ('', '') if it is not pending."""
    code, text = _what_binds(state, job)
    if code in ("slots", "reservation", "type"):
        text += type_quotas.in_words(state, index_of(state), job)
    return code, text


def _what_binds(state: State, job: Job) -> tuple[str, str]:
    """Return the result of ``what_binds`` without trades of GPU types."""
    if job.state is not JobState.PENDING:
        return "", ""
    index, ranks = index_of(state), job.spec.min_ranks or job.spec.ranks
    if (why_not := paused(state, job, state.now_ns)) is not None:
        return "frozen" if state.frozen else "pause", why_not
    if job.spec.kind is JobKind.PROBE:
        return "slots", f"waits until all slots of {job.spec.pinned_node} are free"
    if (other := index.dependencies.why(job)) is not None:
        return "dependency", other
    if job.claim:
        if why := waits_for_power(state, index, job):
            return "power", f"its slots on {where(job.claim)} are reserved, and {why}"
        return "slots", f"its reserved slots on {where(job.claim)} are not free yet"
    if (refused := mig_words.refused(state, job.spec)) is not None:
        return "capacity", refused
    queued = job.job_id in index.line and not index.unsettled  # the capacity can hold every queued job
    if not queued and not index.capacity.could_hold(job):
        return "capacity", unholdable(index.capacity, job)
    if not queued and not index.has_memory(job.spec):
        most = max((node.slot_memory_mib for node in state.nodes.values()), default=0)
        needs = f"needs {job.spec.slot_memory_mib} MiB of device memory per rank"
        return "capacity", f"{needs}; the slots that it may use have less (the largest of all: {most} MiB)"
    if (why_never := over_limit(state.policy, job.spec)) is not None:
        return "limit", f"cannot start with the present configuration: it {why_never}"
    if (limit := index.shares.room(job.spec.queue, ranks)) is not None:
        return "limit", f"queue {limit[0]} is limited to {slots(limit[1])} and uses {index.shares.held[limit[0]]}"
    if uses_cells(state.policy):
        return cell_text.waits_for_cells(state, index, job)
    if job.spec.opportunistic:
        of = "shareable jobs"
        if state.policy.sharing is Sharing.MUXFLOW:
            of = "a shareable service whose latency is far below its objective"
        return "slots", f"opportunistic: waits for {slots(ranks)} of {of}, or that no other job needs"
    if job.awaited_type:
        return "type", _awaits_type(state, job)
    if job.spec.mig_profile:
        return "slots", _awaits_instances(state, job)
    room = _shared_free(index.plan, job) >= ranks
    if room and prefers_now(state.policy, job) and not _fits(index.plan, job, state.policy):
        return "level", _awaits_level(state, job, ranks)
    if state.reserved_for == job.job_id and state.reserved_from_ns is not None:
        text = head_waits(index.plan, job, state.reserved_from_ns, state.now_ns)
        return "slots", text + part_placement.waits_in_words(state, job)
    if room and job.spec.required_level is not None and not _fits(index.plan, job, state.policy):
        level = job.spec.required_level.value
        return "level", f"needs {slots(ranks)} within one {level}; enough are free, but not within one {level}"
    text = behind_waits(index.plan, job, state.reserved_for) + part_placement.waits_in_words(state, job)
    if _takes_turns(state.policy):
        text += round_robin.waits_for_turn(state, (state.jobs[one] for one in index.running))
    return "reservation" if room else "slots", text


def _takes_turns(policy: Policy) -> bool:
    """Return whether gangs leave at the end of their time slice: expected run times then give no expected start."""
    return policy.preempt and policy.order is Order.ROUND_ROBIN


def _awaits_type(state: State, job: Job) -> str:
    """Return why the job declines free slots of a slower GPU type, as a sentence."""
    most = span(max(job.awaited_until_ns - state.now_ns, 0) / 1e9)
    text = f"waits for {job.awaited_type}, because it is expected to end earlier than on the slower GPUs that are free"
    if job.expected_start_ns is not None:
        text += f"; expected to start in {span(max(job.expected_start_ns - state.now_ns, 0) / 1e9)}"
    return f"{text}; after {most} it also uses slower GPUs"


def _awaits_instances(state: State, job: Job) -> str:
    """Return why the job has no MIG instances yet, as a sentence."""
    text = _needs(job)
    if state.reserved_for == job.job_id and state.reserved_from_ns is not None:
        wait = span(max(state.reserved_from_ns - state.now_ns, 0) / 1e9)
        text = f"first in the queue; {text}; expected to start in {wait} at the latest"
    elif state.reserved_for is not None:
        text += f"; behind {state.reserved_for} in the queue"
    return text + mig_words.waits_in_words(state, index_of(state), job)


def _awaits_level(state: State, job: Job, ranks: int) -> str:
    """Return how long the job waits for slots within its preferred level, as a sentence."""
    text = f"waits for {slots(ranks)} within one {job.spec.preferred_level}"
    at_ns = relaxes_ns(state.policy, job, learnt_of(state), remaining_ns(state.policy, job))
    return text if at_ns is None else f"{text}; uses any slots in {span(max(at_ns - state.now_ns, 0) / 1e9)}"


def _fits(plan: Plan, job: Job, policy: Policy, **changes: object) -> int:
    """Return the number of ranks with which the job could start now with these changes of its specification.

    0 means that it could not start. No slots are taken.
    """
    mark = plan.checkpoint()
    try:
        changed = structs.replace(job, spec=structs.replace(job.spec, **changes)) if changes else job
        return len(place(plan, changed, policy=policy) or ())
    finally:
        plan.rollback(mark)


def _shared_free(plan: Plan, job: Job) -> int:
    """Return the number of free slots, on healthy and suspect nodes, that the job could use on several nodes."""
    return plan.free(Tier.HEALTHY, job.excluded_nodes) + plan.free(Tier.SUSPECT, job.excluded_nodes)


def head_waits(plan: Plan, job: Job, from_ns: int, now_ns: int) -> str:
    free = _shared_free(plan, job)
    wait = span(max(from_ns - now_ns, 0) / 1e9)
    return f"first in the queue; {_needs(job)}, {free} available now; expected to start in {wait}"


def behind_waits(plan: Plan, job: Job, head: str | None) -> str:
    needs = f"{_needs(job)}; not enough are free"
    if head is None:
        if _shared_free(plan, job) >= (job.spec.min_ranks or job.spec.ranks):
            return "enough slots are free, but jobs ahead of it in the queue go first"
        return needs
    if _shared_free(plan, job) >= job.spec.ranks:
        return f"enough slots are free, but it is expected to run too long and would delay {head}, first in the queue"
    return f"{needs}; behind {head} in the queue"


def _needs(job: Job) -> str:
    """Return how many slots the job needs: 'needs 6 slots', or 'needs 2 to 6 slots' for an elastic gang."""
    if job.spec.mig_profile:
        return f"needs {mig_words.instances_in_words(job.spec)}"
    least, most = job.spec.min_ranks, job.spec.ranks
    return f"needs {least} to {slots(most)}" if least is not None and least < most else f"needs {slots(most)}"


def slots(number: int) -> str:
    """Format a number of slots, such as '1 slot' or '4 slots'."""
    return f"{number} slot{'' if number == 1 else 's'}"


# --- the whole explanation -------------------------------------------------------------------------------------------


def explain(state: State, job_id: str) -> Explanation | None:
    """Explain the job's present state; None if the state has no such job. Changes nothing."""
    job = state.jobs.get(job_id)
    if job is None:
        return _explain_array(state, job_id)
    explained = _explain(state, job)
    if state.speeds:
        explained = replace(explained, speeds=_speeds(state, job))
    if state.memory:
        words, rows = learnt_memory.in_words(state, job), learnt_memory.table(state, job)
        explained = replace(explained, memory_in_words=words, memory=rows)
    return explained


def _speeds(state: State, job: Job) -> tuple[LearntSpeed, ...]:
    return tuple(
        LearntSpeed(
            one.place.gpu_type, one.place.ranks, LEVELS[one.place.level], one.speed, one.spread, one.assumed, one.weight
        )
        for one in learnt_of(state).table(job)
    )


def _explain(state: State, job: Job) -> Explanation:
    job_id = job.job_id
    if job.state is JobState.PENDING:
        if job.spec.kind is JobKind.PROBE:
            return Explanation(job_id, job.state, why_waits(state, job))
        return _explain_waiting(state, job)
    return Explanation(job_id, job.state, _explain_present(state, job), what_would_change_it=_decisions(state, job))


def _explain_array(state: State, array: str) -> Explanation | None:
    """Count the jobs of the array by state, and explain the next job to start; None if there is no such array."""
    found = index_of(state).dependencies.arrays.get(array)
    if found is None:
        return None
    members = sorted((state.jobs[job_id] for job_id in found.members), key=lambda job: job.array_index)
    states = Counter(job.state.value for job in members)
    counts = ", ".join(f"{count} {name}" for name, count in states.items())
    ranked = (JobState.PENDING, JobState.STARTING, JobState.RUNNING)
    first = min(members, key=lambda job: ranked.index(job.state) if job.state in ranked else len(ranked))
    explained = explain(state, first.job_id)
    assert explained is not None
    return replace(explained, job_id=array, why=f"an array: {counts}; the next, {first.job_id}: {explained.why}")


def _explain_present(state: State, job: Job) -> str:
    if job.state.ended:
        return job.end_reason
    text = f"attempt {job.attempt} is {job.state.value} on {where(rank.slot for rank in job.ranks)}"
    if job.attempt_started_ns is not None:
        text += f" for {span((state.now_ns - job.attempt_started_ns) / 1e9)}"
    if job.stop_reason is not None:
        text += f"; it will be stopped: {job.stop_reason.value}"
        if job.state is not JobState.STOPPING and state.frozen:
            text += ", once actions are allowed again"
    if job.claim:
        text += f"; slots on {where(job.claim)} are reserved for its restart"
    text += cell_text.present(state, index_of(state), job)
    text += part_placement.in_words(state, index_of(state), job, [rank.slot for rank in job.ranks])
    if state.policy.sharing is Sharing.MUXFLOW:
        text += muxflow.present(state, job)
    text += network_class.in_words(state, index_of(state).plan, job, [rank.slot for rank in job.ranks])
    text += limits.present(state, index_of(state), job)
    text += time_shifts.present(state, job)
    for verdict in state.verdicts.values():
        if verdict.gang == job.job_id and verdict.kind is Kind.HANG:
            text += f"; {sentence(verdict)}"
    return text


def _decisions(state: State, job: Job) -> tuple[str, ...]:
    """Return one sentence for each active or refused verdict about the job: what was decided about it, and why."""
    active = tuple(
        f"verdict {verdict.verdict_id}: {case.reason or 'no decision yet'}"
        for verdict in state.verdicts.values()
        if verdict.gang == job.job_id and (case := state.open_decisions.get(verdict.verdict_id)) is not None
    )
    refused = tuple(
        f"verdict {one.verdict.verdict_id} was refused: {one.why}"
        for one in state.refused_verdicts
        if one.verdict.gang == job.job_id and one.verdict.attempt == job.attempt
    )
    return active + refused


def _explain_waiting(state: State, job: Job) -> Explanation:
    now_ns = state.now_ns
    index = index_of(state)
    held = index.could_ever_start(job)
    is_head = state.reserved_for == job.job_id
    until_ns = forecast(state, job) if held else None
    binds, why = what_binds(state, job)
    awaited: list[WaitsFor] = []
    # A job that would not fit if all nodes were empty waits for no other job.
    for release in index.ends if held and (until_ns is None or until_ns > now_ns) else ():
        if len(awaited) == MOST_NAMED or (until_ns is not None and release.at_ns > until_ns):
            break
        if release.slots and release.at_ns > now_ns:
            awaited.append(WaitsFor(release.job_id, len(release.slots), release.at_ns))
    return Explanation(
        job.job_id,
        job.state,
        why,
        waits_for=tuple(awaited),
        expected_start_ns=None if state.frozen else until_ns,
        expected_start_range_ns=None if state.frozen or until_ns is None else _range(state, job, until_ns),
        reservation=tuple(job.claim) or (tuple(state.reserved_slots) if is_head else ()),
        blockers=_blockers(state, job),
        what_would_change_it=_changes(state, job, held, until_ns),
        binds=binds,
    )


def _range(state: State, job: Job, until_ns: int) -> tuple[int, int]:
    """Return (earliest, latest) expected start of the job, in ns.

    Earliest: as if no pending job were ahead of it. Latest: as if all jobs took twice as long as expected. If run times
    are known only as time limits, the latest start is the expected start.
    """
    index = index_of(state)
    limited = index.shares.room(job.spec.queue, job.spec.min_ranks or job.spec.ranks) is not None
    alone = None if limited else reserve(index.plan, index.ends, job, state.now_ns, state.policy)
    first_ns = min(until_ns, alone.from_ns) if alone is not None else until_ns
    if state.policy.estimates is Estimates.LIMIT:
        return first_ns, until_ns
    return first_ns, forecast(state, job, 2.0) or until_ns


def forecast(state: State, job: Job, stretch: float = 1.0) -> int | None:
    """Forecast the job's start if jobs start in queue order, without backfill, and run as long as estimated.

    It counts slots and ignores on which nodes they are, in O(n log n) time for n jobs. Other jobs at their queue's
    limit are skipped, as in the cycle. stretch: factor on all expected run times. None: not known.
    """
    index, now_ns = index_of(state), state.now_ns
    if job.claim:
        return max(now_ns, job.not_before_ns)
    if uses_cells(state.policy):
        return job.expected_start_ns
    if _takes_turns(state.policy):
        return None
    plan = index.plan
    free = sum([inside[0] for inside in plan.free_in]) - (plan.free(Tier.SPARE) if plan.has_spares() else 0)
    clean = NOWHERE not in plan.pool
    ends = [
        (
            now_ns + int((release.at_ns - now_ns) * stretch),
            len(release.slots) if clean else sum([plan.usable(slot.node) for slot in release.slots]),
            len(release.slots),
            state.jobs[release.job_id].spec.queue,
        )
        for release in index.ends
    ]
    heapify(ends)
    at_ns, places = now_ns, index.line.places
    queues = Shares(state.policy)
    queues.held.update(index.shares.held)
    for key in index.line.order:
        place_ = places[key[-1]]
        ranks = place_.kind.ranks
        if key[-1] == state.reserved_for and stretch == 1.0:
            at_ns = max(at_ns, state.reserved_from_ns or 0)
        is_this_job, queue = key[-1] == job.job_id, state.jobs[key[-1]].spec.queue
        while ends and (
            free < ranks
            or ends[0][0] <= at_ns
            or (is_this_job and queues.limited and queues.room(queue, ranks) is not None)
        ):
            ended_ns, slots, held, of_queue = heappop(ends)
            free += slots
            queues.use(of_queue, -held)
            if ended_ns > at_ns:
                at_ns = ended_ns
        fits = free >= ranks and not (queues.limited and queues.room(queue, ranks) is not None)
        if is_this_job:
            awaited_ns = (job.expected_start_ns or 0) if job.awaited_type else 0
            return max(at_ns, job.not_before_ns, awaited_ns) if fits else None
        if fits:
            free -= ranks
            queues.use(queue, ranks)
            heappush(ends, (at_ns + int(place_.length_ns * stretch), ranks, ranks, queue))
    return None


def _blockers(state: State, job: Job) -> tuple[Blocker, ...]:
    """Return at most MOST_NAMED nodes that the job cannot fully use now, each with the reason."""
    plan = index_of(state).plan
    found: list[Blocker] = []
    full: list[Node] = []
    kept = state.reserved_nodes if state.reserved_for not in (None, job.job_id) else {}
    for node in state.nodes.values():
        if len(found) == MOST_NAMED:
            break
        free = plan.free_on(node.name)
        if not node.present:
            reason = "not reported by the backend"
        elif tier_of(node) is None:
            reason = f"{node.state.value}: {node.reason}" + _until(state, node)
        elif node.name in job.excluded_nodes:
            reason = "the job was moved away from it"
        elif node.state is NodeState.PROBATION and node.slots < job.spec.ranks:
            reason = "on probation: accepts single-node gangs only" + _until(state, node)
        elif not free:
            full.append(node)
            continue
        elif node.name in kept:
            reason = f"{slots(kept[node.name])} reserved for {state.reserved_for}"
        else:
            continue
        found.append(Blocker(node.name, node.state.value, free, reason))
    for node in full[: MOST_NAMED - len(found)]:
        found.append(Blocker(node.name, node.state.value, 0, "all slots are in use"))
    return tuple(found)


def _until(state: State, node: Node) -> str:
    if node.until_ns is None:
        return ""
    return f"; ends in {span(max(node.until_ns - state.now_ns, 0) / 1e9)}"


def _changes(state: State, job: Job, held: bool, until_ns: int | None) -> tuple[str, ...]:
    """Return what would let the job start, or start earlier. held: whether it would fit if all nodes were empty."""
    now_ns, found = state.now_ns, []
    if state.frozen:
        found.append("an operator allows actions again (gangwatch thaw)")
    if not held and (limit := index_of(state).shares.never(job.spec.queue, job.spec.min_ranks or job.spec.ranks)):
        found.append(f"the limit of queue {limit[0]}, {slots(limit[1])}, is raised")
        smaller = f"with at most {limit[1]} ranks, or " if limit[1] else ""
        found.append(f"it is submitted again {smaller}to another queue")
        return tuple(found)
    if not held:
        back = [node.name for node in state.nodes.values() if tier_of(node) is None]
        if back:
            found.append(f"one of these nodes becomes available: {', '.join(back[:8])}")
        if job.excluded_nodes:
            found.append(f"one of its excluded nodes recovers: {', '.join(job.excluded_nodes)}")
        if index_of(state).capacity.spares and not may_borrow(job.spec):
            found.append("it is submitted again as preemptible: such jobs may use spare nodes")
        if not index_of(state).has_memory(job.spec):
            found.append("it is submitted again with less device memory (--slot-memory)")
        elif (job.spec.min_ranks or job.spec.ranks) > 1:
            found.append("it is submitted again with fewer ranks")
        return tuple(found)
    if state.frozen:
        return tuple(found)
    plan, policy, spec = index_of(state).plan, state.policy, job.spec
    head = state.jobs.get(state.reserved_for) if state.reserved_for is not None else None
    kept = () if head is None or head is job else state.reserved_slots
    if head is not None and head is not job and state.reserved_from_ns is not None:
        slack = (state.reserved_from_ns - now_ns) / 1e9
        if slack > 0 and _fits(plan, job, policy):
            found.append(
                f"with a time limit of at most {slack:.0f} s, it could start now without delaying {head.job_id}"
            )
    mark = plan.checkpoint()
    plan.hold(kept)
    if spec.required_level is not None and _fits(plan, job, policy, required_level=None):
        found.append(f"spread over more than one {spec.required_level.value}, it could start now")
    for name in plan.topology.type_names if spec.gpu_types else ():
        if name not in spec.gpu_types and _fits(plan, job, policy, gpu_types=(name,)):
            found.append(f"on {name or 'GPUs of unknown type'}, it could start now")
    for name in plan.topology.type_names if job.awaited_type else ():
        if name != job.awaited_type and _fits(plan, structs.replace(job, job_id=""), policy, gpu_types=(name,)):
            found.append(f"with {name} as its only GPU type, it could start now")
    most = 0
    if spec.pinned_node is None and not spec.groups and not spec.mig_profile and spec.ranks > 1:
        most = _fits(plan, job, policy, min_ranks=1)
    plan.rollback(mark)
    if 0 < most < spec.ranks:
        found.append(f"with {most} rank{'' if most == 1 else 's'} or fewer, it could start now")
    if until_ns is not None and until_ns > now_ns:
        found.append("a running job ends earlier than expected")
    return tuple(found)
