"""Run real trainings under real faults, and count right and wrong verdicts.

python -m benchmarks.reality --seed 1 --minutes 30 --json --resume reality.jsonl

Needs root, cgroup v1, ip, tc, and PyTorch (`make components`). A run takes 50 to 140 s. Progress is on standard error.
Campaigns with different seeds and files can run side by side.
With --resume, finished runs are kept in FILE, and the next call continues after them; 300 valid runs are the target.
--show prints the table of FILE without running anything.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from benchmarks.reality import campaign, figures
from benchmarks.reality.run import perform, torch_python
from benchmarks.reality.site import sweep, unsupported


def missing() -> str:
    """Return what this machine lacks for the benchmark; '' if it lacks nothing."""
    if reason := unsupported():
        return reason
    return "" if torch_python().exists() else f"{torch_python()} is absent: run `make components`"


def main() -> int:
    """Run the campaign and print its document."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reality", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="first seed; each run has the next one (default 0)")
    parser.add_argument("--minutes", type=float, default=30.0, help="no run starts after this time (default 30)")
    parser.add_argument("--runs", type=int, default=campaign.TARGET, help="stop after this number of valid runs")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="file of finished runs; new ones are added to it")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--show", action="store_true", help="only print the table of FILE")
    given = parser.parse_args()
    try:
        if given.show:
            if given.resume is None:
                parser.error("--show needs --resume FILE")
            rows = campaign.read(given.resume)
        else:
            if reason := missing():
                print(f"benchmarks.reality: {reason}", file=sys.stderr)
                return 2
            # An exception ends the run and removes its nodes and processes.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            rows = campaign.run(given.seed, given.minutes * 60, given.resume, perform, given.runs)
    except campaign.ResultFileError as error:
        print(f"benchmarks.reality: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("benchmarks.reality: interrupted; finished runs are in the file of --resume", file=sys.stderr)
        return 130
    finally:
        if not given.show and not unsupported():
            sweep()
    document = figures.figures(rows)
    print(json.dumps(document, indent=2) if given.json else "\n".join(figures.table(document)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
