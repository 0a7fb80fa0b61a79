"""Runs of the benchmark: all combinations of fault class, severity, size and kind of job, and their simulation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from benchmarks.detection.classes import CLASSES, Row, more_on_node, planned, ranks_at_fault, traits_of
from scheduler_feedback.sim.world import clos_fabric, plan
from scheduler_feedback.sim.world.clos_fabric import NODES_PER_POD, Place
from scheduler_feedback.sim.world.course import Course
from scheduler_feedback.sim.world.fault import ADDED, DISORDERS, FORMS, ORIGINAL, Disorder, Fault, Form
from scheduler_feedback.sim.world.plan import MOST_DP2_GPUS, WORKLOADS, Workload
from scheduler_feedback.sim.world.traits import NO_TRAITS

SEVERITIES = (0.03, 0.05, 0.10, 0.20, 0.50)
SIZES = (16, 64, 256, 1024, 8192, 16384)
MINUTES = (1, 10, 60)
STEP_SECONDS = (0.3, 45.0)
LEAST_STEPS = 8
"""Minimum duration of a fault in steps: no detector can confirm a fault of a single step."""

LEAD_SECONDS, LEAD_STEPS = 300.0, 50
"""Healthy time before the fault begins, in seconds and in steps."""

TAIL_SECONDS, TAIL_STEPS = 45.0, 4
"""Time after the fault's end in which a verdict about it is still correct, though late: in seconds and in steps."""

SECOND_SHARE = 0.05
SECOND = ("clock-lock", "nic-errors", "memory-errors")
SECOND_SEVERITY = 0.1
"""Increase of the job's step time by its second fault (0.1: 10 %). Accusing the second faulty device is correct,
too."""

