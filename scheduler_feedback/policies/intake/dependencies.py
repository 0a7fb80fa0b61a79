"""Dependencies between jobs, and the limit on parallel jobs of an array."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from scheduler_feedback.core.job import After, Dependency, Job, JobState
from scheduler_feedback.core.state import State


@dataclass(slots=True)
class Array:
    """Jobs of one array (one submission of many similar jobs)."""

    parallel: int
    """Maximum number of members that may hold slots at the same time; 0 for no limit."""
    members: set[str] = field(default_factory=set)
    waiting: list[tuple[int, str]] = field(default_factory=list)
    """Pending members as (index in the array, job id), sorted."""
    active: set[str] = field(default_factory=set)
    """Ids of the members that hold slots."""

    def first(self) -> list[str]:
        """Return the ids of the array's pending jobs that the limit permits to start, the lowest index first."""
        return [job_id for _, job_id in self.waiting[: max(self.parallel - len(self.active), 0)]]


class Dependencies:
    """Index of dependencies between jobs. dependents: by the id of a job or array, the jobs that depend on it."""

    __slots__ = ("_state", "arrays", "dependents", "turns")

    def __init__(self, state: State) -> None:
        self._state = state
        self.dependents: dict[str, dict[str, None]] = {}
        self.arrays: dict[str, Array] = {}
        self.turns: dict[str, list[str]] = {}

    def add(self, job: Job) -> None:
        """Add a job to the index of dependencies and to its array."""
        for dependency in job.spec.after:
            self.dependents.setdefault(dependency.job_id, {})[job.job_id] = None
        if job.array_of:
            array = self.arrays.setdefault(job.array_of, Array(job.spec.array_parallel))
            array.members.add(job.job_id)
            if array.parallel:
                self._take_place(array, job)
                self.turns[job.array_of] = array.first()

    def needed(self, job: Job) -> bool:
        """Return whether a job that has not ended depends on this job or on its array."""
        waiting = (*self.dependents.get(job.job_id, ()), *self.dependents.get(job.array_of, ()))
        return any(other in self._state.jobs and not self._state.jobs[other].state.ended for other in waiting)

    def forget(self, job: Job) -> None:
        """Remove a job from the index of dependencies and from its array."""
        for dependency in job.spec.after:
            self.dependents.get(dependency.job_id, {}).pop(job.job_id, None)
        self.dependents.pop(job.job_id, None)
        if (array := self.arrays.get(job.array_of)) is not None:
            array.members.discard(job.job_id)
            if not array.members:
                del self.arrays[job.array_of]
                self.turns.pop(job.array_of, None)

    def changed(self, job: Job) -> Iterator[str]:
        """Yield the ids of other jobs that may now be allowed or forbidden to start, because this job changed state."""
        if job.job_id in self.dependents:
            yield from self.dependents[job.job_id]
        if job.array_of:
            yield from self.dependents.get(job.array_of, ())
            array = self.arrays[job.array_of]
            if array.parallel:
                self._take_place(array, job)
                before, after = self.turns[job.array_of], array.first()
                self.turns[job.array_of] = after
                yield from (other for other in before if other not in after)
                yield from (other for other in after if other not in before)

    @staticmethod
    def _take_place(array: Array, job: Job) -> None:
        place = (job.array_index, job.job_id)
        index = bisect_left(array.waiting, place)
        waits = index < len(array.waiting) and array.waiting[index] == place
        if waits and job.state is not JobState.PENDING:
            del array.waiting[index]
        elif not waits and job.state is JobState.PENDING:
            insort(array.waiting, place)
        if job.state.holds_slots:
            array.active.add(job.job_id)
        else:
            array.active.discard(job.job_id)

    def blocks(self, job: Job) -> bool:
        """Return whether a dependency or the array's limit keeps the job from starting."""
        if not job.spec.after and not job.array_of:
            return False
        return self.why(job) is not None

    def why(self, job: Job) -> str | None:
        """Return why the job may not start yet, as a sentence; None if it may."""
        for dependency in job.spec.after:
            named = self._named(dependency.job_id)
            if not named or not all(_met(dependency, other) for other in named):
                return f"waits until {dependency.job_id} {_WORDS[dependency.condition]}"
        array = self.arrays.get(job.array_of)
        if array is not None and array.parallel and job.job_id not in self.turns[job.array_of]:
            return f"at most {array.parallel} of array {job.array_of} may run at the same time"
        return None

    def hopeless(self, job: Job) -> str | None:
        """Return why a dependency of the job can no longer be met; None if it can."""
        for dependency in job.spec.after:
            named = self._named(dependency.job_id)
            if not named:
                return f"it waits for {dependency.job_id}, an unknown job"
            for other in named:
                if other.state.ended and not _met(dependency, other):
                    condition = _WORDS[dependency.condition]
                    return f"it waits until {dependency.job_id} {condition}, but {other.job_id} {_became(other)}"
        return None

    def _named(self, job_id: str) -> list[Job]:
        """Return the job with this id, or the members of the array with this id; empty if there is neither."""
        if (job := self._state.jobs.get(job_id)) is not None:
            return [job]
        array = self.arrays.get(job_id)
        return [] if array is None else [self._state.jobs[member] for member in sorted(array.members)]


_WORDS = {After.OK: "completes", After.FAILED: "fails", After.ENDED: "ends", After.STARTED: "starts"}


def _became(job: Job) -> str:
    return "was cancelled" if job.state is JobState.CANCELLED else job.state.value


def _met(dependency: Dependency, job: Job) -> bool:
    match dependency.condition:
        case After.OK:
            return job.state is JobState.COMPLETED
        case After.FAILED:
            return job.state in (JobState.FAILED, JobState.CANCELLED)
        case After.ENDED:
            return job.state.ended
        case After.STARTED:
            return job.attempt > 0
