"""Derive the files of ``sia_data`` from the public artifact: python -m benchmarks.survey.sia_derive FOLDER

FOLDER is ``sia-simulator`` of siasosp23/artifacts. It has times of a step for each model, GPU type, placement (ranks on
each node) and batch size of one rank, the number of iterations until the model is trained, and the jobs of ten traces.

A job has a fixed global batch, so its work is its number of samples, and its speed in samples per second follows from
the time of a step with batch / ranks samples on each rank. Larger local batches than measured are accumulated, as in
the artifact: each extra part takes the time of a step without its synchronisation.
"""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

from benchmarks.survey.sia_data import GPUS, JOBS_FILE, SPEEDS_FILE, TRACES

SUFFIX = {"t4": "aws", "rtx": "rtx", "a100": "dgx-ext"}
EPOCHS = {"bert": 2, "cifar10": 100, "deepspeech2": 80, "imagenet": 90, "yolov3": 50}
"""Epochs until a model is trained, as in the artifact (applications.py)."""

Times = dict[int, tuple[float, float]]
"""(Seconds of a step, of them of its synchronisation) by local batch."""


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def placements(folder: Path, gpu_type: str) -> dict[tuple[int, int], list[Times]]:
    """Return the times of all measured placements by (nodes, ranks)."""
    found: dict[tuple[int, int], dict[str, Times]] = {}
    for row in rows_of(folder / f"placements-{SUFFIX[gpu_type]}.csv"):
        placement = row["placement"]
        key = len(placement), sum(map(int, placement))
        times = found.setdefault(key, {}).setdefault(placement, {})
        times[round(float(row["local_bsz"]))] = float(row["step_time"]), float(row["sync_time"])
    for row in rows_of(folder / f"scalability-{SUFFIX[gpu_type]}.csv"):
        key = int(row["num_nodes"]), int(row["num_replicas"])
        times = found.setdefault(key, {}).setdefault("", {})
        times[round(float(row["local_bsz"]))] = float(row["step_time"]), float(row["sync_time"])
    return {key: list(one.values()) for key, one in found.items()}


def _rate(times: Times, batch: int, ranks: int) -> float | None:
    """Return the samples per second with this global batch; None if the local batch is smaller than all measured."""
    local = math.ceil(batch / ranks)
    parts = math.ceil(local / max(times))
    local = math.ceil(local / parts)
    sizes = sorted(times)
    if local < sizes[0] or len(sizes) < 2:
        return None
    at = next(n for n, size in enumerate(sizes) if size >= local)
    if sizes[at] == local:
        step, sync = times[local]
    else:
        low, high = sizes[at - 1], sizes[at]
        share = (local - low) / (high - low)
        step, sync = (a + share * (b - a) for a, b in zip(times[low], times[high], strict=True))
    return batch / (step + (parts - 1) * max(step - sync, 0.0))


def _samples(folder: Path, model: str, batch: int) -> int:
    """Return the samples until the model is trained with this batch size."""
    sizes = sorted(int(path.stem.split("-")[1]) for path in folder.glob("validation-*.csv"))
    epoch = EPOCHS[model] - 1
    steps = {size: float(rows_of(folder / f"validation-{size}.csv")[epoch]["iteration"]) for size in sizes}
    low = max((size for size in sizes if size <= batch), default=sizes[0])
    high = min((size for size in sizes if size >= batch), default=sizes[-1])
    share = 0.0 if low == high else (batch - low) / (high - low)
    return round(batch * (steps[low] + share * (steps[high] - steps[low])))


def main() -> int:
    source = Path(sys.argv[1])
    jobs, classes = [], set()
    for trace in range(1, TRACES + 1):
        for row in rows_of(source / "workloads" / "saturn" / f"workload-{trace}.csv"):
            batch = int(row["batch_size"])
            classes.add((row["application"], batch))
            jobs.append((trace, float(row["time"]), row["application"], batch, int(row["num_replicas"])))
    with SPEEDS_FILE.open("w") as file:
        print("workload,gpu_type,ranks,level,rate", file=file)
        for model, batch in sorted(classes):
            for gpu_type, gpus in GPUS.items():
                for (nodes, ranks), measured in sorted(placements(source / "traces" / model, gpu_type).items()):
                    if nodes > 1 and nodes != max(math.ceil(ranks / gpus), 2):
                        continue  # more nodes than a packed gang uses
                    rates = [rate for times in measured if (rate := _rate(times, batch, ranks)) is not None]
                    if rates:
                        level = "node" if nodes == 1 else "rack"
                        print(f"{model}-{batch},{gpu_type},{ranks},{level},{sum(rates) / len(rates):.5g}", file=file)
    with JOBS_FILE.open("w") as file:
        print("trace,seconds,workload,ranks,samples", file=file)
        for trace, seconds, model, batch, ranks in jobs:
            samples = _samples(source / "traces" / model, model, batch)
            print(f"{trace},{seconds:g},{model}-{batch},{ranks},{samples}", file=file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