OF_WORKLOAD_ONLY = {
    "stage-imbalance": ("balanced", "unequal-stages"),
    "sequence-imbalance": ("balanced", "long-context"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the benchmark. second: class of a second fault of the same job, on another node at the same time.

    of_class: name of the added class (classes.py) to which the run belongs; '' for runs of the grid.
    """

    disorder: str
    severity: float
    gpus: int
    form: Form
    workload: Workload
    minutes: float
    step_seconds: float
    seed: int
    reports: bool = True
    second: str = ""
    of_class: str = ""

    @property
    def key(self) -> tuple[str, float, int, str, str]:
        """Return the run's combination (row of the grid): fault class, severity, GPUs, shape over time, workload."""
        return self.disorder, self.severity, self.gpus, self.form, self.workload

    @property
    def name(self) -> str:
        """Return the name of the job with the fault. The name does not reveal the fault."""
        return f"j-{self.seed:010d}"


@dataclass(slots=True)
class Staged:
    """A run that is placed on a simulated cluster.

    victim: the job with the fault. courses: all jobs. end: end of the run.
    """

    cell: Cell
    victim: Course
    courses: list[Course]
    fault: Fault
    end: float
    second: Fault | None = None

    @property
    def disorder(self) -> Disorder:
        return DISORDERS[self.fault.disorder]


def possible(disorder: str, gpus: int, workload: Workload) -> bool:
    """Return whether a job of this kind and size can have this fault."""
    if workload == "dp2" and gpus > MOST_DP2_GPUS:
        return False
    if disorder in ("host-interference", "nic-interference") and gpus > 1024:
        return False
    if disorder == "stage-imbalance":
        return workload in OF_WORKLOAD_ONLY[disorder] and gpus >= 64
    if disorder == "sequence-imbalance":
        return workload in OF_WORKLOAD_ONLY[disorder]
    return not (disorder == "mass-loss" and gpus < 256)


def grid(sizes: tuple[int, ...] = SIZES, workloads: tuple[Workload, ...] = WORKLOADS) -> Iterator[Cell]:
    """Yield every combination (row) once. The duration, step length and seed of its runs are drawn later."""
    for disorder, gpus, workload in itertools.product(ORIGINAL.values(), sizes, workloads):
        if not possible(disorder.name, gpus, workload):
            continue
        severities = (1.0,) if disorder.lasting else SEVERITIES
        forms: tuple[Form, ...] = ("step",) if disorder.lasting else FORMS
        for severity, form in itertools.product(severities, forms):
            yield Cell(disorder.name, severity, gpus, form, workload, 1, 1.0, 0)


def drawn(
    cell: Cell,
    seed: int,
    number: int,
    random: np.random.Generator,
    minutes: tuple[int, ...] = MINUTES,
    repeats: int = 4,
) -> Cell:
    """Draw one run of a row: its duration, step length and seed.

    number: index of the run. repeats: runs per row, over which step lengths are spread so that each row has short
    and long ones.
    """
    low, high = np.log(STEP_SECONDS[0]), np.log(STEP_SECONDS[1])
    part = (number % repeats + random.random()) / repeats
    step_seconds = float(np.exp(low + (high - low) * part))
    return replace(
        cell,
        minutes=float(random.choice(minutes)),
        step_seconds=round(step_seconds, 3),
        seed=int(seed * 1_000_000 + random.integers(1_000_000)),
        second=str(random.choice(SECOND)) if random.random() < SECOND_SHARE else "",
    )


def drawn_of_class(row: Row, seed: int, number: int, random: np.random.Generator, minutes: tuple[int, ...]) -> Cell:
    """Draw one run of an added class: its duration, step length and seed."""
    cell = Cell(row.disorder, row.severity, row.gpus, "step", row.workload, 1, 1.0, 0, of_class=row.name)
    return replace(drawn(cell, seed, number, random, minutes), second="")


def stage(cell: Cell, first_node: int, begin: float = 0.0) -> tuple[Staged, int]:
    """Place a run on a simulated cluster from node `first_node` on. Return the run and the next free node.

    The next free node is the first of a pod of the network. Raises ValueError if this fault cannot slow the job by
    the given severity.
    """
    random = np.random.default_rng([cell.seed, 77])
    disorder, of_class = DISORDERS[cell.disorder], CLASSES.get(cell.of_class)
    if disorder.family == "interference":
        victim, courses, ranks, aggressor = _neighbours(cell, first_node, begin, random)
    else:
        nodes = cell.gpus // 8
        spread = clos_fabric.place(np.arange(first_node, first_node + nodes), cell.gpus)
        traits = NO_TRAITS
        if of_class is None:
            made = plan.make(cell.name, cell.gpus, cell.workload, cell.step_seconds, random)
        else:
            made = planned(of_class, cell.name, cell.gpus, cell.workload, cell.step_seconds, random)
            usual = cell.step_seconds
            ending = begin + max(LEAD_SECONDS, LEAD_STEPS * usual) + max(cell.minutes * 60.0, LEAST_STEPS * usual)
            traits = traits_of(of_class.traits, cell.seed, usual, begin, ending)
        adaptive = bool(random.random() < 0.5)
        victim = Course(made, spread, _own(cell, 1), begin, adaptive=adaptive, traits=traits)
        courses, aggressor = [victim], ""
        if disorder.name in ADDED:
            ranks = ranks_at_fault(disorder, made, spread, random)
        else:
            ranks = _at_fault(disorder, victim, random)
        if of_class is not None and of_class.several:
            ranks = more_on_node(ranks, spread, random)
    victim.reports = cell.reports
    usual = victim.usual
    onset = begin + max(LEAD_SECONDS, LEAD_STEPS * usual) + float(random.uniform(0.0, max(30.0, usual)))
    if of_class is not None and of_class.first_step:
        onset = begin
    seconds = max(cell.minutes * 60.0, LEAST_STEPS * usual)
    period = max(30.0, 10.0 * usual)
    fault = Fault(cell.disorder, cell.name, ranks, onset, seconds, cell.form, cell.severity, period, 0.0, aggressor)
    victim.block_seconds = max(5.0, min(20.0, seconds / 6.0))
    if aggressor:
        other = next(c for c in courses if c.plan.name == aggressor)
        fault = _pressed(victim, other, fault, random)
    else:
        fault = victim.solved(fault)
    victim.faults.append(fault)
    second = _second(cell, victim, fault, random)
    end = fault.end + max(TAIL_SECONDS, TAIL_STEPS * usual)
    used = max(int(course.place.node.max()) for course in courses) + 1
    return Staged(cell, victim, courses, fault, end, second), -(-used // NODES_PER_POD) * NODES_PER_POD


def _second(cell: Cell, victim: Course, fault: Fault, random: np.random.Generator) -> Fault | None:
    """Return a second fault of the job at the same time, on a device of another node."""
    if not cell.second or DISORDERS[fault.disorder].family != "hardware":
        return None
    free = np.flatnonzero(victim.place.node != victim.place.node[fault.ranks[0]])
    rank = int(random.choice(free))
    begin = fault.begin + float(random.uniform(0.0, 0.3)) * fault.seconds
    try:
        other = victim.solved(
            replace(
                fault,
                disorder=cell.second,
                ranks=(rank,),
                begin=begin,
                seconds=fault.end - begin,
                severity=SECOND_SEVERITY,
                magnitude=0.0,
            )
        )
    except ValueError:
        return None
    victim.faults.append(other)
    return other


def _own(cell: Cell, number: int) -> np.random.Generator:
    return np.random.default_rng([cell.seed, number])


def _at_fault(disorder: Disorder, victim: Course, random: np.random.Generator) -> tuple[int, ...]:
    made, place = victim.plan, victim.place
    rank = int(random.integers(made.gpus))
    if disorder.name == "stage-imbalance":
        return tuple(np.flatnonzero(made.coordinates()[0] == made.stages - 1).tolist())
    if disorder.name == "mass-loss":
        nodes = np.unique(place.node)
        lost = random.choice(nodes, max(3, int(0.3 * len(nodes))), replace=False)
        return tuple(np.flatnonzero(np.isin(place.node, lost)).tolist())
    if disorder.level == "node":
        return tuple(np.flatnonzero(place.node == place.node[rank]).tolist())
    if disorder.level in ("gpu", "nic", "link"):
        return (rank,)
    return tuple(range(made.gpus))


def _neighbours(
    cell: Cell, first_node: int, begin: float, random: np.random.Generator
) -> tuple[Course, list[Course], tuple[int, ...], str]:
    """Return (victim, all jobs, ranks that the aggressor slows, aggressor's name) for a fault of interference."""
    name, kind = cell.name, cell.disorder
    nodes = max(1, cell.gpus // 8)
    if kind == "uplink-congestion":
        pods = max(2, -(-nodes // 16))
        own = np.array([first_node + (i % pods) * NODES_PER_POD + i // pods for i in range(nodes)])
        order = np.sort(own)
        made = plan.make(name, cell.gpus, cell.workload, cell.step_seconds, random)
        place = clos_fabric.place(order, cell.gpus)
        many = int(random.choice([2, 4, 8]))
        of_other = np.array([first_node + p * NODES_PER_POD + 20 + i for p in range(2) for i in range(many)])
        other_place = clos_fabric.place(of_other, len(of_other) * 8)
        beside = clos_fabric.place(np.arange(first_node + 29, first_node + 31), 16)
        per_node = 8
    else:
        spots, others = ((0, 1, 2, 3), (4, 5, 6, 7)) if kind == "host-interference" else ((0, 2, 4, 6), (1, 3, 5, 7))
        shared, per_node = (1 if kind == "host-interference" else 2), 4
        made = plan.make(name, cell.gpus, cell.workload, cell.step_seconds, random, per_node=4)
        own = np.arange(first_node, first_node + cell.gpus // 4)
        place = clos_fabric.place(own, cell.gpus, spots, shared)
        many = min(len(own), 4)
        start = int(random.integers(0, len(own) - many + 1))
        other_place = clos_fabric.place(own[start : start + many], many * 4, others, shared)
        beside = clos_fabric.place(np.arange(own[-1] + 1, own[-1] + 5), 16, others, shared)
    lengths = np.exp(random.uniform(np.log(0.5), np.log(20.0), 2))
    aggressor, bystander = f"{name}-b", f"{name}-c"
    if random.random() < 0.5:
        aggressor, bystander = bystander, aggressor
    workloads: tuple[Workload, ...] = ("balanced", "moe")
    other_plan = plan.make(
        aggressor, len(other_place), workloads[int(random.integers(2))], float(lengths[0]), random, per_node, 0.4
    )
    calm_plan = plan.make(bystander, 16, "balanced", float(lengths[1]), random, per_node)
    victim = Course(made, place, _own(cell, 1), begin, adaptive=bool(random.random() < 0.5))
    other = Course(other_plan, other_place, _own(cell, 2), begin)
    calm = Course(calm_plan, beside, _own(cell, 3), begin)
    victim.neighbours[aggressor] = other
    names = {"uplink-congestion": "uplinks", "host-interference": "nodes", "nic-interference": "nics"}[kind]
    theirs = set(getattr(other_place, names))
    ranks = np.flatnonzero([resource in theirs for resource in getattr(place, names)])
    return victim, [victim, other, calm], tuple(ranks.tolist()), aggressor


def _pressed(victim: Course, other: Course, fault: Fault, random: np.random.Generator) -> Fault:
    """Return the fault with its magnitude, and start the aggressor's traffic.

    Half of the aggressors load the network from their start with bursts of gradient exchange. The other half start
    additional traffic or computing with the fault.
    """
    bursts = fault.disorder != "host-interference" and fault.form == "step" and random.random() < 0.5
    if not bursts:
        del victim.neighbours[other.plan.name]
    fault = victim.solved(fault)
    mine = {"uplink-congestion": "uplinks", "host-interference": "nodes", "nic-interference": "nics"}[fault.disorder]
    theirs = {getattr(victim.place, mine)[rank] for rank in fault.ranks}
    ranks = tuple(np.flatnonzero([name in theirs for name in getattr(other.place, mine)]).tolist())
    if bursts:
        other.begin = other.now = fault.begin
        other.finish = fault.end
        return fault
    own = "crowding" if fault.disorder == "host-interference" else "crossing"
    other.faults.append(replace(fault, disorder=own, job=other.plan.name, ranks=ranks, aggressor=""))
    return fault


def nodes_of(place: Place) -> npt.NDArray[np.int64]:
    """Return the numbers of the nodes on which ranks are placed, each once."""
    return np.unique(place.node)
