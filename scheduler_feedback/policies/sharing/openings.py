"""Openings: which running jobs the pending jobs of each kind may join. They are kept between cycles.

A comparison of all pending jobs with all running ones in each cycle would cost their product. Here a kind of pending
jobs is compared with a running job again only after a change of that job, of the jobs on its slots, or of a known speed
of their workloads. The openings follow from the state alone, so a cycle that builds them again decides the same.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scheduler_feedback.core.job import Job
from scheduler_feedback.core.state import Sharing
from scheduler_feedback.policies.index.scheduling_index import SchedulingIndex
from scheduler_feedback.policies.sharing.case import Case, Chance
from scheduler_feedback.policies.sharing.pair_speeds import news_of, pair_changes, workload_of
from scheduler_feedback.policies.sharing.room_on_slots import fitting, may_host, may_join
from scheduler_feedback.policies.speeds.learnt_memory import planned_mib

Kind = tuple[Any, ...]
"""All properties of a pending job that decide which jobs it may join."""

Key = tuple[Any, ...]
"""Sort key of a pending job; its last item is the job's id."""

MOST_TRIED = 64
"""Maximum number of kinds of pending jobs that one cycle compares with running jobs, so that a cycle stays short."""

MOST_CHANGES = 4096
"""Maximum length of the list of changes. After more changes, all kinds are compared with all running jobs again."""

MOST_KINDS = 512
"""Maximum number of kinds without pending jobs whose comparisons are kept."""


def kind_of(job: Job) -> Kind:
    """Return the kind of the pending job."""
    spec = job.spec
    return (
        spec.ranks,
        workload_of(spec),
        planned_mib(job),
        spec.slot_share,
        spec.stages,
        job.excluded_nodes,
        spec.pinned_node,
        spec.constraint,
        spec.required_level,
        bool(spec.groups),
        spec.gpu_types,
        spec.opportunistic,
    )


@dataclass(slots=True)
class Comparison:
    """Result of comparing one kind with all running jobs."""

    workload: str
    """Workload of the kind."""
    epoch: int
    """Number of the list of changes up to which the result is valid."""
    seen: int
    """Number of changes in that list that the result includes."""
    speeds: int
    """Number of changes of known speeds up to which `by_group` is valid."""
    chances: dict[str, Chance | None] = field(default_factory=dict)
    """The running jobs that the kind may join, by id, with the rule's chance; None if the chance depends on time."""
    by_group: dict[tuple[int, str, bool], Chance | None] = field(default_factory=dict)
    """Chance by (ranks, workload, opportunistic) of running jobs, for rules that depend on nothing else."""


