"""Healthy workloads: the base of every trace, and classes of jobs that behave as if faulty but are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.traces.job import Job
from benchmarks.traces.model import FloatArray

STEADY = 0.9
"""Correlation of a rank's noise between consecutive steps, for the part that is correlated."""

CHECKPOINT_STEPS = 60


def autocorrelated(rng: np.random.Generator, steps: int, ranks: int, sigma: float, rho: float) -> FloatArray:
    """Return float64 [steps, ranks]: AR(1) noise with standard deviation `sigma` and correlation `rho`."""
    noise = rng.normal(0.0, sigma, (steps, ranks))
    for k in range(1, steps):
        noise[k] = rho * noise[k - 1] + np.sqrt(1.0 - rho * rho) * noise[k]
    return noise


def base_times(rng: np.random.Generator, steps: int, ranks: int) -> tuple[FloatArray, FloatArray]:
    """Return the own times [k, n] and communication times [k] of a healthy job, in seconds."""
    usual = float(np.exp(rng.uniform(np.log(0.5), np.log(12.0))))
    quick = rng.normal(0.0, rng.uniform(0.005, 0.02), (steps, ranks))
    slow = autocorrelated(rng, steps, ranks, rng.uniform(0.002, 0.01), STEADY)
    offsets = rng.normal(0.0, rng.uniform(0.003, 0.012), ranks)
    own = usual * np.exp(quick + slow + offsets)
    comm = usual * rng.uniform(0.08, 0.3) * np.exp(rng.normal(0.0, 0.03, steps))
    return own, comm


