"""Table of the added classes: right, wrong and missed runs of each.

``python -m benchmarks.detection.class_report FILE...`` adds the tables of several documents of ``python -m
benchmarks.detection --json``, for example of several seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agent.schema.verdicts.kinds import BLAMING
from benchmarks.detection.fleet import Result
from scheduler_feedback.sim.world.fault import DISORDERS

COLUMNS = ("runs", "right", "missed", "silent", "accused", "sure", "said")


def table(results: Sequence[Result], baselines: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return one row for each added class, and for its healthy runs and its runs with a fault separately.

    runs: number of runs. right: runs with a right verdict. missed: runs with a fault of hardware without one. silent:
    runs without any right or wrong verdict. accused: runs with a wrong accusation of hardware or another job. sure:
    runs with a wrong accusation whose confidence was .9 or more at any time. said: runs with a wrong verdict about the
    job itself. false: kinds of all wrong verdicts. baselines: (right, missed, wrong claims) of each
    published rule.
    """
    rows: dict[tuple[str, bool], list[Result]] = defaultdict(list)
    for result in results:
        rows[result.cell.of_class, _guilty(result)].append(result)
    found = []
    for (name, guilty), members in sorted(rows.items()):
        outcomes = [r.outcomes["ours"] for r in members]
        accusing = [any(_accuses(kind) for kind in o.false_kinds) for o in outcomes]
        found.append(
            {
                "class": name,
                "fault": guilty,
                "runs": len(members),
                "right": sum(o.tp for o in outcomes),
                "missed": sum(o.fn for o in outcomes),
                "silent": sum(not o.tp and not o.fp for o in outcomes),
                "accused": sum(accusing),
                "sure": sum(o.sure > 0 for o in outcomes),
                "said": sum(any(not _accuses(kind) for kind in o.false_kinds) for o in outcomes),
                "false": dict(Counter(kind for o in outcomes for kind in o.false_kinds)),
                "missed_faults": dict(Counter(r.cell.disorder for r in members if r.outcomes["ours"].fn)),
                "slowdown": round(sum(r.slowdown for r in members) / len(members), 4),
                "baselines": {
                    rule: [sum(getattr(r.outcomes[rule], part) for r in members) for part in ("tp", "fn", "fp")]
                    for rule in baselines
                },
            }
        )  # fmt: skip
    return found


def _guilty(result: Result) -> bool:
    """Return whether hardware is to blame in this run."""
    return DISORDERS[result.cell.disorder].family == "hardware"


def _accuses(kind: str) -> bool:
    return kind.partition(" ")[0] in {*BLAMING, "freeze"}


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table."""
    if rows:
        yield f"{'class':24}" + "".join(f"{name:>9}" for name in COLUMNS) + "  wrong verdicts; missed"
    for row in rows:
        name = f"{row['class']}, {'fault' if row['fault'] else 'healthy'}"
        notes = [f"{kind} {count}" for kind, count in row["false"].items()]
        missed = [f"{kind} {count}" for kind, count in row["missed_faults"].items()]
        yield f"{name:24}" + "".join(f"{row[key]:9}" for key in COLUMNS) + f"  {', '.join(notes)}; {', '.join(missed)}"


def merged(tables: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return one table with the sums of several, without the figures of published rules."""
    parts: dict[tuple[str, bool], list[dict[str, Any]]] = defaultdict(list)
    for row in (row for one in tables for row in one):
        parts[row["class"], row["fault"]].append(row)
    found = []
    for (name, fault), members in sorted(parts.items()):
        row = {"class": name, "fault": fault} | {key: sum(one[key] for one in members) for key in COLUMNS}
        for key in ("false", "missed_faults"):
            row[key] = dict(sum((Counter(one[key]) for one in members), Counter()))
        found.append(row)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the sum of the tables of the given documents."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.detection.class_report", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="output of benchmarks.detection --json")
    tables = []
    for file in parser.parse_args(arguments).files:
        try:
            tables.append(json.loads(file.read_text())["classes"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(f"{file}: not a document of benchmarks.detection --json with added classes ({error})")
    print("\n".join(lines(merged(tables))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
