"""Level patience: how long a pending job waits for slots within its preferred network level, such as one rack.

The job first requires the level (``placement.prefers_now``), and after ``level_patience_seconds`` it only prefers it.
If the speeds of its class at wider levels were learnt, it waits for at most the time that it would lose at the next
one, so a job that distance does not slow down starts at once. A job that would not fit into the level even on empty
nodes does not wait. (Philly relaxes locality with time: Jeon et
al., ATC'19, section 2.3; Dally has one timer for each level.)
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from scheduler_feedback.core.durations import span
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.cycle_context import CycleContext
from scheduler_feedback.policies.index.runtime_estimate import remaining_ns
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.queue.placement import prefers_now, relaxes_ns, within_preferred
from scheduler_feedback.policies.remediation.gang_moves import waits_since_ns
from scheduler_feedback.policies.speeds.learnt_speeds import learnt_of


def timeouts(state: State, index: SchedulingIndex) -> Iterator[int]:
    """Yield when pending jobs have waited long enough, if that depends on learnt speeds, which change."""
    if not state.policy.level_patience_seconds or not state.speeds or state.frozen:
        return
    for key in index.line.order:
        if (at_ns := _relaxes_ns(state, state.jobs[key[-1]])) is not None:
            yield at_ns


def _relaxes_ns(state: State, job: Job) -> int | None:
    return relaxes_ns(state.policy, job, learnt_of(state), remaining_ns(state.policy, job))


def relax_levels(context: CycleContext) -> None:
    """Let pending jobs use wider placements if they have waited long enough for their level, or can never fit there."""
    index, state, policy = context.index, context.state, context.state.policy
    if not policy.level_patience_seconds or state.frozen:
        return
    for key in list(index.line.order):
        job = state.jobs[key[-1]]
        if not prefers_now(policy, job):
            continue
        at_ns = _relaxes_ns(state, job)
        level = job.spec.preferred_level
        if at_ns is not None and at_ns <= context.now_ns:
            index.relax(job)
            slower = learnt_of(state).apart_slowdown(job)
            cost = "" if slower is None else f": by measured speeds, it takes {slower:.2f} times as long there"
            waited = span(max(context.now_ns - waits_since_ns(job), 0) / 1e9)
            text = f"has waited {waited} for slots within one {level}; now uses any{cost}"
            context.record(job.job_id, "relaxed", text)
        elif not index.capacity.could_hold(structs.replace(job, spec=within_preferred(job.spec))):
            index.relax(job)
            context.record(job.job_id, "relaxed", f"does not fit into one {level}; uses any slots")
