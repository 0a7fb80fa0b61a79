"""Classes of runs that the grid of fault, severity, size and workload does not contain.

Healthy jobs whose single ranks have work of their own, unequal GPUs, drift and wrong clocks; faults from the first step
and of several GPUs; other parallel layouts. Each class has healthy runs, runs with a fault, or both. All random choices
come from generators of their own, so that the runs of the grid stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler_feedback.sim.world import plan
from scheduler_feedback.sim.world.clos_fabric import RACK_NODES, Place
from scheduler_feedback.sim.world.fault import DISORDERS, Disorder
from scheduler_feedback.sim.world.layouts import LAYOUTS
from scheduler_feedback.sim.world.physics import hardware
from scheduler_feedback.sim.world.plan import Plan, Workload
from scheduler_feedback.sim.world.traits import NO_TRAITS, Restart, Traits

HEALTHY = ("none",)
SLOW_GPU = ("clock-lock", "thermal", "power-brake", "memory-errors")
FAULTS = (*SLOW_GPU, "nvlink", "pcie", "nic-errors", "cpu-contention", "storage")
"""Faults of hardware in runs of a class that is not about the fault itself."""

DOWN_SECONDS = (30.0, 240.0)
"""Shortest and longest time from a crash of a job's processes to the next step: the launcher notices it, starts the
processes, and they load the last checkpoint."""

BACK_STEPS = (3, 40)
"""Fewest and most steps that a job repeats after a crash."""

RECOMPILING_RANKS = 4
"""Number of ranks that recompile in one job."""


@dataclass(frozen=True, slots=True)
class RunClass:
    """A class of runs."""

    name: str
    """Name of the class, for ``--classes``."""
    disorders: tuple[str, ...]
    """Fault classes of its runs with a fault; 'none' for healthy runs only."""
    both: bool = False
    """Whether there are as many healthy runs as runs with a fault."""
    sizes: tuple[int, ...] = (32, 64, 128, 256)
    """Numbers of GPUs."""
    workloads: tuple[Workload, ...] = ("balanced",)
    """Workloads. They have no effect on classes with a layout of their own."""
    layout: str = ""
    """Name of the parallel layout in layouts.py; '' for the workload's own."""
    traits: tuple[str, ...] = ()
    """Properties of the job: fields of ``Traits`` that are switched on."""
    first_step: bool = False
    """Whether the fault begins with the job's first step."""
    several: bool = False
    """Whether two or three GPUs of one node have the fault."""
    rare: bool = False
    """Whether the class is about rare events, so that its runs last ten minutes at least, and a fault is longer than
    the time for which a crashed job is down."""


MIXED: tuple[Workload, ...] = ("balanced", "unequal-stages", "long-context", "moe")

CLASSES: dict[str, RunClass] = {
    one.name: one
    for one in (
        RunClass("recompiles", ("rank-recompiles",), workloads=MIXED, rare=True),
        RunClass("loader-stalls", ("loader-stalls",), workloads=MIXED, rare=True),
        RunClass("hot-expert", ("hot-expert",), workloads=("moe", "moe-untold")),
        RunClass("async-saves", ("async-saves",), workloads=MIXED, rare=True),
        RunClass("gpu-spread", FAULTS, both=True, workloads=MIXED, traits=("spread",)),
        RunClass("drift", FAULTS, both=True, workloads=MIXED, traits=("drift",)),
        RunClass("mixed-gpus", FAULTS, both=True, traits=("other_model",)),
        RunClass("wrong-clocks", FAULTS, both=True, workloads=MIXED, traits=("wrong_clocks",)),
        RunClass("first-step", FAULTS, workloads=MIXED, first_step=True),
        RunClass("several-gpus", SLOW_GPU, several=True),
        RunClass("stage-a-node", FAULTS, both=True, sizes=(32, 64, 128), layout="stage-a-node"),
        RunClass("stage-several", SLOW_GPU, sizes=(32, 64, 128), layout="stage-a-node", several=True),
        RunClass("restarts", FAULTS, both=True, workloads=MIXED, traits=("restarts",), rare=True),
        RunClass("contention", FAULTS, both=True, layout="contended"),
        RunClass("rack-cap", ("rack-power-cap",), sizes=(64, 128, 256), workloads=MIXED),
        RunClass("interleaved", FAULTS, both=True, layout="interleaved"),
        RunClass("sharded", FAULTS, both=True, layout="sharded"),
        RunClass("local-sgd", FAULTS, both=True, layout="local-sgd"),
    )
}
"""The classes by name."""


