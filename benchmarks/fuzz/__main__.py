"""Malformed inputs for every parser of external data.

python -m benchmarks.fuzz --inputs 1000000 --seed 18 --json python -m benchmarks.fuzz --only slurm --inputs 20000 python
-m benchmarks.fuzz --replay .cache/fuzz/slurm-columns-18-4711.json

Prints, for each parser, the number of inputs, the number that its first check refused, and the share of its lines
that were executed. A parser fails if it raises an undocumented exception, takes 10 s for one input, or takes 4 GiB.
The input is then saved, and the exit code is 1. The same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from benchmarks.fuzz.lines import Lines
from benchmarks.fuzz.runner import Chunk, Failure, cover, prepare, replay, run, save, targets
from benchmarks.fuzz.target import ACCEPTED, REFUSED, REFUSED_FIRST

CHUNK = 2000
"""Number of inputs in one task. The slowest parser needs some seconds for it."""

LEAST_PASSED = 0.5
"""Minimum share of inputs that must pass a parser's first check (issue 18, "Shown by")."""

LEAST_COVERED = 0.9
"""Minimum share of a parser's lines that its inputs must reach (issue 18, "Shown by")."""

_PROGRESS_SECONDS = 5.0


def shares(inputs: int, names: Sequence[str]) -> dict[str, int]:
    """Divide the number of inputs evenly among the parsers."""
    each, more = divmod(inputs, len(names))
    return {name: each + (at < more) for at, name in enumerate(names)}


def _chunks(counts: dict[str, int]) -> Iterator[tuple[str, int, int]]:
    """Yield (target, first number, count) of each task. Tasks alternate between targets, so that all make progress."""
    for start in range(0, max(counts.values()), CHUNK):
        for name, count in counts.items():
            if start < count:
                yield name, start, min(CHUNK, count - start)


def fuzz(inputs: int, seed: int, names: Sequence[str], jobs: int, sample: int, folder: Path) -> dict[str, Any]:
    """Parse all inputs and return the document to print.

    jobs: number of processes. sample: inputs per parser for which executed lines are recorded. folder: for failed
    inputs.
    """
    began = time.monotonic()
    counts = shares(inputs, names)
    totals = {name: Chunk(name) for name in names}
    covered: dict[str, Lines] = {}
    # Workers import their modules themselves: forking a process with threads is unsafe.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=prepare) as pool:
        tasks: dict[Future[Chunk], tuple[str, int, int]] = {
            pool.submit(run, name, seed, start, count): (name, start, count) for name, start, count in _chunks(counts)
        }
        lines: dict[Future[Lines], str] = {
            pool.submit(cover, name, seed, min(sample, counts[name])): name for name in names if sample
        }
        _gather(tasks, totals, seed)
        for measured in as_completed(lines):
            covered[lines[measured]] = measured.result()
    shown: set[tuple[str, str]] = set()
    for failure in (failure for total in totals.values() for failure in total.failures):
        if (failure.target, failure.where) not in shown:
            shown.add((failure.target, failure.where))
            sys.stderr.write(f"FAILED {failure.target}: {failure.error} at {failure.where}: {save(failure, folder)}\n")
    return _document(inputs, seed, totals, covered, time.monotonic() - began)


def _gather(tasks: dict[Future[Chunk], tuple[str, int, int]], totals: dict[str, Chunk], seed: int) -> None:
    """Wait for the tasks, add their results to `totals`, and print progress."""
    printed_at = time.monotonic()
    done = 0
    for task in as_completed(tasks):
        name, start, count = tasks[task]
        total = totals[name]
        done += count
        try:
            chunk = task.result()
        except BrokenProcessPool:
            total.failed += 1
            error = f"a worker died in inputs {start} to {start + count}"
            total.failures.append(Failure(name, seed, start, error, "unknown", None))
            continue
        total.outcomes += chunk.outcomes
        total.failed += chunk.failed
        total.failures += chunk.failures
        total.seconds += chunk.seconds
        if chunk.slowest_seconds > total.slowest_seconds:
            total.slowest_seconds, total.slowest = chunk.slowest_seconds, chunk.slowest
        if time.monotonic() - printed_at > _PROGRESS_SECONDS:
            printed_at = time.monotonic()
            failed = sum(one.failed for one in totals.values())
            sys.stderr.write(f"{done:,} of {sum(one[2] for one in tasks.values()):,} inputs, {failed} failures\n")


