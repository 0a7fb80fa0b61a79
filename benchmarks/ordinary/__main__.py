"""Test days with users, jobs and faults on a real cluster, checked from outside.

python -m benchmarks.ordinary --minutes 10 --seed 7 --json python -m benchmarks.ordinary --minutes 10 --seed 7 --log
docs/measurements/ordinary.jsonl python -m benchmarks.ordinary --summary docs/measurements/ordinary.jsonl python -m
benchmarks.ordinary --prerequisites

Prints one JSON document: {"seed", "minutes", "jobs", "checks", "failures"} and the activities of the day. A day
stops at its first failure and prints the command that reproduces it; its state folder is kept. Exits with 1 after a
failure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.ordinary import runlog
from benchmarks.ordinary.day import Day, python_with_torch, revision

HERE = Path(__file__).resolve().parents[2]


def lacks(torch: str | None) -> list[str]:
    """Return the missing prerequisites of a complete day, and how to install each. torch: interpreter with PyTorch."""
    missing = []
    if torch is None:
        missing.append("PyTorch (trainings with torch): apt-get install python3-torch, or pip install torch")
    if sys.platform != "linux":
        missing.append("Linux: gangwatch runs nowhere else")
    return missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="length of the day")
    parser.add_argument("--seed", type=int, help="seed of all random choices; default: from the clock")
    parser.add_argument("--json", action="store_true", help="print the whole report")
    parser.add_argument("--log", type=Path, metavar="FILE", help="append the report, with its commit")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="only print a summary of such a log")
    parser.add_argument(
        "--checkout", type=Path, default=HERE, help="checkout of the gangwatch to run; default: this one"
    )
    parser.add_argument("--only", default="", metavar="NAMES", help="only these activities, with commas between them")
    parser.add_argument(
        "--prerequisites", action="store_true", help="only print the prerequisites that this machine lacks"
    )
    arguments = parser.parse_args()
    if arguments.summary is not None:
        print(json.dumps(runlog.summary(runlog.read(arguments.summary), arguments.checkout), indent=2))
        return 0
    torch = python_with_torch()
    missing = lacks(torch)
    for text in missing:
        print(f"missing: {text}", file=sys.stderr)
    required = os.environ.get("GANGWATCH_REQUIRE") == "all"
    if arguments.prerequisites or (required and missing):
        return 1 if required and missing else 0
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}", file=sys.stderr, flush=True)
    only = frozenset(filter(None, arguments.only.split(",")))
    commit, clean = revision(arguments.checkout)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # shut the day down, as after an interrupt
    folder = Path(tempfile.mkdtemp(prefix=f"ordinary-{seed}-"))
    report = asdict(Day(folder, arguments.checkout.resolve(), arguments.minutes, seed, torch, only).run())
    if report["failures"]:
        checkout = "" if arguments.checkout == HERE else f" --checkout {arguments.checkout}"
        checkout += f" --only {arguments.only}" if arguments.only else ""
        report["reproduce"] = (
            f"python -m benchmarks.ordinary --minutes {arguments.minutes:g} --seed {seed}{checkout}: "
            f"failed in minute {report['failures'][0]['minute']:g}"
        )
    if arguments.log is not None:
        runlog.append(arguments.log, report, commit, clean)
    if arguments.json:
        print(json.dumps(report, indent=2))
    else:
        print(json.dumps({key: report[key] for key in ("seed", "minutes", "jobs", "checks", "failures")}))
        if report["failures"]:
            print(report["reproduce"], f"state kept in {report['kept']}", *report["latest"], sep="\n", file=sys.stderr)
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