def _episodes(job: Job, count: int, longest: int) -> list[tuple[int, int]]:
    """Return random periods of steps as (first, last) pairs, `count` of them, each at most `longest` steps."""
    begins = job.rng.integers(job.steps // 8, job.steps - longest - 1, count)
    return [(int(b), int(b + job.rng.integers(0, longest))) for b in begins]


def plain(_job: Job) -> None:
    """Leave the job unchanged."""


def recompiles(job: Job) -> None:
    """Let single ranks recompile their model for one to four steps, several times."""
    for first, last in _episodes(job, int(job.rng.integers(3, 9)), 4):
        rank = int(job.rng.integers(job.layout.ranks))
        job.own[first : last + 1, rank] *= 1.0 + job.rng.uniform(0.3, 6.0)
    job.truth.own_causes += ["pauses"]


def loader_stalls(job: Job) -> None:
    """Let the data loader of one node stall for one to eight steps, several times."""
    ranks = job.layout.ranks_of_node(int(job.rng.integers(job.nodes())))
    for first, last in _episodes(job, int(job.rng.integers(3, 8)), 8):
        stall = job.rng.uniform(0.15, 2.0) * float(np.median(job.own))
        job.own[first : last + 1, ranks] += stall * job.rng.uniform(0.8, 1.0, (last + 1 - first, len(ranks)))
    job.truth.own_causes += ["data-loading", "pauses"]


def hot_expert(job: Job, reported: bool) -> None:
    """Send more tokens to one expert, later to another one, and fewer to the others. reported: whether ranks report
    their tokens.

    Each group has all experts and the same router, so the expert is popular in all groups.
    """
    experts = job.layout.expert_of()
    work = np.exp(job.rng.normal(0.0, 0.02, job.own.shape))
    first = int(job.rng.integers(job.steps // 5, job.steps // 3))
    while first < job.steps - 10:
        last = min(job.steps, first + int(job.rng.integers(20, 100)))
        rank = int(job.rng.integers(job.layout.ranks))
        more = job.rng.uniform(0.12, 0.6)
        popular = experts == experts[rank]
        work[first:last, popular] *= 1.0 + more
        work[first:last, ~popular] *= 1.0 - more / (job.layout.experts - 1)  # each token has a fixed number of experts
        first = last + int(job.rng.integers(0, 30))
    job.own *= work
    if reported:
        job.tokens = np.rint(work * 8192.0)
    job.truth.own_causes += ["sequence-length", "sequence_imbalance"]


def checkpoints(job: Job) -> None:
    """Let rank 0 write an asynchronous checkpoint every 60 steps, which slows its next steps."""
    length, share = int(job.rng.integers(2, 9)), job.rng.uniform(0.1, 0.7)
    for first in range(CHECKPOINT_STEPS, job.steps, CHECKPOINT_STEPS):
        job.own[first : first + length, 0] *= 1.0 + share * job.rng.uniform(0.85, 1.15)
    job.truth.own_causes += ["checkpoint"]


def gpu_spread(job: Job) -> None:
    """Give GPUs different speeds, as in published measurements: 8 % on average, 22 % at most."""
    job.own *= 1.0 + np.clip(np.abs(job.rng.normal(0.0, 0.1, job.layout.ranks)), 0.0, 0.22)
    job.truth.own_causes += ["standing-offset"]


def drift(job: Job) -> None:
    """Add a daily cycle of the room temperature's effect, and slow random drift of nodes and ranks."""
    phase = 2.0 * np.pi * (np.arange(job.steps) / job.steps * job.rng.uniform(1.0, 3.0) + job.rng.random())
    nodes = autocorrelated(job.rng, job.steps, job.nodes(), 0.015, 0.98)[:, job.layout.node_of()]
    ranks = autocorrelated(job.rng, job.steps, job.layout.ranks, 0.012, 0.97)
    job.own *= np.exp(0.04 * np.sin(phase)[:, None] + nodes + ranks)
    job.truth.own_causes += ["whole-job"]


def mixed_gpus(job: Job) -> None:
    """Give half of the nodes an older GPU model."""
    older = np.where(np.arange(job.nodes()) % 2 == 0, 1.0, job.rng.uniform(1.15, 1.6))
    job.own *= job.node_factor(older)
    job.truth.own_causes += ["standing-offset", "stage-partition", "stage_imbalance"]


def restarts(job: Job) -> None:
    """Restart the job once or twice: it repeats steps since the last checkpoint, and its first steps are slow."""
    for _ in range(int(job.rng.integers(1, 3))):
        at = int(job.rng.integers(job.steps // 3, job.steps - 20))
        job.repeats.append((at - int(job.rng.integers(3, 20)), at - 1))
        job.own[at : at + 2] *= job.rng.uniform(2.0, 8.0)
    job.truth.own_causes += ["whole-job", "pauses"]


def clock_errors(job: Job) -> None:
    """Let each host's clock run at a wrong rate, with occasional corrections."""
    rate = job.node_factor(job.rng.normal(0.0, 2e-4, job.nodes()))
    job.clock_error = np.outer(np.ones(job.steps), rate) * float(np.median(job.own))
    for _ in range(int(job.rng.integers(3, 12))):
        ranks = job.layout.ranks_of_node(int(job.rng.integers(job.nodes())))
        jump = job.rng.uniform(-0.3, 0.3) * float(np.median(job.own))
        job.clock_error[int(job.rng.integers(job.steps)), ranks] += jump


def lost_samples(job: Job) -> None:
    """Omit single samples at random, and all samples of one node for some steps."""
    job.lost = job.rng.random(job.own.shape) < job.rng.uniform(0.005, 0.05)
    first = int(job.rng.integers(job.steps - 30))
    job.lost[first : first + 20, job.layout.ranks_of_node(int(job.rng.integers(job.nodes())))] = True


def long_step(job: Job) -> None:
    """Let the job pause once: the transport stops, storage is slow, all ranks evaluate, or the first one saves.

    Afterwards the job runs at its usual speed, without any repair. Storage serves some ranks sooner than others. The
    first rank works alone for less than ten minutes, after which PyTorch by default ends a job whose other ranks wait.
    """
    step = job.truth.note_step = int(job.rng.integers(job.steps // 2, job.steps - 20))
    seconds = job.rng.uniform(601.0, 3600.0)
    pause = job.rng.integers(4)
    if pause == 0:
        job.comm[step] = seconds
    elif pause == 1:
        job.own[step] += seconds * job.rng.uniform(0.5, 1.0, job.layout.ranks)
    elif pause == 2:
        job.own[step] += seconds * job.rng.uniform(0.98, 1.0, job.layout.ranks)
    else:
        job.own[step, 0] += job.rng.uniform(60.0, 590.0)


HEALTHY: dict[str, Callable[[Job], None]] = {
    "plain": plain,
    "recompiles": recompiles,
    "loader-stalls": loader_stalls,
    "hot-expert": lambda job: hot_expert(job, False),
    "hot-expert-tokens": lambda job: hot_expert(job, True),
    "checkpoints": checkpoints,
    "gpu-spread": gpu_spread,
    "drift": drift,
    "mixed-gpus": mixed_gpus,
    "restarts": restarts,
    "clock-errors": clock_errors,
    "lost-samples": lost_samples,
    "long-step": long_step,
}
"""Healthy classes by name."""