def _document(
    inputs: int, seed: int, totals: dict[str, Chunk], covered: dict[str, Lines], seconds: float
) -> dict[str, Any]:
    parsers = [_parser(total, covered.get(name)) for name, total in sorted(totals.items())]
    run_inputs = sum(one["inputs"] for one in parsers)
    passed_share = sum(one["refused"] + one["accepted"] for one in parsers) / max(run_inputs, 1)
    coverages = {one["name"]: one["line_coverage"] for one in parsers if one["line_coverage"] is not None}
    shortfalls = [f"{one['name']}: {one['failed']} failures" for one in parsers if one["failed"]]
    if passed_share < LEAST_PASSED:
        shortfalls.append(f"{passed_share:.0%} of the inputs passed a first check, less than {LEAST_PASSED:.0%}")
    shortfalls += [f"{name}: {share:.1%} of its lines" for name, share in coverages.items() if share < LEAST_COVERED]
    return {
        "inputs": run_inputs,
        "asked": inputs,
        "seed": seed,
        "seconds": round(seconds, 1),
        "failures": sum(one["failed"] for one in parsers),
        "passed_first_share": round(passed_share, 3),
        "least_line_coverage": min(coverages.values(), default=None),
        "shortfalls": shortfalls,
        "parsers": parsers,
    }


def _parser(total: Chunk, lines: Lines | None) -> dict[str, Any]:
    outcomes = total.outcomes
    run_inputs = sum(outcomes.values()) + total.failed
    return {
        "name": total.target,
        "inputs": run_inputs,
        "refused_first": outcomes[REFUSED_FIRST],
        "refused": outcomes[REFUSED],
        "accepted": outcomes[ACCEPTED],
        "passed_first_share": round(1 - outcomes[REFUSED_FIRST] / max(run_inputs, 1), 3),
        "failed": total.failed,
        "inputs_per_second": round(run_inputs / total.seconds) if total.seconds else 0,
        "slowest_ms": round(total.slowest_seconds * 1e3, 1),
        "slowest_number": total.slowest,
        "line_coverage": None if lines is None else round(lines.share, 3),
        "missed": [] if lines is None else [_short(line) for line in lines.missed()],
    }


def _short(line: str) -> str:
    root = f"{Path(__file__).resolve().parents[2]}{os.sep}"
    return line.removeprefix(root)


def _print(document: dict[str, Any]) -> None:
    print(
        f"{'parser':34} {'inputs':>9} {'first':>8} {'later':>8} {'taken':>8} {'lines':>6} {'failed':>6} {'a second':>9}"
    )
    for one in document["parsers"]:
        lines = "" if one["line_coverage"] is None else f"{one['line_coverage']:.0%}"
        print(
            f"{one['name']:34} {one['inputs']:>9,} {one['refused_first']:>8,} {one['refused']:>8,} "
            f"{one['accepted']:>8,} {lines:>6} {one['failed']:>6} {one['inputs_per_second']:>9,}"
        )
        for line in one["missed"]:
            print(f"    not reached: {line}")
    print(
        f"{document['inputs']:,} inputs, {document['passed_first_share']:.0%} past a first check, "
        f"{document['failures']} failures, {document['seconds']:g} s"
    )
    for shortfall in document["shortfalls"]:
        print(f"short: {shortfall}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all parsers together")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="parsers whose name contains it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--sample", type=int, default=4000, help="inputs a parser for line coverage; 0: none")
    parser.add_argument("--save", type=Path, default=Path(".cache/fuzz"), metavar="DIR", help="for inputs that fail")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="parse one saved input again, and nothing else")
    given = parser.parse_args(arguments)
    if given.replay is not None:
        prepare()
        print(replay(given.replay))
        return 0
    names = [name for name in targets() if not given.only or any(part in name for part in given.only)]
    if not names:
        parser.error(f"no parser matches; there are {', '.join(targets())}")
    document = fuzz(given.inputs, given.seed, names, given.jobs, given.sample, given.save)
    if given.json:
        print(json.dumps(document, indent=2))
    else:
        _print(document)
    return 1 if document["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
