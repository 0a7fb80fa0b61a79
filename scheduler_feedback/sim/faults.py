"""Faults: which node becomes slow, when, how much, for how long. Drawn before anything runs, from a seed.

Two kinds, because the literature counts in two ways:

* **by job** (`transient`): Greyhound (Wu et al., ATC'25) counts jobs that were hit, and for how long. Each job draws
  whether it is hit, at which share of its work, at which of its ranks, and how hard; when the job has come so far, the
  node that this rank is on becomes slow. So the same jobs are hit at the same points whatever the scheduler does, and
  runs of one seed can be compared pair by pair.
* **by node** (`persistent`, files): a node is bad from an instant on, until it is repaired.

Sizes are drawn log-uniformly between the smallest that the literature calls fail-slow (10 %: Greyhound's change test)
and the largest that was measured.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.schema.errors import TraceError
from scheduler_feedback.core.cycle_context import nanoseconds
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.sim.table import CellError, rows
from scheduler_feedback.sim.trace import LONGEST_SECONDS, TraceJob

LEAST_SLOWDOWN = 1.1
TRANSIENT_MOST = 2.35
"""The slowest worker of bytedance-AR (compute of rank 0 against the median of its stage) and of pai-job1."""
PERSISTENT_MOST = 3.04
"""Where bad workers dominate, the mean of the job's slowdown (What-if analysis / SMon, OSDI'25)."""

MOST_SLOWDOWN = 1000.0
"""Of a fault in a file: what is slower does not run."""


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A node is slow from begin_ns on, for so long. slowdown: run time there / run time on a sound node."""

    node: str
    begin_ns: int
    lasts_ns: int
    slowdown: float


@dataclass(frozen=True, slots=True)
class JobFault:
    """A job is hit when so much of its work is done: the node of this rank becomes slow."""

    at_work_ns: int
    rank: int
    lasts_ns: int
    slowdown: float


@dataclass(frozen=True, slots=True)
class Faults:
    """All faults of one simulation. by_job: by job id."""

    by_node: tuple[NodeFault, ...] = ()
    by_job: dict[str, JobFault] | None = None


@dataclass(frozen=True, slots=True)
class _Class:
    """Jobs of Greyhound's study that are alike. least_gpus: of the class. hit: share of its jobs."""

    least_gpus: int
    hit: float
    mean_seconds: float


_GREYHOUND = (
    _Class(512, 16 / 27, 72 * 60.0),
    _Class(9, 43 / 107, 24 * 60.0),  # their four-node jobs stand for all that need more than one node of 8
    _Class(1, 6 / 392, 10 * 60.0),
)
"""Hit jobs / jobs, and how long they were slow on average (Greyhound: 4 + 2 of 392; 42 + 1 of 107; 13 + 3 of 27)."""

_LENGTH_SIGMA = 1.5
"""Of a log-normal: with means of 10 to 72 minutes it spans the published "sub-minutes to nearly ten hours"."""

_BAD_SHARE = 0.017
"""Of the nodes at any time: SMon found bad workers dominant in 1.7 % of slow jobs; no study counts nodes."""
_REPAIR_DAYS = 28.0
"""Mean time until a bad node is repaired: over so many days Meta's operators look for lemon nodes (Kokolis et al.)."""


def life(ranks: int) -> tuple[float, float]:
    """Mean, in seconds, and sigma of the logarithm, of how long a job of this size is slow once it is hit."""
    return _class_of(ranks).mean_seconds, _LENGTH_SIGMA


def _class_of(ranks: int) -> _Class:
    return next(one for one in _GREYHOUND if ranks >= one.least_gpus)


def transient(jobs: Sequence[TraceJob], seed: int) -> Faults:
    """Faults by job at the published rates and lengths."""
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
    """Bad nodes, in equilibrium from the first instant on: so many are bad already, others become so."""
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
    """Faults by node from a table: node, begin_seconds (after the first submission), seconds, slowdown (at least 1).

    Raises TraceError naming line and column.
    """
    known = {node.node for node in nodes}
    found: list[NodeFault] = []
    for row in rows(path, ("node", "begin_seconds", "seconds", "slowdown")):
        try:
            if isinstance(row, CellError):
                raise row
            if row.text("node") not in known:
                raise row.wrong("node", f"{row.text('node')!r} is no node of this cluster")
            begin_ns = first_ns + nanoseconds(row.number("begin_seconds", most=LONGEST_SECONDS))
            lasts_ns = nanoseconds(row.number("seconds", most=LONGEST_SECONDS))
            found.append(NodeFault(row.text("node"), begin_ns, lasts_ns, row.number("slowdown", 1.0, MOST_SLOWDOWN)))
        except CellError as error:
            raise TraceError(f"{path}: {error}") from error
    return Faults(by_node=tuple(found))


FAULT_PRESETS = ("transient", "persistent")
"""Names that `--faults` knows beside files."""


def faults_of(
    text: str | None, jobs: Sequence[TraceJob], nodes: Sequence[NodeSeen], first_ns: int, last_ns: int, seed: int
) -> Faults:
    """What `--faults` names. Raises TraceError."""
    if text is None:
        return Faults()
    if text == "transient":
        return transient(jobs, seed)
    if text == "persistent":
        return persistent(nodes, first_ns, last_ns, seed)
    path = Path(text)
    if not path.is_file():
        raise TraceError(f"--faults {text}: neither {' nor '.join(FAULT_PRESETS)} nor a file")
    return read(path, nodes, first_ns)
