"""Steps and waits of unmodified programs of training frameworks, on two CPUs with gloo. Rank 1 is slow."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests import needs
from tests.gangwatch.test_torch import REPOSITORY, Gang

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).with_name("frameworks")
SLOW_SECONDS = 0.2
STEPS = 8


@pytest.mark.parametrize(
    ("module", "program"),
    [
        ("transformers", ["with_trainer.py"]),
        ("pytorch_lightning", ["with_lightning.py"]),
        ("deepspeed", ["with_deepspeed.py", "2"]),
    ],
    ids=["transformers", "lightning", "deepspeed"],
)
def test_steps_and_waits_of_an_unmodified_program(module: str, program: list[str], tmp_path: Path) -> None:
    python, path = needs.framework(module)
    name, *stage = program
    environment = {
        "PYTHONPATH": f"{REPOSITORY}:{path}",
        "HF_HUB_OFFLINE": "1",
        "DS_ACCELERATOR": "cpu",
        "HOME": str(tmp_path),
    }
    gang = Gang(python, tmp_path, environment)
    try:
        arguments = ["2", module, str(PROGRAMS / name), str(tmp_path), str(STEPS), str(SLOW_SECONDS), *stage]
        gang.run(1, str(PROGRAMS / "ranks.py"), *arguments)
        found = gang.steps()
    finally:
        gang.close()
    lags = {}
    for rank in (0, 1):
        assert [record.step for record in found[rank]] == list(range(1, STEPS)), (
            "one step for each step of the framework"
        )
        waits = [record.wait_ns for record in found[rank]]
        assert None not in waits
        lags[rank] = statistics.median(wait / 1e9 for wait in waits if wait is not None)
        assert statistics.median(record.duration_ns / 1e9 for record in found[rank]) > SLOW_SECONDS
    # The healthy rank waits for the slow one: its wait is the lag.
    assert lags[0] - lags[1] > 0.7 * SLOW_SECONDS, lags
