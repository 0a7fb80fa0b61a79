"""Trace: jobs as they were recorded somewhere, in the scheduler's words, with what was refused and what was mended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from agent.schema.errors import TraceError
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.sim.table import CellError, Row

SIMULATED_COMMAND = ("simulated",)
"""A specification needs a command; that of a simulated job is never run."""

EPOCH_NS = 946_684_800 * 10**9
"""What a trace that counts from 0 counts from: 2000-01-01. The state's own 0 means "not yet"."""

MOST_REFUSED = 1000
"""A file of which more jobs than this, and more than were accepted, can't be read is no trace of the format named."""

_NAMES = list(JobSpec.__struct_fields__)
_VALUES = attrgetter(*_NAMES)
_RESTART_COST, _GRACE, _EXACT = map(_NAMES.index, ("restart_cost_seconds", "grace_seconds", "exact_seconds"))


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace. line: in its file, the first being 1. submitted_ns: on the trace's own clock.

    run_seconds: how long it really runs, alone, at full speed. spec: what its user asked for; it never tells that.
    """

    job_id: str
    line: int
    submitted_ns: int
    run_seconds: float
    spec: JobSpec

    def told(self, restart_cost_seconds: float | None, exact: bool) -> JobSpec:
        """The specification as the cycle is told it. restart_cost_seconds: None: what the job says; exact: the truth.

        Once a job of a long trace: ``replace`` would take twice as long.
        """
        if restart_cost_seconds is None and not exact:
            return self.spec
        values = list(_VALUES(self.spec))
        if restart_cost_seconds is not None:
            values[_RESTART_COST], values[_GRACE] = restart_cost_seconds, 0.0
        if exact:
            values[_EXACT] = self.run_seconds
        return JobSpec(*values)


@dataclass(frozen=True, slots=True)
class Refused:
    """A job that is not simulated. job_id: '' where not even that could be read. reason: names line and column."""

    job_id: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Trace:
    """jobs: by submission, those of one instant in the order of the file. notes: what was mended, a sentence each."""

    name: str
    jobs: tuple[TraceJob, ...]
    refused: tuple[Refused, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def first_ns(self) -> int:
        """The instant of the first submission in the simulation; a trace that counts from 0 is put into a year."""
        first = self.jobs[0].submitted_ns if self.jobs else 0
        return first if first >= EPOCH_NS else first + EPOCH_NS

    def scaled(self, load: float) -> Trace:
        """The same jobs arriving `load` times as fast, counted from the first. Raises ValueError where load <= 0."""
        if not load > 0:
            raise ValueError(f"a load of {load:g}: it must be more than 0")
        if load == 1 or not self.jobs:
            return self
        first = self.jobs[0].submitted_ns
        jobs = tuple(
            TraceJob(job.job_id, job.line, first + round((job.submitted_ns - first) / load), job.run_seconds, job.spec)
            for job in self.jobs
        )
        return Trace(self.name, jobs, self.refused, self.notes)


def jobs_of(
    rows: Iterable[Row | CellError], id_column: str, convert: Callable[[Row, str], TraceJob | None]
) -> Iterator[TraceJob | Refused]:
    """The job of each row, or why there is none; a row of which `convert` gives None is no job and no fault either.

    The number of the line is the id of a job that has none.
    """
    for row in rows:
        if isinstance(row, CellError):
            yield Refused("", row.line, str(row))
            continue
        job_id = row.text(id_column) or str(row.line)
        try:
            job = convert(row, job_id)
        except CellError as error:
            yield Refused(job_id, row.line, str(error))
        else:
            if job is not None:
                yield job


def collect(name: str, read: Iterable[TraceJob | Refused], notes: Iterable[str] = ()) -> Trace:
    """The trace of what a reader gives, line by line: duplicates refused, sorted stably by submission.

    Raises TraceError where nothing can be used, or so much is refused that the format must be another.
    """
    jobs: list[TraceJob] = []
    refused: list[Refused] = []
    seen: dict[str, int] = {}
    for one in read:
        if isinstance(one, TraceJob) and one.job_id in seen:
            one = Refused(
                one.job_id, one.line, f"line {one.line}: job id {one.job_id!r} stands in line {seen[one.job_id]}"
            )
        if isinstance(one, TraceJob):
            seen[one.job_id] = one.line
            jobs.append(one)
            continue
        refused.append(one)
        if len(refused) > MOST_REFUSED and len(refused) > len(jobs):
            raise TraceError(
                f"{name}: {len(refused)} of the first {len(refused) + len(jobs)} jobs can't be read, so this is "
                f"another format or a damaged file; the first: {refused[0].reason}"
            )
    if not jobs:
        raise TraceError(f"{name}: no job can be read" + (f"; the first: {refused[0].reason}" if refused else ""))
    said = list(notes)
    if any(later.submitted_ns < earlier.submitted_ns for earlier, later in pairwise(jobs)):
        jobs.sort(key=lambda job: job.submitted_ns)
        said.append("the jobs were not in the order of their submission: sorted, those of one instant as in the file")
    return Trace(name, tuple(jobs), tuple(refused), tuple(said))
