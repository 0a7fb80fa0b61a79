"""Study of placement rules for shares of GPUs: how much of a cluster's GPUs remains unallocated.

The published runs of FGD (Weng et al., USENIX ATC'23) fill the cluster of the OpenB trace: its tasks arrive in random
order, and then tasks drawn from it, until the requested GPUs are 1.3 times those of the cluster. No task ends. A task
that does not fit anywhere is dropped. The figure is the share of all GPUs that is allocated.

The placement code is that of ``policies/shares``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.schema.errors import TraceError
from scheduler_feedback.policies.shares.fragmentation import Fragmentation, typical
from scheduler_feedback.policies.shares.gpu_room import GPU_MILLI, Request, Room, gpu_choices
from scheduler_feedback.policies.shares.placement_rules import Rule, best_fit, least_fragmentation
from scheduler_feedback.policies.shares.share_index import ShareIndex
from scheduler_feedback.sim.table import CellError, rows

ARRIVED = 1.3
"""GPUs that tasks request in total, divided by those of the cluster, in the published runs."""

MOST_GPUS = 1024
"""Maximum number of GPUs of one node in a file. A larger number is assumed to be a typing error."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Result of filling a cluster with tasks by one rule."""

    rule: str
    """Name of the rule."""
    seed: int
    """Seed of the order of tasks."""
    tasks: int
    """Number of tasks that arrived."""
    dropped: int
    """Number of tasks that did not fit anywhere."""
    allocated: float
    """Allocated share of all GPUs at the end, 0 to 1."""
    fragmented: float
    """Share of the GPUs that remain free which a typical task cannot use, 0 to 1."""
    at_capacity: float
    """Allocated share of all GPUs when the requested GPUs reached those of the cluster, 0 to 1."""


def tasks_of(path: Path) -> list[Request]:
    """Return the requests in a file of OpenB pods, in the order of the file. Raises TraceError."""
    found = []
    for row in rows(path, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")):
        try:
            if isinstance(row, CellError):
                raise row
            gpus = row.count("num_gpu")
            types = tuple(filter(None, row.text("gpu_spec").split("|")))
            milli = row.count("gpu_milli") if gpus else GPU_MILLI
            found.append(Request(gpus, milli, row.count("cpu_milli"), row.count("memory_mib"), types))
        except (CellError, ValueError) as error:
            where = f"line {row.line}: " if not isinstance(error, CellError) else ""
            raise TraceError(f"{path}: {where}{error}") from error
    if not found:
        raise TraceError(f"{path}: contains no task")
    return found


def cluster_of(path: Path) -> dict[str, Room]:
    """Return the empty nodes in a file of OpenB nodes by name. Raises TraceError."""
    found: dict[str, Room] = {}
    for row in rows(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model")):
        if isinstance(row, CellError):
            raise TraceError(f"{path}: {row}")
        try:
            if (gpus := row.count("gpu")) > MOST_GPUS:
                raise row.wrong("gpu", f"{gpus} GPUs; at most {MOST_GPUS}")
            if not (name := row.text("sn")):
                raise row.wrong("sn", "is missing")
            if name in found:
                raise row.wrong("sn", f"{name!r} is listed twice")
            found[name] = Room((GPU_MILLI,) * gpus, row.count("cpu_milli"), row.count("memory_mib"), row.text("model"))
        except CellError as error:
            raise TraceError(f"{path}: {error}") from error
    if not found:
        raise TraceError(f"{path}: contains no node")
    return found


def arrivals(tasks: Sequence[Request], capacity_milli: int, seed: int, arrived: float = ARRIVED) -> list[Request]:
    """Return the tasks in random order, and more tasks drawn from them, until they request `arrived` x the capacity."""
    chance = random.Random(seed)
    found = list(tasks)
    chance.shuffle(found)
    milli = 0
    for number, task in enumerate(found):
        milli += task.total_milli
        if milli > arrived * capacity_milli:
            return found[:number]
    while True:
        task = chance.choice(tasks)
        milli += task.total_milli
        if milli > arrived * capacity_milli:
            return found
        found.append(task)


def _whole(task: Request) -> Request:
    return replace(task, gpu_milli=GPU_MILLI) if task.gpus else task


def fill(rule: str, nodes: Mapping[str, Room], tasks: Sequence[Request], seed: int, arrived: float = ARRIVED) -> Filled:
    """Fill the cluster with tasks by this rule of RULES and return the result."""
    chance = random.Random(f"{rule} {seed}")
    capacity = sum(room.total_milli for room in nodes.values())
    studied = RULES[rule]
    index = ShareIndex(dict(sorted(nodes.items())), studied.make(tasks, chance))
    pick = chance.randrange if studied.any_tie else None
    allocated = requested = dropped = 0
    at_capacity: float | None = None
    arriving = arrivals(tasks, capacity, seed, arrived)
    for task in arriving:
        if requested >= capacity and at_capacity is None:
            at_capacity = allocated / capacity
        requested += task.total_milli
        if index.place(_whole(task) if studied.whole else task, pick) is None:
            dropped += 1
        else:
            allocated += task.total_milli
    measure = Fragmentation(typical(tasks))
    rooms = [index.room(name) for name in nodes]
    free = sum(room.total_milli for room in rooms)
    fragmented = sum(measure.milli(room) for room in rooms) / free if free else 0.0
    end = allocated / capacity
    return Filled(rule, seed, len(arriving), dropped, end, fragmented, end if at_capacity is None else at_capacity)


def _any_node(_tasks: Sequence[Request], chance: random.Random) -> Rule:
    """Return the rule that uses any node and any GPU on which the request fits, at random."""

    def rule(room: Room, request: Request) -> tuple[float, tuple[int, ...]] | None:
        choices = gpu_choices(room, request)
        return (0.0, chance.choice(choices)) if choices else None

    return rule


@dataclass(frozen=True, slots=True)
class Studied:
    """A placement rule of the study."""

    make: Callable[[Sequence[Request], random.Random], Rule]
    """Makes the rule from the workload and a source of random numbers."""
    any_tie: bool = False
    """Whether equally good nodes are chosen at random. Otherwise the first by name is used, as in the published
    runs."""
    whole: bool = False
    """Whether a request for a share gets a whole GPU, as in the scheduler today."""


RULES: dict[str, Studied] = {
    "random": Studied(_any_node, any_tie=True),
    "best-fit": Studied(lambda _tasks, _chance: best_fit),
    "whole-gpus": Studied(lambda _tasks, _chance: best_fit, whole=True),
    "fgd": Studied(lambda tasks, _chance: least_fragmentation(typical(tasks), fit=False)),
    "exact-fgd": Studied(lambda tasks, _chance: least_fragmentation(typical(tasks), fit=False, rounded=False)),
    "least-fragmentation": Studied(lambda tasks, _chance: least_fragmentation(typical(tasks))),
}
"""Rules by name. `fgd` follows the published runs, `exact-fgd` does not round its scores, and `least-fragmentation`
uses best fit among equal scores."""
