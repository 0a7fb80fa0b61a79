"""What happens in healthy jobs: jitter, phases, pauses and unequal work. Nothing here is a fault."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.crosscheck.job import Array, Job, Load

Effect = Callable[[Job, Load, Generator], None]


def jitter(job: Job, rng: Generator, residuals: Array) -> Array:
    """Return log residuals (steps, positions): autoregressive, lognormal, heavy-tailed, or recorded."""
    shape = (job.steps, job.ranks)
    sigma = float(np.clip(rng.lognormal(np.log(0.01), 0.7), 0.002, 0.05))
    family = rng.choice(["ar", "lognormal", "heavy", "recorded"])
    if family == "ar":
        rho = rng.choice([0.3, 0.7, 0.95])
        noise = rng.standard_normal(shape)
        for n in range(1, job.steps):
            noise[n] = rho * noise[n - 1] + np.sqrt(1 - rho**2) * noise[n]
    elif family == "lognormal":
        noise = (np.exp(0.6 * rng.standard_normal(shape)) - 1.2) / 0.8
    elif family == "heavy":
        noise = np.clip(rng.standard_t(3, shape) / 1.7, -8, 12)
    else:
        noise = np.empty(shape)
        there_and_back = np.concatenate([residuals, residuals[::-1]])  # no jump where a recording ends
        for r in range(job.ranks):
            at = int(rng.integers(0, len(there_and_back)))
            worker = int(rng.integers(0, residuals.shape[1]))
            noise[:, r] = np.take(there_and_back[:, worker], np.arange(at, at + job.steps), mode="wrap")
        noise /= residuals.std()
    spread = rng.choice([0.0, 0.005, 0.015, 0.03]) * rng.standard_normal(job.ranks)
    common = 0.5 * sigma * rng.standard_normal((job.steps, 1))
    job.notes["jitter"] = f"{family} {sigma:.3f}"
    return np.asarray(sigma * noise + spread + common)


def _every(job: Job, rng: Generator, low: int = 20, high: int = 150) -> NDArray[np.int64]:
    """Return the steps of a periodic event."""
    period = int(rng.integers(low, min(high, max(job.steps // 3, low + 1)) + 1))
    return np.arange(int(rng.integers(5, period + 5)), job.steps, period)


def evaluation(job: Job, load: Load, rng: Generator) -> None:
    """Evaluate periodically, on all ranks."""
    for n in _every(job, rng):
        load.end[n] += job.base * 2.5 * np.exp(0.05 * rng.standard_normal(job.ranks))


def evaluation_by_one(job: Job, load: Load, rng: Generator) -> None:
    """Evaluate periodically, on the first rank only."""
    length = rng.uniform(0.5, 20)
    for n in _every(job, rng):
        load.end[n, job.first()] += job.base * length * rng.uniform(0.9, 1.1)


def checkpoint(job: Job, load: Load, rng: Generator) -> None:
    """Write checkpoints periodically: the first replica, at a different speed each time."""
    writers = job.place()[0] == 0
    for n in _every(job, rng):
        load.end[n, writers] += job.base * rng.uniform(0.5, 3) * rng.lognormal(0, 0.3, writers.sum())


def checkpoint_behind(job: Job, load: Load, rng: Generator) -> None:
    """Write checkpoints in the background: the first rank is slower for some steps."""
    length, slow = int(rng.integers(3, 15)), rng.uniform(0.1, 0.4)
    for n in _every(job, rng):
        load.factor[n : n + length, job.first()] *= 1 + slow


def garbage(job: Job, load: Load, rng: Generator) -> None:
    """Collect garbage periodically, in each rank at a step of its own."""
    pause = job.base * rng.uniform(0.05, 0.5)
    period = int(rng.integers(20, 120))
    for r in range(job.ranks):
        at = np.arange(int(rng.integers(0, period)), job.steps, period)
        load.end[at, r] += pause * rng.uniform(0.8, 1.2, at.size)


def recompiles(job: Job, load: Load, rng: Generator) -> None:
    """Compile again, on single ranks, when a new shape appears."""
    for _ in range(int(rng.integers(1, 9))):
        n, r = int(rng.integers(0, job.steps)), int(rng.integers(0, job.ranks))
        load.start[n, r] += job.base * rng.uniform(0.5, 8)


def loader(job: Job, load: Load, rng: Generator) -> None:
    """Let the data loaders of a node stall, several times."""
    nodes = job.node()
    for _ in range(int(rng.integers(1, 5))):
        n, node = int(rng.integers(0, job.steps)), int(rng.integers(0, nodes.max() + 1))
        for k in range(n, min(n + int(rng.integers(1, 12)), job.steps)):
            load.start[k, nodes == node] += job.base * min(rng.lognormal(np.log(0.4), 0.8), 5)


def hot_expert(job: Job, load: Load, rng: Generator) -> None:
    """Let the shares of tokens of the experts follow random walks with jumps."""
    walk = 0.02 * np.cumsum(rng.standard_normal((job.steps, job.group)), axis=0)
    walk -= np.linspace(0, 1, job.steps)[:, None] * walk[-1]
    for _ in range(int(rng.integers(0, 3))):
        n, e = int(rng.integers(0, job.steps)), int(rng.integers(0, job.group))
        walk[n:, e] += rng.uniform(0.1, 0.5)
    share = np.exp(np.clip(walk, -0.7, 0.7))
    share /= share.mean(axis=1, keepdims=True)
    replica = job.place()[0]  # each group of replicas has all experts, and routes other tokens by the same rule
    own = share[:, replica % job.group] * np.exp(0.02 * rng.standard_normal((job.steps, job.replicas)))[:, replica]
    _work(job, load, own, rng, key="tokens")


def lengths(job: Job, load: Load, rng: Generator) -> None:
    """Give each replica sequences of other lengths in each step."""
    share = np.exp(rng.uniform(0.03, 0.15) * rng.standard_normal((job.steps, job.replicas)))
    _work(job, load, share[:, job.place()[0]], rng, key="tokens")


def _work(job: Job, load: Load, share: Array, rng: Generator, key: str) -> None:
    load.factor *= 0.4 + 0.6 * share
    if rng.random() < 0.6:
        job.notes[key] = np.round(4096 * share)


def mixed(job: Job, load: Load, rng: Generator) -> None:
    """Use nodes of two GPU models."""
    nodes = job.node()
    slow = rng.random(nodes.max() + 1) < 0.4
    load.factor *= 1 + rng.uniform(0.08, 0.3) * slow[nodes]


def thermal(job: Job, load: Load, rng: Generator) -> None:
    """Let nodes become slower and faster by a few per cent, slowly."""
    nodes = job.node()
    phase = rng.uniform(0, 2 * np.pi, nodes.max() + 1)
    period = rng.uniform(200, 1500)
    wave = np.sin(2 * np.pi * np.arange(job.steps)[:, None] / period + phase[nodes])
    load.factor *= 1 + rng.uniform(0.01, 0.03) * wave


def long_pause(job: Job, load: Load, rng: Generator) -> None:
    """Let all ranks wait once for storage, or in a long evaluation, for as long as a hang would last."""
    n = int(rng.integers(job.steps // 3, job.steps))
    length = rng.uniform(700, 3600) if rng.random() < 0.5 else job.base * rng.uniform(40, 400)
    load.start[n] += length * np.exp(0.02 * rng.standard_normal(job.ranks))


def larger_batch(job: Job, load: Load, rng: Generator) -> None:
    """Give all ranks more work from a step on."""
    load.factor[int(rng.integers(job.steps // 3, job.steps)) :] *= rng.uniform(1.1, 1.6)


def last_stage(job: Job, load: Load, rng: Generator) -> None:
    """Give the last pipeline stage more work."""
    load.factor[:, job.place()[1] == job.stages - 1] *= rng.uniform(1.05, 1.3)


def first_rank(job: Job, load: Load, rng: Generator) -> None:
    """Let the first rank write the log, in every step."""
    load.end[:, job.first()] += job.base * rng.uniform(0.02, 0.08)


def warm_up(job: Job, load: Load, rng: Generator) -> None:
    """Let the first steps be slow: compilation, tuning, cold caches."""
    for n in range(int(rng.integers(1, 8))):
        load.start[n] += job.base * rng.uniform(0.2, 8) * rng.uniform(0.8, 1.2, job.ranks)


EFFECTS: dict[str, Effect] = {
    "evaluation": evaluation,
    "evaluation-by-one": evaluation_by_one,
    "checkpoint": checkpoint,
    "checkpoint-behind": checkpoint_behind,
    "garbage": garbage,
    "recompiles": recompiles,
    "loader": loader,
    "hot-expert": hot_expert,
    "lengths": lengths,
    "mixed": mixed,
    "thermal": thermal,
    "long-pause": long_pause,
    "larger-batch": larger_batch,
    "last-stage": last_stage,
    "first-rank": first_rank,
    "warm-up": warm_up,
}
FILE_EFFECTS = ("lost", "clock-steps", "restart")  # applied to the written samples, in `trace`
