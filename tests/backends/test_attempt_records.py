"""Files of an attempt: ranks start only after a complete permission file, whatever the files contain."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler_feedback.backends.local import attempt_files


@pytest.mark.parametrize("content", [b"", b"g", b"go ", b"GO\n", b"gone\n", b"\xff\xfe", b"\ngo\n", b"abort\nslow\n"])
def test_an_incomplete_permission_is_no_decision(tmp_path: Path, content: bytes) -> None:
    (tmp_path / attempt_files.DECISION).write_bytes(content)
    decided = attempt_files.decision(str(tmp_path))
    assert decided is not None and decided[0] == attempt_files.ABORT


def test_a_decision_is_read_as_written_and_made_once(tmp_path: Path) -> None:
    assert attempt_files.decision(str(tmp_path)) is None, "nothing is decided yet"
    assert attempt_files.decide(str(tmp_path), attempt_files.GO, "")
    assert not attempt_files.decide(str(tmp_path), attempt_files.ABORT, "too late")
    assert attempt_files.decision(str(tmp_path)) == (attempt_files.GO, "")
    assert [path.name for path in tmp_path.iterdir()] == [attempt_files.DECISION], "no temporary file is left"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"null", b"\xff"])
def test_a_record_truncated_by_a_crash_is_ignored(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ended.json"
    path.write_bytes(content)
    assert attempt_files.read(str(path)) is None


def test_a_folder_appears_complete_and_once(tmp_path: Path) -> None:
    folder = str(tmp_path / "1")
    assert attempt_files.create_folder(folder, {"a": b"first"})
    assert not attempt_files.create_folder(folder, {"a": b"second", "b": b""})
    assert (tmp_path / "1" / "a").read_bytes() == b"first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1"]
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == ["a"]
