"""A rank of a real training gets stuck: gangwatch names it, where it is blocked, and where its peers wait."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.gangwatch.front_door import FrontDoor, front_door, wait_until
from tests.loop.test_by_hand import steps_of, verdicts
from tests.ports import held_port

PROGRAM = Path(__file__).with_name("stuck_training.py")
TORCH_PROGRAM = Path(__file__).with_name("stuck_torch.py")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[FrontDoor]:
    with front_door(tmp_path) as opened:
        opened.run("up", "--nodes", "2", "--slots", "2", "--port", "0", "--no-gpus")
        yield opened


def stuck(door: FrontDoor, folder: Path, program: list[str], *submit: str) -> tuple[str, dict[str, Any], float]:
    """Run a training whose rank 1 gets stuck. Return the job's id, the first verdict and its delay in seconds."""
    since = folder / "stuck"
    job_id = door.submit("--ranks", "3", "--time-limit", "30m", *submit, "--env", f"STUCK={since}", "--", *program)
    wait_until(lambda: since.exists(), lambda: f"not stuck\n{door.logs()}", seconds=90)
    wait_until(lambda: verdicts(door) != [], lambda: f"{door.json('story', job_id)}\n{door.logs()}", seconds=90)
    (verdict,) = verdicts(door)
    delay = time.time() - float(since.read_text())
    sys.stdout.write(f"{' '.join(program[-2:])}: verdict {delay:.1f} s after the rank got stuck\n")  # for pytest -s
    return job_id, verdict, delay


def sleeping(how: str) -> list[str]:
    return [sys.executable, str(PROGRAM), str(held_port()), how, "100"]


def test_a_deadlock_in_fsdp2_is_named_with_collective_group_and_ranks(door: FrontDoor, tmp_path: Path) -> None:
    """The program is unmodified; ``python -m gangwatch.torch`` observes it."""
    program = [needs.cpu_torch(), "-m", "gangwatch.torch", str(TORCH_PROGRAM), "60"]
    job_id, verdict, delay = stuck(door, tmp_path, program, "--env", f"PYTHONPATH={PROGRAM.parents[2]}")
    assert (verdict["kind"], verdict["rank"]) == ("hang", 1)
    why = door.json("explain", job_id)["why"]
    assert "rank 1 is blocked at stuck_torch.py:" in why
    assert "in next_batch" in why
    assert re.search(
        r"ranks 0,2 wait in all_gather_into_tensor number \d+ of group 0[^;]*\(ranks 0-2\), at stuck_torch.py:", why
    )
    found = door.json("stacks", job_id)["ranks"]
    assert found[0]["operation"] == found[2]["operation"] == "all_gather_into_tensor"
    assert found[0]["sequence"] == found[2]["sequence"]
    assert found[1]["operation"] == ""
    assert "fully_shard" in found[0]["stacks"]
    assert delay < 15.0


def test_a_rank_that_sleeps_is_named_with_its_place_within_fifteen_seconds(door: FrontDoor, tmp_path: Path) -> None:
    job_id, verdict, delay = stuck(door, tmp_path, sleeping("sleep"))
    assert (verdict["kind"], verdict["rank"]) == ("hang", 1)
    assert verdict["confidence"] < 0.9, "an early verdict must not cause an action"
    assert delay < 15.0
    why = door.json("explain", job_id)["why"]
    assert "rank 1 is blocked at stuck_training.py:" in why
    assert "in load_batch" in why
    assert "ranks 0,2 are blocked at stuck_training.py:" in why or "in all_reduce" in why
    (entry,) = (one["text"] for one in door.json("story", job_id) if one["kind"] == "verdict")
    assert "rank 1 is blocked at stuck_training.py:" in entry
    found = door.json("stacks", job_id)
    assert [one["rank"] for one in found["ranks"]] == [0, 1, 2]
    assert f"{PROGRAM}:" in found["ranks"][1]["stacks"]
    assert "in main" in found["ranks"][1]["stacks"]
    assert "thread MainThread" in door.run("stacks", job_id, "--rank", "1").stdout
    assert steps_of(door, job_id) == 100


def test_a_rank_that_holds_the_interpreter_lock_does_not_answer_and_is_named(door: FrontDoor, tmp_path: Path) -> None:
    job_id, verdict, delay = stuck(door, tmp_path, sleeping("lock"), "--restartable")
    assert (verdict["kind"], verdict["rank"]) == ("hang", 1)
    assert "rank 1 does not answer" in door.json("explain", job_id)["why"]
    assert delay < 20.0, "the agent waits three more seconds for each answer"
    # The stacks are saved before the restart, and are still shown after it.
    os.kill(door.job(job_id)["ranks"][1]["pid"], signal.SIGSTOP)
    wait_until(
        lambda: door.job(job_id)["attempt"] == 2, lambda: f"{door.json('story', job_id)}\n{door.logs()}", seconds=120
    )
    found = door.json("stacks", job_id, "--attempt", "1")
    assert "in all_reduce" in found["ranks"][0]["stacks"]
    assert found["ranks"][1]["answered"] is False
