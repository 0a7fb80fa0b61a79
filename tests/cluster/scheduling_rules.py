"""Invariants of the state that ``World`` and ``Ordeal`` check after every cycle.

A start is checked against the attempts that really run, not against the cycle's own state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from agent.schema.sample import expanded
from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.codec import decode_state, encode_state
from scheduler_feedback.core.events import Tick
from scheduler_feedback.core.job import JobKind, JobState, Slot
from scheduler_feedback.core.mig import named
from scheduler_feedback.core.state import Order, State
from scheduler_feedback.core.state_metrics import measure
from scheduler_feedback.policies.cells.virtual_cluster import uses_cells
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex, drop_index, index_of
from scheduler_feedback.policies.queue.queue_forecast import queue_metrics
from scheduler_feedback.policies.shares.slot_parts import parts_of
from scheduler_feedback.policies.sharing.guests import openings_of
from scheduler_feedback.policies.speeds.learnt_memory import planned_mib

SECOND = 1_000_000_000


def check_start(state: State, action: StartGang, held: Mapping[Slot, Collection[str]]) -> None:
    """Check that a start has all ranks, on existing slots that no other attempt holds, or may share with it.

    held: jobs on each slot before the cycle, and those of the cycle's earlier starts.
    """
    slots = set(action.placement)
    assert not state.frozen, f"{action.job_id} starts while actions are frozen"
    wanted, ranks = state.jobs[action.job_id].spec, len(action.placement)
    one_each = len(slots) == ranks or wanted.mig_profile
    assert ranks == action.spec.ranks and one_each, "all ranks or none, one slot a rank"
    assert len(action.mig_starts) == (ranks if wanted.mig_profile else 0), f"{action.job_id} has no instance"
    least, most = wanted.min_ranks or wanted.ranks, wanted.max_ranks or wanted.ranks
    assert least <= ranks <= most, f"{action.job_id} starts with {len(slots)} ranks of {least} to {most}"
    assert not wanted.sizes or len(slots) in wanted.sizes, f"{action.job_id} has no layout for {len(slots)} ranks"
    for slot in slots:
        check_slot(state, slot, (*held.get(slot, ()), action.job_id))
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


def check_slot(state: State, slot: Slot, job_ids: Collection[str]) -> None:
    """Check that these jobs may hold the slot at once: one job, or shareable ones that fit in each dimension."""
    for job_id in job_ids:
        job, room = state.jobs[job_id], state.nodes[slot.node].slot_memory_mib
        learnt = job.learnt_mib if job.state.holds_slots else 0
        assert not room or learnt <= room, f"{job_id}: {learnt} MiB are planned on {slot}, which has {room}"
    if len(job_ids) < 2:
        return
    node, specs = state.nodes[slot.node], [state.jobs[job_id].spec for job_id in job_ids]
    assert len(set(job_ids)) == len(job_ids), f"{slot}: a job holds it twice: {job_ids}"
    if all(spec.mig_profile for spec in specs):
        return
    assert all(spec.shareable for spec in specs), f"{slot} is held by {job_ids}, and not all of them share it"
    assert len(specs) <= node.jobs_per_slot, f"{slot} is held by {job_ids}; at most {node.jobs_per_slot} may be on it"
    planned = {job_id: planned_mib(state.jobs[job_id]) for job_id in job_ids}
    room = node.slot_memory_mib
    assert not room or sum(planned.values()) <= room, f"{slot} has {room} MiB, and {planned} are planned"
    assert not room or all(planned.values()), f"{slot} is shared, and the memory of one of {planned} is unknown"
    assert not any(state.jobs[job_id].alone for job_id in job_ids), f"{slot} is shared by {job_ids}, one of them alone"
    assert sum(spec.slot_share for spec in specs) <= 1 + 1e-6, f"{slot}: {job_ids} need more than the slot"


def check_instances(state: State, on_slot: Mapping[Slot, Sequence[tuple[str, int]]]) -> None:
    """Check that the MIG instances that really exist on each GPU fit there together.

    on_slot: (profile, first memory slice) of each.
    """
    for slot, instances in on_slot.items():
        busy, compute = 0, 0
        for name, start in instances:
            profile = named(state.nodes[slot.node].mig_profiles, name)
            assert profile is not None and start in profile.starts, f"{slot}: {name} cannot start at {start}"
            assert not busy & profile.mask(start), f"{slot}: two instances use the same slices: {instances}"
            busy, compute = busy | profile.mask(start), compute + profile.compute
        assert compute <= 7, f"{slot}: {instances} need {compute} compute slices"


def check_claims(state: State, owners: Mapping[Slot, Collection[str]]) -> None:
    """Check that no slot is reserved for two jobs, or while another job stays on it. owners: running jobs by slot."""
    claims: dict[Slot, str] = {}
    for job in state.jobs.values():
        for slot in job.claim:
            again = bool(job.spec.mig_profile) and claims.get(slot) == job.job_id  # of several instances on its GPU
            assert slot not in claims or again, f"{slot} is claimed by {claims[slot]} and {job.job_id}"
            claims[slot] = job.job_id
            for holder in owners.get(slot, ()):
                leaves = holder == job.job_id or state.jobs[holder].stop_reason is not None
                assert leaves, f"{slot} is claimed by {job.job_id}, and {holder} stays on it"


def check_books(state: State, turn: int = 0, turns: int = 1) -> None:
    """Check that no slot is held by two jobs that do not share it, and that every pending job has a reason.

    turn, turns: look for the reasons of each `turns`-th job only, beginning with number `turn`.
    """
    owners: dict[Slot, tuple[str, ...]] = {}
    for number, job in enumerate(state.jobs.values()):
        for slot in {rank.slot for rank in job.ranks} if job.state.holds_slots else ():
            owners[slot] = (*owners.get(slot, ()), job.job_id)
            check_slot(state, slot, owners[slot])
        if job.state is JobState.PENDING and number % turns == turn % turns:
            assert cycle.why_waits(state, job), f"{job.job_id} is pending without a reason"
    check_cells(state)


def check_index(state: State) -> None:
    """Check that the updated index equals an index that is built from the state, field by field."""
    updated, rebuilt = index_of(state), SchedulingIndex(state)
    for name in slots_of(SchedulingIndex):
        if name in NOT_DERIVED or (state.frozen and name in AFTER_THE_THAW):
            continue
        comparable = COMPARABLE.get(name, getattr)
        found, wanted = comparable(updated, name), comparable(rebuilt, name)
        assert found == wanted, f"{name} is {found}, but the state gives {wanted}"
    waits = {(at_ns, who) for at_ns, who in rebuilt.timeouts if at_ns > state.now_ns}
    assert waits <= set(updated.timeouts), f"no timeout for {waits - set(updated.timeouts)}"
    if updated.openings is not None and not state.frozen:
        check_openings(updated, rebuilt)
    if updated.parts is not None:
        assert parts_of(updated).read() == parts_of(rebuilt).read(), "the parts of slots that are left"


def check_openings(updated: SchedulingIndex, rebuilt: SchedulingIndex) -> None:
    """Check that the kept comparisons of pending and running jobs equal those that are built again."""
    kept, built = openings_of(updated), openings_of(rebuilt)
    for one in (kept, built):
        one.update()
    assert kept.hosts.keys() == built.hosts.keys(), "the running jobs that may be joined"
    assert kept.alone == built.alone, "the opportunistic jobs that hold slots alone"
    assert kept.lines == built.lines, "the pending jobs of each kind"
    assert [(key, kept.kinds[number]) for key, number in kept.order] == [
        (key, built.kinds[number]) for key, number in built.order
    ], "the order of kinds"
    for kind, line in kept.lines.items():
        job = updated.state.jobs[line[0][-1]]
        found, wanted = dict(kept.chances(job, kind)), dict(built.chances(job, kind))
        assert found == wanted, f"{job.job_id} may join {found}, but the state gives {wanted}"


def slots_of(cls: type) -> list[str]:
    return [name for base in cls.__mro__ for name in getattr(base, "__slots__", ())]


def check_cells(state: State) -> None:
    """Check that no slot of a cell has two jobs, that bound cells do not overlap, and that jobs in the cells of another
    queue can be stopped or had to move."""
    if not uses_cells(state.policy):
        return
    clusters = index_of(state).clusters
    taken: dict[Slot, str] = {}
    for job in state.jobs.values():
        for slot in job.cell_slots:
            assert slot not in taken, f"{slot} is guaranteed to {taken[slot]} and {job.job_id}"
            taken[slot] = job.job_id
    sizes = {name: one.size(name) for one in clusters.values() for name in one.empty.topology.names}
    covered: dict[Slot, str] = {}
    for cell, first in state.bound_cells.items():
        for number in range(first.slot, first.slot + sizes.get(cell, 0)):
            part = Slot(first.node, number)
            assert part not in covered, f"{cell} and {covered[part]} overlap"
            covered[part] = cell


NOT_DERIVED = frozenset(
    {
        "changed",
        "fresh",
        "released",
        "grown",
        "unsettled",
        "appointed",
        "stoppable_due",
        "timeouts",
        "regrouped",
        "steps_changed",
        "touched",
        "parts",
        "own_due",
        "openings",
    }
)
"""What happened since the last pass, which the state does not contain, and timeouts: old ones may remain."""

AFTER_THE_THAW = frozenset({"line", "starved", "_starved"})
"""Timeouts that move a job in the queue are handled after the thaw."""


def _plan(index: SchedulingIndex, _: str) -> object:
    plan = index.plan
    free = [plan.free_on(name) for name in index.state.nodes]
    return free, plan.free_in, plan.with_free, plan.pool, plan.slowdown, plan.crossing, plan.congested


def _capacity(index: SchedulingIndex, _: str) -> object:
    capacity = index.capacity
    return capacity.slots_of, capacity.spare_slots_of, capacity.spares, capacity.unusable


def _line(index: SchedulingIndex, _: str) -> object:
    line = index.line
    places = {job_id: (place.key, place.bucket, place.length_ns) for job_id, place in line.places.items()}
    kinds = {kind: {number: bucket.keys for number, bucket in one.buckets.items()} for kind, one in line.kinds.items()}
    return line.order, places, kinds


def _ends(index: SchedulingIndex, _: str) -> object:
    """Return the expected ends in the future. The next cycle corrects earlier ones."""
    return [end for end in index.ends if end.at_ns > index.state.now_ns]


def _ends_of(index: SchedulingIndex, _: str) -> object:
    future = {job: [end for end in ends if end.at_ns > index.state.now_ns] for job, ends in index.ends_of.items()}
    return {job: ends for job, ends in future.items() if ends}


def _starved(index: SchedulingIndex, _: str) -> object:
    return {job_id for _, job_id in index.starved if job_id in index.line and not index.state.jobs[job_id].overdue}


def _dependencies(index: SchedulingIndex, _: str) -> object:
    jobs, known = index.state.jobs, index.dependencies
    open_ones = {
        name: {job_id for job_id in waiting if job_id in jobs and not jobs[job_id].state.ended}
        for name, waiting in known.dependents.items()
    }
    return {name: waiting for name, waiting in open_ones.items() if waiting}, known.arrays, known.turns


def _shares(index: SchedulingIndex, _: str) -> object:
    types = index.shares.types
    by_type = None if types is None else {name: held for name, held in types.held.items() if held}
    return index.shares.held, by_type, None if types is None else types.entitled


COMPARABLE = {
    "plan_or_none": _plan,
    "capacity_or_none": _capacity,
    "clusters_or_none": lambda index, _: {name: one.empty.topology.sizes for name, one in index.clusters.items()},
    "disputes": lambda index, _: (index.plan, index.disputes)[1],  # found out with the plan
    "line": _line,
    "ends": _ends,
    "ends_of": _ends_of,
    "own_ends": lambda index, _: {job: at for job, at in index.own_ends.items() if at > index.state.now_ns},
    "starved": _starved,
    "_starved": _starved,
    "_groups": lambda index, _: [sorted(group) for group in index._groups],
    "dependencies": _dependencies,
    "ended": lambda index, _: sorted(index.ended),
    "shares": _shares,
    "state": lambda index, _: id(index.state),
}
"""How to read a field that two equal indexes do not hold in the same form."""


def check_metrics(state: State) -> None:
    samples = list(expanded(measure(state)))
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

STEADY = frozenset({"grow", "shrink", "defragment", "migrate", "separate", "requeue", "stay", "faster-type"})
"""Decisions that are evaluated at growing intervals, because they depend on durations."""


def check_timeouts(state: State, after_ns: int, evaluate_all: bool) -> bool:
    """Check that time alone, after after_ns, leads to no decision for which no timeout was registered.

    evaluate_all: the later cycle evaluates everything, as after an event. Returns whether that cycle decided anything.
    The state is unchanged afterwards.
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
    # Only the reason of a job that waits for power is reported when it is evaluated again.
    entries = [entry for entry in outcome.entries if not (evaluate_all and entry.kind == "waits")]
    decided = [entry for entry in entries if not (evaluate_all and entry.kind in steady)]
    if evaluate_all and len(decided) < len(entries):
        return True  # other entries follow from that decision
    assert not outcome.actions and not decided, (
        f"{after_ns / SECOND} s after {state.now_ns} it decides {[(e.subject, e.kind, e.text) for e in decided]}, and "
        f"the next timeout is {'none' if wake_ns is None else f'{(wake_ns - state.now_ns) / SECOND} s after it'}"
    )
    return bool(outcome.entries)
