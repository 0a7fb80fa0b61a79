"""Tasks of the detection benchmark for worker processes: single faults, faults in large jobs, healthy jobs."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.pool import AsyncResult
from typing import Any

import numpy as np

from benchmarks.detection import class_report, fleet, healthy, report
from benchmarks.detection.baselines import NAMES
from benchmarks.detection.cells import MINUTES, SEVERITIES, Cell, drawn, drawn_of_class, grid
from benchmarks.detection.classes import CLASSES, rows
from benchmarks.detection.fleet import Fleet, Result
from benchmarks.detection.healthy import Alarms, Health
from benchmarks.detection.score import HEADLINE_SEVERITY
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.sim.world.fault import ORIGINAL

QUICK_CELLS, QUICK_LOCATED, QUICK_HEALTHY_DAYS = 110, 8, 560.0
QUICK_LARGEST = 1024
"""Maximum number of GPUs of a job in the ``--quick`` sample. Larger jobs only run to measure localisation."""

QUICK_SECONDS, GRACE_SECONDS = 260.0, 25.0
"""Seconds after which ``--quick`` starts no more tasks, and additional seconds for tasks that have started."""

HEALTHY_DAYS = 21_000.0
"""Number of healthy GPU-days to simulate: 3,000 of each of the seven workloads."""

FULL_LOCATED = 40
HEALTHY_PART_DAYS = 250.0
LONG_EVERY = 13
"""One of this many parts is one small job that runs for days. It shows whether slow drift is mistaken for a fault."""

LARGE = 8192
LOCATED = ("thermal", "clock-lock", "memory-errors", "nvlink", "pcie", "nic-flap", "nic-errors", "cpu-contention")

Task = Fleet | Health


def chosen(options: argparse.Namespace) -> list[Cell]:
    """Return the runs of the grid, in a random order that depends on the seed."""
    if not options.grid:
        return []
    random = np.random.default_rng([options.seed, 3])
    sizes = tuple(s for s in options.sizes if not options.quick or s <= QUICK_LARGEST)
    minutes = (1, 10) if options.quick else MINUTES
    combinations = list(grid(sizes, options.workloads))
    order = random.permutation(len(combinations))
    limit = QUICK_CELLS if options.quick else len(combinations) * options.repeats
    limit = limit if options.cells is None else options.cells
    cells = []
    for number in range(limit):
        row = combinations[order[number % len(combinations)]]
        if options.quick:
            # A sample of rows would leave most classes without a row, so draw each class in turn, slowdowns of 10 % and
            # more.
            names = list(ORIGINAL)
            of_class = [r for r in combinations if r.disorder == names[number % len(names)] and r.severity >= 0.10]
            row = of_class[int(random.integers(len(of_class)))] if of_class else row
        lengths = tuple(m for m in minutes if row.gpus < LARGE or m <= 10)
        cells.append(
            drawn(row, options.seed, number if options.quick else number // len(combinations), random, lengths)
        )
    return cells


def of_classes(options: argparse.Namespace) -> list[Cell]:
    """Return the runs of the added classes, class by class."""
    found = []
    for name in options.classes:
        minutes = tuple(m for m in ((1, 10) if options.quick else MINUTES) if m >= 10 or not CLASSES[name].rare)
        place = list(CLASSES).index(name)
        random = np.random.default_rng([options.seed, 31, place])
        severities = tuple(s for s in SEVERITIES if s >= HEADLINE_SEVERITY)
        for number, row in enumerate(rows(CLASSES[name], severities, random, options.class_runs)):
            # With few runs of each class, other classes have other lengths of a step.
            found.append(drawn_of_class(row, options.seed, number + place, random, minutes))
    return found


def located(options: argparse.Namespace) -> list[Cell]:
    """Return runs with a faulty rank or node in large jobs, to measure how often the right one is named."""
    if not options.grid:
        return []
    random = np.random.default_rng([options.seed, 4])
    sizes = (LARGE,) if options.quick else (64, 1024, LARGE, 16384)
    most = options.located if options.located is not None else (QUICK_LOCATED if options.quick else FULL_LOCATED)
    workloads = tuple(w for w in options.workloads if w in ("balanced", "long-context", "moe", "unequal-stages"))
    found = []
    for gpus in sizes:
        for number in range(most):
            workload = (workloads or options.workloads)[number % len(workloads or options.workloads)]
            row = Cell(LOCATED[number % len(LOCATED)], 0.2, gpus, "step", workload, 1, 1.0, 0)
            found.append(drawn(row, options.seed, number, random, (1,) if options.quick else (1, 10)))
    return found


def health(options: argparse.Namespace) -> list[Health]:
    """Return the healthy jobs of every workload, divided into tasks that run in parallel."""
    days = QUICK_HEALTHY_DAYS if options.healthy_days is None and options.quick else options.healthy_days
    days = HEALTHY_DAYS if days is None else days
    parts = max(len(options.workloads), round(days / HEALTHY_PART_DAYS))
    parts = 0 if days <= 0 else parts
    random = np.random.default_rng([options.seed, 6])
    return [
        Health(
            options.workloads[number % len(options.workloads)],
            days / parts,
            int(random.integers(2**31)),
            baselines=number < 2 * len(options.workloads),
            rough=bool(random.random() < 0.2),
            long=number % LONG_EVERY == LONG_EVERY - 1,
            added=not options.grid,
        )
        for number in range(parts)
    ]


def work(task: Task) -> list[Result] | Alarms:
    """Run one task in a worker process."""
    return fleet.run(task) if isinstance(task, Fleet) else healthy.run(task)


@dataclass(slots=True)
class Parts:
    """Number of planned tasks and of finished tasks."""

    planned: int = 0
    run: int = 0


def done(tasks: Sequence[Task], jobs: int, until: float, name: str, parts: Parts) -> Iterator[list[Result] | Alarms]:
    """Yield the results of the tasks as they finish, and print progress.

    Tasks that have not begun at the monotonic time `until`, or have not ended GRACE_SECONDS later, are counted in
    `parts` and have no result.
    """
    begun, left = time.monotonic(), list(tasks)
    parts.planned += len(left)
    before = parts.run
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        running: list[AsyncResult[list[Result] | Alarms]] = []
        while left or running:
            now = time.monotonic()
            while left and len(running) < jobs and now < until:
                running.append(pool.apply_async(work, (left.pop(0),)))
            if not running or now > until + GRACE_SECONDS:
                break
            running[0].wait(0.2)
            for result in [one for one in running if one.ready()]:
                running.remove(result)
                parts.run += 1
                took = time.monotonic() - begun
                print(f"{name}: {parts.run - before} of {len(tasks)} parts, {took:.0f} s", file=sys.stderr, flush=True)
                yield result.get()
    lost = len(left) + len(running)
    if lost:
        print(f"{name}: {lost} of {len(tasks)} parts left out: out of time", file=sys.stderr)


def in_turn(*lists: Sequence[Task]) -> list[Task]:
    """Return all tasks, with each list spread evenly over the whole, so that an aborted run has results of each
    list."""
    places = [((at + 0.5) / len(tasks), number, at) for number, tasks in enumerate(lists) for at in range(len(tasks))]
    return [lists[number][at] for _, number, at in sorted(places)]


def measure(
    options: argparse.Namespace, switches: Switches | None = None, baselines: bool = True, reports: bool = True
) -> dict[str, Any]:
    """Run the whole benchmark once and return its document.

    switches: parts of the detectors that are turned off. baselines: whether the published rules run. reports:
    whether the jobs report their steps.
    """
    until = time.monotonic() + (options.budget or float("inf"))
    runs = [replace(cell, reports=reports) for cell in chosen(options)]
    # Use small parts if time is short, because an unfinished part is lost.
    most = 8 if options.quick else 24
    cells = fleet.compose(
        runs, options.seed, most_cells=most, sampling_seconds=options.sampling, baselines=baselines, switches=switches
    )
    order = np.random.default_rng([options.seed, 8]).permutation(len(cells))
    tasks: list[Task] = [cells[i] for i in order]
    healthy_parts = [
        replace(
            one,
            reports=reports,
            baselines=one.baselines and baselines,
            switches=switches,
            sampling_seconds=options.sampling or one.sampling_seconds,
        )
        for one in health(options)
    ]
    if switches is None:
        large = fleet.compose(
            [replace(cell, reports=reports) for cell in located(options)],
            options.seed + 1,
            most_gpus=20_000,
            sampling_seconds=options.sampling,
            baselines=baselines,
        )
        added = fleet.compose(
            [replace(cell, reports=reports) for cell in of_classes(options)],
            options.seed + 2,
            most_cells=most,
            baselines=baselines,
        )
        # The grid comes first, so that a budget leaves the same results as without the added classes.
        tasks = in_turn(tasks, large, healthy_parts) + list(added) if options.grid else in_turn(added, healthy_parts)
    elif options.healthy_days is not None:
        tasks = in_turn(tasks, healthy_parts)
    name = "ablation" if switches else "detection" if reports else "counters only"
    parts = Parts()
    results: list[Result] = []
    alarms: list[Alarms] = []
    for found in done(tasks, options.jobs, until, name, parts):
        if isinstance(found, Alarms):
            alarms.append(found)
        else:
            results += found
    of_class = [result for result in results if result.cell.of_class]
    results = [result for result in results if not result.cell.of_class]
    document: dict[str, Any] = {"ours": report.method("ours", results, alarms) | report.ours_more(results, alarms)}
    if baselines:
        document["baselines"] = {name: report.method(name, results, alarms) for name in NAMES}
    if not reports:
        document["period"] = report.periods(results)
    document["classes"] = class_report.table(of_class, NAMES if baselines else ())
    combinations = report.grid(results)
    return document | {
        "grid": combinations,
        "behind": report.behind(combinations),
        "runs": len(results),
        "parts": asdict(parts),
    }


def ablations(options: argparse.Namespace) -> dict[str, Any]:
    """Repeat the same runs with each part of the detectors turned off in turn, and return the figures of each.

    Healthy jobs run only if the number of their GPU-days is given.
    """
    kept = ("precision", "recall", "f1", "f1_interval", "ttd_seconds_p95", "kind_confusion", "calibration_error",
            "by_workload", "false_alarms_per_1000_gpu_days", "wrong_actions", "sure_false_alarms",
            "healthy_gpu_days")  # fmt: skip
    found = {}
    for name in (None, *Switches.__dataclass_fields__):
        switches = Switches() if name is None else replace(Switches(), **{name: False})
        ours = measure(options, switches, baselines=False)["ours"]
        found[name or "none"] = {key: ours[key] for key in kept}
    return found
