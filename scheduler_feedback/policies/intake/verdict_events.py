"""Verdict events of the detectors. A verdict is active until it is cleared or rejected, or its attempt ends."""

from __future__ import annotations

from agent.schema.verdicts.kinds import ACCUSING
from scheduler_feedback.core.job import Job, JobKind
from scheduler_feedback.core.state import PAST_VERDICTS, REFUSED_VERDICTS, PastVerdict
from scheduler_feedback.core.verdict import MASS_LOSS, Abstention, Cleared, Evidence, Verdict
from scheduler_feedback.core.verdict_text import sentence
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.nodes.quarantine import note_recovery
from scheduler_feedback.policies.power.own_limits import explained_by_limit
from scheduler_feedback.policies.remediation.decision_scores import score_observed


def subject_of(verdict: Verdict) -> str:
    """Return the subject of the verdict's log entries: the gang, or the node for a verdict without a gang."""
    return verdict.gang or f"node:{verdict.node}"


def verdict_found(context: CycleContext, verdict: Verdict) -> None:
    """Activate a new verdict, or update an active verdict.

    A verdict about an older attempt of the job is ignored. A verdict that names a rank on the wrong node is refused. A
    verdict without a gang is about a node alone and is active until it is cleared.
    """
    state = context.state
    job = state.jobs.get(verdict.gang)
    about_node = not verdict.gang and verdict.node in state.nodes
    if not about_node and (job is None or not job.state.holds_slots or job.attempt != verdict.attempt):
        return
    if state.judged.get(verdict.verdict_id) is False:
        return
    if job is not None and (why := misplaced(job, verdict)):
        _refuse(context, verdict, why)
        return
    if why := explained_by_limit(context, verdict):
        _refuse(context, verdict, why)
        return
    if verdict.verdict_id not in state.verdicts:
        context.count("verdicts", verdict.kind.value, verdict.cause.value)
        context.record(subject_of(verdict), "verdict", sentence(verdict), evidence_detail(verdict))
    context.index.add_verdict(verdict)


def misplaced(job: Job, verdict: Verdict) -> str:
    """Return why the verdict contradicts the job's placement; "" if it does not.

    For an external job only the node is compared, because its slots are not in the order of its ranks.
    """
    if not verdict.node:
        return ""
    if verdict.node not in {rank.slot.node for rank in job.ranks}:
        return f"{job.job_id} has no rank on {verdict.node}"
    if job.spec.kind is JobKind.EXTERNAL or verdict.rank < 0:
        return ""
    where = next((rank.slot.node for rank in job.ranks if rank.rank == verdict.rank), None)
    if where == verdict.node:
        return ""
    if where is None:
        return f"{job.job_id} has no rank {verdict.rank}"
    return f"rank {verdict.rank} of {job.job_id} is on {where}, not on {verdict.node}"


def _refuse(context: CycleContext, verdict: Verdict, why: str) -> None:
    """Refuse the verdict: log and count it once, although detectors repeat it, and change nothing else."""
    refused = context.state.refused_verdicts
    if any(one.verdict.verdict_id == verdict.verdict_id for one in refused):
        return
    refused.append(PastVerdict(verdict, context.now_ns, why))
    del refused[:-REFUSED_VERDICTS]
    context.decide(
        verdict.gang,
        "verdict-refused",
        f"verdict refused: {why}. The refused verdict: {sentence(verdict)}",
        evidence_detail(verdict),
        outcome="refused",
    )


def verdict_cleared(context: CycleContext, cleared: Cleared) -> None:
    verdict = context.state.verdicts.get(cleared.verdict_id)
    if verdict is not None:
        context.record(subject_of(verdict), "cleared", f"verdict {verdict.verdict_id} cleared: {cleared.reason}")
        drop_verdict(context, verdict, "the verdict was cleared")
        if (node := context.state.nodes.get(verdict.node)) is not None and verdict.kind in ACCUSING:
            note_recovery(context, node)


def abstained(context: CycleContext, abstention: Abstention) -> None:
    """Log that a detector measured a slowdown and could not determine its cause.

    Only an abstention of `detector` MASS_LOSS has an effect: it freezes all actions, because many agents were lost at
    once and an operator must check first.
    """
    context.count("abstentions", abstention.detector)
    if abstention.detector == MASS_LOSS:
        if not context.state.frozen:
            context.state.frozen, context.state.frozen_by = True, "the health detector"
            context.record("cluster", "frozen", abstention.reason)
        return
    who = "the gang" if abstention.rank is None else f"rank {abstention.rank}"
    context.record(
        abstention.gang,
        "unknown",
        f"{who} is slow, the cause is unknown: {abstention.reason}",
        tuple(_evidence(item) for item in abstention.evidence),
    )


def drop_verdict(context: CycleContext, verdict: Verdict, why: str) -> None:
    """Deactivate the verdict, and score the decision that observe mode recorded for it."""
    score_observed(context, verdict, why)
    past = context.state.past_verdicts
    past.append(PastVerdict(verdict, context.now_ns, why))
    del past[:-PAST_VERDICTS]
    context.index.remove_verdict(verdict)
    context.state.open_decisions.pop(verdict.verdict_id, None)


def drop_verdicts_of(context: CycleContext, job_id: str, why: str) -> None:
    """Deactivate the job's verdicts."""
    for verdict in [v for v in context.state.verdicts.values() if v.gang == job_id]:
        drop_verdict(context, verdict, why)


def evidence_detail(verdict: Verdict) -> tuple[tuple[str, str], ...]:
    """Return the evidence of a verdict as pairs of name and value, so that an operator can check it."""
    return (
        ("verdict", verdict.verdict_id),
        ("step_seconds_before", f"{verdict.step_seconds_before:.4g}"),
        ("step_seconds_now", f"{verdict.step_seconds_now:.4g}"),
        ("window_wall_ns", f"{verdict.first_wall_ns}..{verdict.last_wall_ns}"),
        ("frames", " ".join(f"{node}#{seq}" for node, seq in verdict.frames)),
        *(_evidence(item) for item in verdict.evidence),
    )


def _evidence(item: Evidence) -> tuple[str, str]:
    return (
        f"evidence {item.measure}",
        f"{item.value:.4g} {item.unit}, reference {item.reference:.4g} ({item.against}), "
        f"log likelihood ratio {item.log_likelihood_ratio:+.2f}",
    )
