"""Derive the files of ``sia_data`` from the public artifact: python -m benchmarks.survey.sia_derive FOLDER

FOLDER is ``sia-simulator`` of siasosp23/artifacts. It has the measurements of ``sim.speeds.sia_measurements``, and the
jobs of ten traces.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from benchmarks.survey.sia_data import JOBS_FILE, SPEEDS_FILE, TRACES
from scheduler_feedback.policies.speeds.learnt_speeds import LEVELS
from scheduler_feedback.sim.speeds.sia_measurements import samples, speed_lines


def main() -> int:
    source = Path(sys.argv[1])
    jobs = []
    for trace in range(1, TRACES + 1):
        with (source / "workloads" / "saturn" / f"workload-{trace}.csv").open() as file:
            for row in csv.DictReader(file):
                jobs.append(
                    (trace, float(row["time"]), row["application"], int(row["batch_size"]), int(row["num_replicas"]))
                )
    with SPEEDS_FILE.open("w") as file:
        print("workload,gpu_type,ranks,level,rate", file=file)
        classes = {(model, batch) for _, _, model, batch, _ in jobs}
        for workload, gpu_type, ranks, level, rate in speed_lines(source / "traces", classes):
            print(f"{workload},{gpu_type},{ranks},{LEVELS[level]},{rate:.5g}", file=file)
    with JOBS_FILE.open("w") as file:
        print("trace,seconds,workload,ranks,samples", file=file)
        for trace, seconds, model, batch, ranks in jobs:
            work = samples(source / "traces", model, batch)
            print(f"{trace},{seconds:g},{model}-{batch},{ranks},{work}", file=file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
