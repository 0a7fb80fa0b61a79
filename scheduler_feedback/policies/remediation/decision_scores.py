"""Scores of decisions: the measured outcome of each decision, compared with its expected cost and gain."""

from __future__ import annotations

from scheduler_feedback.core.durations import span
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Decision
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.remediation.move_cost import lost_seconds


def score_observed(context: CycleContext, verdict: Verdict, why: str) -> None:
    """Record, once the verdict has ended, what the fault has cost a gang that was not moved because the mode is
    observe."""
    for decision in context.state.decisions:
        if decision.verdict_id == verdict.verdict_id and not decision.applied and decision.outcome_seconds is None:
            decision.outcome_seconds = max(
                lost_seconds(verdict, context.now_ns) - lost_seconds(verdict, decision.wall_ns), 0.0
            )
            context.record(
                decision.job_id,
                "scored",
                f"not moved: staying cost {span(decision.outcome_seconds)} ({why}), "
                f"moving would have cost {span(decision.cost_seconds)}",
                _score_detail(decision),
            )


def score_applied(context: CycleContext, job: Job, first_step_ns: int) -> None:
    """Record the duration of a move, from the decision to the first step of the new attempt."""
    for decision in context.state.decisions:
        if (
            decision.job_id == job.job_id
            and decision.applied
            and decision.outcome_seconds is None
            and decision.attempt < job.attempt
        ):
            decision.outcome_seconds = max(first_step_ns - decision.wall_ns, 0) / 1e9
            ended_ns = job.attempt_ended_ns if job.attempt_ended_ns is not None else decision.wall_ns
            context.record(
                job.job_id,
                "scored",
                f"moving took {span(decision.outcome_seconds)}, expected {span(decision.cost_seconds)}",
                (
                    *_score_detail(decision),
                    ("save_seconds", f"{max(ended_ns - decision.wall_ns, 0) / 1e9:.1f}"),
                    ("restart_seconds", f"{max(first_step_ns - ended_ns, 0) / 1e9:.1f}"),
                ),
            )


def _score_detail(decision: Decision) -> tuple[tuple[str, str], ...]:
    return (
        ("decision", decision.decision_id),
        ("verdict", decision.verdict_id),
        ("expected_cost_seconds", f"{decision.cost_seconds:.1f}"),
        ("expected_gain_seconds", f"{decision.predicted_gain_seconds:.1f}"),
        ("outcome_seconds", f"{decision.outcome_seconds:.1f}"),
        ("fault_cost_before_seconds", f"{decision.fault_cost_seconds:.1f}"),
    )
