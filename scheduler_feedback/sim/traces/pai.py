"""PAI: jobs of Alibaba's cluster-trace-gpu-v2020 (Weng et al., NSDI'22): the file pai_task_table.csv. Times in seconds.

A line is a task of a job: inst_num instances with plan_gpu per cent of a GPU each. The ranks of a job are the GPUs of
all its tasks; instances without a GPU, such as parameter servers, do not count. A share of a GPU becomes a whole one. A
job runs from its first task's start to its last task's end. If pai_job_table.csv is in the same folder, it has the time
of submission and the user; otherwise a job is submitted when its first task starts, so the original's waits are lost.

The published files have no header (it is in pai_task_table.header); with one they are read too. gpu_type is the type
that a task got, not one that it requested, so it is not used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Refused, Trace, TraceJob, collect
from scheduler_feedback.sim.table import CellError, Row, rows

TASKS = ("job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
         "gpu_type")  # fmt: skip
JOBS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
JOB_TABLE = "pai_job_table.csv"


@dataclass(slots=True)
class _Tasks:
    """The tasks of a job, as far as they were read."""

    line: int
    ranks: int = 0
    shared: bool = False
    start: float = math.inf
    end: float = 0.0
    problem: str = ""
    """Why the job cannot be simulated; '' if it can."""


def read(path: Path) -> Trace:
    """Return the trace of a task table. Raises TraceError."""
    found: dict[str, _Tasks] = {}
    refused: list[Refused] = []
    for row in rows(path, ("job_name", "inst_num", "start_time", "end_time", "plan_gpu"), header=TASKS):
        if isinstance(row, CellError):
            refused.append(Refused("", row.line, str(row)))
            continue
        tasks = found.setdefault(row.text("job_name") or str(row.line), _Tasks(row.line))
        try:
            _add(tasks, row)
        except CellError as error:
            tasks.problem = tasks.problem or str(error)
    table = path.with_name(JOB_TABLE)
    launched = _launched(table) if table.exists() else {}
    notes = [] if launched else [f"no {JOB_TABLE} beside the file: a job is submitted when its first task starts"]
    if shared := sum(one.shared for one in found.values()):
        notes.append(f"{shared} jobs request shares of GPUs and get whole ones, because slots are not divided")
    return collect(str(path), [*refused, *_jobs(found, launched)], notes)


def _add(tasks: _Tasks, row: Row) -> None:
    instances = row.count("inst_num") if row.text("inst_num") else 1
    percent = row.number("plan_gpu") if row.text("plan_gpu") else 0.0
    tasks.ranks += instances * math.ceil(percent / 100)
    tasks.shared = tasks.shared or bool(instances and percent % 100)
    for column in ("start_time", "end_time"):
        if not row.text(column):
            raise row.wrong(column, "is empty: the task did not end, so the run time of its job is unknown")
    start, end = row.number("start_time"), row.number("end_time")
    if end < start:
        raise row.wrong("end_time", "the task ended before it started")
    tasks.start, tasks.end = min(tasks.start, start), max(tasks.end, end)


def _launched(path: Path) -> dict[str, tuple[float, str]]:
    """Return the time of submission in seconds, and the user, by job. Lines without them are left out."""
    found = {}
    for row in rows(path, ("job_name", "user", "start_time"), header=JOBS):
        if isinstance(row, Row):
            try:
                found[row.text("job_name")] = (row.number("start_time"), row.text("user"))
            except CellError:
                continue
    return found


def _jobs(found: dict[str, _Tasks], launched: dict[str, tuple[float, str]]) -> Iterator[TraceJob | Refused]:
    for name, tasks in found.items():
        if tasks.problem or not tasks.ranks:
            problem = tasks.problem or f"line {tasks.line}, column plan_gpu: no task of the job requests a GPU"
            yield Refused(name, tasks.line, problem)
            continue
        submitted, user = launched.get(name, (tasks.start, ""))
        spec = JobSpec(name, SIMULATED_COMMAND, tasks.ranks, user=user, restartable=True, preemptible=True)
        # A job whose first task precedes its submission has a wrong clock in one of the tables.
        submitted_ns = round(min(submitted, tasks.start) * 1e9)
        yield TraceJob(name, tasks.line, submitted_ns, tasks.end - tasks.start, spec)
