"""Draw precision-recall curves of stored runs.

python -m benchmarks.curves FILE... --svg CURVES.svg

FILE: results of benchmarks.traces, benchmarks.crosscheck or benchmarks.reality (.jsonl or .jsonl.gz), a diagram each.
The traces of the first two are generated again from their seeds, and judged by the simple rule and by published rules.
Only jobs with known waits count there, because the rules need waits.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.curves.points import Judged, Point, by_rule, curve, point
from benchmarks.curves.rules import Accusation, Trace, published, simple
from benchmarks.curves.stored import StoredError, judged, kind, rows, traces
from benchmarks.curves.svg import Panel, document

CONFIDENT = 0.9
LEAST_CONFIDENCE = 0.5
RATIOS = (1.02, 1.03, 1.04, 1.05, 1.06, 1.08, 1.1, 1.12, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.75, 2.0, 3.0)
"""Thresholds of the simple rule."""
TITLES = {"traces": "step traces", "crosscheck": "step traces, second generator", "reality": "real processes"}

RuleJobs = list[tuple[Trace, bool, list[Accusation]]]


def draw(path: Path, most: int, rules: bool) -> Panel:
    """Return the diagram of a result file. most: how many of its rows are used. Raises StoredError."""
    chosen = [(row, ours) for row in rows(path)[:most] if (ours := judged(row)) is not None]
    if not chosen:
        raise StoredError(f"{path} has no run that counts: all waits are unknown, or all faults cost less than 5 %")
    jobs: list[Judged] = [ours for _, ours in chosen]
    confidences = {confidence for job in jobs for confidence, _ in job.accusations if confidence >= LEAST_CONFIDENCE}
    drawn = Panel(f"{TITLES[kind(chosen[0][0])]}: {len(jobs)} jobs", curve(jobs, confidences), point(jobs, CONFIDENT))
    by_simple: RuleJobs = []
    by_published: dict[str, RuleJobs] = {}
    for trace, ours in zip(traces([row for row, _ in chosen]), jobs, strict=True):
        if trace is None:
            break  # a real run
        by_simple.append((trace, ours.counts, simple(trace)))
        for name, found in (published(trace) if rules else {}).items():
            by_published.setdefault(name, []).append((trace, ours.counts, found))
    if by_simple:
        points = [by_rule(by_simple, ratio) for ratio in reversed(RATIOS)]
        drawn.simple = [one for one in points if one.accusations]
    drawn.published = {
        name: one for name, of in by_published.items() if (one := by_rule(of, 1.0)).accusations
    }  # fmt: skip
    return drawn


def numbers(one: Point) -> dict[str, object]:
    """Return a point for the JSON document."""
    return {
        "threshold": one.threshold,
        "precision": round(one.precision, 4),
        "of": [one.right, one.accusations],
        "recall": round(one.recall, 4),
        "found": [one.found, one.faults],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the diagrams and print their points."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.curves", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="result file")
    parser.add_argument("--svg", type=Path, help="file to write")
    parser.add_argument("--most", type=int, default=1000, help="rows of each file that are used (default 1000)")
    parser.add_argument("--without-rules", action="store_true", help="leave out the published rules, which are slow")
    options = parser.parse_args(arguments)
    if options.most < 1:
        parser.error("--most: at least 1")
    try:
        panels = [draw(path, options.most, not options.without_rules) for path in options.files]
    except StoredError as error:
        print(f"benchmarks.curves: {error}", file=sys.stderr)
        return 2
    if options.svg:
        options.svg.write_text(document(panels), encoding="utf-8")
    found = [
        {
            "title": one.title,
            "ours_at_90": numbers(one.marked) if one.marked else None,
            "simple": [numbers(each) for each in one.simple],
            "published": {name: numbers(each) for name, each in one.published.items()},
        }
        for one in panels
    ]
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
