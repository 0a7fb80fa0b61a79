"""Sia: jobs of Sia's and Pollux's experiments (Subramanya et al., SOSP'23): a workload-*.csv of siasosp23/artifacts.

Columns: name, time (submission, seconds), application (the model), num_replicas (GPUs), batch_size (global). A job has
no run time: it trains its model with this batch. The run time is that on T4 GPUs, four on a node, and follows from the
artifact's measurements (``sim.speeds.sia_measurements``): the folder ``traces`` beside one of the three folders above
the file. Jobs may be restarted, and cost what the artifact's do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agent.schema.errors import TraceError
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.sim.job_trace import SIMULATED_COMMAND, Refused, Trace, TraceJob, collect, jobs_of
from scheduler_feedback.sim.speeds.measured_speeds import MeasuredSpeeds, measured_speeds
from scheduler_feedback.sim.speeds.sia_measurements import EPOCHS, NODE, samples, speed_lines
from scheduler_feedback.sim.table import Row, rows

MEASURED = "traces"
"""Name of the folder of measurements."""

FOLDERS_ABOVE = 3

REFERENCE = "t4"
"""GPU type of the run times: the first one of the measurements."""

RESTART_SECONDS = {"bert": 120.0, "cifar10": 50.0, "deepspeech2": 25.0, "imagenet": 250.0, "ncf": 15.0, "yolov3": 80.0}
"""Cost of a restart by model, as in the artifact (applications.py, rescale_time)."""

_NEEDED = ("name", "time", "application", "num_replicas", "batch_size")


def read(path: Path) -> Trace:
    """Return the trace in this file. Raises TraceError, also if the measurements are not there."""
    folder = measurements(path)
    jobs = _jobs(path, folder)
    notes = (f"run times are those on T4 GPUs, four on a node, by the measurements in {folder}",)
    return collect(str(path), jobs, notes)


def measurements(path: Path) -> Path:
    """Return the folder of measurements of a trace. Raises TraceError that says where it was looked for."""
    above = list(path.resolve().parents)[: FOLDERS_ABOVE + 1]
    for folder in above:
        if any((folder / MEASURED / model).is_dir() for model in EPOCHS):
            return folder / MEASURED
    raise TraceError(
        f"{path}: a trace of Sia has models instead of run times, and needs their measurements: put the folder "
        f"sia-simulator/{MEASURED} of siasosp23/artifacts into {above[0]}"
    )


def _jobs(path: Path, folder: Path) -> Iterator[TraceJob | Refused]:
    speeds: dict[tuple[str, int], MeasuredSpeeds] = {}
    work: dict[tuple[str, int], int] = {}

    def job(row: Row, job_id: str) -> TraceJob:
        model, batch, gpus = row.text("application"), row.count("batch_size", 1), row.count("num_replicas", 1)
        if model not in EPOCHS:
            raise row.wrong("application", f"{model[:40]!r} is not one of {', '.join(EPOCHS)}")
        if not (folder / model).is_dir():
            raise row.wrong("application", f"the measurements have no folder {folder / model}")
        key = model, batch
        if key not in speeds:
            speeds[key] = measured_speeds(speed_lines(folder, (key,)))
            work[key] = samples(folder, model, batch)
        workload = f"{model}-{batch}"
        rate = speeds[key].rate(workload, REFERENCE, gpus, NODE)
        if rate is None:
            raise row.wrong("batch_size", f"{model} was not measured with a batch of {batch} on {REFERENCE} GPUs")
        spec = JobSpec(
            job_id,
            SIMULATED_COMMAND,
            gpus,
            workload=workload,
            restartable=True,
            preemptible=True,
            restart_cost_seconds=RESTART_SECONDS[model],
            grace_seconds=0.0,
        )
        return TraceJob(job_id, row.line, round(row.number("time") * 1e9), work[key] / rate, spec)

    return jobs_of(rows(path, _NEEDED), "name", job)
