"""Job traces: recorded jobs, converted to job specifications. Jobs that cannot be simulated are listed separately."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from msgspec import structs

from agent.schema.errors import TraceError
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.sim.table import CellError, Row

SIMULATED_COMMAND = ("simulated",)
"""Command of simulated jobs, because a specification needs one. It is never run."""

EPOCH_NS = 946_684_800 * 10**9
"""Simulated start time of a trace whose clock starts at 0: 2000-01-01. In the state, a time of 0 means "not yet"."""

MOST_REFUSED = 1000
"""Reading a trace fails if more than this many jobs, and more than half of the jobs read so far, are refused. The file
is then damaged or has another format."""

LONGEST_SECONDS = 1e9
"""Longest run time of a job in seconds (31 years), as in the API."""

MOST_RANKS = 1 << 20
"""Largest number of ranks of a job, as in the API."""
MOST_MEMBERS = 100_000
"""Largest number of jobs in an array, as in the API."""
MOST_PRIORITY = 1_000_000
"""Largest priority of a job, as in the API."""

LATEST_NS = 7_258_118_400 * 10**9
"""Latest simulated time: 2200-01-01. The journal stores nanoseconds in 64 bits, which overflow in 2262."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace."""

    job_id: str
    """Id of the job in the trace."""
    line: int
    """Number of the job's line in the file, starting with 1."""
    submitted_ns: int
    """Time of submission on the trace's own clock, in nanoseconds."""
    run_seconds: float
    """True run time in seconds, if the job runs alone at full speed."""
    spec: JobSpec
    """Specification that the user submitted. It does not contain the true run time."""

    def submitted_spec(self, restart_cost_seconds: float | None, exact: bool) -> JobSpec:
        """Return the specification for the cycle.

        restart_cost_seconds: replaces the job's own restart cost unless None. exact: whether to include the true run
        time.
        """
        spec = self.spec
        if restart_cost_seconds is not None:
            spec = structs.replace(spec, restart_cost_seconds=restart_cost_seconds, grace_seconds=0.0)
        return structs.replace(spec, exact_seconds=self.run_seconds) if exact else spec


@dataclass(frozen=True, slots=True)
class Refused:
    """A job of the trace that cannot be simulated, with the reason."""

    job_id: str
    """Id in the trace; '' if it could not be read."""
    line: int
    """Number of the job's line in the file, starting with 1."""
    reason: str
    """Why the job is refused, with the line and column in the file."""


@dataclass(frozen=True, slots=True)
class Trace:
    """All jobs that were read from one trace file."""

    name: str
    """Name of the trace in messages."""
    jobs: tuple[TraceJob, ...]
    """Jobs by time of submission; jobs with equal times in the order of the file."""
    refused: tuple[Refused, ...] = ()
    """Jobs that cannot be simulated."""
    notes: tuple[str, ...] = ()
    """Corrections that were made to the jobs, one sentence each."""

    @property
    def first_ns(self) -> int:
        """Simulated time of the first submission, in nanoseconds; a fixed date (EPOCH_NS) for a trace with relative
        times.
        """
        first = self.jobs[0].submitted_ns if self.jobs else 0
        return first if first >= EPOCH_NS else first + EPOCH_NS

    def scaled(self, load: float) -> Trace:
        """Return the same jobs with `load` times the arrival rate, starting at the first submission.

        Raises ValueError if load <= 0, and TraceError if the last job would arrive after the year 2200.
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
    """Yield the job of each row, or the reason why it is refused. Rows for which `convert` returns None are skipped.

    A job without an id gets its line number as id.
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
    """Build a trace from a reader's jobs: refuse duplicates and sort stably by submission.

    Raises TraceError if no job is usable, or if most are refused, because the file then has another format.
    """
    jobs: list[TraceJob] = []
    refused: list[Refused] = []
    seen: dict[str, int] = {}
    for one in map(_within_bounds, read):
        if isinstance(one, TraceJob) and one.job_id in seen:
            one = Refused(
                one.job_id, one.line, f"line {one.line}: job id {one.job_id!r} is already in line {seen[one.job_id]}"
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
        said.append("the jobs were not in the order of submission and have been sorted")
    return Trace(name, tuple(jobs), tuple(refused), tuple(said))


def _within_bounds(one: TraceJob | Refused) -> TraceJob | Refused:
    """Return the job, or a refusal if a journal cannot store its times or counts."""
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
