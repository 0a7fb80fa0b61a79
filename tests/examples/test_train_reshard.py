"""Example training with layouts: a change of the number of ranks changes the loss by rounding only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ports import held_port

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "train_reshard.py"


def gang(ranks: int, *arguments: str) -> list[subprocess.Popen[str]]:
    port = held_port()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GANGWATCH_")}
    about = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments],
            env={**inherited, **about, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def ended(processes: list[subprocess.Popen[str]]) -> tuple[list[int], str]:
    """Return the exit codes of all ranks, and what they wrote to standard error."""
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], "".join(errors)


def run(ranks: int, folder: Path, steps: int) -> dict[str, Any]:
    result = folder / f"{ranks}-{steps}.json"
    codes, errors = ended(
        gang(ranks, "--steps", str(steps), "--checkpoint", str(folder / "saved"), "--result", str(result))
    )
    assert set(codes) == {0}, errors
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def test_the_loss_continues_with_other_layouts(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = run(1, tmp_path / "whole", 24)["loss"]
    assert whole[-1] < whole[0] / 2, "it learns"
    parts = [run(ranks, tmp_path, steps) for ranks, steps in ((4, 6), (2, 12), (8, 18), (1, 24))]
    assert [part["resumed_from"] for part in parts] == [0, 6, 12, 18]
    assert [part["layout"] for part in parts] == [[2, 2], [2, 1], [4, 2], [1, 1]]
    assert [loss for part in parts for loss in part["loss"]] == pytest.approx(whole, rel=1e-9)


def test_a_stop_request_to_one_rank_saves_on_all(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    processes = gang(2, "--steps", "100000", "--every", "1", "--checkpoint", str(saved))
    deadline = time.monotonic() + 100
    while not (saved / "manifest.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    processes[1].send_signal(signal.SIGTERM)
    codes, errors = ended(processes)
    assert codes == [75, 75], errors
    step = json.loads((saved / "manifest.json").read_text())["step"]
    assert sorted(path.name for path in (saved / f"step-{step}").iterdir()) == ["rank-0.npz", "rank-1.npz"]
    (saved / f"step-{step}" / "rank-1.npz").unlink()
    codes, errors = ended(gang(1, "--steps", str(step + 1), "--checkpoint", str(saved)))
    assert codes == [1] and "rank-1.npz: missing from the checkpoint" in errors


def test_a_number_of_ranks_without_a_layout_is_refused(tmp_path: Path) -> None:
    codes, errors = ended(gang(3, "--checkpoint", str(tmp_path)))
    assert set(codes) == {1} and "no layout for 3 ranks: submit the job with --sizes 1, 2, 4, 8" in errors


@pytest.mark.parametrize(
    "manifest",
    ["{", '{"step": 1}', '{"step": 1, "tensor": 3, "pipeline": 1, "seed": 0}',
     '{"step": 1, "tensor": 1, "pipeline": 1, "seed": 7}'],
)  # fmt: skip
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    codes, errors = ended(gang(1, "--checkpoint", str(tmp_path)))
    assert codes == [1] and "no checkpoint of this program" in errors
