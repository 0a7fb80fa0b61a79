"""gangwatch's own trace format: JSON lines, one job each, with every field that the scheduler uses.

::

    {"submitted_seconds": 0, "run_seconds": 5400, "job": "a", "ranks": 8, "queue": "vision", "time_limit_seconds": 7200}

submitted_seconds, run_seconds and ranks are required. job is the id; the default is the line number. Every other key is
a field of the job's specification (``scheduler_feedback.core.job.JobSpec``), with the same name and unit. A line with
an unknown key is refused, so that misspelt keys are noticed. exact_seconds is not allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from scheduler_feedback.core.job import JobKind, JobSpec
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Refused, Trace, TraceJob, collect
from scheduler_feedback.sim.table import LARGEST, lines_of

_FIELDS = frozenset(JobSpec.__struct_fields__) - {"exact_seconds", "kind", "command"}
_OWN = frozenset({"submitted_seconds", "run_seconds", "job"})
_line = msgspec.json.Decoder(dict[str, Any])


def read(path: Path) -> Trace:
    """Return the trace in this file. Raises TraceError."""
    return collect(str(path), _jobs(path))


def _jobs(path: Path) -> Iterator[TraceJob | Refused]:
    for line, text in lines_of(path):
        job_id = str(line)
        try:
            fields = _line.decode(text.encode(errors="replace"))
            job_id = str(fields.get("job", line))
            yield _job(line, job_id, fields)
        except msgspec.DecodeError as error:  # of JSON, and of a field of the wrong type
            yield Refused(job_id, line, f"line {line}: {error}")
        except (ValueError, OverflowError) as error:
            yield Refused(job_id, line, f"line {line}: {error}")


def _job(line: int, job_id: str, fields: dict[str, Any]) -> TraceJob:
    for key in fields:
        if key not in _FIELDS and key not in _OWN:
            raise ValueError(f"key {key!r} is not a field of a job")
    specification = {key: value for key, value in fields.items() if key in _FIELDS}
    spec = msgspec.convert(
        {"name": job_id, **specification, "command": SIMULATED_COMMAND, "kind": JobKind.TRAINING}, JobSpec
    )
    if spec.ranks < 1:
        raise ValueError(f"key ranks: {spec.ranks} is less than 1")
    submitted_ns = round(_seconds(fields, "submitted_seconds") * 1e9)
    return TraceJob(job_id, line, submitted_ns, _seconds(fields, "run_seconds"), spec)


def _seconds(fields: dict[str, Any], key: str) -> float:
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"key {key}: " + ("is missing" if value is None else f"{value!r} is not a number"))
    if not 0 <= value <= LARGEST:
        raise ValueError(f"key {key}: {value:g} is " + ("negative" if value < 0 else f"more than {LARGEST:g}"))
    return float(value)
