"""Checks and records of the chaos benchmark (``python -m benchmarks.chaos``). They need no cluster."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.chaos.__main__ import earlier, summary
from benchmarks.chaos.checks import Member, twice, violations, whole
from benchmarks.chaos.faults import _renewed

RUNS = [Member(rank, f"node-{rank}", 1) for rank in range(3)]
PROCESSES = [("a", rank) for rank in range(3)]


def test_a_gang_that_runs_completely_violates_nothing() -> None:
    assert whole(3, RUNS, [2, 0, 1])
    assert violations({"a": 3}, {"a": RUNS}, PROCESSES, set()) == []


@pytest.mark.parametrize(
    ("members", "processes"),
    [
        (RUNS[:2], PROCESSES[:2]),  # one pod does not run
        (RUNS, PROCESSES[:2]),  # the API reports a pod whose process does not run
        (RUNS[:2], PROCESSES),  # a process of a deleted pod runs on
        ([*RUNS[:2], Member(2, "node-2", 2)], PROCESSES),  # one pod belongs to another attempt
        ([*RUNS[:2], RUNS[0]], PROCESSES),  # rank 0 twice, rank 2 never
        (RUNS, [*PROCESSES, ("a", 2)]),  # two processes of rank 2
    ],
)
def test_a_part_of_a_gang_is_half_started(members: list[Member], processes: list[tuple[str, int]]) -> None:
    (found,) = violations({"a": 3}, {"a": members}, processes, set())
    assert found.startswith("half-started: a: ")


def test_a_gang_without_pods_and_processes_is_lost() -> None:
    (found,) = violations({"a": 3, "b": 1}, {"a": RUNS}, PROCESSES, set())
    assert found.startswith("lost: b: 0 of 1 pods")


def test_a_rank_that_ran_twice_is_reported_even_if_it_runs_once_in_the_end() -> None:
    assert twice([*PROCESSES, ("b", 0), ("b", 1)]) == set()
    assert twice([*PROCESSES, ("a", 1)]) == {("a", 1)}
    assert violations({"a": 3}, {"a": RUNS}, PROCESSES, {("a", 1)}) == ["run twice: rank 1 of a"]


def record(number: int, seed: int = 0, *problems: str) -> dict[str, object]:
    return {
        "round": number,
        "seed": seed,
        "fault": "etcd",
        "violations": list(problems),
        "whole_after_seconds": float(number),
        "restarted": ["large"] if problems else [],
    }


def test_a_campaign_continues_after_the_rounds_of_its_own_seed(tmp_path: Path) -> None:
    file = tmp_path / "rounds.jsonl"
    assert earlier(None, 0) == earlier(file, 0) == []
    lines = [json.dumps(record(0)), json.dumps(record(0, 7)), json.dumps(record(1)), '{"round": 2, "se']
    file.write_text("\n".join(lines))
    assert [one["round"] for one in earlier(file, 0)] == [0, 1]


def test_the_summary_counts_rounds_and_names_every_violation() -> None:
    found = summary([record(0), record(1, 0, "lost: a", "run twice: rank 0 of b"), record(2)], 100)
    assert (found["rounds"], found["rounds_wanted"], found["violations"]) == (3, 100, 2)
    assert found["failures"] == ["round 1 (etcd): lost: a", "round 1 (etcd): run twice: rank 0 of b"]
    assert found["restarted"] == {"etcd": 1}
    assert found["whole_after_seconds"] == {"median": 1.0, "most": 2.0}
    assert summary([], 100)["violations"] == 0


def test_a_lease_that_was_not_renewed_names_no_leader() -> None:
    """Its holder has ended, and the next leader waits until it expires."""
    now = datetime.now(UTC)
    assert _renewed(now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
    assert not _renewed((now - timedelta(seconds=9)).strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
