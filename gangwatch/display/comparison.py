"""Tables of `gangwatch simulate compare`: one row a policy, and one row a policy and group of jobs."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPED_COLUMNS = 10_000
"""Width of the output in characters if standard output is not a terminal, so large that no line wraps."""

MOST_USERS = 10
"""Maximum number of users in the table, those with most jobs. The JSON document has all of them."""

_FIGURES = (
    ("JCT s", "avg_jct_seconds", 0),
    ("P99 JCT s", "p99_jct_seconds", 0),
    ("WAIT s", "avg_queue_seconds", 0),
    ("LONGEST WAIT s", "max_queue_seconds", 0),
    ("MAKESPAN s", "makespan_seconds", 0),
    ("UTILIZATION", "utilization", 3),
    ("FRAGMENTATION", "fragmentation", 3),
    ("SLOWDOWN", "avg_slowdown", 2),
    ("P99 SLOWDOWN", "p99_slowdown", 1),
    ("USER FAIRNESS", "user_fairness", 3),
    ("PREEMPTIONS", "preemptions", 0),
    ("LOST SLOT-HOURS", "lost_slot_hours", 1),
    ("UNFINISHED", "unfinished", 0),
    ("REFUSED", "refused", 0),
)
"""Columns of the first table: (header, key, digits after the point)."""


def show(document: dict[str, Any]) -> None:
    """Print the tables of a comparison."""
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        console.width = _PIPED_COLUMNS
    for note in document["notes"]:
        console.print(note)
    if document["refused"]:
        first = document["refused"][0]
        console.print(f"refused: {len(document['refused'])} jobs; the first: {first['reason']}")
    policies = document["policies"]
    table = _table("POLICY", *(header for header, _, _ in _FIGURES))
    for one in policies:
        table.add_row(Text(one["name"]), *(_number(one[key], digits) for _, key, digits in _FIGURES))
    console.print(table)
    for title, key, groups in (
        ("RANKS", "per_size", list(policies[0]["per_size"])),
        ("USER OR QUEUE", "per_user", _largest(policies[0]["per_user"])),
    ):
        console.print()
        table = _table(title, "POLICY", "JOBS", "JCT s", "WAIT s", "SLOWDOWN")
        for group in groups:
            for one in policies:
                row = one[key].get(group)
                if row is not None:
                    table.add_row(Text(group), Text(one["name"]), Text(str(row["jobs"])), *_means(row))
        console.print(table)


def _largest(users: dict[str, dict[str, Any]]) -> list[str]:
    return sorted(users, key=lambda name: (-users[name]["jobs"], name))[:MOST_USERS]


def _means(row: dict[str, Any]) -> tuple[Text, Text, Text]:
    return _number(row["avg_jct_seconds"], 0), _number(row["avg_queue_seconds"], 0), _number(row["avg_slowdown"], 2)


def _number(value: float | None, digits: int) -> Text:
    return Text("-" if value is None else f"{value:.{digits}f}")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
