"""Counting of user activities."""

from __future__ import annotations

from pathlib import Path

from benchmarks.ordinary.clock import FairClock
from benchmarks.ordinary.cluster import Cluster
from benchmarks.ordinary.inbox import Inbox
from benchmarks.ordinary.kinds import KINDS
from benchmarks.ordinary.oracle.facts import Facts
from benchmarks.ordinary.users import Users


def test_every_activity_of_a_user_is_counted(tmp_path: Path) -> None:
    clock = FairClock(tmp_path)
    try:
        cluster = Cluster(tmp_path, tmp_path, "mark", 2, 2, clock)
        users = Users(cluster, Facts(), Inbox(), 1, torch="python")
        names = {name for name, _, _ in (*users._submissions(), *users._operations())}
        assert names <= set(KINDS)
    finally:
        clock.close()
