"""Tables of `gangwatch simulate compare`: one column a policy, and one row a policy and group of jobs."""

from __future__ import annotations

from typing import Any

from gangwatch.display.tables import add_row, output_console, print_table, table_of

MOST_USERS = 10
"""Maximum number of users in the table, those with most jobs. The JSON document has all of them."""

_FIGURES = (
    ("JCT s", "avg_jct_seconds", 0),
    ("P99 JCT s", "p99_jct_seconds", 0),
    ("WAIT s", "avg_queue_seconds", 0),
    ("LONGEST WAIT s", "max_queue_seconds", 0),
    ("MAKESPAN s", "makespan_seconds", 0),
    ("UTILIZATION", "utilization", 3),
    ("GOODPUT", "goodput", 3),
    ("FRAGMENTATION", "fragmentation", 3),
    ("SLOWDOWN", "avg_slowdown", 2),
    ("P99 SLOWDOWN", "p99_slowdown", 1),
    ("USER FAIRNESS", "user_fairness", 3),
    ("PREEMPTIONS", "preemptions", 0),
    ("LOST SLOT-HOURS", "lost_slot_hours", 1),
    ("ENERGY kWh", "energy_kwh", 0),
    ("UNFINISHED", "unfinished", 0),
    ("REFUSED", "refused", 0),
)
"""Rows of the first table: (name, key, digits after the point)."""


def show(document: dict[str, Any]) -> None:
    """Print the tables of a comparison."""
    console = output_console()
    for note in document["notes"]:
        console.print(note)
    if document["refused"]:
        first = document["refused"][0]
        console.print(f"refused: {len(document['refused'])} jobs; the first: {first['reason']}")
    policies = document["policies"]
    table = table_of("FIGURE", *(one["name"] for one in policies))
    for name, key, digits in _FIGURES:
        if key == "energy_kwh" and policies[0][key] is None:
            continue
        add_row(table, name, *(_number(one[key], digits) for one in policies))
    print_table(console, table)
    for title, key, groups in (
        ("RANKS", "per_size", list(policies[0]["per_size"])),
        ("USER OR QUEUE", "per_user", _largest(policies[0]["per_user"])),
    ):
        console.print()
        table = table_of(title, "POLICY", "JOBS", "JCT s", "WAIT s", "SLOWDOWN")
        for group in groups:
            for one in policies:
                row = one[key].get(group)
                if row is not None:
                    add_row(table, group, one["name"], row["jobs"], *_means(row))
        print_table(console, table)


def _largest(users: dict[str, dict[str, Any]]) -> list[str]:
    return sorted(users, key=lambda name: (-users[name]["jobs"], name))[:MOST_USERS]


def _means(row: dict[str, Any]) -> tuple[str, str, str]:
    return _number(row["avg_jct_seconds"], 0), _number(row["avg_queue_seconds"], 0), _number(row["avg_slowdown"], 2)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
