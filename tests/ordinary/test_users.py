"""Simulated users of the ordinary day: counts of what they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.ordinary.clock import FairClock
from benchmarks.ordinary.cluster import Cluster, Said
from benchmarks.ordinary.day import endless
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


def test_a_day_cancels_every_job_without_an_end_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API shows a command line only to the job's user and to operators, so the day uses what it submitted."""
    clock = FairClock(tmp_path)
    try:
        cluster = Cluster(tmp_path, tmp_path, "mark", 2, 2, clock)
        monkeypatch.setattr(Cluster, "ask", lambda *_: {"job": "j-000001"})
        monkeypatch.setattr(Cluster, "command", lambda *_: Said((), 0, '{"job": "j-000001"}', ""))
        users, facts = Users(cluster, Facts(), Inbox(), 1, torch="python"), Facts()
        for plan, expected in (({"seconds": None}, True), ({"seconds": 61.0}, True), ({"seconds": 3.0}, False)):
            users._work("one_rank", plan)
            users.inbox.take(facts, 0.0)
            assert endless(facts.owner_of["j-000001"]) is expected
    finally:
        clock.close()
