"""Gavel: jobs of Gavel's experiments (Narayanan et al., OSDI'20): a file *.trace of stanford-futuredata/gavel.

A line has cells separated by tabs and no header: job type, command, [folder,] option for the steps, whether it needs
data, steps, then GPUs, weight, objective and time of arrival (traces of the physical cluster), or time of arrival and
GPUs (traces of msr). Times in seconds.

The work is a number of steps. The run time follows from the measured throughputs, in one of THROUGHPUTS in the trace's
folder or in one of the three folders above it; it is that on the GPU type on which most job types are fastest. With
the same file as `--speeds`, gangs on other types run at their own speed. Weight and objective are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agent.schema.errors import TraceError
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Refused, Trace, TraceJob, collect, jobs_of
from scheduler_feedback.sim.speeds.gavel_throughputs import GavelThroughputs, read_gavel
from scheduler_feedback.sim.table import CellError, Row, lines_of

THROUGHPUTS = ("physical_cluster_throughputs.json", "simulation_throughputs.json", "gavel-throughputs.json")
"""Names of the files of throughputs, in the order in which they are looked for in a folder."""

FOLDERS_ABOVE = 3
"""In Gavel's repository, the traces are two and three folders below the throughputs."""

PHYSICAL = ("job_type", "command", "folder", "steps_option", "needs_data", "steps", "gpus", "weight", "objective",
            "arrival")  # fmt: skip
MSR = ("job_type", "command", "steps_option", "needs_data", "steps", "arrival", "gpus")


def read(path: Path) -> Trace:
    """Return the trace in this file. Raises TraceError, also if there are no throughputs."""
    file = throughputs_file(path)
    throughputs = read_gavel(file)
    notes = (f"run times are those on {throughputs.reference} GPUs, by the throughputs in {file}",)
    return collect(str(path), _jobs(path, throughputs), notes)


def throughputs_file(path: Path) -> Path:
    """Return the file of throughputs of a trace. Raises TraceError that says where it was looked for."""
    folders = list(path.resolve().parents)[: FOLDERS_ABOVE + 1]
    for folder in folders:
        for name in THROUGHPUTS:
            if (file := folder / name).is_file():
                return file
    raise TraceError(
        f"{path}: a trace of Gavel has steps instead of run times, and needs the measured throughputs: "
        f"put {' or '.join(THROUGHPUTS)} of Gavel's repository into {folders[0]}"
    )


def _jobs(path: Path, throughputs: GavelThroughputs) -> Iterator[TraceJob | Refused]:
    def job(row: Row, job_id: str) -> TraceJob:
        job_type, gpus, steps = row.text("job_type"), row.count("gpus", 1), row.number("steps")
        rate = throughputs.rate(job_type, gpus)
        if rate is None:
            raise row.wrong("job_type", f"{job_type[:60]!r} was not measured with {gpus} {throughputs.reference} GPUs")
        spec = JobSpec(job_id, SIMULATED_COMMAND, gpus, workload=job_type, restartable=True, preemptible=True)
        return TraceJob(job_id, row.line, round(row.number("arrival") * 1e9), steps / rate, spec)

    return jobs_of(_rows(path), "job_id", job)


def _rows(path: Path) -> Iterator[Row | CellError]:
    for line, text in lines_of(path):
        cells = text.split("\t")
        names = {len(PHYSICAL): PHYSICAL, len(MSR): MSR}.get(len(cells))
        if names is None:
            yield CellError(line, len(cells), f"{len(cells)} cells instead of {len(PHYSICAL)} or {len(MSR)}")
        else:
            yield Row(line, dict(zip(names, cells, strict=True)))
