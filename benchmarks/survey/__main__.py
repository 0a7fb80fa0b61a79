"""Published results of surveyed schedulers, reproduced, and our scheduler on the same input.

python -m benchmarks.survey [SYSTEM...] [--slow] [--list] [--json]

One row for each mechanism. published: the published figure. reproduced: the result of the published rules, computed
here; null if they were not reproduced. ours: our scheduler with the cost of restarts; null if it does not have the
mechanism. reason: why a figure is null, or what limits the comparison. Rows that take minutes need --slow.

Exits with 1 if a reproduced figure differs from the published one by more than 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.survey import (
    allox,
    datasets,
    distance,
    elastic,
    energy,
    failures,
    gandiva,
    gavel,
    gavel_rounds,
    lending,
    locality,
    memory,
    mig,
    missing,
    muri_groups,
    replays,
    resharding,
    services,
    shared_slots,
    shares,
    sia_goodput,
    trading,
    traffic,
    virtual_clusters,
)
from benchmarks.survey.row import chosen, measured

WITHIN = 0.05
"""Largest relative difference at which a published figure counts as reproduced."""

ROWS = (
    *replays.rows(),
    *shares.rows(),
    *muri_groups.rows(),
    *shared_slots.rows(),
    *gandiva.rows(),
    *gavel.rows(),
    *gavel_rounds.rows(),
    *allox.rows(),
    *virtual_clusters.rows(),
    *lending.rows(),
    *services.rows(),
    *resharding.rows(),
    *failures.rows(),
    *locality.rows(),
    *datasets.rows(),
    *elastic.rows(),
    *sia_goodput.rows(),
    *distance.rows(),
    *traffic.rows(),
    *mig.rows(),
    *energy.rows(),
    *memory.rows(),
    *trading.rows(),
    *missing.rows(),
)


def far_off(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows whose reproduced figure differs from the published one by more than WITHIN of it."""
    return [
        row
        for row in rows
        if row["published"] is not None
        and row["reproduced"] is not None
        and abs(row["reproduced"] - row["published"]) > WITHIN * abs(row["published"])
    ]


def _text(row: dict[str, Any]) -> str:
    figures = ", ".join(f"{name} {row[name]}" for name in ("published", "reproduced", "ours"))
    return f"{row['system']}: {row['mechanism']}; {row['measure']}: {figures} ({row['seconds']} s)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help="only these systems")
    parser.add_argument("--slow", action="store_true", help="also measure rows that take minutes")
    parser.add_argument("--list", action="store_true", help="print the names of the systems and exit")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(dict.fromkeys(row.system for row in ROWS)))
        return 0
    rows = []
    if not (wanted := chosen(ROWS, arguments.systems)):
        parser.error(f"no row of {', '.join(arguments.systems)}; --list prints the names")
    for row in wanted:
        rows.append(measured(row, arguments.slow))
        print(_text(rows[-1]), file=sys.stderr)
    if arguments.json:
        print(json.dumps({"load_average": os.getloadavg(), "rows": rows}, indent=2))
    return 1 if far_off(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
