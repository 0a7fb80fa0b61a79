"""One synthetic job: own times and communication times with and without the fault, and the true fault."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.traces.model import FloatArray, Layout, step_seconds

Waits = Literal["known", "null", "absent", "own"]
WAITS: tuple[Waits, ...] = ("known", "null", "absent", "own")
"""How a file reports waits: as seconds, as the JSON value null, or without the key. In a file with "own", the times of
steps have no waits: they end before the collective. It is never chosen at random, so that seeds keep their traces."""


@dataclass(slots=True)
class Truth:
    """The true fault of a trace. It is written to a JSON file next to the trace."""

    name: str
    """Name of the class."""
    healthy: bool
    """Whether no hardware and no other job is at fault."""
    layout: str
    """Kind of parallelism."""
    ranks: int
    """Number of ranks."""
    steps: int
    """Number of different step numbers."""
    waits: Waits
    """How the file reports waits."""
    per_node: int
    """Ranks of a node."""
    severity: float = 0.0
    """Relative increase of the culprits' own time, or of the communication time."""
    culprits: list[int] = field(default_factory=list)
    """Ranks at fault."""
    node: int = -1
    """Node at fault; -1 if single ranks are at fault."""
    kinds: list[str] = field(default_factory=list)
    """Kinds of verdicts that are right about the fault."""
    onset: int = -1
    """First affected step."""
    end: int = -1
    """Last affected step."""
    cost: float = 1.0
    """Mean length of the affected steps, divided by their mean length without the fault."""
    cost_of: dict[int, float] = field(default_factory=dict)
    """The same figure for each culprit if it were the only one."""
    gain: float = 0.0
    """Part of the whole trace's time that is lost to the fault."""
    localisable: bool = True
    """Whether step times with known waits can show the culprit. False for faults of the shared network."""
    note_step: int = -1
    """Step of a healthy trace that a report has to mention; -1: none."""
    own_causes: list[str] = field(default_factory=list)
    """Causes of verdicts about the job's own work that are true."""
    standing: list[int] = field(default_factory=list)
    """Healthy ranks that are at least 3 % slower than the median of the others of their stage in the whole trace."""
    neighbours: list[str] = field(default_factory=list)
    """Names of the neighbour jobs; the first one disturbs."""
    cause: str = ""
    """Cause of the fault, in a trace with counters; see ``hardware.Origin``."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Job:
    """A synthetic job under construction, with k steps of n ranks."""

    rng: np.random.Generator
    """Source of all random choices."""
    layout: Layout
    """Places of the ranks."""
    own: FloatArray
    """float64 [k, n]: seconds that each rank computes without the fault."""
    comm: FloatArray
    """float64 [k]: seconds of communication without the fault."""
    truth: Truth
    """Ground truth, completed by `finish`."""
    faulty_own: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    """float64 [k, n]: own seconds with the fault."""
    faulty_comm: FloatArray = field(default_factory=lambda: np.zeros(0))
    """float64 [k]: seconds of communication with the fault."""
    tokens: FloatArray | None = None
    """float64 [k, n]: work of each rank, if the job reports it."""
    lost: npt.NDArray[np.bool_] | None = None
    """bool [k, n]: samples that the file does not contain."""
    clock_error: FloatArray | None = None
    """float64 [k, n]: seconds that a rank's clock adds to its measured step."""
    repeats: list[tuple[int, int]] = field(default_factory=list)
    """(first, last) numbers of steps that the job ran again after a restart."""
    seconds: FloatArray = field(default_factory=lambda: np.zeros(0))
    """float64 [k]: lengths of the steps. Computed by `finish`."""

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        return len(self.own)

    def node_factor(self, values: FloatArray) -> FloatArray:
        """Return the value of each rank's node: float64 [n]. values: one per node."""
        return np.asarray(values[self.layout.node_of()])

    def nodes(self) -> int:
        """Return the number of nodes."""
        return int(self.layout.node_of()[-1]) + 1

    def begin_fault(self) -> None:
        """Copy the healthy times. The fault then changes only the copies."""
        self.faulty_own, self.faulty_comm = self.own.copy(), self.comm.copy()

    def finish(self) -> None:
        """Compute the steps, the time lost to the fault, and the ranks that are slow in the whole trace."""
        truth = self.truth
        without = step_seconds(self.layout, self.own, self.comm)
        if not len(self.faulty_own):
            self.begin_fault()
        self.seconds = step_seconds(self.layout, self.faulty_own, self.faulty_comm)
        if truth.onset >= 0:
            during = slice(truth.onset, truth.end + 1)
            base = float(without[during].mean())
            truth.cost = float(self.seconds[during].mean()) / base
            truth.gain = 1.0 - float(without.sum()) / float(self.seconds.sum())
            for rank in truth.culprits:
                alone = self.own[during].copy()
                alone[:, rank] = self.faulty_own[during, rank]
                truth.cost_of[rank] = float(step_seconds(self.layout, alone, self.faulty_comm[during]).mean()) / base
        usual = np.median(self.own, axis=0)
        stages = self.layout.stage_of()
        for stage in range(self.layout.stages):
            members = np.flatnonzero(stages == stage)
            for rank in members.tolist():
                middle = float(np.median(usual[members[members != rank]])) if len(members) > 1 else np.inf
                if usual[rank] >= 1.03 * middle and rank not in truth.culprits:
                    truth.standing.append(rank)
