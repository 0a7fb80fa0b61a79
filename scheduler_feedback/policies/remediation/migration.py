"""Migration: choose and start an action for each active verdict on a running gang (``mitigation_options``).

Detectors compare a rank with its peers and with its own past. A small gang that was slow from its start shows neither
difference, but verdicts on other gangs may show that its node is slow. So gangs on slow nodes are evaluated too
(``gangs_on_slow_nodes``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from agent.schema.verdicts.kinds import ACCUSING, RESTARTING
from scheduler_feedback.core.cluster import Node, NodeState
from scheduler_feedback.core.job import Job, JobState
from scheduler_feedback.core.state import Decision, Mode, OpenDecision, State
from scheduler_feedback.core.verdict import Kind, Verdict
from scheduler_feedback.core.verdict_text import sentence
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.evaluation_times import next_evaluation_ns
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.nodes.quarantine import others_want, quarantine_or_suspect
from scheduler_feedback.policies.queue.preemption import stop_for
from scheduler_feedback.policies.remediation import hang_restart
from scheduler_feedback.policies.remediation.mitigation_options import (
    ACTIONS,
    Option,
    cheaper_to_move,
    choose_option,
    code_regardless_of_slots,
)
from scheduler_feedback.policies.remediation.move_cost import accused_nodes, lost_seconds


def timeouts(state: State, index: SchedulingIndex) -> Iterator[int]:
    """Yield when to evaluate again whether to move gangs with an active verdict, or gangs on a slow node."""
    for verdict in state.verdicts.values():
        job, opened = state.jobs.get(verdict.gang), state.open_decisions.get(verdict.verdict_id)
        if job is not None and opened is not None and job.spec.restartable and _is_open(job, verdict, opened):
            yield next_evaluation_ns(verdict.first_wall_ns, state.now_ns)
            confirmed = state.judged.get(verdict.verdict_id) is True
            kept = (
                hang_restart.why_not_restarted(state.policy, job, verdict, confirmed, state.now_ns)
                if verdict.kind in RESTARTING
                else None
            )
            if kept is not None and kept[2] is not None:
                yield kept[2]
    if state.frozen or not index.running:
        return
    for name in index.doubtful:
        node = state.nodes[name]
        if node.slowdown > 1 and node.doubted_ns is not None and node.verdict_id:
            yield next_evaluation_ns(node.doubted_ns, state.now_ns)


def _is_open(job: Job, verdict: Verdict, opened: OpenDecision) -> bool:
    """Return whether a decision about the verdict and the running gang is still open. opened: the decision so far."""
    return (
        job.state is JobState.RUNNING
        and job.stop_reason is None
        and (verdict.kind in ACCUSING or bool(verdict.aggressor))
        and opened.choice not in ACTIONS
        and opened.choice != "released"
    )


def judge_running_gangs(context: CycleContext) -> None:
    """Decide on every active verdict about a running gang. Move the gang, or record once why it is not moved."""
    index = context.index
    plan = index.plan if context.state.verdicts else None
    for verdict in list(context.state.verdicts.values()):
        job = context.state.jobs.get(verdict.gang)
        opened = context.state.open_decisions.setdefault(verdict.verdict_id, OpenDecision())
        if plan is None or job is None or not _is_open(job, verdict, opened):
            continue
        if opened.choice and code_regardless_of_slots(context.state, job, verdict, context.now_ns) == opened.choice:
            continue  # this reason is recorded already
        option = choose_option(context.state, job, verdict, plan, context.now_ns)
        if option.code == "separate":
            job, option = cheaper_to_move(context.state, job, verdict, option, plan, context.now_ns)
        if option.code in ACTIONS:
            _migrate(context, job, verdict, opened, option)
        elif option.code != opened.choice:
            words = option.reason if verdict.kind in RESTARTING else f"not moved: {option.reason}"
            context.decide(job.job_id, "stay", words, option.detail(verdict))
            opened.choice, opened.reason = option.code, option.reason
    if index.doubtful and not context.state.frozen:
        for job, verdict in list(gangs_on_slow_nodes(context.state, index, context.now_ns)):
            option = choose_option(context.state, job, verdict, index.plan, context.now_ns)
            if option.code in ACTIONS and job.proposed != verdict.verdict_id:
                job.proposed = verdict.verdict_id
                _migrate(context, job, verdict, OpenDecision(), option)


def gangs_on_slow_nodes(state: State, index: SchedulingIndex, now_ns: int) -> Iterator[tuple[Job, Verdict]]:
    """Yield each gang that has no verdict and runs on a slow node, with a copy of the verdict on that node.

    The copied verdict must be about the whole node, not about one of its devices. The slowness is expected to last as
    long again as it has lasted.
    """
    known = {node.name: found for node in _slow_nodes(state, index) if (found := _about(state, node)) is not None}
    if not known:
        return
    accused = {verdict.gang for verdict in state.verdicts.values()}
    for job_id in sorted(index.running):
        job = state.jobs[job_id]
        on_it = next((rank for rank in job.ranks if rank.slot.node in known), None)
        if on_it is None or job_id in accused or job.stop_reason is not None or job.attempt_started_ns is None:
            continue
        node, verdict = state.nodes[on_it.slot.node], known[on_it.slot.node]
        doubted_ns = node.doubted_ns or now_ns
        since_ns = max(doubted_ns, job.attempt_started_ns)
        yield (
            job,
            replace(
                verdict,
                verdict_id=f"{verdict.verdict_id}/{job_id}-{job.attempt}",
                gang=job_id,
                attempt=job.attempt,
                rank=on_it.rank,
                first_wall_ns=since_ns,
                last_wall_ns=now_ns,
                lasts_seconds=(now_ns - since_ns + now_ns - doubted_ns) / 1e9,
            ),
        )


def _slow_nodes(state: State, index: SchedulingIndex) -> Iterator[Node]:
    """Yield slow nodes that have not recovered and whose slots no pending job needs."""
    for name in sorted(index.doubtful):
        node = state.nodes[name]
        if node.slowdown > 1 and node.doubted_ns is not None and node.verdict_id and not others_want(state, node):
            yield node


def _about(state: State, node: Node) -> Verdict | None:
    """Return the verdict that caused the state of the node; None if it is not a straggler verdict on a whole node."""
    found = state.verdicts.get(node.verdict_id) or next(
        (past.verdict for past in reversed(state.past_verdicts) if past.verdict.verdict_id == node.verdict_id), None
    )
    return found if found is not None and found.kind is Kind.STRAGGLER and found.level == "node" else None


_WORDS = {
    "migrate": "move",
    "separate": "move away from the other job",
    "shrink": "continue with fewer ranks",
    "requeue": "go back to the queue",
    "restart": "restart",
}


def _migrate(context: CycleContext, job: Job, verdict: Verdict, opened: OpenDecision, option: Option) -> None:
    state = context.state
    opened.reason, words = option.reason, _WORDS[option.code]
    if state.frozen:
        if opened.choice != "frozen":
            opened.choice = "frozen"
            context.decide(
                job.job_id,
                option.code,
                f"would {'restart' if option.code == 'restart' else 'move'}, but actions are frozen: {option.reason}",
                option.detail(verdict),
                "frozen",
            )
        return
    opened.choice = option.code
    applied = state.policy.mode is Mode.ACT
    state.decision_count += 1
    state.decisions.append(
        Decision(
            decision_id=f"d-{state.decision_count:06d}",
            job_id=job.job_id,
            verdict_id=verdict.verdict_id,
            wall_ns=context.now_ns,
            applied=applied,
            predicted_gain_seconds=option.test.benefit_seconds - option.test.cost_seconds,
            slowdown=verdict.slowdown,
            cost_seconds=option.test.cost_seconds,
            attempt=job.attempt,
            fault_cost_seconds=lost_seconds(verdict, context.now_ns),
        )
    )
    if not applied:
        context.decide(job.job_id, option.code, f"would {words}: {option.reason}", option.detail(verdict), "observed")
        return
    context.decide(job.job_id, option.code, f"will {words}: {option.reason}", option.detail(verdict))
    for other in option.stopped:
        stop_for(context, state.jobs[other], job)
    job.migrations += 1
    context.index.move(job, option.target, excluded=() if option.in_place else accused_nodes(state, job))
    node = state.nodes.get(verdict.node)
    if (
        verdict.kind in ACCUSING
        and node is not None
        and not option.in_place
        and node.state in (NodeState.HEALTHY, NodeState.SUSPECT, NodeState.PROBATION)
    ):
        quarantine_or_suspect(context, node, verdict, f"{job.job_id} is moved away: {sentence(verdict)}")
