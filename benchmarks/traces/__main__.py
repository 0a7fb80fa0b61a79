"""``python -m benchmarks.traces --seed S --runs N --json``: verdicts of `gangwatch detect` on synthetic step traces.

Half of the traces are healthy. ``--out`` appends each result to a file; a later run with the same file skips these
traces. ``--write FOLDER`` only writes the traces and their true faults.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from benchmarks.traces.campaign import CLASSES, Row, Task, read_results, results, tasks
from benchmarks.traces.figures import figures
from benchmarks.traces.generate import SIZES, generate
from benchmarks.traces.job import WAITS
from benchmarks.traces.model import LayoutName
from benchmarks.traces.trace_file import write

COLUMNS = (
    "runs",
    "waits_known",
    "found_of_these",
    "right",
    "wrong_rank",
    "wrong_kind",
    "missed",
    "noted",
    "contradicted",
    "delay_steps_median",
)


def table(document: Row) -> str:
    """Return the figures as a table in text."""
    lines = [f"{'class':20}" + "".join(f"{name:>19}" for name in COLUMNS)]
    lines += [f"{row['class']:20}" + "".join(f"{row[name]!s:>19}" for name in COLUMNS) for row in document["classes"]]
    lines += [f"{name}: {json.dumps(value)}" for name, value in document.items() if name != "classes"]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="seed of the first trace; the others follow (default 1)")
    parser.add_argument("--runs", type=int, default=48, help="number of traces (default 48)")
    parser.add_argument("--classes", help=f"classes, by commas: {', '.join(CLASSES)} (default all)")
    parser.add_argument("--most-ranks", type=int, default=SIZES[-1], help=f"largest job (default {SIZES[-1]})")
    parser.add_argument("--waits", choices=WAITS, help="how all files report waits (default: at random)")
    parser.add_argument("--layout", choices=get_args(LayoutName), help="layout of all jobs (default: at random)")
    parser.add_argument("--counters", action="store_true", help="write counters of GPUs, NICs and hosts too")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--cut", action="store_true", help="detect again in the file cut off at each detection")
    parser.add_argument("--out", type=Path, help="result file (JSON lines) to continue")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the traces there and detect nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    options = parser.parse_args(arguments)
    names = options.classes.split(",") if options.classes else list(CLASSES)
    unknown = [name for name in names if name not in CLASSES]
    if unknown:
        parser.error(f"--classes: {', '.join(unknown)}; known are {', '.join(CLASSES)}")
    if options.most_ranks < SIZES[0]:
        parser.error(f"--most-ranks: at least {SIZES[0]}")
    if options.counters and options.cut:
        parser.error("--cut: a file with counters can't be cut off at a step")
    todo = tasks(
        options.seed, options.runs, names, options.most_ranks, options.cut, options.waits, options.layout,
        options.counters,
    )  # fmt: skip
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        for task in todo:
            job = generate(task.seed, task.name, most_ranks=task.most_ranks, waits=task.waits, layout=task.layout)
            write(job, options.write / f"{task.seed}-{task.name}.jsonl", task.seed if task.counters else None)
        return 0
    rows = collect(todo, options.jobs, options.out)
    document = {"benchmark": "traces", "seed": options.seed, "runs": options.runs, **figures(rows)}
    print(json.dumps(document, indent=2) if options.json else table(document))
    return 0


def collect(todo: Sequence[Task], jobs: int, out: Path | None) -> list[Row]:
    """Return the rows of all tasks. Tasks in the result file `out` are not run again."""
    wanted = {(task.seed, task.name, task.most_ranks, task.waits, task.layout, task.counters): task for task in todo}
    rows = []
    for row in read_results(out) if out else []:
        of = (
            row["seed"], row["truth"]["name"], row["most_ranks"], row.get("waits"), row.get("layout"),
            row.get("counters", False),
        )  # fmt: skip
        if wanted.pop(of, None):
            rows.append(row)
    total = len(rows) + len(wanted)
    file = out.open("a", encoding="utf-8") if out else None
    if file and file.tell():
        file.write("\n")  # ends a line that a killed run did not complete
    try:
        for row in results(list(wanted.values()), jobs):
            rows.append(row)
            if file:
                file.write(json.dumps(row) + "\n")
                file.flush()
            outcome = row["outcome"]["outcome"]
            print(f"{len(rows)}/{total} seed {row['seed']} {row['truth']['name']}: {outcome}", file=sys.stderr)
    finally:
        if file:
            file.close()
    return rows


if __name__ == "__main__":
    sys.exit(main())
