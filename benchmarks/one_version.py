"""``python -m benchmarks.one_version --traces FILE --crosscheck FILE``: verdicts of one version, of all
generators together.

The files are result files of ``python -m benchmarks.traces --out`` and ``python -m benchmarks.crosscheck --out``. A
verdict counts if its confidence is at least .9 and it is not *unknown*. Equal verdicts of a trace (kind, cause and
ranks) count once: the spells of one fault are not independent.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.crosscheck.score import ACCUSING, calibration
from benchmarks.detection.statistics import wilson

CONFIDENT = 0.9
LEAST_OF_CLASS = 20
"""A class with fewer accusations has no calibration error of its own: one wrong verdict would be a twentieth."""


@dataclass(frozen=True, slots=True)
class Counted:
    """One verdict of one trace."""

    of_class: str
    claim: tuple[Any, ...]
    """Trace, kind, cause and ranks. Equal claims count once."""
    confidence: float
    accuses: bool
    right: bool
    confused: bool
    """Whether it calls a culprit's fault something else."""


def of_traces(rows: Iterable[dict[str, Any]]) -> Iterator[Counted]:
    """Yield the verdicts of result lines of ``benchmarks.traces``."""
    for row in rows:
        for one in row["outcome"]["verdicts"]:
            claim = ("traces", row["seed"], one["kind"], one["cause"], tuple(one["ranks"] or ()))
            mark = one["mark"]
            name = row["truth"]["name"]
            accuses = bool(one["accuses"])
            right = mark == "right" or (accuses and mark == "wrong_kind")  # the rank is right
            yield Counted(name, claim, one["confidence"], accuses, right, mark == "wrong_kind")


def of_crosscheck(rows: Iterable[dict[str, Any]]) -> Iterator[Counted]:
    """Yield the verdicts of result lines of ``benchmarks.crosscheck``."""
    for row in rows:
        name = row["fault"] or "+".join(row["effects"]) or "plain"
        for one in row["verdicts"]:
            if one["right"] is None:
                continue
            who = tuple(one["ranks"] or ()) or (one["rank"], one["node"])
            claim = ("crosscheck", row["seed"], one["kind"], one["cause"], who)
            accuses = one["kind"] in ACCUSING
            yield Counted(name, claim, one["confidence"], accuses, bool(one["right"]), bool(one.get("confused")))


def distinct(verdicts: Iterable[Counted]) -> list[Counted]:
    """Return the first and most certain verdict of each claim."""
    found: dict[tuple[Any, ...], Counted] = {}
    for one in verdicts:
        if one.claim not in found or one.confidence > found[one.claim].confidence:
            found[one.claim] = one
    return list(found.values())


def figures(verdicts: Sequence[Counted]) -> dict[str, Any]:
    """Return the figures, misses first: wrong ranks, kind confusion, calibration of all accusations and by class."""
    once = distinct(verdicts)
    sure = [one for one in once if one.confidence >= CONFIDENT]
    accusing = [one for one in sure if one.accuses]
    classes: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for one in once:
        if one.accuses:
            classes[one.of_class].append((one.confidence, one.right and not one.confused))
    enough = {name: calibration(pairs) for name, pairs in sorted(classes.items()) if len(pairs) >= LEAST_OF_CLASS}
    return {
        "verdicts": len(sure),
        "with_repetitions": sum(one.confidence >= CONFIDENT for one in verdicts),
        "wrong_rank": _share(sum(not one.right for one in accusing), len(accusing)),
        "wrong_own_work": _share(sum(not one.right for one in sure if not one.accuses), len(sure) - len(accusing)),
        "kind_confusion": _share(sum(one.confused for one in sure), len(sure)),
        "wrong": [[*one.claim, round(one.confidence, 3), one.of_class] for one in accusing if not one.right],
        "calibration": calibration([pair for pairs in classes.values() for pair in pairs]),
        "classes_beyond": {name: one for name, one in enough.items() if one["error"] > 0.05},
        "classes": enough,
        "classes_with_fewer": {name: len(pairs) for name, pairs in sorted(classes.items()) if name not in enough},
    }


def _share(part: int, whole: int) -> dict[str, Any]:
    interval = wilson(part, whole)
    return {
        "of": f"{part} of {whole}",
        "share": round(part / whole, 4) if whole else None,
        "interval_95": None if interval is None else [round(end, 4) for end in interval],
    }


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the results in a file. A line that an aborted run did not complete is left out."""
    content = path.read_bytes()
    for line in (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures as one JSON document."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_version", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--traces", type=Path, nargs="*", default=[], metavar="FILE", help="results of benchmarks.traces"
    )
    parser.add_argument(
        "--crosscheck", type=Path, nargs="*", default=[], metavar="FILE", help="results of benchmarks.crosscheck"
    )
    options = parser.parse_args(arguments)
    missing = [str(path) for path in (*options.traces, *options.crosscheck) if not path.exists()]
    if missing or not (options.traces or options.crosscheck):
        parser.error(f"no such file: {', '.join(missing)}" if missing else "give at least one result file")
    verdicts = [one for path in options.traces for one in of_traces(_lines(path))]
    verdicts += [one for path in options.crosscheck for one in of_crosscheck(_lines(path))]
    print(json.dumps(figures(verdicts), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
