"""Measured throughputs in the format of Gavel (Narayanan et al., OSDI'20): single jobs, and pairs of jobs on one GPU.

The file is a JSON object, such as scheduler/physical_cluster_throughputs.json of stanford-futuredata/gavel::

    {"v100": {"('ResNet-18 (batch size 16)', 1)": {
        "null": 32.4,                                           steps per second alone
        "('ResNet-50 (batch size 16)', 1)": [30.1, 4.2]}},      steps per second of both on one GPU
     "v100_unconsolidated": {...}}                              the same with the GPUs on different nodes

The number is that of GPUs. A rate of 0 means that the job does not run there, such as one that needs more memory.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from agent.schema.errors import TraceError
from scheduler_feedback.sim.speeds.measured_speeds import MOST_RATE, MeasuredSpeeds, measured_speeds

MOST_BYTES = 1 << 26
"""Largest file in bytes. Gavel's own have 600 kB."""

MOST_GPUS = 1 << 20
"""Largest number of GPUs of a job, as in the API."""

APART = "_unconsolidated"
"""End of the name of a GPU type whose lines are of jobs with GPUs on different nodes."""

ALONE = "null"
"""Key of the rate of a job that runs alone."""

NODE, RACK = 0, 1
"""Placement levels (``LEVELS``): all GPUs on one node, and on different nodes of one rack."""

_JOB = re.compile(r"\('(.+)', (\d{1,9})\)")


@dataclass(frozen=True, slots=False)
class GavelThroughputs:
    """The contents of a file."""

    alone: Mapping[tuple[str, str, int, int], float]
    """Steps per second by job type, GPU type, number of GPUs and placement level."""
    pairs: Mapping[str, Mapping[str, Mapping[str, float]]]
    """GPU type -> job type -> other job type on the same GPU -> speed of the first, relative to its speed alone."""

    @cached_property
    def reference(self) -> str:
        """GPU type on which most job types with one GPU are fastest. Run times of traces are those on this type."""
        best: dict[str, tuple[float, str]] = {}
        for (job_type, gpu_type, gpus, _), rate in sorted(self.alone.items()):
            if gpus == 1:
                best[job_type] = max(best.get(job_type, (0.0, "")), (rate, gpu_type))
        count = Counter(gpu_type for _, gpu_type in best.values())
        return min(count, key=lambda one: (-count[one], one), default="")

    def rate(self, job_type: str, gpus: int) -> float | None:
        """Return the steps per second on the reference type, on one node if it was measured there; None if unknown."""
        rates = (self.alone.get((job_type, self.reference, gpus, level)) for level in (NODE, RACK))
        return next((rate for rate in rates if rate is not None), None)

    @cached_property
    def speeds(self) -> MeasuredSpeeds:
        """Real speeds for a simulation. Run times of job types that the reference type lacks are those of another."""
        lines = sorted((job, kind != self.reference, kind, gpus, level) for job, kind, gpus, level in self.alone)
        return measured_speeds(
            (job, kind, gpus, level, self.alone[job, kind, gpus, level]) for job, _, kind, gpus, level in lines
        )


def is_gavel(path: Path) -> bool:
    """Return whether the file may be in this format: a JSON object with keys such as `('JOB TYPE', 1)`."""
    try:
        with path.open("rb") as file:
            start = file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
    except OSError:
        return False
    return start.startswith(b"{") and b"\"('" in start


def read_gavel(path: Path) -> GavelThroughputs:
    """Read a file. Raises TraceError that names the key with the problem."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise TraceError(f"{path}: is larger than {MOST_BYTES >> 20} MiB")
        document = json.loads(data)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not JSON: {error}") from error
    alone: dict[tuple[str, str, int, int], float] = {}
    together: dict[str, dict[str, dict[str, float]]] = {}
    try:
        for name, kind, jobs in _types(document):
            level = RACK if name.endswith(APART) else NODE
            for key, row in _items(jobs, name):
                job_type, gpus = _job(key, name)
                where = f"{name}, {key}"
                rates = dict(_items(row, where))
                mine = _rate(rates.get(ALONE, 0.0), f"{where}, {ALONE}")
                if mine > 0:
                    alone[job_type, kind, gpus, level] = mine
                if mine > 0 and gpus == 1 and level == NODE:
                    together.setdefault(kind, {})[job_type] = dict(_pairs(rates, mine, where))
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from error
    if not alone:
        raise TraceError(f"{path}: contains no speed")
    return GavelThroughputs(alone, together)


def _types(document: Any) -> Iterator[tuple[str, str, Any]]:
    for name, jobs in _items(document, "the file"):
        yield name, name.removesuffix(APART), jobs


def _items(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: is not a JSON object")
    yield from value.items()


def _job(key: str, where: str) -> tuple[str, int]:
    found = _JOB.fullmatch(key)
    if found is None or not 1 <= int(found[2]) <= MOST_GPUS:
        raise ValueError(f"{where}: the key {key[:60]!r} is not ('JOB TYPE', GPUS)")
    return found[1], int(found[2])


def _rate(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{where}: the rate is not a number")
    if not (value == 0 or 1 / MOST_RATE <= value <= MOST_RATE):
        raise ValueError(f"{where}: a rate of {value:g} is not from {1 / MOST_RATE:g} to {MOST_RATE:g}")
    return float(value)


def _pairs(rates: Mapping[str, Any], alone: float, where: str) -> Iterator[tuple[str, float]]:
    """Yield (other job type, speed of the first) for each pair on one GPU. A measured gain beyond 1 counts as 1."""
    for key, pair in rates.items():
        if key == ALONE:
            continue
        other, gpus = _job(key, where)
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"{where}, {key}: must be two rates")
        mine, _ = (_rate(one, f"{where}, {key}") for one in pair)
        if gpus == 1:
            yield other, min(mine / alone, 1.0)
