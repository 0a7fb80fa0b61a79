"""Measurement of our scheduler: ``cycle.run`` with topology as in production, but without the journal."""

from __future__ import annotations

import resource
import time
from dataclasses import replace

from benchmarks.scheduler.gangs import (
    GPUS,
    RACK_NODES,
    SPINE_RACKS,
    Gang,
    free_nodes,
    head,
    large_nodes,
    small,
    waiting,
)
from scheduler_feedback import cycle
from scheduler_feedback.core.actions import StartGang
from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.events import AttemptEnded, Event, NodeSeen, PolicySet, Submitted
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Backfilling, Policy, State

SECOND = 1_000_000_000
START_NS = 1_700_000_000 * SECOND


class Cluster:
    """A simulated cluster: the scheduler's state and the time. Jobs are numbered in the order of submission."""

    def __init__(self, nodes: int) -> None:
        self.state = State(policy=Policy(start_timeout_seconds=0.0))
        self.now_ns = START_NS
        self.jobs = 0
        self.run(
            *(
                NodeSeen(
                    f"n{number:05d}",
                    GPUS,
                    rack=f"r{number // RACK_NODES:04d}",
                    spine=f"s{number // RACK_NODES // SPINE_RACKS:02d}",
                )
                for number in range(nodes)
            )
        )

    def run(self, *events: Event) -> tuple[cycle.Outcome, float]:
        """Run one cycle, one second after the last one; return its outcome and its duration in seconds."""
        self.now_ns += SECOND
        began = time.perf_counter()
        outcome = cycle.run(self.state, events, self.now_ns)
        return outcome, time.perf_counter() - began

    def job(self, ranks: int, limit_seconds: float = 3600.0, level: Level | None = None) -> Submitted:
        self.jobs += 1
        spec = JobSpec("gang", ("train",), ranks, time_limit_seconds=limit_seconds, required_level=level)
        return Submitted(f"j-{self.jobs:06d}", spec)

    def gang(self, gang: Gang) -> Submitted:
        return self.job(gang.ranks, gang.limit_seconds)


def started(outcome: cycle.Outcome) -> list[str]:
    return [action.job_id for action in outcome.actions if isinstance(action, StartGang)]


def measure(nodes: int) -> dict[str, float | int]:
    """Measure our scheduler in all cases and return the figures."""
    cluster = Cluster(nodes)
    outcome, seconds = cluster.run(*(cluster.gang(gang) for gang in small(min(3000, nodes))))
    gangs = started(outcome)
    gang_ms = seconds * 1e3 / max(len(gangs), 1)

    outcome, seconds = cluster.run(cluster.job(large_nodes(nodes) * GPUS))
    assert len(started(outcome)) == 1, "the gang must start: it fits"
    gang512_ms = seconds * 1e3

    outcome, seconds = cluster.run(cluster.job(RACK_NODES * GPUS + 1, level=Level.RACK))
    reasons = [entry.text for entry in outcome.entries if entry.kind == "waits"]
    assert len(reasons) == 1 and not started(outcome)
    unschedulable_ms = seconds * 1e3

    # Fill the free slots except for one in each node that has one; then submit a gang for the whole cluster.
    free = (nodes - large_nodes(nodes)) * GPUS - 3 * len(gangs)
    cluster.run(*(cluster.job(8, 7200.0 + number) for number in range(free // 8)))
    cluster.run(cluster.job(nodes * GPUS, 3600.0))
    assert cluster.state.reserved_for is not None
    cluster.run(*(cluster.job(1 + number % 64, 4000.0 + number) for number in range(10_000)))
    waiting = f"j-{cluster.jobs:06d}"
    ended = AttemptEnded(gangs[0], 1, (), all_exited_with=0)
    _, cycle_seconds = cluster.run(ended)

    began = time.perf_counter()
    explained = cycle.explain(cluster.state, waiting)
    explain_ms = (time.perf_counter() - began) * 1e3
    assert explained is not None
    return {
        "nodes": nodes,
        "gangs": len(gangs),
        "gang_ms": round(gang_ms, 3),
        "gang512_ms": round(gang512_ms, 2),
        "unschedulable_ms": round(unschedulable_ms, 2),
        "explain_ms": round(explain_ms, 2),
        "cycle10k_seconds": round(cycle_seconds, 4),
        "rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def warm(nodes: int) -> Cluster:
    """Return a cluster after one cycle, in which the scheduler has built its indexes of nodes."""
    cluster = Cluster(nodes)
    outcome, _ = cluster.run(cluster.job(1))
    (first,) = started(outcome)
    cluster.run(AttemptEnded(first, 1, (), all_exited_with=0))
    return cluster


def measure_slurm_cases(nodes: int, gangs: int, behind: int) -> dict[str, object]:
    """Return our scheduler's figures for the cases that ``slurm.measure`` also measures."""
    cluster = warm(nodes)
    outcome, seconds = cluster.run(*(cluster.gang(gang) for gang in small(gangs)))
    begun = len(started(outcome))

    cluster = warm(nodes)
    outcome, large_seconds = cluster.run(cluster.gang(Gang(large_nodes(nodes) * GPUS, 3600)))
    assert len(started(outcome)) == 1
    too_large = JobSpec("gang", ("train",), (nodes + 1) * GPUS)
    at = time.perf_counter()
    refused = cycle.admit_check(cluster.state, too_large)
    refused_seconds = time.perf_counter() - at
    assert refused is not None

    passes: dict[str, dict[str, object]] = {}
    for name, backfill in (("easy", Backfilling.EASY), ("planning", Backfilling.CONSERVATIVE)):
        cluster = Cluster(nodes)
        cluster.run(PolicySet(replace(cluster.state.policy, backfill=backfill)))
        cluster.run(cluster.gang(Gang((nodes - free_nodes(nodes)) * GPUS, 7200)))
        outcome, _ = cluster.run(cluster.job(1))
        (last,) = started(outcome)
        cluster.run(cluster.gang(head(nodes)))
        cluster.run(*(cluster.gang(gang) for gang in waiting(behind)))
        outcome, pass_seconds = cluster.run(AttemptEnded(last, 1, (), all_exited_with=0))
        assert not started(outcome), "no gang may start: it would delay the head"
        passes[name] = {"cycle_seconds": round(pass_seconds, 4), "seen": behind + 1}
    return {
        "gangs": begun,
        "gang_ms": round(seconds * 1e3 / max(begun, 1), 3),
        "large_gang_ms": round(large_seconds * 1e3, 2),
        "too_large_ms": round(refused_seconds * 1e3, 3),
        **passes,
    }
