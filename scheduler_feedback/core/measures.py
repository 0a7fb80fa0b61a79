"""Measures: the state as metrics. Names and labels are the catalogue's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.job import JobState
from scheduler_feedback.core.plan import tier_of
from scheduler_feedback.core.state import State

Sample = tuple[str, tuple[tuple[str, str], ...], float]

# Counters in State.counts: first word of the key -> metric, and the labels that its other words are.
_COUNTED = {
    "verdicts": ("gangwatch_verdicts_total", ("kind", "cause")),
    "abstentions": ("gangwatch_abstentions_total", ("detector",)),
    "decisions": ("gangwatch_decisions_total", ("kind", "outcome")),
}


def measure(state: State) -> Iterator[Sample]:
    """(metric, labels sorted by name, value) of all that the state can tell; O(nodes + jobs)."""
    yield "gangwatch_frozen", (), float(state.frozen)
    yield from _nodes(state)
    yield from _gangs(state)
    for verdict in state.verdicts.values():
        labels = {
            "cause": verdict.cause.value,
            "gang": verdict.gang,
            "kind": verdict.kind.value,
            "rank": str(verdict.rank),
            "verdict": verdict.verdict_id,
        }
        yield "gangwatch_verdict_active", tuple(labels.items()), verdict.confidence
    for key, count in sorted(state.counts.items()):
        word, *values = key.split("/")
        metric, names = _COUNTED[word]
        yield metric, tuple(sorted(zip(names, values, strict=True))), float(count)


def _nodes(state: State) -> Iterator[Sample]:
    by_state = Counter(node.state.value if node.present else "absent" for node in state.nodes.values())
    for name in (*(known.value for known in NodeState), "absent"):
        yield "gangwatch_nodes", (("state", name),), float(by_state[name])
    held = Counter(
        slot.node
        for job in state.jobs.values()
        for slot in {*job.claim, *(rank.slot for rank in job.ranks if job.state.holds_slots)}
    )
    slots: Counter[str] = Counter()
    for node in state.nodes.values():
        now = node.state.value if node.present else "absent"
        yield "gangwatch_node_state", (("node", node.name), ("state", now)), 1.0
        used = min(held[node.name], node.slots)
        slots["used"] += used
        slots["unavailable" if tier_of(node) is None else "free"] += node.slots - used
    for use in ("free", "unavailable", "used"):
        yield "gangwatch_slots", (("use", use),), float(slots[use])


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
        if job.state is JobState.PENDING and job.expected_start_ns is not None:
            ahead = max(job.expected_start_ns - state.now_ns, 0) / 1e9
            yield "gangwatch_gang_wait_seconds_ahead", gang, ahead
