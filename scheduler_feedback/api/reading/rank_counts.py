"""Number of ranks of each job on each node, counted once for as long as the job's ranks stay where they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from scheduler_feedback.core.job import Job, RankRecord

SPARE = 64
"""Number of jobs without a place in the state for which counts are kept, so that deleting them is rarely needed."""


def ranks_by_node(job: Job) -> dict[str, int]:
    """Return the number of the job's ranks on each node, in the order of the ranks."""
    found: dict[str, int] = {}
    for rank in job.ranks:
        node = rank.slot.node
        found[node] = found.get(node, 0) + 1
    return found


class RankCounts:
    """Cache of ``ranks_by_node``. Only the thread that computes answers may use it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[list[RankRecord], dict[str, int]]] = {}

    def of(self, job: Job) -> Mapping[str, int]:
        """Return the number of the job's ranks on each node. Snapshots share the ranks of an unchanged job, so lists of
        equal ranks are compared by identity."""
        known = self._known.get(job.job_id)
        if known is not None and (known[0] is job.ranks or known[0] == job.ranks):
            return known[1]
        counts = ranks_by_node(job)
        self._known[job.job_id] = job.ranks, counts
        return counts

    def keep(self, jobs: Collection[str]) -> None:
        """Delete the counts of all other jobs if there are many."""
        if len(self._known) > len(jobs) + SPARE:
            self._known = {name: one for name, one in self._known.items() if name in jobs}
