"""Classes of faults. Each changes the ranks' own times or the communication times, and records the true fault."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.traces.job import Job
from benchmarks.traces.workloads import gpu_spread

SLOW = ["straggler", "health"]
"""Kinds of verdicts that are right about slow hardware."""


def _window(job: Job, first: int, last: int | None = None) -> slice:
    """Record steps `first` to `last` as affected by the fault, and return them as a slice."""
    job.begin_fault()
    job.truth.onset, job.truth.end = first, job.steps - 1 if last is None else last
    return slice(first, job.truth.end + 1)


def _onset(job: Job) -> int:
    return int(job.rng.integers(job.steps * 3 // 10, job.steps * 6 // 10))


def _accuse(job: Job, ranks: list[int], node: int = -1) -> None:
    job.truth.culprits, job.truth.node, job.truth.kinds = sorted(ranks), node, list(SLOW)


def _any_rank(job: Job) -> int:
    return int(job.rng.integers(job.layout.ranks))


def one_rank(job: Job) -> None:
    """Slow one rank from some step on."""
    rank = _any_rank(job)
    window = _window(job, _onset(job))
    job.faulty_own[window, rank] *= 1.0 + job.truth.severity
    _accuse(job, [rank])


def from_start(job: Job) -> None:
    """Slow one rank in the whole trace."""
    rank = _any_rank(job)
    window = _window(job, 0)
    job.faulty_own[window, rank] *= 1.0 + job.truth.severity
    _accuse(job, [rank])


def gpu_outlier(job: Job) -> None:
    """Make GPUs as different as in published measurements, with one published outlier of 1.5 times the time."""
    gpu_spread(job)
    job.truth.severity = 0.5
    rank = _any_rank(job)
    job.own[:, rank] /= job.own[:, rank].mean() / np.median(job.own)
    window = _window(job, 0)
    job.faulty_own[window, rank] *= 1.5
    _accuse(job, [rank])


def sick_stage_node(job: Job) -> None:
    """Slow two or three ranks of one node, in a layout in which each node is a whole pipeline stage."""
    node = int(job.rng.integers(job.nodes()))
    count = int(job.rng.integers(2, 4))
    ranks = job.rng.choice(job.layout.ranks_of_node(node), count, replace=False).tolist()
    window = _window(job, _onset(job))
    job.faulty_own[window, ranks] *= 1.0 + job.truth.severity
    _accuse(job, ranks, node)


def two_ranks(job: Job) -> None:
    """Slow two ranks on different nodes from the same step on, to the end."""
    nodes = job.rng.choice(job.nodes(), 2, replace=False).tolist()
    ranks = [int(job.rng.choice(job.layout.ranks_of_node(node))) for node in nodes]
    window = _window(job, _onset(job))
    for rank in ranks:
        job.faulty_own[window, rank] *= 1.0 + job.truth.severity * job.rng.uniform(0.9, 1.1)
    _accuse(job, ranks)


def gradual(job: Job) -> None:
    """Slow one rank more and more over a third of the trace."""
    rank, first = _any_rank(job), _onset(job)
    window = _window(job, first)
    ramp = np.clip((np.arange(job.steps)[window] - first) / (job.steps // 3), 0.0, 1.0)
    job.faulty_own[window, rank] *= 1.0 + job.truth.severity * ramp
    _accuse(job, [rank])


def intermittent(job: Job) -> None:
    """Slow one rank in periods of 8 to 25 steps, with healthy periods between them."""
    rank, at = _any_rank(job), _onset(job)
    _window(job, at)
    while at < job.steps:
        spell = int(job.rng.integers(8, 26))
        job.faulty_own[at : at + spell, rank] *= 1.0 + job.truth.severity
        at += spell + int(job.rng.integers(8, 26))
    _accuse(job, [rank])


def slow_node(job: Job) -> None:
    """Slow all ranks of one node."""
    node = int(job.rng.integers(job.nodes()))
    ranks = job.layout.ranks_of_node(node)
    window = _window(job, _onset(job))
    job.faulty_own[window, ranks] *= 1.0 + job.truth.severity
    _accuse(job, ranks, node)


def slow_nic(job: Job) -> None:
    """Slow the NIC of one node. The ring all-reduce becomes as slow as this NIC, so that all ranks wait longer."""
    node = int(job.rng.integers(job.nodes()))
    window = _window(job, _onset(job))
    job.faulty_comm[window] *= 1.0 + 4.0 * job.truth.severity
    _accuse(job, job.layout.ranks_of_node(node), node)
    job.truth.localisable = False


def hang(job: Job) -> None:
    """Block one rank for half an hour, until a watchdog restarts the job, which repeats some steps."""
    rank, at = _any_rank(job), _onset(job)
    window = _window(job, at, at)
    job.faulty_own[window, rank] += 1800.0
    _accuse(job, [rank])
    job.truth.kinds.append("hang")
    job.repeats.append((at - int(job.rng.integers(2, 15)), at - 1))


def neighbours(job: Job) -> None:
    """Let one of three neighbour jobs slow the network while it communicates; the other two communicate at other
    times."""
    window = _window(job, _onset(job))
    busy = np.repeat(job.rng.random(job.steps // 10 + 1) < 0.5, 10)[: job.steps]
    job.faulty_comm[window] *= np.where(busy[window], 1.0 + 4.0 * job.truth.severity, 1.0)
    job.truth.neighbours, job.truth.kinds = ["neighbour-1", "neighbour-2", "neighbour-3"], ["interference"]
    job.truth.localisable = False


FAULTS: dict[str, Callable[[Job], None]] = {
    "one-rank": one_rank,
    "from-start": from_start,
    "gpu-outlier": gpu_outlier,
    "sick-stage-node": sick_stage_node,
    "two-ranks": two_ranks,
    "gradual": gradual,
    "intermittent": intermittent,
    "slow-node": slow_node,
    "slow-nic": slow_nic,
    "hang": hang,
    "neighbours": neighbours,
}
"""Faulty classes by name."""
