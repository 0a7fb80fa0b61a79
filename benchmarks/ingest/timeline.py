"""Jobs that start and end on the nodes of a simulated cluster, determined by the seed.

All processes of a benchmark compute the same jobs: simulated agents, fake Slurm and scoring.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.ingest.frames import GPUS, STEP_SECONDS, Job

MOST_NODES = 375
"""Nodes of the largest job: 3,000 ranks."""

SIZES_EXPONENT = 1.65
"""Exponent of the sizes' power law. It gives 12.5 nodes a job on average: 1,000 jobs on 12,500 nodes."""

SLOWER = 1.4
"""Factor by which a disturbed rank computes slower."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of the simulated jobs. Times are on the machine's monotonic clock, in nanoseconds."""

    nodes: int
    seed: int
    begun_ns: int
    """Start of the first jobs."""
    disturbed_ns: int
    """Time from which ranks are disturbed. Jobs that start later are disturbed from their start."""
    lifetime_seconds: float
    """Mean time from the start of a job to its end."""
    disturbed_share: float = 0.01
    """Share of the ranks that are disturbed."""
    step_seconds: Sequence[float] = STEP_SECONDS
    """Shortest and longest step of the jobs."""


@dataclass(frozen=True, slots=True)
class Run:
    """One job from its start to its end, on nodes first_node, ..., first_node + nodes - 1."""

    number: int
    """Slurm's number of the job."""
    first_node: int
    nodes: int
    begun_ns: int
    ends_ns: int
    step_ns: int
    disturbed_ns: int
    """Time from which the ranks in `slow` are disturbed."""
    slow: frozenset[int]

    @property
    def gang(self) -> str:
        """Name of the gang, as agents derive it from the control group of a Slurm job step."""
        return f"slurm-{self.number}.0"

    def job_on(self, node: int) -> Job:
        """Return the part of the job that runs on one of its nodes."""
        first_rank = (node - self.first_node) * GPUS
        return Job(self.gang, first_rank, self.step_ns, self.begun_ns, self.disturbed_ns, SLOWER, self.slow)


def sizes(nodes: int, seed: int) -> list[int]:
    """Return numbers of nodes of concurrent jobs, which together fill the cluster."""
    random = np.random.default_rng((seed, 1))
    power = 1.0 - SIZES_EXPONENT
    found: list[int] = []
    left = nodes
    while left:
        drawn = (1.0 + random.uniform() * ((MOST_NODES + 1.0) ** power - 1.0)) ** (1.0 / power)
        found.append(min(int(drawn), left))
        left -= found[-1]
    return found


def runs(plan: Plan, place: int, places: int, first_node: int, nodes: int) -> Iterator[Run]:
    """Yield the jobs that run one after the other on the same group of nodes.

    place: index of the group. places: number of groups. first_node, nodes: the group's nodes.
    """
    random = np.random.default_rng((plan.seed, 2, place))
    begun_ns, number = plan.begun_ns, 1 + place
    while True:
        ends_ns = begun_ns + max(1, int(random.exponential(plan.lifetime_seconds) * 1e9))
        slow = np.flatnonzero(random.uniform(size=nodes * GPUS) < plan.disturbed_share).tolist()
        step_ns = int(math.exp(random.uniform(*np.log(plan.step_seconds))) * 1e9)
        disturbed_ns = max(begun_ns, plan.disturbed_ns)
        yield Run(number, first_node, nodes, begun_ns, ends_ns, step_ns, disturbed_ns, frozenset(slow))
        begun_ns, number = ends_ns, number + places


class Timeline:
    """Running jobs of a plan, at a time that only advances."""

    def __init__(self, plan: Plan) -> None:
        self._queues: list[Iterator[Run]] = []
        self._ends: list[tuple[int, int]] = []
        self.running: list[Run] = []
        all_sizes: Sequence[int] = sizes(plan.nodes, plan.seed)
        node = 0
        for place, count in enumerate(all_sizes):
            queue = runs(plan, place, len(all_sizes), node, count)
            self._queues.append(queue)
            self.running.append(next(queue))
            heapq.heappush(self._ends, (self.running[-1].ends_ns, place))
            node += count

    def advance(self, now_ns: int) -> list[Run]:
        """Advance to this time. Return the jobs that have started since the last call and still run."""
        changed: set[int] = set()
        while self._ends[0][0] <= now_ns:
            _, place = heapq.heappop(self._ends)
            self.running[place] = next(self._queues[place])
            heapq.heappush(self._ends, (self.running[place].ends_ns, place))
            changed.add(place)
        return [self.running[place] for place in sorted(changed)]
