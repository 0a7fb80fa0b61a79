"""Generation, detection and scoring of many traces in several processes. An aborted run can be continued."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.traces.generate import CLASSES, generate
from benchmarks.traces.job import Waits
from benchmarks.traces.model import LayoutName
from benchmarks.traces.score import score
from benchmarks.traces.trace_file import write
from benchmarks.traces.workloads import HEALTHY
from gangwatch.commands.offline.detect import document
from scheduler_feedback import step_traces
from scheduler_feedback.step_traces.judging import judge

Row = dict[str, Any]

OF_EXPERTS = ("hot-expert", "hot-expert-tokens")
"""Classes that need expert groups. Without them each rank has all experts of its layers, and popularity changes
nothing."""

EQUAL = 1e-9
"""Largest difference of two confidences that count as equal."""


@dataclass(frozen=True, slots=True)
class Task:
    """One trace to generate and score."""

    seed: int
    """Seed of the trace."""
    name: str
    """Class of the trace."""
    most_ranks: int
    """Largest number of ranks that may be chosen."""
    cut: bool = False
    """Whether to detect again in the file cut off at each detection."""
    waits: Waits | None = None
    """How the file reports waits; None: at random."""
    layout: LayoutName | None = None
    """Layout of the job; None: at random."""
    counters: bool = False
    """Whether the file has counters too."""


def tasks(
    seed: int,
    runs: int,
    names: Sequence[str],
    most_ranks: int,
    cut: bool = False,
    waits: Waits | None = None,
    layout: LayoutName | None = None,
    counters: bool = False,
) -> list[Task]:
    """Return `runs` tasks, alternately of healthy and faulty classes. names: classes. cut: also test truncated files.
    waits, layout: how all files report waits, and the layout of all jobs; None: at random. counters: whether the files
    have counters.

    More runs only add tasks at the end.
    """
    if layout not in (None, "moe"):
        names = [name for name in names if name not in OF_EXPERTS]
    groups = [[n for n in names if n in HEALTHY], [n for n in names if n not in HEALTHY]]
    groups = [group for group in groups if group]
    found = []
    for number in range(runs):
        group = groups[number % len(groups)]
        name = group[number // len(groups) % len(group)]
        found.append(Task(seed + number, name, most_ranks, cut, waits, layout, counters))
    return found


def detect(path: Path) -> Row:
    """Return the document that `gangwatch detect --json` prints for a file with one job."""
    return document(judge(step_traces.read(path))[0], path)


def cut_results(path: Path, full: Row) -> list[bool]:
    """Return for each verdict, except "unknown", whether a file that ends at its detection step gives the same
    verdict."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    numbers = [int(json.loads(line)["step"]) for line in lines]
    shorter = path.with_suffix(".cut.jsonl")
    results = []
    for verdict in full["verdicts"]:
        last = verdict["detected_step"]
        if verdict["kind"] == "unknown" or last is None:
            continue
        kept = "".join(line for line, number in zip(lines, numbers, strict=True) if number <= last)
        shorter.write_text(kept, encoding="utf-8")
        results.append(any(_same(verdict, other) for other in detect(shorter)["verdicts"]))
    return results


def _same(one: Row, other: Row) -> bool:
    keys = ("kind", "rank", "ranks", "cause", "detected_step")
    return all(one[key] == other[key] for key in keys) and abs(one["confidence"] - other["confidence"]) < EQUAL


def run(task: Task) -> Row:
    """Generate, detect and score one trace."""
    job = generate(task.seed, task.name, most_ranks=task.most_ranks, waits=task.waits, layout=task.layout)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        write(job, path, task.seed if task.counters else None)
        full = detect(path)
        row: Row = {
            "seed": task.seed,
            "most_ranks": task.most_ranks,
            "waits": task.waits,
            "layout": task.layout,
            "counters": task.counters,
            "truth": job.truth.as_dict(),
            "outcome": score(full, job.truth).as_dict(),
        }
        if task.cut:
            row["cuts"] = cut_results(path, full)
    return row


def read_results(path: Path) -> list[Row]:
    """Return the rows of a result file. Lines that a killed run did not complete are ignored."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line:
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def results(todo: Sequence[Task], jobs: int) -> Iterator[Row]:
    """Yield the rows of the tasks as they are finished."""
    if jobs <= 1:
        yield from map(run, todo)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(run, task) for task in todo]):
            yield future.result()


__all__ = ["CLASSES", "Row", "Task", "detect", "read_results", "results", "run", "tasks"]
