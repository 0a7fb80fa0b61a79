"""``python -m benchmarks.detection.unknown_waits --json``: faults found in jobs whose waits are unknown.

The same simulated faults of 64 GPUs run three times: the jobs report steps with waits, steps without waits (as FSDP
or DeepSpeed jobs may), or no steps. Only accusations with a confidence of at least .9 count; a verdict that becomes so
certain later counts too. Jobs whose waits are unknown must not have a lower recall than jobs that report nothing.

Seeds below 100,000 are for tuning, with the workloads of ``benchmarks.detection --tuning``; other seeds have all
workloads.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from agent.schema.verdicts.kinds import ACCUSING
from benchmarks.detection.__main__ import TEST_SEED, TUNING_WORKLOADS
from benchmarks.detection.cells import Cell, grid
from benchmarks.detection.claims import Claim
from benchmarks.detection.fleet import compose, followed
from benchmarks.detection.ours import Ours, claim_of
from benchmarks.detection.score import is_right
from scheduler_feedback.core.telemetry.telemetry import Telemetry
from scheduler_feedback.core.verdict import Finding, Verdict
from scheduler_feedback.detectors.stats.log_odds import ACTING_CONFIDENCE
from scheduler_feedback.sim.world.fault import DISORDERS
from scheduler_feedback.sim.world.outputs.node_events import NS, WALL_START_NS
from scheduler_feedback.sim.world.plan import WORKLOADS

Reports = Literal["waits", "no waits", "no steps"]
"""What the jobs report: steps with waits, steps without waits, or no steps."""

GPUS, MINUTES, STEP_SECONDS = 64, 5.0, 2.0
"""Size of each job, length of each fault in minutes, and usual step time in seconds, as in the reproduction of the
issue."""

LEAST_SEVERITY = 0.2
CELLS = 64


def without_waits(telemetry: Telemetry) -> Telemetry:
    """Return the telemetry with unknown waits in all steps."""
    jobs = []
    for job in telemetry.jobs:
        if job.steps is not None:
            unknown = np.full_like(job.steps.wait_seconds, np.nan)
            job = replace(job, steps=replace(job.steps, wait_seconds=unknown))
        jobs.append(job)
    return replace(telemetry, jobs=tuple(jobs))


class Sure(Ours):
    """Our detectors, which also keep each accusation with a confidence of at least .9, as first reported with it.

    waits: whether reported waits arrive.
    """

    def __init__(self, waits: bool) -> None:
        super().__init__()
        self._waits = waits
        self.claims: dict[str, Claim] = {}

    def tick(self, telemetry: Telemetry) -> Sequence[Finding]:
        """Run the detectors, and return their results."""
        findings = super().tick(telemetry if self._waits else without_waits(telemetry))
        for one in findings:
            if isinstance(one, Verdict) and one.kind in ACCUSING and one.confidence >= ACTING_CONFIDENCE:
                claim = claim_of(one, (telemetry.now_ns - WALL_START_NS) / NS)
                self.claims.setdefault(claim.key, claim)
        return findings


@dataclass(slots=True)
class Found:
    """Result of one kind of reports."""

    runs: int = 0
    found: int = 0
    wrong: int = 0
    """Accusations of members that are not at fault."""
    missed: Counter[str] = field(default_factory=Counter)
    """Number of missed faults by class and workload."""
    accused: list[str] = field(default_factory=list)
    """Wrong accusations: class, workload, kind and cause."""


def chosen(seed: int, count: int) -> list[Cell]:
    """Return the runs: faults of hardware and hangs of at least LEAST_SEVERITY, in an order that the seed draws."""
    workloads = TUNING_WORKLOADS if seed < 100_000 else WORKLOADS
    rows = [
        row
        for row in grid((GPUS,), workloads)
        if DISORDERS[row.disorder].family in ("hardware", "hang") and row.severity >= LEAST_SEVERITY
        and row.form == "step"
    ]  # fmt: skip
    order = np.random.default_rng([seed, 21]).permutation(len(rows))
    return [
        replace(rows[order[number % len(rows)]], minutes=MINUTES, step_seconds=STEP_SECONDS, seed=seed * 1000 + number)
        for number in range(count)
    ]


def measured(cells: Sequence[Cell], reports: Reports, seed: int) -> Iterator[Found]:
    """Run the cells with these reports, and yield the results so far after each fleet."""
    result = Found()
    runs = [replace(cell, reports=reports != "no steps") for cell in cells]
    for fleet in compose(runs, seed, baselines=False):
        ours = Sure(waits=reports != "no waits")
        for truth, _ in followed(fleet, ours):
            cell = truth.staged.cell
            claims = [one for one in ours.claims.values() if one.job == cell.name]
            right = [claim for claim in claims if is_right(claim, truth)]
            result.runs += 1
            result.found += bool(right)
            result.missed[f"{cell.disorder} {cell.workload} {cell.severity}"] += not right
            wrong = [claim for claim in claims if claim not in right]
            result.wrong += len(wrong)
            result.accused += [f"{cell.disorder} {cell.workload} {one.kind} {one.cause}" for one in wrong]
        yield result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all kinds of reports and print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.detection.unknown_waits",
        description=__doc__.split("\n\n")[1],
        epilog="Example: python -m benchmarks.detection.unknown_waits --seed 19 --cells 48 --json",
    )
    parser.add_argument("--seed", type=int, default=TEST_SEED, help=f"seed of all random choices (default {TEST_SEED})")
    parser.add_argument("--cells", type=int, default=CELLS, help=f"runs of each kind (default {CELLS})")
    parser.add_argument("--only", choices=get_args(Reports), action="append", help="kinds of reports (default all)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    options = parser.parse_args(arguments)
    cells = chosen(options.seed, options.cells)
    document: dict[str, Any] = {"benchmark": "unknown waits", "seed": options.seed}
    for reports in options.only or get_args(Reports):
        begun, result = time.monotonic(), Found()
        for result in measured(cells, reports, options.seed):
            print(f"{reports}: {result.found} of {result.runs}", file=sys.stderr, flush=True)
        document[reports] = {
            "runs": result.runs,
            "found_at_90": result.found,
            "recall_at_90": round(result.found / result.runs, 4) if result.runs else None,
            "wrong_at_90": result.wrong,
            "wrong": result.accused,
            "missed": {name: count for name, count in sorted(result.missed.items()) if count},
            "seconds": round(time.monotonic() - begun),
        }
    print(json.dumps(document, indent=2 if options.json else None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
