"""Rivals: several neighbours whose loads all correlate with one job's loss, of which one at most is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import JobTelemetry
from scheduler_feedback.core.verdict import Abstention
from scheduler_feedback.detectors.stats.correlation import LATE, explains_better

RIVAL_CORRELATION = 0.1
"""A neighbour is a rival of another one from this correlation of its load with the loss. It is lower than for a
verdict: a neighbour that is not certain yet may still be the right one."""


@dataclass(frozen=True, slots=True)
class Series:
    """The loss of a job, and the load of one neighbour. Both have one value for each window or step, newest last."""

    aggressor: str
    """Name of the neighbour."""
    lost: FloatArray
    """Loss of the job as a share of its usual step; NaN if unknown."""
    load: FloatArray
    """Load of the neighbour on the shared resource; NaN if unknown."""
    late: int = LATE
    """Number of windows or steps by which the loss may follow the load."""


def equal_rivals(best: Series, all_found: Sequence[Series]) -> tuple[str, ...]:
    """Return the names of the other neighbours that explain the loss about as well as the best one.

    all_found: the series of all neighbours whose load correlates at least by RIVAL_CORRELATION, `best` included.
    """
    rivals = (one for one in all_found if one.aggressor != best.aggressor)
    equal = (one.aggressor for one in rivals if not explains_better(best.lost, best.load, one.load, best.late))
    return tuple(sorted(set(equal)))


def not_distinguished(job: JobTelemetry, names: Sequence[str], now_ns: int, detector: str) -> Abstention:
    """Return an abstention that names all neighbours of which one may disturb the job."""
    shape = job.shape
    words = (
        f"the load of each of the jobs {', '.join(sorted(names))} rises and falls with the loss of this job, and none "
        "explains it better than the others"
    )
    return Abstention(shape.job, shape.attempt, None, now_ns, words, (), detector)
