"""Table of the added classes: right, wrong and missed runs of each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from agent.schema.verdicts.kinds import BLAMING
from benchmarks.detection.fleet import Result
from scheduler_feedback.detectors.stats.log_odds import ACTING_CONFIDENCE
from scheduler_feedback.sim.world.fault import DISORDERS

COLUMNS = ("runs", "right", "missed", "silent", "accused", "sure", "said")


def table(results: Sequence[Result], baselines: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return one row for each added class, and for its healthy runs and its runs with a fault separately.

    runs: number of runs. right: runs with a right verdict. missed: runs with a fault of hardware without one. silent:
    runs without any right or wrong verdict. accused: runs with a wrong accusation of hardware or another job. sure:
    runs with a wrong accusation that was first reported with a confidence of .9 or more. said: runs with a wrong
    verdict about the job itself. false: kinds of all wrong verdicts. baselines: (right, missed, wrong claims) of each
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
                "sure": sum(any(sure >= ACTING_CONFIDENCE and not right for sure, right in o.confidences)
                            for o in outcomes),
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
