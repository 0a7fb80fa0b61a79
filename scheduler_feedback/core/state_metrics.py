"""Metrics of the state. Names and labels are defined in the catalogue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from agent.schema.sample import AnySample, Sample, SampleColumn
from scheduler_feedback.core.cluster import NodeState, tier_of
from scheduler_feedback.core.job import Job, JobState, Slot
from scheduler_feedback.core.state import State
from scheduler_feedback.core.verdict import Verdict

# Counters in State.counts: first word of the key -> metric and the labels of the other words.
_COUNTED = {
    "verdicts": ("gangwatch_verdicts_total", ("kind", "cause")),
    "abstentions": ("gangwatch_abstentions_total", ("detector",)),
    "decisions": ("gangwatch_decisions_total", ("kind", "outcome")),
}


def measure(state: State) -> Iterator[AnySample]:
    """Yield samples of the whole state, with labels sorted by name, in O(nodes + jobs)."""
    yield "gangwatch_frozen", (), float(state.frozen)
    yield from _nodes(state)
    yield from _gangs(state)
    for verdict in state.verdicts.values():
        labels = {
            "cause": verdict.cause.value,
            "gang": verdict.gang,
            "kind": verdict.kind.value,
            # A verdict about the whole gang or a node has no rank: Prometheus reads an empty label as absent.
            "rank": str(verdict.rank) if verdict.rank >= 0 else "",
            "verdict": verdict.verdict_id,
        }
        yield "gangwatch_verdict_active", tuple(labels.items()), verdict.confidence
        yield from _accused(state, verdict)
    yield from _lost(state)
    yield from _queues(state)
    yield from _migrations(state)
    for key, count in sorted(state.counts.items()):
        word, *values = key.split("/")
        if word not in _COUNTED:
            continue  # a newer release that ran before has counted it
        metric, names = _COUNTED[word]
        yield metric, tuple(sorted(zip(names, values, strict=True))), float(count)


def _nodes(state: State) -> Iterator[AnySample]:
    by_state = Counter(node.state.value if node.present else "absent" for node in state.nodes.values())
    for name in (*(known.value for known in NodeState), "absent"):
        yield "gangwatch_nodes", (("state", name),), float(by_state[name])
    nodes_in: dict[str, list[str]] = {}
    nodes_at: dict[tuple[str, ...], list[str]] = {}
    for node in state.nodes.values():
        nodes_in.setdefault(node.state.value if node.present else "absent", []).append(node.name)
        where = node.gpu_type, node.island, node.rack, node.rail, node.spine
        nodes_at.setdefault(where, []).append(node.name)
    for now, names in nodes_in.items():
        yield SampleColumn("gangwatch_node_state", (("state", now),), "node", names, [1.0] * len(names))
    for place, names in nodes_at.items():
        labels = tuple(zip(("gpu_type", "island", "rack", "rail", "spine"), place, strict=True))
        yield SampleColumn("gangwatch_node_place_info", labels, "node", names, [1.0] * len(names))
    busy: set[Slot] = set()  # a slot that several jobs share counts once
    for job in state.jobs.values():
        busy.update(job.claim)
        if job.state.holds_slots:
            busy.update([rank.slot for rank in job.ranks])
    held = Counter([slot.node for slot in busy])
    slots: Counter[str] = Counter()
    fragmented = 0
    for node in state.nodes.values():
        used = min(held[node.name], node.slots)
        slots["used"] += used
        if used and tier_of(node) is not None:
            fragmented += node.slots - used
        slots["unavailable" if tier_of(node) is None else "free"] += node.slots - used
    for use in ("free", "unavailable", "used"):
        yield "gangwatch_slots", (("use", use),), float(slots[use])
    yield "gangwatch_slots_fragmented", (), float(fragmented)
    yield "gangwatch_lost_slots", (("reason", "idle"),), float(slots["free"])
    yield "gangwatch_lost_slots", (("reason", "unavailable"),), float(slots["unavailable"])


def _gangs(state: State) -> Iterator[Sample]:
    by_state = Counter(job.state for job in state.jobs.values())
    for known in JobState:
        yield "gangwatch_gangs", (("state", known.value),), float(by_state[known])
    for job in state.jobs.values():
        if job.state.ended:
            continue
        gang = (("gang", job.job_id),)
        info = (*gang, ("name", job.spec.name), ("queue", job.spec.queue), ("state", job.state.value))
        yield "gangwatch_gang_info", info, 1.0
        yield "gangwatch_gang_ranks", gang, float(job.spec.ranks)
        yield "gangwatch_gang_attempts_total", gang, float(job.attempt)
        yield "gangwatch_gang_preemptions_total", gang, float(job.preemptions)
        yield "gangwatch_gang_migrations_total", gang, float(job.migrations)
        if job.state is JobState.PENDING and job.expected_start_ns is not None:
            ahead = max(job.expected_start_ns - state.now_ns, 0) / 1e9
            yield "gangwatch_gang_wait_seconds_ahead", gang, ahead


# --- verdicts and what they cost -------------------------------------------------------------------------------------


def _accused(state: State, verdict: Verdict) -> Iterator[Sample]:
    labels = {
        "aggressor": verdict.aggressor,
        "device": verdict.device,
        "gang": verdict.gang,
        "name": state.jobs[verdict.gang].spec.name if verdict.gang in state.jobs else "",
        "node": verdict.node,
        "resource": verdict.resource,
        "verdict": verdict.verdict_id,
    }
    yield "gangwatch_verdict_info", tuple(labels.items()), 1.0
    key = (("gang", verdict.gang), ("verdict", verdict.verdict_id))
    yield "gangwatch_verdict_slowdown_ratio", key, verdict.slowdown
    yield "gangwatch_verdict_lost_slots", key, _lost_slots(state, verdict)


def _lost_slots(state: State, verdict: Verdict) -> float:
    """Return how many of the gang's slots the slowdown wastes: 0 if the gang is not running, all if it makes no
    progress."""
    job = state.jobs.get(verdict.gang)
    if job is None or job.state is not JobState.RUNNING or not verdict.slowdown > 1.0:
        return 0.0
    return len(job.ranks) * (1.0 - 1.0 / verdict.slowdown)


def _lost(state: State) -> Iterator[Sample]:
    """Yield the number of slots that do no useful work, by reason. The worst of several verdicts on a gang counts."""
    worst: dict[str, float] = {}
    for verdict in state.verdicts.values():
        worst[verdict.gang] = max(worst.get(verdict.gang, 0.0), _lost_slots(state, verdict))
    restart = sum(len(job.ranks) for job in state.jobs.values() if _is_restarting(job))
    yield "gangwatch_lost_slots", (("reason", "accused"),), sum(worst.values())
    yield "gangwatch_lost_slots", (("reason", "restart"),), float(restart)


def _is_restarting(job: Job) -> bool:
    """Return whether the job holds slots without making steps: starting, stopping, or before a restart's first step."""
    if not job.state.holds_slots:
        return False
    return job.state is not JobState.RUNNING or (job.attempt > 1 and job.first_step_ns is None)


