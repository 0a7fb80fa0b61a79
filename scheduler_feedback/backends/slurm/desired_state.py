"""Wishes: what the cycle makes of nodes and hosted jobs, as far as Slurm is to be told. Read from its state, pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.job import JobKind, JobState
from scheduler_feedback.core.state import Mode, State
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.core.verdict_text import sentence
from scheduler_feedback.policies.nodes.quarantine import ACCUSING

MOST_EVIDENCE = 4
"""Facts of a verdict that an audit line repeats; all of them stand in the job's story."""


@dataclass(frozen=True, slots=True)
class NodeWish:
    """A node that is to be more than healthy. episode: tells one time of being in this state from another.

    probed: a probe of ours is to run on it now. evidence: facts of the verdict behind it, a sentence each.
    """

    node: str
    state: NodeState
    why: str
    episode: str
    slowdown: float = 1.0
    verdict: str = ""
    evidence: tuple[str, ...] = ()
    probed: bool = False


@dataclass(frozen=True, slots=True)
class Wishes:
    """nodes: by name; what is not named is healthy. known: nodes that the cycle has.

    advice: what `advise` would do, by node. moves: hosted jobs that `advise` would move: job id -> why.
    """

    acts: bool = False
    frozen: bool = False
    nodes: dict[str, NodeWish] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    advice: dict[str, NodeWish] = field(default_factory=dict)
    moves: dict[str, str] = field(default_factory=dict)


def wishes_of(state: State) -> Wishes:
    """What Slurm is to be told, or in `advise` would be."""
    acts = state.policy.mode is Mode.ACT
    return Wishes(
        acts,
        state.frozen,
        {name: _of_node(state, node) for name, node in state.nodes.items() if node.state is not NodeState.HEALTHY},
        frozenset(state.nodes),
        {} if acts else _advice(state),
        {} if acts else _moves(state),
    )


def avoided_by(state: State, job_id: str) -> tuple[str, ...]:
    """Nodes that the next attempt of the job is to keep away from, by name: those that are not healthy."""
    job = state.jobs.get(job_id)
    named = job.excluded_nodes if job is not None else ()
    doubtful = (name for name, node in state.nodes.items() if node.state in (NodeState.SUSPECT, NodeState.QUARANTINE))
    return tuple(sorted({*named, *doubtful}))


def _of_node(state: State, node: Node) -> NodeWish:
    verdict = _verdict(state, node.verdict_id)
    probe = state.jobs.get(node.probe_job) if node.probe_job is not None else None
    return NodeWish(
        node.name,
        node.state,
        node.reason,
        f"{node.state.value}/{node.backoff}/{node.verdict_id}",
        node.slowdown,
        node.verdict_id,
        evidence_of(verdict),
        probe is not None and probe.state.holds_slots,
    )


def _verdict(state: State, verdict_id: str) -> Verdict | None:
    if verdict_id in state.verdicts:
        return state.verdicts[verdict_id]
    return next((past.verdict for past in state.past_verdicts if past.verdict.verdict_id == verdict_id), None)


def evidence_of(verdict: Verdict | None) -> tuple[str, ...]:
    if verdict is None:
        return ()
    told = sorted(verdict.evidence, key=lambda one: -abs(one.log_likelihood_ratio))[:MOST_EVIDENCE]
    return (
        sentence(verdict),
        *(f"{one.measure} {one.value:.4g} {one.unit}, against {one.reference:.4g} ({one.against})" for one in told),
    )


def _advice(state: State) -> dict[str, NodeWish]:
    """In `advise` the cycle leaves nodes as they are: what it would make of those that verdicts accuse."""
    found: dict[str, NodeWish] = {}
    for verdict in state.verdicts.values():
        if verdict.kind in ACCUSING and verdict.node in state.nodes:
            why = sentence(verdict)
            found[verdict.node] = NodeWish(
                verdict.node, NodeState.QUARANTINE, why, verdict.verdict_id, verdict.slowdown, verdict.verdict_id,
                evidence_of(verdict),
            )  # fmt: skip
    return found


def _moves(state: State) -> dict[str, str]:
    found: dict[str, str] = {}
    for decision in state.decisions:
        job = state.jobs.get(decision.job_id)
        running = job is not None and job.state is JobState.RUNNING and job.attempt == decision.attempt
        if job is not None and running and job.spec.kind is JobKind.HOSTED and not decision.applied:
            found[decision.job_id] = (
                f"{decision.verdict_id}: moving is expected to gain {decision.predicted_gain_seconds:.0f} s"
            )
    return found
