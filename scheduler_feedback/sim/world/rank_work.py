"""Healthy work of single ranks: recompilation, input of one node, a popular expert, and asynchronous saves.

All of it delays the job through one rank or node, as a fault would, but no hardware is to blame. The first, second and
fourth have sizes of their own in seconds; they are not solved for a severity.
"""

from __future__ import annotations

import numpy as np

from scheduler_feedback.sim.world.arrays import FloatArray
from scheduler_feedback.sim.world.fault import Fault
from scheduler_feedback.sim.world.scene import Effect, Scene

RECOMPILE_INTERVAL_SECONDS = 60.0
"""Mean time between two recompilations in the whole job. torch.compile compiles a graph again when a guard fails, for
example for a new input shape, and each rank meets new shapes at different times. It gives up after 8 recompilations of
one function (torch._dynamo.config.recompile_limit)."""

RECOMPILE_SECONDS = (4.0, 0.8)
"""Median, and standard deviation of the logarithm, of the seconds of one recompilation. Graphs of one layer compile in
seconds, graphs of whole models in up to a minute."""

COMPILE_PROCESSORS = 8.0
"""Number of processors that the compiler's worker processes use. The default is 32 processes
(torch._inductor.config.compile_threads), which are rarely all busy."""

LOADER_INTERVAL_SECONDS = 90.0
"""Mean time between two stalls of the node's data loader. A node opens another shard of the data after some minutes,
and its caches are empty then (Zhao et al., "Understanding data storage and ingestion for large-scale deep
recommendation model training", ISCA 2022)."""

LOADER_SECONDS = (0.3, 3.0)
"""Shortest and longest time in seconds for which a stalled loader delays one step."""
LOADER_MEAN_STEPS = 2.5
"""Mean number of steps that one stall delays."""

SAVE_STEPS = 60
"""Number of steps from one asynchronous save of rank 0 to the next."""
SNAPSHOT_SECONDS = (0.3, 2.0)
"""Shortest and longest time in seconds in which rank 0 copies its state to the host's memory. Training continues after
that (Mohan et al., "CheckFreq", FAST 2021)."""
WRITING_STEPS = 4
"""Number of steps in which a thread of rank 0 then writes the copy, and competes with the main thread for Python's
interpreter lock."""
WRITING_HOST = 1.5
"""Factor on the time that rank 0 needs to launch kernels while it writes."""

EXPERT_NOISE = 0.3
"""Largest relative change of a popular expert's additional load from step to step."""


def rank_recompiles(scene: Scene, _fault: Fault, intensity: FloatArray, _magnitude: float) -> None:
    """Apply recompilations: one of the fault's ranks compiles in a step, while its GPU is idle and the others wait."""
    random, steps = scene.random, len(intensity)
    median, sigma = RECOMPILE_SECONDS
    begins = random.random(steps) < min(0.3, scene.usual / RECOMPILE_INTERVAL_SECONDS)
    for row in np.flatnonzero(begins & (intensity > 0)).tolist():
        rank = scene.ranks[random.integers(len(scene.ranks), size=1)]
        seconds = np.zeros(steps)
        # A failed guard in one graph often fails in the next graphs too, which other steps reach.
        length = 1 + int(random.random() < 0.4)
        seconds[row : row + length] = np.minimum(median * np.exp(sigma * random.standard_normal()), 60.0)
        scene.delay(rank, seconds)
        busy = np.clip(seconds / (seconds + scene.usual), 0.0, 1.0)
        scene.add_signal("processor", rank, COMPILE_PROCESSORS * busy)


def loader_stalls(scene: Scene, _fault: Fault, intensity: FloatArray, _magnitude: float) -> None:
    """Apply stalls of one node's data loader: all ranks of the node wait for input in some consecutive steps.

    The data comes over the network, so no counter of the host's disks shows it.
    """
    random, steps = scene.random, len(intensity)
    begins = random.random(steps) < min(0.2, scene.usual / LOADER_INTERVAL_SECONDS)
    for row in np.flatnonzero(begins & (intensity > 0)).tolist():
        length = min(int(random.geometric(1.0 / LOADER_MEAN_STEPS)), steps - row)
        seconds = np.zeros((steps, len(scene.ranks)))
        each = random.uniform(*LOADER_SECONDS, length)[:, None]
        seconds[row : row + length] = each * random.uniform(0.85, 1.0, (length, len(scene.ranks)))
        scene.delay(scene.ranks, seconds)


def async_saves(scene: Scene, _fault: Fault, intensity: FloatArray, _magnitude: float) -> None:
    """Apply asynchronous saves of rank 0: it copies its state every 60 steps, and writes the copy in the next steps."""
    since = (scene.first + np.arange(len(intensity))) % SAVE_STEPS
    there = intensity > 0
    snapshot = there & (since == 0)
    writing = there & (since < WRITING_STEPS)
    scene.delay(scene.ranks, snapshot * scene.random.uniform(*SNAPSHOT_SECONDS, len(intensity)))
    scene.change("host", scene.ranks, np.where(writing, WRITING_HOST, 1.0))
    scene.add_signal("processor", scene.ranks, 1.0 * writing)
    scene.add_signal("io_waiting", np.concatenate([scene.ranks, scene.node_mates]), 0.05 * writing)


def hot_expert(scene: Scene, _fault: Fault, intensity: FloatArray, magnitude: float) -> None:
    """Apply a popular expert: the router sends more tokens to one rank, and fewer to the others of its expert group.

    Without an auxiliary loss, routers prefer few experts (Fedus et al., "Switch Transformers", JMLR 2022, section 2.2).
    Raises ValueError if the job has no expert groups.
    """
    plan, steps = scene.plan, len(intensity)
    if plan.expert < 2:
        raise ValueError(f"{plan.name} has no expert groups")
    before = np.broadcast_to(scene.conditions.load, (steps, *plan.shape))
    more = magnitude * intensity * scene.random.uniform(1.0 - EXPERT_NOISE, 1.0 + EXPERT_NOISE, steps)
    scene.change("load", scene.ranks, 1.0 + more)
    groups = (steps, plan.stages, -1, plan.expert)
    after = scene.conditions.load.reshape(groups)
    # The batch determines the total load of an expert group.
    share = before.reshape(groups).mean(axis=-1, keepdims=True) / after.mean(axis=-1, keepdims=True)
    scene.conditions.load = (after * share).reshape(steps, *plan.shape).astype(np.float32)


EFFECTS: dict[str, Effect] = {
    "rank-recompiles": rank_recompiles,
    "loader-stalls": loader_stalls,
    "async-saves": async_saves,
    "hot-expert": hot_expert,
}
"""Functions that apply this work, by class of the fault."""
