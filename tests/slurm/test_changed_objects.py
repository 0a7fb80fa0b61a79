"""Record of the changes that gangwatch must undo in Slurm. If it cannot be read completely, nothing is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm import changed_objects as memory
from scheduler_feedback.backends.slurm.changed_objects import Moving, Touched, Weighed
from scheduler_feedback.backends.slurm.slurm_backend import SlurmBackend
from scheduler_feedback.backends.slurm.slurm_commands import Commands

FULL = Touched(
    {"n1": "1/quarantine"}, {"n2": Weighed(10, 310)}, {"7": ["n1"]}, {"8": Moving(1, ["n1"], True, "kept-8")},
    {"n3": "probe-1"},
)  # fmt: skip


def test_the_record_of_changes_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "slurm-touched.json"
    assert memory.read(path) == Touched(), "nothing has been changed yet"
    memory.write(path, FULL)
    assert memory.read(path) == FULL
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_record_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    """It may contain changes that this release cannot undo."""
    path = tmp_path / "slurm-touched.json"
    path.write_text('{"drained": {"n1": "1"}, "licences": {"n1": 3}, "minimum_reader": "9.0.0"}')
    before = path.read_bytes()
    with pytest.raises(BackendError, match=r"needs gangwatch 9\.0\.0 or newer.*Nothing is changed in Slurm"):
        SlurmBackend(tmp_path, Commands())
    assert path.read_bytes() == before


def test_unknown_fields_of_a_readable_record_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "slurm-touched.json"
    path.write_text('{"drained": {"n1": "1"}, "of_another_release": 3, "minimum_reader": "0.1.0"}')
    assert memory.read(path).drained == {"n1": "1"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"drained": [1]}', '{"minimum_reader": "soon"}', "\xff"])
def test_an_error_names_a_damaged_record(tmp_path: Path, text: str) -> None:
    path = tmp_path / "slurm-touched.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(BackendError, match=r"slurm-touched\.json: .*delete the file once no drain or weight"):
        memory.read(path)


def test_an_unwritable_record_prevents_the_change(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="nothing is changed in Slurm"):
        memory.write(tmp_path / "absent" / "slurm-touched.json", FULL)
