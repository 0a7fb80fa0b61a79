"""Check that tests fail if the product is broken: each mutant is one deliberate error in one place.

python -m benchmarks.mutants [--json] [--only PATTERN] [--changed] [--jobs N]

Prints {"mutants": N, "survivors": [...], "errors": [...]}. A survivor is a mutant with which all of its tests pass.
An error is a mutant that cannot be applied, or whose tests fail without it or do not end. Exit code 1 with a
survivor or an error.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.mutants.catalogue import MUTANTS, named_tests
from benchmarks.mutants.mutant import Mutant, NotApplicableError, find
from benchmarks.mutants.runner import run
from benchmarks.mutants.worker import ROOT


def selected(patterns: Sequence[str], changed: bool) -> list[Mutant]:
    """Return the mutants whose place matches a pattern (a shell pattern or a substring).

    changed: return only mutants in files that were changed since main.
    """
    chosen = [
        mutant
        for mutant in MUTANTS
        if not patterns
        or any(pattern in mutant.place or fnmatch.fnmatch(mutant.place, pattern) for pattern in patterns)
    ]
    if changed:
        files = _changed_files()
        chosen = [mutant for mutant in chosen if _touches(mutant, files)]
    return chosen


def _changed_files() -> set[str]:
    """Return the paths that differ from the branch point on main; on main itself, from the last commit."""
    base = subprocess.run(["git", "merge-base", "HEAD", "main"], cwd=ROOT, capture_output=True, text=True)
    listed = subprocess.run(
        ["git", "diff", "--name-only", base.stdout.strip() or "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(listed.stdout.split())


def _touches(mutant: Mutant, files: set[str]) -> bool:
    try:
        path = str(find(mutant, ROOT))
    except NotApplicableError:
        return True
    return path in files or any(test.partition("::")[0] in files for test in named_tests(mutant))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutants", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="mutants whose place matches")
    parser.add_argument("--changed", action="store_true", help="mutants of files that differ from main")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="processes")
    options = parser.parse_args(arguments)
    mutants = selected(options.only, options.changed)
    if not mutants and not options.changed:
        parser.error(f"no mutant matches {' '.join(options.only)}")
    began = time.monotonic()
    results = run(mutants, options.jobs) if mutants else []
    survivors = [
        {"place": one.mutant.place, "old": one.mutant.old, "new": one.mutant.new, "tests": named_tests(one.mutant)}
        for one in results
        if one.outcome == "survived"
    ]
    errors = [one.detail for one in results if one.outcome == "error"]
    document = {
        "mutants": len(results),
        "survivors": survivors,
        "errors": errors,
        "seconds": round(time.monotonic() - began, 1),
    }
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        print(f"{len(mutants)} mutants, {len(survivors)} survived, {len(errors)} errors")
    return 1 if survivors or errors else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        sys.exit(f"mutants: {error}")
