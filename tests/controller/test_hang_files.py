"""Files with the stacks of hanging jobs: written before a restart, bounded, and readable only by the job's user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.schema.clock import SystemClock
from agent.schema.frame import RANK_BLOCKED, EventRecord, Member
from scheduler_feedback.controller import hang_files
from scheduler_feedback.controller.hang_files import HangFiles, what_hangs
from scheduler_feedback.core.telemetry.steps.blocked_ranks import Blocked
from scheduler_feedback.core.verdict import Abstention
from scheduler_feedback.part_failures import PartFailures
from tests.security.test_frames import Bed, job_of


def blocked(rank: int, stacks: str = "thread MainThread\n  train.py:3 in f") -> Blocked:
    return Blocked(rank, "n1", 5, 5, 2, True, 9.0, "train.py:3 in f", stacks, "all_reduce", "0", "0-1", 7, 64)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[HangFiles]:
    made = HangFiles(tmp_path / "hangs", SystemClock(), PartFailures(()))
    yield made
    made.close()


def test_a_file_is_read_as_it_was_saved(files: HangFiles, tmp_path: Path) -> None:
    files.save("ns/../../name", 2, "it hangs", [blocked(0), blocked(1)])
    files.close()
    found = files.read("ns/../../name", 2)
    assert found is not None
    assert (found.job, found.attempt, found.text, found.ranks) == (
        "ns/../../name",
        2,
        "it hangs",
        [blocked(0), blocked(1)],
    )
    assert files.read("ns/../../name", 1) is None
    (path,) = (tmp_path / "hangs").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_without_reports_nothing_is_saved(files: HangFiles, tmp_path: Path) -> None:
    files.save("j", 1, "it hangs", [])
    files.close()
    assert not (tmp_path / "hangs").exists()


def test_number_and_size_of_the_files_are_limited(
    files: HangFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_files, "MOST_FILES", 3)
    monkeypatch.setattr(hang_files, "MOST_BYTES", 20_000)
    for attempt in range(1, 7):
        files.save("j", attempt, "it hangs", [blocked(rank, "x" * 4000) for rank in range(16)])
    files.close()
    assert sorted(path.name for path in (tmp_path / "hangs").iterdir()) == ["j.4.json", "j.5.json", "j.6.json"]
    found = files.read("j", 6)
    assert found is not None
    assert [bool(one.stacks) for one in found.ranks] == [True] * 4 + [False] * 12
    assert all(path.stat().st_size <= 20_000 + 2_000 for path in (tmp_path / "hangs").iterdir())


def test_a_damaged_file_counts_as_none(files: HangFiles, tmp_path: Path) -> None:
    (tmp_path / "hangs").mkdir()
    (tmp_path / "hangs" / "j.1.json").write_bytes(b"\xff{")
    assert files.read("j", 1) is None


def test_a_disk_that_cannot_be_written_stops_nothing(files: HangFiles, tmp_path: Path) -> None:
    (tmp_path / "hangs").write_text("a file, not a folder")
    files.save("j", 1, "it hangs", [blocked(0)])
    files.close()
    assert files.read("j", 1) is None


def test_only_hangs_are_saved() -> None:
    assert what_hangs(Abstention("j", 1, None, 0, "suspect the transport", (), "hang")) == "suspect the transport"
    assert what_hangs(Abstention("j", 1, None, 0, "slow", (), "straggler")) is None


# --- from frames of agents ---


def event(member: Member) -> EventRecord:
    return EventRecord(RANK_BLOCKED, f"rank {member.rank}", 1, {"answered": "1", "where": "a.py:1 in f"}, member)


def test_a_node_reports_only_its_own_ranks() -> None:
    bed = Bed(job_of("j-1", "n1", "n2"))
    bed.send("n1", Member("j-1", 1, 0))
    bed.send("n1", records=[event(Member("j-1", 1, 1))])  # before the rank's own node has reported it
    assert list(bed.fleet.blocked("j-1")) == []
    bed.send("n2", Member("j-1", 1, 1))
    bed.send("n1", records=[event(Member("j-1", 1, 0)), event(Member("j-1", 1, 1)), event(Member("j-1", 2, 0))])
    bed.send("n2", records=[event(Member("other", 1, 0)), event(Member("j-1", 1, 1 << 40))])
    assert list(bed.fleet.blocked("j-1")) == [0]
    assert sum(bed.refused("n1").values()) >= 2


def test_reports_end_with_their_attempt() -> None:
    bed = Bed(job_of("j-1", "n1"))
    bed.send("n1", Member("j-1", 1, 0), records=[event(Member("j-1", 1, 0))])
    assert list(bed.fleet.blocked("j-1")) == [0]
    bed.fleet.forget("j-1")
    assert bed.fleet.blocked("j-1") == {}