class Openings:
    """Pending jobs by kind, running jobs that may be joined, and the comparisons of both. See the module.

    possible: returns the chance of one pairing, or None; it must not depend on the time. grouped: whether it depends
    only on ranks and workloads. timed: whether the rule's real chance depends on the time, so that it is not kept.
    """

    def __init__(
        self, index: SchedulingIndex, possible: Callable[[Case], Chance | None], grouped: bool, timed: bool
    ) -> None:
        self.index = index
        self.possible, self.grouped, self.timed = possible, grouped, timed
        self.hosts: dict[str, Job] = {}
        """Running jobs that may be joined, by id."""
        self.alone: set[str] = set()
        """Ids of the opportunistic jobs that run on slots that no other job holds."""
        self.lines: dict[Kind, list[Key]] = {}
        """Sort keys of the pending jobs of each kind, in queue order."""
        self.order: list[tuple[Key, int]] = []
        """First sort key of each kind with its number, in queue order."""
        self.kinds: list[Kind] = []
        """Kinds by number."""
        self._numbers: dict[Kind, int] = {}
        self._kind_of: dict[str, tuple[Kind, Key]] = {}
        self._known: dict[Kind, Comparison] = {}
        self.version = 0
        """Number of changes of the first kinds in the queue."""
        self.settled: tuple[int, ...] = ()
        """Value of `mark` at which no kind could join any running job."""
        self._changes: list[tuple[str, str | None]] = []
        self._epoch = 0
        self._by_workload: dict[str, set[str]] = {}
        self._news = len(news_of(index.state))
        index.touched = set(index.held)
        self._opportunistic = index.state.policy.sharing.opportunistic
        jobs = index.state.jobs
        for key in index.line.order:
            self.enter(jobs[key[-1]], key)
        for job_id in index.opportunists:
            self.enter(jobs[job_id], opportunist_key(jobs[job_id]))

    # --- pending jobs ------------------------------------------------------------------------------------------------

    def enter(self, job: Job, key: Key) -> None:
        """Add a pending job, if the rule lets it join others."""
        if not may_join(job) or job.spec.opportunistic is not self._opportunistic:
            return
        kind = kind_of(job)
        line = self.lines.setdefault(kind, [])
        if not line or (len(self.order) > MOST_TRIED and key < line[0]):
            self.version += 1
        self._unlist(line)
        insort(line, key)
        self._list(kind, line)
        self._kind_of[job.job_id] = (kind, key)

    def leave(self, job_id: str) -> None:
        """Remove a job that is no longer pending."""
        found = self._kind_of.pop(job_id, None)
        if found is None:
            return
        kind, key = found
        line = self.lines[kind]
        if len(self.order) > MOST_TRIED and key == line[0]:
            self.version += 1
        self._unlist(line)
        del line[bisect_left(line, key)]
        if line:
            self._list(kind, line)
            return
        del self.lines[kind]
        if len(self._known) > MOST_KINDS + len(self.lines):
            self._known = {one: result for one, result in self._known.items() if one in self.lines}

    def mark(self) -> tuple[int, ...]:
        """Return numbers that change whenever a kind may find other openings than before."""
        return (len(self._changes), self._epoch, pair_changes(self.index.state), self.version)

    def _list(self, kind: Kind, line: list[Key]) -> None:
        number = self._numbers.get(kind)
        if number is None:
            number = self._numbers[kind] = len(self.kinds)
            self.kinds.append(kind)
        insort(self.order, (line[0], number))

    def _unlist(self, line: list[Key]) -> None:
        if line:
            del self.order[bisect_left(self.order, (line[0],))]

    def kind_of_pending(self, job_id: str) -> Kind | None:
        """Return the kind of a pending job; None if it may not join others."""
        found = self._kind_of.get(job_id)
        return None if found is None else found[0]

    # --- running jobs ------------------------------------------------------------------------------------------------

    def update(self) -> None:
        """Take in the changes of running jobs and of known speeds since the last call."""
        index, changes = self.index, self._changes
        jobs = index.state.jobs
        if index.touched:
            touched, index.touched = index.touched, set()
            for job_id in touched:
                job = jobs.get(job_id)
                runs = job is not None and job_id in index.running
                self._note_alone(job_id, job, runs)
                if job is not None and runs and may_host(index, job):
                    self.hosts[job_id] = job
                    self._by_workload.setdefault(workload_of(job.spec), set()).add(job_id)
                elif (old := self.hosts.pop(job_id, None)) is not None:
                    self._by_workload[workload_of(old.spec)].discard(job_id)
                else:
                    continue
                changes.append((job_id, None))
        news = news_of(index.state)
        if self._news < len(news):
            fresh, self._news = news[self._news :], len(news)
            if index.state.policy.sharing in (Sharing.IADEEP, Sharing.MUXFLOW):
                self._forget()  # one measurement changes all predictions
            else:
                for mine, theirs in fresh:
                    changes += [(one, mine) for one in sorted(self._by_workload.get(theirs, ()))]
                    changes += [(one, theirs) for one in sorted(self._by_workload.get(mine, ()))]
        if len(changes) > MOST_CHANGES:
            self._forget()

    def _note_alone(self, job_id: str, job: Job | None, runs: bool) -> None:
        if job is not None and runs and job.spec.opportunistic and not job.guest_of and job.stop_reason is None:
            self.alone.add(job_id)
        else:
            self.alone.discard(job_id)

    def _forget(self) -> None:
        self._epoch += 1
        self._changes.clear()

    # --- comparisons -------------------------------------------------------------------------------------------------

    def chances(self, job: Job, kind: Kind) -> dict[str, Chance | None]:
        """Return the running jobs that a pending job of this kind may join, by id, with the rule's chance.

        Call `update` first.
        """
        known = self._known.get(kind)
        end = len(self._changes)
        if known is not None and known.seen == end and known.epoch == self._epoch:
            return known.chances
        speeds = pair_changes(self.index.state)
        if known is not None and known.speeds != speeds:
            known.speeds, known.by_group = speeds, {}
        if known is None or known.epoch != self._epoch or end - known.seen > len(self.hosts):
            groups = {} if known is None else known.by_group
            known = self._known[kind] = Comparison(workload_of(job.spec), self._epoch, end, speeds, by_group=groups)
            for host_id in self.hosts:
                self._compare(job, known, host_id)
            return known.chances
        for host_id, workload in self._changes[known.seen : end] if known.seen < end else ():
            if workload is None or workload == known.workload:
                self._compare(job, known, host_id)
        known.seen = end
        return known.chances

    def _compare(self, job: Job, known: Comparison, host_id: str) -> None:
        """Compare the kind of the pending job with one running job."""
        host = self.hosts.get(host_id)
        chance = None if host is None else self._chance(job, known, host)
        if chance is None:
            known.chances.pop(host_id, None)
        else:
            known.chances[host_id] = None if self.timed else chance

    def _chance(self, job: Job, known: Comparison, host: Job) -> Chance | None:
        state = self.index.state
        if job.spec.ranks > len(host.ranks):
            return None
        if self.grouped:
            group = (len(host.ranks), workload_of(host.spec), host.spec.opportunistic)
            if group in known.by_group:
                chance = known.by_group[group]
            else:
                chance = known.by_group[group] = self.possible(Case(state, job, host, (), 0.0, 0.0))
            return None if chance is None or fitting(self.index, job, host) is None else chance
        if state.policy.sharing is Sharing.MURI and job.spec.ranks != len(host.ranks):
            return None
        slots = fitting(self.index, job, host)
        if slots is None:
            return None
        others = {one for slot in slots for one in self.index.sharers.get(slot, ())} - {host.job_id}
        return self.possible(Case(state, job, host, tuple(state.jobs[one] for one in sorted(others)), 0.0, 0.0))


def opportunist_key(job: Job) -> Key:
    """Return the sort key of a pending opportunistic job, which is not in the queue."""
    return (job.submitted_ns, job.job_id)


def next_of(line: list[Key], after: Key) -> Key | None:
    """Return the first key of the line behind this one; None if there is none."""
    position = bisect_left(line, after)
    if position < len(line) and line[position] == after:
        position += 1
    return line[position] if position < len(line) else None
