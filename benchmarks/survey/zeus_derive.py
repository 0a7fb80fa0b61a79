"""Derive ``data/zeus-power.csv`` from Zeus's public traces: python -m benchmarks.survey.zeus_derive FILE

FILE is ``summary_power_v100.csv`` of ml-energy/zeus (examples/research_reproducibility/zeus_nsdi23/trace, Apache 2.0,
75a8b93): time of an epoch and mean power of a V100 by data set, batch size and power limit. The result has one batch
size of each data set: the one with the shortest epoch at the highest limit.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

POWER_FILE = Path(__file__).parent / "data" / "zeus-power.csv"


def derived(lines: list[dict[str, str]]) -> list[tuple[str, int, float, float]]:
    """Return (workload, power limit in watts, relative speed, mean power in watts) of each data set."""
    points: dict[tuple[str, str], dict[tuple[str, str], dict[int, tuple[float, float]]]] = {}
    for row in lines:
        of = points.setdefault((row["dataset"], row["network"]), {})
        limit = round(float(row["power_limit"]))
        of.setdefault((row["batch_size"], row["optimizer"]), {})[limit] = (
            float(row["time_per_epoch"]),
            float(row["average_power"]),
        )
    found = []
    for (dataset, network), batches in sorted(points.items()):
        most = max(limit for one in batches.values() for limit in one)
        best = min(batches, key=lambda key: batches[key][most][0])
        alone = batches[best][most][0]
        for limit, (seconds, watts) in sorted(batches[best].items()):
            found.append((f"{network}-{dataset}", limit, round(alone / seconds, 4), round(watts, 1)))
    return found


def main() -> None:
    with Path(sys.argv[1]).open() as file:
        found = derived(list(csv.DictReader(file)))
    with POWER_FILE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("workload", "limit_watts", "speed", "watts"))
        writer.writerows(found)


if __name__ == "__main__":
    main()
