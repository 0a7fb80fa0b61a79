"""Pipelines with one rank a stage: no other rank does the same work."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from gangwatch.commands.offline.detect import document
from scheduler_feedback import step_traces
from scheduler_feedback.step_traces.judging import judge

STEPS, ONSET = 240, 120


def verdicts(folder: Path, factors: dict[int, float], stages: int = 4, onset: int = ONSET, seed: int = 1) -> Any:
    """Return the verdicts on a job whose ranks take 100 ms a step, and these ranks longer from `onset` on.

    factors: by rank. The step ends when the slowest stage has ended, and 10 ms of communication.
    """
    draw = random.Random(seed)
    lines = []
    for step in range(STEPS):
        compute = [
            0.1 * draw.lognormvariate(0.0, 0.03) * (factors.get(rank, 1.0) if step >= onset else 1.0)
            for rank in range(stages)
        ]
        seconds = max(compute) + 0.01
        lines += [
            json.dumps({
                "step": step, "rank": rank, "node": f"node-{rank}", "dp_rank": 0, "stage": rank, "seconds": seconds,
                "wait_seconds": seconds - compute[rank],
            })
            for rank in range(stages)
        ]  # fmt: skip
    path = folder / "steps.jsonl"
    path.write_text("\n".join(lines))
    return document(judge(step_traces.read(path))[0], path)["verdicts"]


@pytest.mark.parametrize(("stages", "rank"), [(2, 1), (4, 1), (4, 3), (8, 5)])
def test_the_only_rank_of_a_later_stage_is_accused_if_it_becomes_slow(tmp_path: Path, stages: int, rank: int) -> None:
    (found,) = (one for one in verdicts(tmp_path, {rank: 1.4}, stages) if one["kind"] != "unknown")
    assert (found["kind"], found["rank"]) == ("straggler", rank)
    assert found["confidence"] >= 0.9
    assert found["first_step"] == pytest.approx(ONSET, abs=2)
    assert found["slowdown"] == pytest.approx(1.4 * 0.1 / (0.1 + 0.01), rel=0.15)


def test_two_slow_stages_are_both_accused(tmp_path: Path) -> None:
    found = [one for one in verdicts(tmp_path, {3: 1.4, 9: 1.4}, 16) if one["kind"] == "straggler"]
    assert sorted(one["rank"] for one in found) == [3, 9]


def test_the_only_rank_of_the_first_stage_may_wait_for_its_input(tmp_path: Path) -> None:
    found = verdicts(tmp_path, {0: 1.4})
    assert [(one["kind"], one["rank"]) for one in found] == [("unknown", 0)]
    assert "the only rank of the first pipeline stage: it may wait for its input" in json.dumps(found)


def test_all_stages_becoming_slower_accuses_no_rank(tmp_path: Path) -> None:
    found = verdicts(tmp_path, dict.fromkeys(range(4), 1.4))
    assert [one for one in found if one["kind"] == "straggler"] == []


def test_a_stage_that_is_slow_from_the_start_is_more_work_or_a_slower_gpu(tmp_path: Path) -> None:
    """Nothing in its steps tells these apart, so that no verdict is certain."""
    found = verdicts(tmp_path, {2: 1.4}, onset=0)
    assert [(one["kind"], one["ranks"]) for one in found] == [("stage_imbalance", [2])]
    assert 0.5 < found[0]["confidence"] < 0.9
    assert "with one rank, a slower GPU would look the same" in json.dumps(found)
