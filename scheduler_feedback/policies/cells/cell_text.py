"""Sentences about cells for `explain` and `story`: why a job waits for cells, and whether a running job keeps them."""

from __future__ import annotations

from scheduler_feedback.core.durations import span
from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import State
from scheduler_feedback.policies.cells.slot_use import in_own_cells, may_leave
from scheduler_feedback.policies.cells.virtual_cluster import SHARED, VirtualCluster, owner_of, uses_cells
from scheduler_feedback.policies.index.tracked_jobs import TrackedJobs
from scheduler_feedback.policies.queue.placement import place


def waits_for_cells(state: State, index: TrackedJobs, job: Job) -> tuple[str, str]:
    """Return why the pending job is not in the cells of its queue, as (short code, sentence)."""
    cluster = index.clusters[owner_of(index.shares, job.spec.queue)]
    cells, sizes = _cells_of(cluster), cluster.empty.topology.sizes
    ranks = job.spec.min_ranks or job.spec.ranks
    needs = f"needs {ranks} slot{'' if ranks == 1 else 's'}"
    if job.cell_slots:
        return "slots", f"guaranteed in {cells}; waits for usable nodes on which no job must stay"
    if not fits_empty(cluster, job):
        if may_leave(job):
            return "slots", f"{needs}, which {cells} cannot hold; waits for slots that no other queue needs"
        text = f"{needs}, which {cells} cannot hold; only preemptible, restartable jobs use other cells"
        queue = next((one for one in state.policy.queues if one.name == cluster.queue), None)
        if queue is not None and (absent := sum(queue.cells.values()) - cells_in(cluster)) > 0:
            text += f"; the cluster has no nodes for {absent} of the queue's cells"
        return "capacity", text
    jobs = [one for one in state.jobs.values() if one.state.holds_slots or one.job_id in index.line]
    used = sum(len(one.cell_slots) for one in jobs if cluster.valid(one.cell_slots))
    text = f"{needs} in {cells}; guaranteed jobs use {used} of their {sum(sizes)} slots"
    if job.expected_start_ns is not None and not state.frozen:
        text += f"; expected to start in {span(max(job.expected_start_ns - state.now_ns, 0) / 1e9)}"
    return "slots", text


def present(state: State, index: TrackedJobs, job: Job) -> str:
    """Return whether the running job keeps its slots if other queues need their cells; '' if no queue has cells."""
    if not uses_cells(state.policy) or job.stop_reason is not None:
        return ""
    cluster = index.clusters[owner_of(index.shares, job.spec.queue)]
    if in_own_cells(state.bound_cells, job):
        return f"; guaranteed in {_cells_of(cluster)}"
    if not may_leave(job):
        return ""
    text = "; it leaves when another queue needs the cells there"
    return f"{text}, and then continues in {_cells_of(cluster)}" if job.cell_slots else text


def fits_empty(cluster: VirtualCluster, job: Job) -> bool:
    """Return whether the cells could hold the job if no other job were in them."""
    plan = cluster.empty
    mark = plan.checkpoint()
    found = place(plan, job) is not None
    plan.rollback(mark)
    return found


def cells_in(cluster: VirtualCluster) -> int:
    """Return the number of cells of the virtual cluster; a rack counts once."""
    names = cluster.empty.topology.names
    return len([name for name in names if name not in cluster.groups]) + len(set(cluster.groups.values()))


def _cells_of(cluster: VirtualCluster) -> str:
    if cluster.queue != SHARED:
        return f"the cells of queue {cluster.queue}"
    return "what the queues without cells share"
