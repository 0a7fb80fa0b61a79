"""``python -m benchmarks.detection --json``: accuracy of our detectors and of seven published rules on the same faults.

Runs all combinations of fault class, severity, job size, shape over time and workload (the rows of the grid), then
healthy jobs of every workload. Step lengths are drawn from 0.3 to 45 s; faults last 1, 10 or 60 minutes. ``--quick``
takes a random sample of the rows. Several runs (cells) share one simulated cluster, so that their faults are
concurrent. One in five clusters loses samples, records and agents at a high rate. Counters are sampled every 1, 10 or
30 s.

After them it runs the added classes (classes.py): healthy jobs with work of single ranks, unequal GPUs, drift, wrong
clocks and restarts; faults from the first step and of several GPUs; other parallel layouts. Their table is `classes` in
the document; the other figures do not contain them. ``--classes added`` runs only these classes, and healthy jobs with
the same properties; ``--classes grid`` only the grid; a list of names only these classes.

Tuning and test use different seeds and workloads. To set a threshold of a detector, use seeds below 100,000
(``--tuning``: seed 1, and only the workloads balanced, dp2 and long-context). A test uses other seeds (default
950,003) and all workloads.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from benchmarks.detection import class_report
from benchmarks.detection.campaign import HEALTHY_DAYS, QUICK_SECONDS, ablations, measure
from benchmarks.detection.cells import SIZES
from benchmarks.detection.classes import CLASSES
from scheduler_feedback.sim.world.plan import WORKLOADS, Workload

TEST_SEED = 950_003
TUNING_SEED = 1
TUNING_WORKLOADS: tuple[Workload, ...] = ("balanced", "dp2", "long-context")


def table(document: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a table with the main results."""
    keys = ("precision", "recall", "f1", "ttd_seconds_p95", "ttd_steps_p95", "false_alarms_per_1000_gpu_days")
    yield f"{'':18}" + "".join(f"{key.replace('_per_1000_gpu_days', ''):>17}" for key in keys)
    for name, row in {"ours": document["ours"], **document.get("baselines", {})}.items():
        yield f"{name:18}" + "".join(f"{row[key]!s:>17}" for key in keys)
    ours = document["ours"]
    yield from class_report.lines(document.get("classes", []))
    for part in ("by_family", "by_fault", "by_workload"):
        for name, row in ours[part].items():
            yield f"{part[3:]:9} {name:22} precision {row['precision']}, recall {row['recall']} of {row['runs']}"


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command-line options. Defaults that depend on other options are filled in."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    parser.add_argument("--quick", action="store_true", help="a sample of the grid, within five minutes")
    parser.add_argument("--seed", type=int, help=f"seed of all random choices (default {TEST_SEED})")
    parser.add_argument("--workloads", help=f"mix, by commas: {', '.join(get_args(Workload))} (default all)")
    parser.add_argument("--sizes", help=f"GPUs of a job, by commas (default {', '.join(map(str, SIZES))})")
    parser.add_argument("--tuning", action="store_true", help="use the seed and workloads for setting thresholds")
    parser.add_argument("--counter-only", action="store_true", help="add the same table for jobs that report no steps")
    parser.add_argument("--silent", action="store_true", help="that table alone: no job reports its steps")
    parser.add_argument("--ablations", action="store_true", help="run with each part of the detectors off in turn")
    parser.add_argument("--healthy-days", type=float, help=f"GPU-days of healthy jobs (default {HEALTHY_DAYS:.0f})")
    parser.add_argument("--ours", action="store_true", help="leave the published rules out: half of the time")
    parser.add_argument(
        "--sampling", type=float, help="sample all counters at this interval in seconds (default: drawn)"
    )
    parser.add_argument("--repeats", type=int, default=2, help="runs of each row (default 2)")
    parser.add_argument("--cells", type=int, help="runs of the grid in all, in an order drawn by the seed")
    parser.add_argument("--classes", default="all", metavar="NAMES", help="grid, added, all, or names of added classes "
                        f"by commas: {', '.join(CLASSES)} (default all)")  # fmt: skip
    parser.add_argument("--class-runs", type=int, help="runs of each added class, healthy and with a fault each "
                        "(default 2; with --quick 1)")  # fmt: skip
    parser.add_argument("--located", type=int, help="runs of each large size, for localisation")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: processors)")
    parser.add_argument("--budget", type=float, help="seconds after which no task starts")
    options = parser.parse_args(arguments)
    if options.seed is None:
        options.seed = TUNING_SEED if options.tuning else TEST_SEED
    names = options.workloads.split(",") if options.workloads else (TUNING_WORKLOADS if options.tuning else WORKLOADS)
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        parser.error(f"--workloads: {', '.join(unknown)}; known are {', '.join(WORKLOADS)}")
    options.workloads = tuple(names)
    options.grid = options.classes in ("all", "grid")
    chosen = CLASSES if options.classes in ("all", "added") else options.classes.split(",")
    chosen = [] if options.classes == "grid" else list(chosen)
    unknown = [name for name in chosen if name not in CLASSES]
    if unknown:
        parser.error(f"--classes: {', '.join(unknown)}; known are grid, added, all, {', '.join(CLASSES)}")
    options.classes = tuple(chosen)
    if options.class_runs is None:
        options.class_runs = 1 if options.quick else 2
    if options.class_runs < 0:
        parser.error(f"--class-runs: {options.class_runs}; a number of runs, 0 for none")
    if options.ablations and not options.grid:
        parser.error(f"--ablations runs the grid, and --classes {','.join(options.classes)} does not contain it")
    try:
        options.sizes = tuple(int(size) for size in options.sizes.split(",")) if options.sizes else SIZES
    except ValueError:
        parser.error(f"--sizes: {options.sizes!r} is not a list of GPU numbers")
    if options.sampling is not None and not 0.1 <= options.sampling <= 60:
        parser.error(f"--sampling: {options.sampling:g} s; expected 0.1 to 60")
    if options.quick and options.budget is None:
        options.budget = QUICK_SECONDS
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print the result."""
    options = parsed(arguments)
    document: dict[str, Any] = {
        "benchmark": "detection",
        "seed": options.seed,
        "workloads": options.workloads,
        "quick": options.quick,
        "added": options.classes,
    }
    if options.ablations:
        document["ablations"] = ablations(options)
    else:
        options.budget = options.budget / 2 if options.budget and options.counter_only else options.budget
        document |= measure(options, baselines=not options.ours, reports=not options.silent)
        if options.counter_only:
            document["counter_only"] = measure(options, baselines=not options.ours, reports=False)
    if options.json or options.ablations:
        print(json.dumps(document, indent=2))
    else:
        print("\n".join(table(document)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
