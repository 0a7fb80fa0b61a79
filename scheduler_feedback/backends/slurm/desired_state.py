"""Desired state: what the cycle requests of Slurm for nodes and external jobs, read from the cycle's state. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.schema.verdicts.kinds import ACCUSING
from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.job import JobKind, JobState
from scheduler_feedback.core.state import Mode, State
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.core.verdict_text import sentence

MOST_EVIDENCE = 4
"""Maximum number of pieces of evidence in an audit line; the job's story has all of them."""


@dataclass(frozen=True, slots=True)
class DesiredNode:
    """Desired state of a node that is not healthy."""

    node: str
    state: NodeState
    why: str
    episode: str
    """Id of the node's present stay in this state; a new one each time that the node enters a state."""

    slowdown: float = 1.0
    verdict: str = ""
    evidence: tuple[str, ...] = ()
    """Facts of the verdict that led to this state, a sentence each."""

    probed: bool = False
    """Whether a probe of gangwatch must run on the node now."""


@dataclass(frozen=True, slots=True)
class DesiredState:
    """Desired state of all nodes, and in `advise` the changes that `act` would make."""

    acts: bool = False
    frozen: bool = False
    nodes: dict[str, DesiredNode] = field(default_factory=dict)
    """Desired state by node name. Every node that is not listed must be healthy."""

    known: frozenset[str] = frozenset()
    """Names of all nodes in the cycle's state."""

    advice: dict[str, DesiredNode] = field(default_factory=dict)
    """In mode `advise`: the state in which `act` would put each accused node, by node name."""

    moves: dict[str, str] = field(default_factory=dict)
    """In mode `advise`: external jobs that `act` would move, as job id -> reason."""


def desired_state_of(state: State) -> DesiredState:
    """Return the desired state of Slurm, read from the cycle's state."""
    acts = state.policy.mode is Mode.ACT
    return DesiredState(
        acts,
        state.frozen,
        {name: _of_node(state, node) for name, node in state.nodes.items() if node.state is not NodeState.HEALTHY},
        frozenset(state.nodes),
        {} if acts else _advice(state),
        {} if acts else _moves(state),
    )


def avoided_by(state: State, job_id: str) -> tuple[str, ...]:
    """Return the nodes that the job's next attempt must avoid: suspect and quarantined nodes, and those that the job
    excludes.
    """
    job = state.jobs.get(job_id)
    named = job.excluded_nodes if job is not None else ()
    doubtful = (name for name, node in state.nodes.items() if node.state in (NodeState.SUSPECT, NodeState.QUARANTINE))
    return tuple(sorted({*named, *doubtful}))


def _of_node(state: State, node: Node) -> DesiredNode:
    verdict = _verdict(state, node.verdict_id)
    probe = state.jobs.get(node.probe_job) if node.probe_job is not None else None
    return DesiredNode(
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
    strongest = sorted(verdict.evidence, key=lambda one: -abs(one.log_likelihood_ratio))[:MOST_EVIDENCE]
    return (
        sentence(verdict),
        *(
            f"{one.measure} {one.value:.4g} {one.unit}, against {one.reference:.4g} ({one.against})"
            for one in strongest
        ),
    )


def _advice(state: State) -> dict[str, DesiredNode]:
    """Return the state in which `act` would put each accused node; in `advise` the cycle leaves nodes unchanged."""
    found: dict[str, DesiredNode] = {}
    for verdict in state.verdicts.values():
        if verdict.kind in ACCUSING and verdict.node in state.nodes:
            why = sentence(verdict)
            found[verdict.node] = DesiredNode(
                verdict.node, NodeState.QUARANTINE, why, verdict.verdict_id, verdict.slowdown, verdict.verdict_id,
                evidence_of(verdict),
            )  # fmt: skip
    return found


def _moves(state: State) -> dict[str, str]:
    found: dict[str, str] = {}
    for decision in state.decisions:
        job = state.jobs.get(decision.job_id)
        running = job is not None and job.state is JobState.RUNNING and job.attempt == decision.attempt
        if job is not None and running and job.spec.kind is JobKind.EXTERNAL and not decision.applied:
            found[decision.job_id] = (
                f"{decision.verdict_id}: moving is expected to gain {decision.predicted_gain_seconds:.0f} s"
            )
    return found
