"""Results of a simulation: the figures of `gangwatch simulate --json`.

=================== =================================================================================================
avg/p50/p99_jct     submission to end
makespan            first submission to last end
avg_queue_seconds   all of a job's waiting time, including after a preemption
utilization         slot-seconds held by gangs / (all slots x makespan)
fragmentation       share of the free slots that are on partly used nodes, averaged over time and free slots
decisions           starts and stops decided; decision_ms is of one run of the cycle
=================== =================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scheduler_feedback.sim.truth import Course


@dataclass(slots=True)
class Account:
    """Counters of a running simulation."""

    capacity: Mapping[str, int]
    """Number of slots of each node, by node name."""
    free: dict[str, int] = field(init=False)
    """Number of free slots of each node, by node name."""
    free_slots: int = field(init=False)
    """Number of free slots on all nodes."""
    scattered_slots: int = 0
    """Number of free slots on partly used nodes."""
    since_ns: int | None = None
    """Simulated time of the last update, in nanoseconds; None before the first."""
    held_slot_ns: int = 0
    """Time for which gangs held slots, in nanoseconds summed over all slots."""
    doubled_slots: int = 0
    """Number of slots that gangs hold, minus the number of different slots: jobs that share slots count one each."""
    free_slot_ns: int = 0
    """Time for which slots were free, in nanoseconds summed over all slots."""
    scattered_slot_ns: int = 0
    """Time for which slots on partly used nodes were free, in nanoseconds summed over these slots."""
    preemptions: int = 0
    """Number of attempts that were stopped so that another gang could use their slots."""
    migrations: int = 0
    """Number of moves of gangs."""
    failures: int = 0
    """Number of attempts that ended because a node failed."""
    backfilled: int = 0
    """Number of jobs that started before an earlier pending job."""
    decisions: int = 0
    """Number of starts and stops that the cycle decided."""
    cycle_seconds: list[float] = field(default_factory=list)
    """Run time of each cycle in seconds."""

    def __post_init__(self) -> None:
        self.free = dict(self.capacity)
        self.free_slots = sum(self.capacity.values())

    def pass_time(self, now_ns: int) -> None:
        """Add the time since the last update to the counters of free slots, and set the time of the update."""
        if self.since_ns is not None:
            passed = now_ns - self.since_ns
            self.free_slot_ns += self.free_slots * passed
            self.held_slot_ns -= self.doubled_slots * passed
            self.scattered_slot_ns += self.scattered_slots * passed
        self.since_ns = now_ns

    def take(self, nodes: Mapping[str, int]) -> None:
        """Count these slots of each node as used. A negative number counts slots as free again."""
        for name, count in nodes.items():
            before, all_of_it = self.free[name], self.capacity[name]
            after = before - count
            self.free[name] = after
            self.free_slots -= count
            self.scattered_slots += (after if after < all_of_it else 0) - (before if before < all_of_it else 0)

    def give(self, nodes: Mapping[str, int]) -> None:
        """Count these slots of each node as free again."""
        self.take({name: -count for name, count in nodes.items()})


@dataclass(frozen=True, slots=True)
class Report:
    """Figures that `gangwatch simulate --json` prints, in this order."""

    jobs: int
    avg_jct_seconds: float | None
    p50_jct_seconds: float | None
    p99_jct_seconds: float | None
    makespan_seconds: float
    avg_queue_seconds: float | None
    utilization: float
    fragmentation: float
    preemptions: int
    migrations: int
    failures: int
    backfilled: int
    wall_seconds: float
    jobs_per_second: float
    decisions: int
    decision_ms: dict[str, float | None]
    per_queue: dict[str, dict[str, float | int | None]]
    max_queue_seconds: float | None
    unfinished: int
    refused: list[dict[str, str | int]]
    notes: list[str]
    power: dict[str, float] | None = None
    """Energy of all GPUs in kWh, and their highest power in watts; None if the GPUs have no power model."""


def _quantile(values: NDArray[np.float64], share: float) -> float | None:
    """Return a quantile: the smallest value that at least this share of the values does not exceed. None if there are
    no values."""
    if not values.size:
        return None
    return float(np.sort(values)[max(math.ceil(share * values.size) - 1, 0)])


def _mean(values: NDArray[np.float64]) -> float | None:
    return float(values.mean()) if values.size else None


def report(
    account: Account,
    courses: Sequence[Course],
    wall_seconds: float,
    refused: Sequence[dict[str, str | int]],
    notes: Sequence[str],
    power: dict[str, float] | None = None,
) -> Report:
    """Return the figures of a finished simulation."""
    ended = [course for course in courses if course.ended_ns is not None]
    jct = np.array([((course.ended_ns or 0) - course.submitted_ns) / 1e9 for course in ended])
    queued = np.array([course.waiting_ns / 1e9 for course in ended])
    queues = np.array([course.job.spec.queue for course in ended])
    first = min((course.submitted_ns for course in ended), default=0)
    makespan_ns = max((course.ended_ns or 0 for course in ended), default=0) - first
    cycles = np.array(account.cycle_seconds) * 1e3
    return Report(
        jobs=len(ended),
        avg_jct_seconds=_mean(jct),
        p50_jct_seconds=_quantile(jct, 0.5),
        p99_jct_seconds=_quantile(jct, 0.99),
        makespan_seconds=makespan_ns / 1e9,
        avg_queue_seconds=_mean(queued),
        utilization=account.held_slot_ns / (sum(account.capacity.values()) * makespan_ns) if makespan_ns else 0.0,
        fragmentation=account.scattered_slot_ns / account.free_slot_ns if account.free_slot_ns else 0.0,
        preemptions=account.preemptions,
        migrations=account.migrations,
        failures=account.failures,
        backfilled=account.backfilled,
        wall_seconds=wall_seconds,
        jobs_per_second=len(ended) / wall_seconds if wall_seconds > 0 else 0.0,
        decisions=account.decisions,
        decision_ms={"p50": _quantile(cycles, 0.5), "p99": _quantile(cycles, 0.99)},
        per_queue={
            str(name): {
                "jobs": int((queues == name).sum()),
                "avg_jct_seconds": _mean(jct[queues == name]),
                "p99_jct_seconds": _quantile(jct[queues == name], 0.99),
                "avg_queue_seconds": _mean(queued[queues == name]),
            }
            for name in sorted(set(queues.tolist()))
        },
        max_queue_seconds=float(queued.max()) if queued.size else None,
        unfinished=len(courses) - len(ended),
        refused=list(refused),
        notes=list(notes),
        power=power,
    )
