"""Runs of Slurm's commands: the caller gets a result for any output, and however the process ends."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from agent.schema.errors import BackendError
from scheduler_feedback.backends.slurm import slurm_commands


def _run(folder: Path, script: str, seconds: float = 20.0) -> bytes:
    program = folder / "squeue"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    asked = slurm_commands.Commands(str(folder), timeout_seconds=seconds)
    return asyncio.run(asyncio.wait_for(asked.run("squeue"), 60.0))


def test_endless_output_is_truncated_and_the_command_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_commands, "MOST_OUTPUT_BYTES", 1000)
    with pytest.raises(BackendError, match="squeue: killed: it printed more than 1000 bytes"):
        _run(tmp_path, "exec cat /dev/zero")


def test_long_standard_error_does_not_block_the_command_and_keeps_its_beginning(tmp_path: Path) -> None:
    noise = "i=0; while [ $i -lt 20000 ]; do echo 'a warning of forty characters and more' >&2; i=$((i+1)); done"
    assert _run(tmp_path, f"{noise}; echo all") == b"all\n"
    with pytest.raises(BackendError, match="exit code 3: no such partition a warning"):
        _run(tmp_path, f"echo 'no such partition' >&2; {noise}; exit 3")


def test_pipes_of_a_command_that_left_a_process_behind_are_closed(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def ask() -> tuple[int, int]:
        program = tmp_path / "squeue"
        program.write_text("#!/bin/sh\nsetsid sleep 45 & exit 0\n")
        program.chmod(0o755)
        asked = slurm_commands.Commands(str(tmp_path), timeout_seconds=1.0)
        before = descriptors()
        with pytest.raises(BackendError, match="it did not end within 1 s"):
            await asked.run("squeue")
        await asyncio.sleep(0.1)
        return before, descriptors()

    before, after = asyncio.run(ask())
    assert after <= before + 1  # asyncio's own, for watching children


def test_a_command_past_its_timeout_is_killed_even_if_another_process_holds_its_output(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(BackendError, match="killed: it did not end within 1 s"):
        _run(tmp_path, "setsid sleep 45 & exec sleep 45", seconds=1.0)
    assert time.monotonic() - began < 30.0
