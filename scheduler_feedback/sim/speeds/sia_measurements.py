"""Measured step times and work of the models in Sia's public artifact (Subramanya et al., SOSP'23).

The folder ``sia-simulator/traces`` of siasosp23/artifacts has a folder for each model, with tables (CSV, seconds):

=========================  ============================================================================================
placements-TYPE.csv        placement (ranks on each node, one digit each), local_bsz, step_time, sync_time
scalability-TYPE.csv       num_nodes, num_replicas, local_bsz, step_time, sync_time
validation-BATCH.csv       iteration at the end of each epoch, with this global batch
=========================  ============================================================================================

A job has a fixed global batch. Its work is the samples until the model is trained, and its speed in samples per second
follows from the time of a step with batch / ranks samples on each rank. Larger local batches than measured are
accumulated, as in the artifact: each extra part takes the time of a step without its synchronisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TypeVar

from agent.schema.errors import TraceError
from scheduler_feedback.policies.speeds.learnt_speeds import LEVELS
from scheduler_feedback.sim.table import CellError, Row, rows

TYPES = {"t4": ("aws", 4), "rtx": ("rtx", 8), "a100": ("dgx-ext", 8)}
"""GPU types of Sia's cluster: end of the names of their tables, and number of GPUs of a node."""

EPOCHS = {"bert": 2, "cifar10": 100, "deepspeech2": 80, "imagenet": 90, "ncf": 10, "yolov3": 50}
"""Epochs until a model is trained, as in the artifact (applications.py)."""

NODE, RACK = LEVELS.index("node"), LEVELS.index("rack")

LEAST_SECONDS = 1e-9
"""Shortest time of a step."""

Times = dict[int, tuple[float, float]]
"""(Seconds of a step, of them of its synchronisation) by local batch."""

_Measured = tuple[str, int, int, tuple[int, tuple[float, float]]]
"""(Placement, nodes, ranks, (local batch, times))."""

_TIMES = ("local_bsz", "step_time", "sync_time")

T = TypeVar("T")


def speed_lines(folder: Path, classes: Collection[tuple[str, int]]) -> Iterator[tuple[str, str, int, int, float]]:
    """Yield (workload, GPU type, ranks, placement level, samples per second) for models with global batches.

    folder: with a folder for each model. A workload is named MODEL-BATCH. Raises TraceError.
    """
    for model, batch in sorted(classes):
        for gpu_type, (_, gpus) in TYPES.items():
            for (nodes, ranks), measured in sorted(placements(folder / model, gpu_type).items()):
                if nodes > 1 and nodes != max(math.ceil(ranks / gpus), 2):
                    continue  # more nodes than a packed gang uses
                rates = [rate for times in measured if (rate := _rate(times, batch, ranks)) is not None]
                if rates:
                    level = NODE if nodes == 1 else RACK
                    yield f"{model}-{batch}", gpu_type, ranks, level, sum(rates) / len(rates)


def samples(folder: Path, model: str, batch: int) -> int:
    """Return the samples until the model is trained with this global batch. Raises TraceError."""
    if model not in EPOCHS:
        raise TraceError(f"the model {model[:40]!r} is not one of {', '.join(EPOCHS)}")
    files = {_batch(path): path for path in (folder / model).glob("validation-*.csv")}
    if not files:
        raise TraceError(f"{folder / model}: no file validation-BATCH.csv")
    low = max((size for size in files if size <= batch), default=min(files))
    high = min((size for size in files if size >= batch), default=max(files))
    steps = [_iterations(files[size], EPOCHS[model]) for size in (low, high)]
    share = 0.0 if low == high else (batch - low) / (high - low)
    return round(batch * (steps[0] + share * (steps[1] - steps[0])))


def _batch(path: Path) -> int:
    name = path.stem.removeprefix("validation-")
    if not (name.isascii() and name.isdecimal() and len(name) <= 9):
        raise TraceError(f"{path}: the name is not validation-BATCH.csv")
    return int(name)


def _iterations(path: Path, epochs: int) -> float:
    found = list(_values(path, ("iteration",), lambda row: row.number("iteration")))
    if len(found) < epochs:
        raise TraceError(f"{path}: has {len(found)} epochs; {epochs} are needed")
    return found[epochs - 1]


def placements(folder: Path, gpu_type: str) -> dict[tuple[int, int], list[Times]]:
    """Return the times of all measured placements of a model by (nodes, ranks). Raises TraceError."""
    found: dict[tuple[int, int], dict[str, Times]] = {}
    suffix = TYPES[gpu_type][0]
    for file, needed, convert in (
        (f"placements-{suffix}.csv", ("placement",), _placement),
        (f"scalability-{suffix}.csv", ("num_nodes", "num_replicas"), _scale),
    ):
        for name, nodes, ranks, (local, times) in _values(folder / file, (*needed, *_TIMES), convert):
            found.setdefault((nodes, ranks), {}).setdefault(name, {})[local] = times
    return {key: list(one.values()) for key, one in found.items()}


def _placement(row: Row) -> _Measured:
    placement = row.text("placement")
    if not (placement.isascii() and placement.isdecimal() and placement.strip("0")):
        raise row.wrong("placement", f"{placement[:40]!r} is not the ranks of each node, one digit each")
    return placement, len(placement), sum(map(int, placement)), _times(row)


def _scale(row: Row) -> _Measured:
    return "", row.count("num_nodes", 1), row.count("num_replicas", 1), _times(row)


def _times(row: Row) -> tuple[int, tuple[float, float]]:
    return max(round(row.number("local_bsz")), 1), (row.number("step_time", LEAST_SECONDS), row.number("sync_time"))


def _values(path: Path, needed: tuple[str, ...], convert: Callable[[Row], T]) -> Iterator[T]:
    """Yield the value of each row of a table. Raises TraceError for a bad one: measurements are complete or not
    used."""
    try:
        for row in rows(path, needed):
            if isinstance(row, CellError):
                raise row
            yield convert(row)
    except CellError as error:
        raise TraceError(f"{path}: {error}") from error


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
