"""Step times as the ranks themselves recorded them, and the speed of the machine during a run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

RECORD = np.dtype([("step", "<i8"), ("end_ns", "<i8")])
"""A record of programs/job.py."""

Times = npt.NDArray[np.int64]


def read(folder: Path, job: str, rank: int) -> Times:
    """Return the ends of a rank's steps, in nanoseconds of the monotonic clock; empty if it has made none."""
    path = folder / f"{job}.{rank}.steps"
    content = path.read_bytes() if path.exists() else b""
    whole = len(content) // RECORD.itemsize * RECORD.itemsize
    return np.frombuffer(content[:whole], RECORD)["end_ns"]


def count(folder: Path, job: str, ranks: int) -> int:
    """Return the number of steps that every rank has finished."""
    return min(len(read(folder, job, rank)) for rank in range(ranks))


def mean_seconds(ends: Times, begin_ns: int, end_ns: int) -> float | None:
    """Return the mean duration of the steps between two times; None if fewer than two steps ended there.

    The last step is counted up to the end of the interval, so that a job that stops has a long step.
    """
    inside = ends[(ends > begin_ns) & (ends <= end_ns)]
    return (end_ns - begin_ns) / 1e9 / len(inside) if len(inside) >= 2 else None


def severity(before: float | None, during: float | None, after: float | None) -> float | None:
    """Return by how much a fault lengthened a step: 1.5 means half as long again; None if a mean is unknown.

    The arguments are the mean step times before, with and after the fault. The comparison is the geometric mean of the
    undisturbed periods, so that a steady change of the machine's speed cancels out.
    """
    if before is None or during is None or after is None:
        return None
    return during / math.sqrt(before * after)


def schedule(pid: int) -> tuple[float, float]:
    """Return the seconds that a process's threads ran and waited for a processor; zeros if the process has ended."""
    ran = waited = 0.0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            one, other, _ = path.read_text().split()
        except (OSError, ValueError):
            continue
        ran, waited = ran + int(one) / 1e9, waited + int(other) / 1e9
    return ran, waited
