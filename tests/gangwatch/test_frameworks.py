"""Steps and waits of unmodified programs of training frameworks, on two CPUs with gloo. Rank 1 is slow."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from agent.schema.frame import StepRecord
from tests import needs
from tests.gangwatch.test_torch import REPOSITORY, Gang
from tests.ports import held_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).with_name("frameworks")
PROGRAM_ARGUMENTS: dict[str, list[str]] = {
    "with_trainer.py": [],
    "with_lightning.py": [],
    "with_deepspeed.py": ["2"],  # ZeRO stage
}
SLOW_SECONDS = 0.2
STEPS = 8


def test_steps_and_waits_of_unmodified_programs(tmp_path: Path) -> None:
    python, path = needs.frameworks()
    environment = {
        "PYTHONPATH": f"{REPOSITORY}:{path}",
        "HF_HUB_OFFLINE": "1",
        "DS_ACCELERATOR": "cpu",
        "HOME": str(tmp_path),
    }
    gangs = {name: Gang(python, tmp_path / name, environment) for name in PROGRAM_ARGUMENTS}
    runs = [
        {
            "socket": gangs[name].path,
            "port": held_port(),
            "program": [str(PROGRAMS / name), str(tmp_path), str(STEPS), str(SLOW_SECONDS), *more],
        }
        for name, more in PROGRAM_ARGUMENTS.items()
    ]
    try:
        gangs["with_trainer.py"].run(1, str(PROGRAMS / "ranks.py"), json.dumps(runs), watched=False)
        for name, gang in gangs.items():
            check(name, gang.steps())
    finally:
        for gang in gangs.values():
            gang.close()


def check(name: str, found: dict[int, list[StepRecord]]) -> None:
    """Assert one report for each step of the framework, and that the wait of the healthy rank is the lag."""
    waits = {}
    for rank in (0, 1):
        assert [record.step for record in found[rank]] == list(range(1, STEPS)), name
        assert all(record.wait_ns is not None for record in found[rank]), name
        waits[rank] = statistics.median(record.wait_ns / 1e9 for record in found[rank] if record.wait_ns is not None)
        assert statistics.median(record.duration_ns / 1e9 for record in found[rank]) > SLOW_SECONDS, name
    assert waits[0] - waits[1] > 0.7 * SLOW_SECONDS, (name, waits)
