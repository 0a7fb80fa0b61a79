"""Writer of a trace as JSON lines for `gangwatch detect`, and of its true fault in a second file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.traces.counter_file import counter_rows
from benchmarks.traces.job import Job
from benchmarks.traces.model import FloatArray


def rows(job: Job, ends: FloatArray | None = None) -> list[str]:
    """Return the lines of the file in the order of the run. Steps that a restart repeats occur twice.

    ends: float64 [e, n], end in seconds of each executed step on each rank; None: the lines have no end.
    """
    layout, truth = job.layout, job.truth
    measured = np.repeat(job.seconds[:, None], layout.ranks, axis=1)
    waited = np.maximum(measured - job.faulty_own, 0.0)
    if truth.waits == "own":
        measured = job.faulty_own
    if job.clock_error is not None:
        measured = np.maximum(measured + job.clock_error, 1e-3)
        waited = np.minimum(waited, measured)
    stage, data, tensor, expert, node = (
        one.tolist()
        for one in (layout.stage_of(), layout.data_of(), layout.tensor_of(), layout.expert_of(), layout.node_of())
    )
    fixed = []
    for rank in range(layout.ranks):
        place = f'"rank":{rank},"node":"node-{node[rank]}","dp_rank":{data[rank]},"stage":{stage[rank]}'
        place += f',"tp_rank":{tensor[rank]}' if layout.tensor > 1 else ""
        fixed.append(place + (f',"ep_rank":{expert[rank]}' if layout.experts > 1 else ""))
    lines: list[str] = []
    executed = 0

    def add(step: int) -> None:
        nonlocal executed
        for rank in range(layout.ranks):
            if job.lost is not None and job.lost[step, rank]:
                continue
            line = f'{{"step":{step},{fixed[rank]},"seconds":{measured[step, rank]:.6f}'
            if truth.waits == "known":
                line += f',"wait_seconds":{min(waited[step, rank], measured[step, rank] - 1e-6):.6f}'
            elif truth.waits == "null":
                line += ',"wait_seconds":null'
            if job.tokens is not None:
                line += f',"tokens":{job.tokens[step, rank]:.0f}'
            if ends is not None:
                line += f',"end":{max(ends[executed, rank], 0.0):.4f}'
            lines.append(line + "}")
        executed += 1

    again = {last: first for first, last in job.repeats}
    for step in range(job.steps):
        add(step)
        if step in again:
            for repeated in range(max(again[step], 0), step + 1):
                add(repeated)
    return lines


def write(job: Job, path: Path, counters_of: int | None = None) -> None:
    """Write the trace to `path` and its truth to the same name with the suffix .truth.json.

    counters_of: seed of the counters; None: the trace has none.
    """
    if counters_of is None:
        lines = rows(job)
    else:
        counters, ends = counter_rows(job, counters_of)
        lines = [*rows(job, ends), *counters]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.with_suffix(".truth.json").write_text(json.dumps(job.truth.as_dict()) + "\n", encoding="utf-8")
