"""Hosted jobs: another scheduler runs them; the cycle knows where, watches, and asks that scheduler for another place.

Such a job comes as running and never waits here: who hosts it queues it. An attempt that has ended is the end of the
job as far as the cycle goes, and another attempt of it brings it back, with what is known of its earlier ones. Who
waits there is known by size alone: enough to tell whether a node that is merely slow is worth more in use.
"""

from __future__ import annotations

from scheduler_feedback.core.cluster import Node
from scheduler_feedback.core.cycle_context import Turn
from scheduler_feedback.core.events import Hosted, HostWaits
from scheduler_feedback.core.job import HostedWait, Job, JobKind, JobSpec, JobState, RankRecord
from scheduler_feedback.core.slot_plan import Tier
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.index.runtime_estimate import remaining_ns
from scheduler_feedback.policies.index.scheduling_index import Ledger, ledger_of
from scheduler_feedback.policies.queue.backfill import reserve
from scheduler_feedback.policies.queue.placement import NEVER, pays_beside, where


def found(turn: Turn, event: Hosted) -> None:
    """The attempt runs. Told twice it is taken in once; an older attempt than the newest is passed over."""
    state, ledger = turn.state, ledger_of(turn.state)
    job = state.jobs.get(event.job_id)
    if job is not None and (event.attempt < job.attempt or (event.attempt == job.attempt and job.state.holds_slots)):
        return
    began_ns = min(event.began_wall_ns or turn.now_ns, turn.now_ns)
    new = job is None
    if job is None:
        job = state.jobs[event.job_id] = Job(event.job_id, event.spec, JobState.RUNNING, began_ns)
    else:
        ledger.ended = [one for one in ledger.ended if one[1] != event.job_id]
    job.spec, job.state, job.attempt = event.spec, JobState.RUNNING, event.attempt
    job.ranks = [RankRecord(rank, slot) for rank, slot in enumerate(event.placement)]
    job.attempt_started_ns = began_ns
    job.started_ns = began_ns if job.started_ns is None else job.started_ns
    job.ended_ns, job.end_reason, job.failure = None, "", ""
    job.first_step_ns, job.stop_reason, job.action_id = None, None, ""
    job.proposed = ""
    if new:
        ledger.came(job)
    else:
        ledger.file(job)
    turn.tell(job.job_id, "running", f"attempt {job.attempt} runs on {where(event.placement)}")


def waits(turn: Turn, event: HostWaits) -> None:
    """Another scheduler's queue is another one now."""
    turn.state.host_waits = event.waiting


def want(state: State, ledger: Ledger, node: Node) -> bool:
    """Whether a gang that waits with another scheduler could make use of the node, slow as it is.

    Not where healthy slots enough are free: it is about to start on those, or it is not slots that it waits for.
    """
    free = ledger.plan.free(Tier.HEALTHY) if state.host_waits else 0
    return any(
        one.ranks > free
        and (not node.queues or one.queue in node.queues)
        and pays_beside(min(node.slots, one.ranks), one.ranks, node.slowdown, _patience(state, ledger, one))
        for one in state.host_waits
    )


def will_be_taken(state: State, ledger: Ledger, job: Job) -> bool:
    """Whether what is free now is as good as given away: the job's scheduler has gangs waiting that fit into it."""
    free = ledger.plan.free(Tier.HEALTHY)
    return job.spec.kind is JobKind.HOSTED and any(one.ranks <= free for one in state.host_waits)


def _patience(state: State, ledger: Ledger, waiting: HostedWait) -> float:
    """How long such a gang waits for healthy slots, if it is the next, as a share of the time that it may run."""
    spec = JobSpec("", (), waiting.ranks, kind=JobKind.HOSTED, time_limit_seconds=waiting.seconds)
    job = Job("", spec, JobState.PENDING, state.now_ns)
    found = reserve(ledger.plan, ledger.ends, job, state.now_ns, state.policy)
    return NEVER if found is None else (found.from_ns - state.now_ns) / max(remaining_ns(state.policy, job), 1)
