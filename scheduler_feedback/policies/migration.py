"""Migration: verdicts that stand against a running gang are ruled on (``answers``), and what was ruled is set going."""

from __future__ import annotations

from scheduler_feedback.core.cluster import NodeState
from scheduler_feedback.core.job import Job, JobState, StopReason
from scheduler_feedback.core.state import Case, Decision, Mode
from scheduler_feedback.core.turn import Turn
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.policies.answers import ACTIONS, Ruling, cheaper_to_move, rule
from scheduler_feedback.policies.cost import accused_nodes, lost_seconds
from scheduler_feedback.policies.ledger import Ledger, ledger_of
from scheduler_feedback.policies.preemption import stop_for
from scheduler_feedback.policies.quarantine import ACCUSING, hold_against, in_words


def judge_running_gangs(turn: Turn, ledger: Ledger) -> None:
    """Rule on every verdict that stands against a member of a running gang; act on it, or say why not, once."""
    plan = ledger.plan if turn.state.verdicts else None
    for verdict in list(turn.state.verdicts.values()):
        job = turn.state.jobs.get(verdict.gang)
        case = turn.state.cases.setdefault(verdict.verdict_id, Case())
        if (
            plan is None
            or job is None
            or job.state is not JobState.RUNNING
            or job.stop_reason is not None
            or (verdict.kind not in ACCUSING and not verdict.aggressor)
            or case.ruling in ACTIONS
            or case.ruling == "released"
        ):
            continue
        ruling = rule(turn.state, job, verdict, plan, turn.now_ns)
        if ruling.code == "separate":
            job, ruling = cheaper_to_move(turn.state, job, verdict, ruling, plan, turn.now_ns)
        if ruling.code in ACTIONS:
            _migrate(turn, job, verdict, case, ruling)
        elif ruling.code != case.ruling:
            turn.decide(job.job_id, "stay", f"stays where it is: {ruling.reason}", ruling.detail(verdict))
            case.ruling, case.reason = ruling.code, ruling.reason


_WORDS = {
    "migrate": "move",
    "separate": "move away from the other",
    "shrink": "go on with fewer ranks",
    "requeue": "wait for another place",
}


def _migrate(turn: Turn, job: Job, verdict: Verdict, case: Case, ruling: Ruling) -> None:
    state = turn.state
    case.reason, words = ruling.reason, _WORDS[ruling.code]
    if state.frozen:
        if case.ruling != "frozen":
            case.ruling = "frozen"
            turn.decide(
                job.job_id,
                ruling.code,
                f"would move, but actions are frozen: {ruling.reason}",
                ruling.detail(verdict),
                "frozen",
            )
        return
    case.ruling = ruling.code
    applied = state.policy.mode is Mode.ACT
    state.decision_count += 1
    state.decisions.append(
        Decision(
            decision_id=f"d-{state.decision_count:06d}",
            job_id=job.job_id,
            verdict_id=verdict.verdict_id,
            wall_ns=turn.now_ns,
            applied=applied,
            predicted_gain_seconds=ruling.test.benefit_seconds - ruling.test.cost_seconds,
            slowdown=verdict.slowdown,
            cost_seconds=ruling.test.cost_seconds,
            attempt=job.attempt,
            fault_cost_seconds=lost_seconds(verdict, turn.now_ns),
        )
    )
    if not applied:
        turn.decide(job.job_id, ruling.code, f"would {words}: {ruling.reason}", ruling.detail(verdict), "observed")
        return
    turn.decide(job.job_id, ruling.code, f"is to {words}: {ruling.reason}", ruling.detail(verdict))
    for other in ruling.stopped:
        stop_for(turn, ledger_of(state), state.jobs[other], job)
    job.stop_reason = StopReason.MIGRATE
    job.last_migration_ns = turn.now_ns
    job.migrations += 1
    job.excluded_nodes = accused_nodes(state, job)
    job.claim = list(ruling.target)
    ledger_of(state).file(job)
    node = state.nodes.get(verdict.node)
    if (
        verdict.kind in ACCUSING
        and node is not None
        and node.state in (NodeState.HEALTHY, NodeState.SUSPECT, NodeState.PROBATION)
    ):
        hold_against(turn, node, verdict, f"{job.job_id} moves away: {in_words(verdict)}")