# --- queues and decisions --------------------------------------------------------------------------------------------


def _queues(state: State) -> Iterator[Sample]:
    held: Counter[str] = Counter({queue.name: 0 for queue in state.policy.queues})
    waiting: Counter[str] = Counter()
    for job in state.jobs.values():
        if job.state.ended:
            continue
        held[job.spec.queue] += len(job.ranks) if job.state.holds_slots else 0
        waiting[job.spec.queue] += job.state is JobState.PENDING
    for name in sorted(held):
        yield "gangwatch_queue_slots", (("queue", name),), float(held[name])
        yield "gangwatch_queue_gangs_waiting", (("queue", name),), float(waiting[name])
    for queue in state.policy.queues:
        if queue.quota is not None:
            yield "gangwatch_queue_quota_slots", (("queue", queue.name),), float(queue.quota)
        yield "gangwatch_queue_used_slot_seconds", (("queue", queue.name),), state.queue_use.get(queue.name, 0.0)
    if state.reserved_for is not None:
        yield "gangwatch_reserved_slots", (("gang", state.reserved_for),), float(len(state.reserved_slots))


def _migrations(state: State) -> Iterator[Sample]:
    for applied, outcome in ((True, "applied"), (False, "observed")):
        decisions = [decision for decision in state.decisions if decision.applied is applied]
        labels = (("outcome", outcome),)
        gain = sum(decision.predicted_gain_seconds for decision in decisions)
        yield "gangwatch_migration_expected_gain_seconds", labels, gain
        came = sum(decision.outcome_seconds or 0.0 for decision in decisions)
        yield "gangwatch_migration_outcome_seconds", labels, came
