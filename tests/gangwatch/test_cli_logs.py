"""`gangwatch logs`: whole lines with their rank, from the newest attempt. No byte is lost while the files grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.schema.errors import GangwatchError
from gangwatch.cli import run
from gangwatch.state_folder import StateFolder
from gangwatch.support.rank_logs import RankLogs


def write(state: Path, attempt: int, rank: int, content: bytes) -> Path:
    folder = state / "jobs" / "j-000001" / "logs" / str(attempt)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"rank-{rank}.log"
    with open(file, "ab") as log:
        log.write(content)
    return file


def logs(state: Path, attempt: int | None = None, rank: int | None = None) -> RankLogs:
    return RankLogs(StateFolder(state), "j-000001", attempt, rank)


def test_lines_carry_the_rank_number_unless_one_rank_is_selected(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, b"zero\n")
    write(tmp_path, 1, 10, b"ten\nno end")
    write(tmp_path, 1, 2, b"\xff\n")
    assert list(logs(tmp_path).newest(None)) == ["0: zero\n", "2: �\n", "10: ten\n", "10: no end\n"]
    assert list(logs(tmp_path, rank=10).newest(None)) == ["ten\n", "no end\n"]


@pytest.mark.parametrize("lines", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_tail_prints_the_last_lines(tmp_path: Path, lines: int, end: bytes) -> None:
    write(tmp_path, 1, 0, b"a\nb\n" + b"c" * 100_000 + end)
    want = ["a\n", "b\n", "c" * 100_000 + "\n"][max(0, 3 - lines) :] if lines else []
    assert list(logs(tmp_path, rank=0).newest(lines)) == want


def test_a_growing_line_is_printed_once_and_complete(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, b"one\ntw")
    reader = logs(tmp_path, rank=0)
    assert list(reader.newest(None, final=False)) == ["one\n"]
    assert list(reader.more()) == []
    write(tmp_path, 1, 0, b"o\nthree")
    assert list(reader.more()) == ["two\n"]
    assert list(reader.more(final=True)) == ["three\n"]
    assert list(reader.more(final=True)) == []


def test_following_prints_the_rest_of_an_attempt_before_the_next_attempt(tmp_path: Path) -> None:
    write(tmp_path, 9, 0, b"first\n")
    reader = logs(tmp_path)
    assert list(reader.newest(None, final=False)) == ["0: first\n"]
    write(tmp_path, 9, 0, b"last words\n")
    write(tmp_path, 10, 0, b"second\n")
    assert list(reader.more()) == ["0: last words\n", "0: second\n"]
    assert list(logs(tmp_path, attempt=9).newest(None)) == ["0: first\n", "0: last words\n"]


def test_a_missing_attempt_or_rank_is_reported_with_the_existing_ones(tmp_path: Path) -> None:
    with pytest.raises(GangwatchError, match="none of its ranks has started"):
        logs(tmp_path).require_any()
    write(tmp_path, 1, 0, b"")
    with pytest.raises(GangwatchError, match=r"no rank 3; ranks of attempt 1: \[0\]"):
        logs(tmp_path, rank=3).require_any()
    with pytest.raises(GangwatchError, match=r"no attempt 2; existing attempts: \[1\]"):
        logs(tmp_path, attempt=2).require_any()


def test_logs_works_without_a_controller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 1, 0, b"hello\n")
    assert run(["logs", "--state", str(tmp_path), "j-000001", "--rank", "0"]) == 0
    assert capsys.readouterr().out == "hello\n"
    assert run(["logs", "--state", str(tmp_path), "j-000002"]) == 1
