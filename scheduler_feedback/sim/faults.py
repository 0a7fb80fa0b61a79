"""Faults: slow and failing nodes with their start and duration, drawn from a seed before the simulation runs.

There are two kinds, because the literature has two measures:

* **by job** (`transient`): Greyhound (Wu et al., ATC'25) counts jobs that a fault hit, and its duration. For each job,
  the draw decides whether it is hit, at which share of its work, at which rank, and the size. Once the job has done
  that share, the node of that rank becomes slow. The same jobs are hit at the same points whatever the scheduler does,
  so runs with one seed can be compared pair by pair.
* **by node** (`persistent`, files): a node is slow from a given time until it is repaired.

`failures` are nodes that fail and return (``failures.py``).

Sizes are drawn log-uniformly between the smallest fail-slow fault in the literature (10 %: Greyhound's change test) and
the largest measured one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.schema.errors import TraceError
from scheduler_feedback.core.durations import nanoseconds
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.sim.failures import NodeFailure, drawn
from scheduler_feedback.sim.job_trace import LONGEST_SECONDS, TraceJob
from scheduler_feedback.sim.table import CellError, rows

LEAST_SLOWDOWN = 1.1
TRANSIENT_MOST = 2.35
"""Largest slowdown of a fault that is drawn by job, taken from the slowest workers of two published traces. These
traces are bytedance-AR (compute time of rank 0 divided by the median of its stage) and pai-job1."""
PERSISTENT_MOST = 3.04
"""Largest slowdown of a fault that is drawn by node. It is the mean slowdown of jobs with a dominant bad worker
(What-if analysis / SMon, OSDI'25)."""

MOST_SLOWDOWN = 1000.0
"""Largest slowdown that a file of faults may contain: a node 1000 times slower than a healthy node."""


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A period in which a node is slow."""

    node: str
    """Name of the node."""
    begin_ns: int
    """Simulated time at which the fault begins, in nanoseconds."""
    lasts_ns: int
    """Duration of the fault in nanoseconds."""
    slowdown: float
    """Run time of a job on the node, divided by its run time on a healthy node."""


@dataclass(frozen=True, slots=True)
class JobFault:
    """A fault of one job. Once the job has done a given amount of work, the node of one of its ranks becomes slow."""

    at_work_ns: int
    """Work that the job has done when the fault begins, in nanoseconds of run time at full speed."""
    rank: int
    """Rank whose node becomes slow."""
    lasts_ns: int
    """Duration of the fault in nanoseconds."""
    slowdown: float
    """Run time of a job on the node, divided by its run time on a healthy node."""


@dataclass(frozen=True, slots=True)
class Faults:
    """All faults of one simulation. by_job: the fault of each affected job, by job id. failures: nodes that fail."""

    by_node: tuple[NodeFault, ...] = ()
    by_job: dict[str, JobFault] | None = None
    failures: tuple[NodeFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class _Class:
    """A size class of jobs in Greyhound's study, with the published frequency and duration of faults."""

    least_gpus: int
    """Minimum number of GPUs of a job in the class."""
    hit: float
    """Share of the class's jobs that a fault hit."""
    mean_seconds: float
    """Mean duration of the faults, in seconds."""


_GREYHOUND = (
    _Class(512, 16 / 27, 72 * 60.0),
    _Class(9, 43 / 107, 24 * 60.0),  # their four-node jobs represent all jobs on more than one node of 8
    _Class(1, 6 / 392, 10 * 60.0),
)
"""Size classes of jobs with their share of affected jobs and mean fault duration, from Greyhound's study. Faults
affected 16 of 27 jobs from 512 GPUs on, 43 of 107 jobs from 9 GPUs on, and 6 of 392 smaller jobs."""

_LENGTH_SIGMA = 1.5
"""Standard deviation of the logarithm of a fault's duration, which is log-normal. With means of 10 to 72 minutes, this
covers the published durations of "sub-minutes to nearly ten hours"."""

_BAD_SHARE = 0.017
"""Share of nodes that are slow at any time. No study counts slow nodes, so this is the share of slow jobs in which SMon
found a dominant bad worker (1.7 %)."""
_REPAIR_DAYS = 28.0
"""Mean days until a slow node is repaired. Meta's operators search for faulty nodes in this period (Kokolis et al.)."""


def life(ranks: int) -> tuple[float, float]:
    """Return a fault's mean duration in seconds, and the standard deviation of its logarithm, for jobs of this size."""
    return _class_of(ranks).mean_seconds, _LENGTH_SIGMA


def _class_of(ranks: int) -> _Class:
    return next(one for one in _GREYHOUND if ranks >= one.least_gpus)


def transient(jobs: Sequence[TraceJob], seed: int) -> Faults:
    """Draw at random which jobs a fault hits, with the published rates and durations."""
    found: dict[str, JobFault] = {}
    for job in jobs:
        draw = random.Random(f"{seed}/{job.job_id}")
        kind = _class_of(job.spec.ranks)
        hit, share, rank = draw.random() < kind.hit, draw.random(), draw.randrange(job.spec.ranks)
        length = kind.mean_seconds * math.exp(draw.gauss(0.0, _LENGTH_SIGMA) - _LENGTH_SIGMA**2 / 2)
        slowdown = _size(draw, TRANSIENT_MOST)
        if hit:
            at_work_ns = nanoseconds(share * job.run_seconds)
            found[job.job_id] = JobFault(at_work_ns, rank, nanoseconds(length), slowdown)
    return Faults(by_job=found)


def persistent(nodes: Sequence[NodeSeen], first_ns: int, last_ns: int, seed: int) -> Faults:
    """Draw random faults of nodes. Some nodes are slow from the start, and others become slow later."""
    found: list[NodeFault] = []
    repair_ns = nanoseconds(_REPAIR_DAYS * 86400)
    sound_ns = repair_ns * (1 - _BAD_SHARE) / _BAD_SHARE
    for node in nodes:
        draw = random.Random(f"{seed}/{node.node}")
        bad = draw.random() < _BAD_SHARE
        at_ns = first_ns
        while at_ns < last_ns:
            lasts_ns = round(draw.expovariate(1.0) * (repair_ns if bad else sound_ns))
            if bad:
                found.append(NodeFault(node.node, at_ns, lasts_ns, _size(draw, PERSISTENT_MOST)))
            at_ns += lasts_ns
            bad = not bad
    found.sort(key=lambda fault: (fault.begin_ns, fault.node))
    return Faults(by_node=tuple(found))


def _size(draw: random.Random, most: float) -> float:
    return LEAST_SLOWDOWN * math.exp(draw.random() * math.log(most / LEAST_SLOWDOWN))


def read(path: Path, nodes: Sequence[NodeSeen], first_ns: int) -> Faults:
    """Read faults by node from a table: node, begin_seconds (after the first submission), seconds, slowdown (>= 1).

    Raises TraceError with line and column.
    """
    known = {node.node for node in nodes}
    found: list[NodeFault] = []
    for row in rows(path, ("node", "begin_seconds", "seconds", "slowdown")):
        try:
            if isinstance(row, CellError):
                raise row
            if row.text("node") not in known:
                raise row.wrong("node", f"{row.text('node')!r} is not a node of this cluster")
            begin_ns = first_ns + nanoseconds(row.number("begin_seconds", most=LONGEST_SECONDS))
            lasts_ns = nanoseconds(row.number("seconds", most=LONGEST_SECONDS))
            found.append(NodeFault(row.text("node"), begin_ns, lasts_ns, row.number("slowdown", 1.0, MOST_SLOWDOWN)))
        except CellError as error:
            raise TraceError(f"{path}: {error}") from error
    return Faults(by_node=tuple(found))


FAULT_PRESETS = ("transient", "persistent", "failures")
"""Values of `--faults` that select built-in faults. Any other value is the path of a file."""


def faults_of(
    text: str | None, jobs: Sequence[TraceJob], nodes: Sequence[NodeSeen], first_ns: int, last_ns: int, seed: int
) -> Faults:
    """Return the faults that `--faults` selects. Raises TraceError."""
    if text is None:
        return Faults()
    if text == "transient":
        return transient(jobs, seed)
    if text == "persistent":
        return persistent(nodes, first_ns, last_ns, seed)
    if text == "failures":
        return Faults(failures=drawn(nodes, first_ns, last_ns, seed))
    path = Path(text)
    if not path.is_file():
        raise TraceError(f"--faults {text}: neither {' nor '.join(FAULT_PRESETS)} nor a file")
    return read(path, nodes, first_ns)