@dataclass(frozen=True, slots=True)
class Row:
    """One combination of class, fault class, severity, size and workload."""

    name: str
    disorder: str
    severity: float
    gpus: int
    workload: Workload


def rows(chosen: RunClass, severities: Sequence[float], random: np.random.Generator, count: int) -> Iterator[Row]:
    """Yield `count` rows of a class, of healthy runs and `count` of runs with a fault, in random order."""
    parts = [HEALTHY, chosen.disorders] if chosen.both else [chosen.disorders]
    for disorders in parts:
        order = random.permutation(len(disorders))
        for number in range(count):
            disorder = disorders[order[number % len(disorders)]]
            severity = 1.0 if DISORDERS[disorder].lasting else float(random.choice(severities))
            yield Row(
                chosen.name,
                disorder,
                severity,
                int(random.choice(chosen.sizes)),
                chosen.workloads[int(random.integers(len(chosen.workloads)))],
            )


def planned(
    chosen: RunClass, name: str, gpus: int, workload: Workload, step_seconds: float, random: np.random.Generator
) -> Plan:
    """Return the plan of a job of this class."""
    if chosen.layout:
        return LAYOUTS[chosen.layout](name, gpus, step_seconds, random)
    return plan.make(name, gpus, workload, step_seconds, random)


def traits_of(names: Sequence[str], seed: int, usual: float, begin: float, end: float) -> Traits:
    """Return properties of a job with steps of `usual` seconds, which runs from `begin` to `end`.

    names: fields of ``Traits`` that are switched on. Crashes happen at least 20 steps after the begin.
    """
    if not names:
        return NO_TRAITS
    random = np.random.default_rng([seed, 53])
    restarts: list[Restart] = []
    if "restarts" in names:
        first = begin + 20.0 * usual
        for at in np.sort(random.uniform(first, max(end, first + usual), int(random.integers(1, 3)))).tolist():
            down = float(random.uniform(*DOWN_SECONDS))
            if not restarts or at > restarts[-1].at + restarts[-1].seconds + 5.0 * usual:
                restarts.append(Restart(at, down, int(random.integers(*BACK_STEPS))))
    other = hardware.A100 if random.random() < 0.5 else hardware.H200
    return Traits(
        seed=seed,
        spread="spread" in names,
        drift="drift" in names,
        other_model=other if "other_model" in names else None,
        wrong_clocks="wrong_clocks" in names,
        restarts=tuple(restarts),
    )


def ranks_at_fault(disorder: Disorder, plan_: Plan, place: Place, random: np.random.Generator) -> tuple[int, ...]:
    """Return the ranks of a fault of one of the added classes."""
    if disorder.name == "async-saves":
        return (0,)
    if disorder.name == "rank-recompiles":
        return tuple(random.choice(plan_.gpus, RECOMPILING_RANKS, replace=False).tolist())
    rank = int(random.integers(plan_.gpus))
    if disorder.name == "loader-stalls":
        return tuple(np.flatnonzero(place.node == place.node[rank]).tolist())
    if disorder.name == "rack-power-cap":
        return tuple(np.flatnonzero(place.node // RACK_NODES == place.node[rank] // RACK_NODES).tolist())
    return (rank,)


def more_on_node(ranks: tuple[int, ...], place: Place, random: np.random.Generator) -> tuple[int, ...]:
    """Return these ranks of one node, and one or two other ranks of it."""
    mates = np.setdiff1d(np.flatnonzero(place.node == place.node[ranks[0]]), ranks)
    others = random.choice(mates, int(random.integers(1, 3)), replace=False)
    return tuple(sorted((*ranks, *others.tolist())))
