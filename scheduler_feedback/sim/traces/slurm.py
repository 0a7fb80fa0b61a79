"""Slurm: past jobs from `sacct --parsable2` (cells separated by '|', with a header) or `sacct --json`.

Fields and units: slurm.schedmd.com/sacct.html. Slurm versions differ in columns and their names, so each value is read
from any of its names:

========== ===========================================================================================================
run time   ElapsedRaw (seconds), Elapsed ([days-]hours:minutes:seconds), or End minus Start
GPUs       AllocTRES or ReqTRES (``gres/gpu=8``, typed ``gres/gpu:a100=8``, since 16.05); AllocGRES or ReqGRES
           (``gpu:8`` on each of NNodes nodes, until 20.11)
limit      TimelimitRaw (minutes), Timelimit (as Elapsed; UNLIMITED and Partition_Limit mean no limit)
queue      Partition        user  User        workload  JobName
consent    Comment, `gangwatch:restartable` (backends/slurm/parsing/opt_in.py); without it a job is not restartable
========== ===========================================================================================================

Lines of job steps (a '.' in JobID) are skipped, because the line of the job contains everything needed. Jobs without a
GPU and jobs that never started are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from agent.schema.errors import TraceError
from scheduler_feedback.backends.slurm.parsing.opt_in import of_comment
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Refused, Trace, TraceJob, collect, jobs_of
from scheduler_feedback.sim.table import Row, lines_of, rows

MOST_DIGITS = 12
"""Maximum number of digits of a time in seconds since the epoch: enough until the year 31,000."""

_NEEDED = ("JobID", "Submit")
_TIMED = ("ElapsedRaw", "Elapsed", "End")
_COUNTED = ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES", "AllocGres", "ReqGres")
_NONE = frozenset({"", "Unknown", "None", "N/A", "UNLIMITED", "Partition_Limit", "INVALID"})
_SPAN = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_TRES = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")
_GRES = re.compile(r"gpu(?::([^:,(]+))?:(\d+)")


def read(path: Path) -> Trace:
    """Return the trace in this file. Raises TraceError."""
    first = next(lines_of(path), None)
    if first is not None and first[1].lstrip().startswith("{"):
        return collect(str(path), _of_json(path))
    if first is not None:
        header = set(first[1].split("|"))
        for names, what in ((_TIMED, "run time"), (_COUNTED, "GPUs")):
            if "JobID" in header and not header.intersection(names):
                raise TraceError(f"{path}: line {first[0]}: no column for the {what}: one of {', '.join(names)}")
    return collect(str(path), jobs_of(rows(path, _NEEDED, "|"), "JobID", _job))


# --- sacct --parsable2 -----------------------------------------------------------------------------------------------


def _job(row: Row, job_id: str) -> TraceJob | None:
    if "." in job_id:
        return None
    gpus, gpu_type = _gpus(row)
    limit = row.number("TimelimitRaw") * 60 if _said(row, "TimelimitRaw") else _span(row, "Timelimit")
    spec = JobSpec(
        row.text("JobName") or job_id,
        SIMULATED_COMMAND,
        gpus,
        user=row.text("User"),
        queue=row.text("Partition") or "default",
        workload=row.text("JobName"),
        time_limit_seconds=limit or None,
        restartable=of_comment(row.text("Comment")).restartable,
        gpu_types=(gpu_type,) if gpu_type else (),
    )
    return TraceJob(job_id, row.line, round(_instant(row, "Submit") * 1e9), _run_seconds(row), spec)


def _said(row: Row, column: str) -> bool:
    return row.text(column) not in _NONE


def _run_seconds(row: Row) -> float:
    if not _said(row, "Start") and "Start" in row.cells:
        raise row.wrong("Start", "never started, so its run time is unknown")
    if _said(row, "ElapsedRaw"):
        return row.number("ElapsedRaw")
    if (elapsed := _span(row, "Elapsed")) is not None:
        return elapsed
    if not _said(row, "End") or not _said(row, "Start"):
        raise row.wrong("End", "needs Elapsed, or Start and End")
    seconds = _instant(row, "End") - _instant(row, "Start")
    if seconds < 0:
        raise row.wrong("End", "ended before it started")
    return seconds


def _span(row: Row, column: str) -> float | None:
    """Convert [days-]hours:minutes:seconds to seconds; None if the cell is empty or means that there is no limit."""
    if not _said(row, column):
        return None
    found = _SPAN.fullmatch(row.text(column))
    if found is None:
        raise row.wrong(column, f"{row.text(column)[:40]!r} is not [days-]hours:minutes:seconds")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _instant(row: Row, column: str) -> float:
    """Return the cell's time in seconds since the epoch.

    sacct prints local time without a zone, or in the format of SLURM_TIME_FORMAT. Seconds since the epoch are accepted
    too.
    """
    text = row.text(column)
    if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS:
        return float(text)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise row.wrong(column, f"{text[:40]!r} is not a date and time") from None
    return (instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)).timestamp()


def _gpus(row: Row) -> tuple[int, str]:
    """Return the number of GPUs and their type; '' if the type is unknown or there are several.

    Slurm lists a typed and an untyped count of the same GPUs.
    """
    for column in ("AllocTRES", "ReqTRES"):
        if counts := _TRES.findall(row.text(column)):
            return _counted(counts)
    for column in ("AllocGRES", "ReqGRES", "AllocGres", "ReqGres"):
        if counts := _GRES.findall(row.text(column)):
            gpus, gpu_type = _counted(counts)
            return gpus * (row.count("NNodes", 1) if _said(row, "NNodes") else 1), gpu_type
    has = next((column for column in _COUNTED if column in row.cells), "AllocTRES")
    raise row.wrong(has, "requests no GPU")


def _counted(counts: list[tuple[str, str]]) -> tuple[int, str]:
    typed = [(int(count), kind) for kind, count in counts if kind]
    total = max(sum(count for count, _ in typed), max((int(count) for kind, count in counts if not kind), default=0))
    return total, typed[0][1] if len(typed) == 1 else ""


# --- sacct --json ----------------------------------------------------------------------------------------------------


def _of_json(path: Path) -> Iterator[TraceJob | Refused]:
    try:
        document = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
    jobs = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(jobs, list):
        raise TraceError(f"{path}: has no list named 'jobs', so it is not the output of sacct --json")
    for number, job in enumerate(jobs, 1):
        job_id = str(job.get("job_id", number)) if isinstance(job, dict) else str(number)
        try:
            yield _json_job(number, job_id, job)
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            yield Refused(job_id, number, f"jobs[{number - 1}]: {what}")


def _json_job(number: int, job_id: str, job: Mapping[str, Any]) -> TraceJob:
    time = job["time"]
    if not time.get("start"):
        raise ValueError("time.start: never started, so its run time is unknown")
    run_seconds = float(time["elapsed"])
    if run_seconds < 0:
        raise ValueError(f"time.elapsed: {run_seconds:g} is negative")
    tres = job["tres"]
    counts = [
        (str(one.get("name", "")).removeprefix("gpu").removeprefix(":"), str(one["count"]))
        for one in tres.get("allocated") or tres.get("requested") or ()
        if one.get("type") == "gres" and str(one.get("name", "")).split(":")[0] == "gpu"
    ]
    gpus, gpu_type = _counted(counts)
    if gpus < 1:
        raise ValueError("tres.allocated: requests no GPU")
    array = job.get("array") or {}
    task = _number(array.get("task_id"))
    if array.get("job_id") and task is not None:
        job_id = f"{array['job_id']}_{task:.0f}"
    limit = _number(time.get("limit"))
    spec = JobSpec(
        str(job.get("name") or job_id),
        SIMULATED_COMMAND,
        gpus,
        user=str(job.get("user") or ""),
        queue=str(job.get("partition") or "default"),
        workload=str(job.get("name") or ""),
        time_limit_seconds=limit * 60 if limit else None,
        restartable=of_comment(_comment(job)).restartable,
        gpu_types=(gpu_type,) if gpu_type else (),
    )
    return TraceJob(job_id, number, round(float(time["submission"]) * 1e9), run_seconds, spec)


def _comment(job: Mapping[str, Any]) -> str:
    """Return the job's comment. Until Slurm 22.05 it is a string, later a field of {administrator, job, system}."""
    comment = job.get("comment")
    if isinstance(comment, Mapping):
        comment = comment.get("job")
    return comment if isinstance(comment, str) else ""


def _number(value: Any) -> float | None:
    """Return the value as a number; None if unset or infinite.

    Until 22.05, Slurm wrote a plain number; since 23.02, it writes {set, infinite, number}.
    """
    if isinstance(value, Mapping):
        usable = value.get("set", True) and not value.get("infinite", False)
        value = value.get("number") if usable else None
    return None if value is None or isinstance(value, str) else float(value)
