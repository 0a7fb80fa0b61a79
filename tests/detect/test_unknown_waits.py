"""Recordings of step times without waits: a slow rank is accused only if its own compute time is visible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.detect.traces import detect, of_kind

STEPS, RANKS, ONSET = 160, 16, 100


def own_times() -> np.ndarray:
    return np.exp(np.random.default_rng(7).normal(0.0, 0.015, (STEPS, RANKS)))


def detected(path: Path, seconds: np.ndarray, null: bool = False) -> dict[str, Any]:
    """Run `gangwatch detect` on eight ranks of one node with these step times [steps, 8]. null: waits are null, not
    absent."""
    lines = []
    for step, row in enumerate(seconds.tolist()):
        for rank, length in enumerate(row):
            line = {"step": step, "rank": rank, "node": f"n{rank // 8}", "seconds": length}
            lines.append(json.dumps(line | {"wait_seconds": None} if null else line))
    path.write_text("\n".join(lines))
    return detect(path)


@pytest.mark.parametrize("null", [False, True])
def test_a_rank_is_accused_if_steps_contain_no_collective(tmp_path: Path, null: bool) -> None:
    own = own_times()
    assert not detected(tmp_path / "healthy.jsonl", own, null)["verdicts"]
    own[ONSET:, 5] *= 1.5
    (verdict,) = of_kind(detected(tmp_path / "t.jsonl", own, null), "straggler")
    assert verdict["rank"] == 5 and verdict["confidence"] >= 0.9
    assert ONSET + 10 <= verdict["detected_step"] <= ONSET + 15


@pytest.mark.parametrize("factor", [1.1, 1.5])
def test_nobody_is_accused_if_all_ranks_end_steps_together_but_there_is_a_note(tmp_path: Path, factor: float) -> None:
    own = own_times()
    together = np.repeat(own.max(axis=1, keepdims=True), RANKS, axis=1) + 0.1
    assert not detected(tmp_path / "healthy.jsonl", together)["verdicts"]
    own[ONSET:, 5] *= factor
    together = np.repeat(own.max(axis=1, keepdims=True), RANKS, axis=1) + 0.1
    (note,) = detected(tmp_path / "t.jsonl", together)["verdicts"]
    assert (note["kind"], note["rank"]) == ("unknown", None)
    assert ONSET <= note["detected_step"] <= ONSET + 35
    assert "do not show which rank is slow" in note["evidence"][0]["against"]
