"""Level patience: how long a pending job waits for slots within its preferred network level, such as one rack.

The job first requires the level (``placement.prefers_now``), and after ``level_patience_seconds`` it only prefers it. A
job that would not fit into the level even on empty nodes does not wait. (Philly relaxes locality with time: Jeon et
al., ATC'19, section 2.3; Dally has one timer for each level.)
"""

from __future__ import annotations

from msgspec import structs

from scheduler_feedback.core.durations import span
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.queue.placement import prefers_now, relaxes_ns, within_preferred


def relax_levels(context: CycleContext) -> None:
    """Let pending jobs use wider placements if they have waited long enough for their level, or can never fit there."""
    index, state, policy = context.index, context.state, context.state.policy
    if not policy.level_patience_seconds or state.frozen:
        return
    for key in list(index.line.order):
        job = state.jobs[key[-1]]
        if not prefers_now(policy, job):
            continue
        at_ns = relaxes_ns(policy, job)
        level = job.spec.preferred_level
        if at_ns is not None and at_ns <= context.now_ns:
            index.relax(job)
            waited = span(policy.level_patience_seconds)
            context.record(job.job_id, "relaxed", f"has waited {waited} for slots within one {level}; now uses any")
        elif not index.capacity.could_hold(structs.replace(job, spec=within_preferred(job.spec))):
            index.relax(job)
            context.record(job.job_id, "relaxed", f"does not fit into one {level}; uses any slots")
