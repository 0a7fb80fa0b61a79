"""Runs: several cells in one world at once (so that faults are concurrent), judged by all methods together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.detection.baselines import BASELINES, Panel
from benchmarks.detection.cells import Cell, Staged, stage
from benchmarks.detection.claims import ACCUSING, Heard
from benchmarks.detection.ours import Ours
from benchmarks.detection.score import Outcome, Truth, judge
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.sim.world.telemetry import ROUGH, Delivery, World

SAMPLING_SECONDS = (1.0, 10.0, 30.0)
SAMPLING_WEIGHTS = (0.3, 0.5, 0.2)
ROUGH_SHARE = 0.2
"""Share of the fleets whose telemetry arrives badly: see ROUGH."""

UNKNOWN_TOPOLOGY_SHARE = 0.1

TICK_SECONDS = 5.0
"""How often the judges look, whatever the sampling of the counters: steps come with every frame."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Cells that run in one world. counters, steps: what the judge is told; baselines: whether they listen, too."""

    cells: tuple[Cell, ...]
    seed: int
    sampling_seconds: float
    rough: bool = False
    known_topology: bool = True
    baselines: bool = True
    switches: Switches | None = None


@dataclass(slots=True)
class Result:
    """One cell's outcome: what it was, what happened, and how each method did.

    period_seconds: the true length of an iteration in health. inferred_seconds: ours, from the counters alone, as the
    fault began; None where steps are reported or ours is not sure. sampling_seconds: of the counters.
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
    cells: Sequence[Cell], seed: int, most_gpus: int = 12_000, most_cells: int = 24, **told: Any
) -> list[Fleet]:
    """Fleets of cells of like length, each of not too many GPUs. Mass loss has a fleet of its own: it freezes all."""
    random = np.random.default_rng([seed, 5])

    def length(cell: Cell) -> float:
        return max(cell.minutes * 60.0, 8.0 * cell.step_seconds) + max(300.0, 50.0 * cell.step_seconds)

    found: list[Fleet] = []
    waiting: list[Cell] = []

    def close() -> None:
        if waiting:
            sampling = float(random.choice(SAMPLING_SECONDS, p=SAMPLING_WEIGHTS))
            rough = bool(random.random() < ROUGH_SHARE)
            known = not (
                random.random() < UNKNOWN_TOPOLOGY_SHARE and all(c.disorder != "uplink-congestion" for c in waiting)
            )
            found.append(
                Fleet(tuple(waiting), int(random.integers(2**31)), sampling, rough, known_topology=known, **told)
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
    """Let a fleet happen, and judge the judges. Cells that can't be staged are left out."""
    staged: list[Staged] = []
    first_node = 0
    for cell in fleet.cells:
        try:
            one, first_node = stage(cell, first_node)
        except ValueError:
            continue
        staged.append(one)
    if not staged:
        return []
    delivery = ROUGH if fleet.rough else Delivery()
    courses = [course for one in staged for course in one.courses]
    world = World(courses, fleet.seed, fleet.sampling_seconds, delivery, fleet.known_topology)
    ours, heard = Ours(fleet.switches), {"ours": Heard()}
    panel = Panel([rule() for rule in BASELINES] if fleet.baselines else [])
    heard |= {rule.name: Heard() for rule in panel.rules}
    truths = [Truth(one) for one in staged]
    results: list[Result] = []
    tick = TICK_SECONDS
    while truths:
        telemetry = world.tick(tick)
        heard["ours"].hear(ours.look(telemetry))
        for name, claims in panel.look(telemetry).items():
            heard[name].hear(claims)
        periods = ours.periods()
        for truth in truths:
            truth.follow()
            if world.now <= truth.staged.fault.begin and (told := periods.get(truth.staged.cell.name)) is not None:
                truth.inferred = told
        for truth in [t for t in truths if world.now > t.staged.end + tick]:
            truths.remove(truth)
            results.append(_result(truth, heard, fleet.sampling_seconds))
            for course in truth.staged.courses:
                course.finish = world.now
    return results


def _result(truth: Truth, heard: dict[str, Heard], sampling_seconds: float) -> Result:
    staged = truth.staged
    outcomes = {}
    for name, told in heard.items():
        outcome = judge(truth, told.about(staged.cell.name), name == "ours")
        # Jobs beside the one in trouble are healthy: whoever accuses them is wrong.
        for course in staged.courses:
            if course is staged.victim:
                continue
            for claim in told.about(course.plan.name):
                mutual = claim.kind == "interference" and claim.aggressor == staged.cell.name
                if claim.kind in ACCUSING or (claim.kind == "interference" and not mutual):
                    outcome.fp += 1
                    outcome.false_kinds.append(f"{claim.kind} of a neighbour")
        outcomes[name] = outcome
    slowdown = float(np.mean(truth.slowed)) if truth.slowed else 0.0
    healthy = truth.healthy()
    inferred = None if staged.cell.reports else truth.inferred
    level, family = staged.disorder.level, staged.disorder.family
    return Result(staged.cell, level, family, slowdown, healthy, inferred, sampling_seconds, outcomes)
