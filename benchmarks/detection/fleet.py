"""Groups of runs on one simulated cluster, so that their faults are concurrent.

All methods judge the same telemetry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent.schema.verdicts.kinds import BLAMING
from benchmarks.detection.baselines import BASELINES, Panel
from benchmarks.detection.cells import Cell, Staged, stage
from benchmarks.detection.claims import ClaimLog
from benchmarks.detection.ours import Ours
from benchmarks.detection.score import Outcome, Truth, judge
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.sim.world.outputs.array_output import ROUGH, Delivery, World

SAMPLING_SECONDS = (1.0, 10.0, 30.0)
SAMPLING_WEIGHTS = (0.3, 0.5, 0.2)
ROUGH_SHARE = 0.2
"""Share of fleets whose telemetry is lost more often (see ROUGH)."""

UNKNOWN_TOPOLOGY_SHARE = 0.1

TICK_SECONDS = 5.0
"""Seconds between two evaluations by the methods. The interval does not depend on how often counters are sampled."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Runs on one simulated cluster. rough: whether much telemetry is lost. baselines: whether published rules run."""

    cells: tuple[Cell, ...]
    seed: int
    sampling_seconds: float
    rough: bool = False
    known_topology: bool = True
    baselines: bool = True
    switches: Switches | None = None


@dataclass(slots=True)
class Result:
    """Result of one run: the truth, and the outcome of each method.

    period_seconds: true duration of an iteration without the fault. inferred_seconds: duration that our detectors
    had inferred from counters when the fault began; None if steps are reported or nothing was inferred.
    sampling_seconds: sampling interval of the counters.
    """

    cell: Cell
    level: str
    family: str
    slowdown: float
    period_seconds: float
    inferred_seconds: float | None
    sampling_seconds: float
    outcomes: dict[str, Outcome]


def compose(
    cells: Sequence[Cell],
    seed: int,
    most_gpus: int = 12_000,
    most_cells: int = 24,
    sampling_seconds: float | None = None,
    **settings: Any,
) -> list[Fleet]:
    """Group runs of similar length into fleets with a limited number of GPUs.

    A simultaneous loss of many agents gets its own fleet, because it freezes all jobs. sampling_seconds: interval of
    counters; None draws it. Nothing else that is drawn depends on it, so that runs of two intervals can be compared.
    """
    random = np.random.default_rng([seed, 5])

    def length(cell: Cell) -> float:
        return max(cell.minutes * 60.0, 8.0 * cell.step_seconds) + max(300.0, 50.0 * cell.step_seconds)

    found: list[Fleet] = []
    waiting: list[Cell] = []

    def close() -> None:
        if waiting:
            sampling = float(random.choice(SAMPLING_SECONDS, p=SAMPLING_WEIGHTS))
            sampling = sampling if sampling_seconds is None else sampling_seconds
            rough = bool(random.random() < ROUGH_SHARE)
            known = not (
                random.random() < UNKNOWN_TOPOLOGY_SHARE and all(c.disorder != "uplink-congestion" for c in waiting)
            )
            found.append(
                Fleet(tuple(waiting), int(random.integers(2**31)), sampling, rough, known_topology=known, **settings)
            )
            waiting.clear()

    for cell in sorted(cells, key=lambda cell: (cell.disorder == "mass-loss", length(cell), cell.seed)):
        alone = cell.disorder == "mass-loss"
        long = waiting and length(cell) > 1.6 * length(waiting[0])
        full = sum(c.gpus for c in waiting) + cell.gpus > most_gpus or len(waiting) >= most_cells
        if alone or long or full:
            close()
        waiting.append(cell)
        if alone:
            close()
    close()
    return found


def run(fleet: Fleet) -> list[Result]:
    """Run a fleet and score the methods. Runs that cannot be placed are skipped."""
    followed_cells = followed(fleet, Ours(fleet.switches))
    return [_result(truth, by_method, fleet.sampling_seconds) for truth, by_method in followed_cells]


def followed(fleet: Fleet, ours: Ours) -> Iterator[tuple[Truth, dict[str, ClaimLog]]]:
    """Simulate a fleet. Whenever a run ends, yield its true faults and the claims of each method so far."""
    staged: list[Staged] = []
    first_node = 0
    for cell in fleet.cells:
        try:
            one, first_node = stage(cell, first_node)
        except ValueError:
            continue
        staged.append(one)
    if not staged:
        return
    delivery = ROUGH if fleet.rough else Delivery()
    courses = [course for one in staged for course in one.courses]
    world = World(courses, fleet.seed, fleet.sampling_seconds, delivery, fleet.known_topology)
    by_method = {"ours": ClaimLog()}
    panel = Panel([rule() for rule in BASELINES] if fleet.baselines else [])
    by_method |= {rule.name: ClaimLog() for rule in panel.rules}
    truths = [Truth(one) for one in staged]
    tick = TICK_SECONDS
    while truths:
        telemetry = world.tick(tick)
        by_method["ours"].add(ours.look(telemetry))
        for name, claims in panel.look(telemetry).items():
            by_method[name].add(claims)
        periods = ours.periods()
        for truth in truths:
            truth.follow()
            if world.now <= truth.staged.fault.begin and (inferred := periods.get(truth.staged.cell.name)) is not None:
                truth.inferred = inferred
        for truth in [t for t in truths if world.now > t.staged.end + tick]:
            truths.remove(truth)
            yield truth, by_method
            for course in truth.staged.courses:
                course.finish = world.now


def _result(truth: Truth, by_method: dict[str, ClaimLog], sampling_seconds: float) -> Result:
    staged = truth.staged
    outcomes = {}
    for name, one in by_method.items():
        outcome = judge(truth, one.about(staged.cell.name), name == "ours", one.highest)
        # The other jobs are healthy: any accusation of them is wrong.
        for course in staged.courses:
            if course is staged.victim:
                continue
            for claim in one.about(course.plan.name):
                mutual = claim.kind == "interference" and claim.aggressor == staged.cell.name
                if claim.kind in BLAMING and not mutual:
                    outcome.fp += 1
                    outcome.false_kinds.append(f"{claim.kind} of a neighbour")
        outcomes[name] = outcome
    slowdown = float(np.mean(truth.slowed)) if truth.slowed else 0.0
    healthy = truth.healthy()
    inferred = None if staged.cell.reports else truth.inferred
    level, family = staged.disorder.level, staged.disorder.family
    return Result(staged.cell, level, family, slowdown, healthy, inferred, sampling_seconds, outcomes)
