"""Trace: jobs as they were recorded somewhere, in the scheduler's words, with what was refused and what was mended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from msgspec import structs

from agent.schema.errors import TraceError
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.sim.table import CellError, Row

SIMULATED_COMMAND = ("simulated",)
"""A specification needs a command; that of a simulated job is never run."""

EPOCH_NS = 946_684_800 * 10**9
"""What a trace that counts from 0 counts from: 2000-01-01. The state's own 0 means "not yet"."""

MOST_REFUSED = 1000
"""A file of which more jobs than this, and more than were accepted, can't be read is no trace of the format named."""

LONGEST_SECONDS = 1e9
"""No job runs longer, and none may say so to the API: 31 years."""

MOST_RANKS = 1 << 20
MOST_MEMBERS = 100_000
MOST_PRIORITY = 1_000_000
"""What the API takes of these, too."""

LATEST_NS = 7_258_118_400 * 10**9
"""2200-01-01: a nanosecond count of 64 bits, in which a journal keeps instants, ends in 2262."""


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
        """The specification as the cycle is told it. restart_cost_seconds: None: the job's own; exact: the truth."""
        spec = self.spec
        if restart_cost_seconds is not None:
            spec = structs.replace(spec, restart_cost_seconds=restart_cost_seconds, grace_seconds=0.0)
        return structs.replace(spec, exact_seconds=self.run_seconds) if exact else spec


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
        """The same jobs arriving `load` times as fast, counted from the first.

        Raises ValueError where load <= 0, TraceError where they would come in centuries.
        """
        if not load > 0:
            raise ValueError(f"a load of {load:g}: it must be more than 0")
        if load == 1 or not self.jobs:
            return self
        first = self.jobs[0].submitted_ns
        if self.first_ns + (self.jobs[-1].submitted_ns - first) / load > LATEST_NS:
            raise TraceError(f"{self.name}: at a load of {load:g} the last of its jobs comes after the year 2200")
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
    for one in map(_within_bounds, read):
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


def _within_bounds(one: TraceJob | Refused) -> TraceJob | Refused:
    """The job, or why its times or counts are none that a journal could hold."""
    if isinstance(one, Refused):
        return one
    if not 0 <= one.submitted_ns <= LATEST_NS:
        return Refused(one.job_id, one.line, f"line {one.line}: was submitted before 1970, or after 2200")
    spec = one.spec
    for name, seconds in (
        ("run time", one.run_seconds),
        ("time limit", spec.time_limit_seconds),
        ("grace", spec.grace_seconds),
        ("restart cost", spec.restart_cost_seconds),
        ("checkpoint interval", spec.checkpoint_interval_seconds),
        ("checkpoint cost", spec.checkpoint_cost_seconds),
        ("checkpoint timeout", spec.checkpoint_timeout_seconds),
        ("least run time", spec.min_run_seconds),
    ):
        if seconds is not None and not seconds <= LONGEST_SECONDS:
            return Refused(one.job_id, one.line, f"line {one.line}: a {name} of {seconds:g} s is more than 31 years")
    for name, number, most in (
        ("ranks", max(spec.ranks, spec.max_ranks or 0), MOST_RANKS),
        ("array_size", max(spec.array_size, spec.array_parallel), MOST_MEMBERS),
        ("priority", abs(spec.priority), MOST_PRIORITY),
        ("max_retries", spec.max_retries, MOST_RANKS),
    ):
        if number > most:
            return Refused(one.job_id, one.line, f"line {one.line}: {name} of {number:g} is more than {most}")
    return one
