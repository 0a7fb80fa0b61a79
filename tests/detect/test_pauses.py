"""Recorded jobs with one very long step: `gangwatch detect` notes the pause and accuses no rank."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.detect.traces import detect, of_kind

LATE = 5
PAUSE = 100


def pauses(path: Path, own: np.ndarray, *, waits: bool = True, meets: bool = True) -> list[dict[str, object]]:
    """Run `gangwatch detect` on a job with these compute times [steps, 8]. Return its notes about pauses.

    meets: whether the ranks wait for each other in each step.
    """
    with path.open("w") as file:
        for step, times in enumerate(own):
            for rank, mine in enumerate(times):
                seconds = 0.1 + (times.max() if meets else mine)
                row = {"step": step, "rank": rank, "seconds": seconds}
                if waits:
                    row["wait_seconds"] = seconds - mine
                file.write(json.dumps(row) + "\n")
    found = detect(path)
    assert not of_kind(found, "straggler")
    assert not of_kind(found, "hang")
    return [one for one in of_kind(found, "unknown") if "then the job went on" in one["evidence"][0]["against"]]


def usual(scale: float = 1.0) -> np.ndarray:
    return scale * np.random.default_rng(5).lognormal(0.0, 0.01, (160, 8))


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_long_step_is_noted_with_the_rank_for_which_the_others_waited(tmp_path: Path, scale: float) -> None:
    own = usual(scale)
    own[PAUSE, LATE] = 600.0
    (note,) = pauses(tmp_path / "steps.jsonl", own)
    assert (note["rank"], note["detected_step"]) == (LATE, PAUSE)


def test_a_step_as_long_as_fifty_is_noted_in_any_unit_of_time(tmp_path: Path) -> None:
    own = usual(0.02)
    own[PAUSE, LATE] = 9.0
    (note,) = pauses(tmp_path / "steps.jsonl", own)
    assert (note["rank"], note["detected_step"]) == (LATE, PAUSE)
    own[PAUSE, LATE] = 3.0
    assert not pauses(tmp_path / "short.jsonl", own)


def test_no_rank_is_named_without_waits(tmp_path: Path) -> None:
    own = usual()
    own[PAUSE, LATE] = 600.0
    (note,) = pauses(tmp_path / "steps.jsonl", own, waits=False)
    assert note["rank"] is None
    assert "waits are unknown" in str(note["evidence"])


def test_a_rank_with_a_long_step_of_its_own_is_named(tmp_path: Path) -> None:
    """The ranks average their models after some steps, so that the steps of the others are short."""
    own = usual()
    own[PAUSE, LATE] = 600.0
    (note,) = pauses(tmp_path / "steps.jsonl", own, meets=False)
    assert note["rank"] == LATE
    assert f"only rank {LATE} had a long step" in str(note["evidence"])


def test_no_rank_is_named_if_all_are_busy(tmp_path: Path) -> None:
    own = usual()
    own[PAUSE] = 600.0
    (note,) = pauses(tmp_path / "steps.jsonl", own)
    assert note["rank"] is None
    assert "8 of 8 ranks" in str(note["evidence"])


def test_recurring_pauses_are_noted_once(tmp_path: Path) -> None:
    own = usual()
    own[40::40] += 90.0
    assert len(pauses(tmp_path / "steps.jsonl", own)) == 1


def test_long_first_step_and_usually_long_steps_are_no_pause(tmp_path: Path) -> None:
    own = usual(60.0)
    own[0] = 900.0
    own[PAUSE, LATE] = 200.0
    assert not pauses(tmp_path / "steps.jsonl", own)


def hangs(path: Path, own: np.ndarray, lost: tuple[int, ...] = ()) -> list[dict[str, object]]:
    """Run `gangwatch detect` on a job with these compute times [steps, 8], four ranks a node. Return hang verdicts.

    lost: ranks whose sample of the pause is missing.
    """
    with path.open("w") as file:
        for step, times in enumerate(own):
            for rank, mine in enumerate(times):
                if step == PAUSE and rank in lost:
                    continue
                seconds = times.max() + 0.1
                row = {"step": step, "rank": rank, "node": f"n{rank // 4}", "seconds": seconds}
                file.write(json.dumps(row | {"wait_seconds": seconds - mine}) + "\n")
    return of_kind(detect(path), "hang")


def test_a_pause_of_half_an_hour_for_one_rank_is_a_hang(tmp_path: Path) -> None:
    own = usual()
    own[PAUSE, LATE] = 1800.0
    (hang,) = hangs(tmp_path / "steps.jsonl", own)
    assert (hang["rank"], hang["detected_step"], hang["last_step"]) == (LATE, PAUSE, PAUSE)
    assert float(str(hang["confidence"])) >= 0.9
    (cut,) = hangs(tmp_path / "cut.jsonl", own[: PAUSE + 1])
    assert cut["confidence"] == hang["confidence"]


def test_a_pause_of_half_an_hour_for_a_node_is_a_hang_of_its_ranks(tmp_path: Path) -> None:
    own = usual()
    own[PAUSE, 4:7] = 1800.0
    (hang,) = hangs(tmp_path / "steps.jsonl", own)
    assert hang["ranks"] == [4, 5, 6]


def test_an_earlier_pause_in_which_all_ranks_work_does_not_hide_a_hang(tmp_path: Path) -> None:
    own = usual()
    own[60], own[PAUSE, LATE] = 1700.0, 1800.0
    (hang,) = hangs(tmp_path / "steps.jsonl", own)
    assert (hang["rank"], hang["detected_step"]) == (LATE, PAUSE)
    own[60], own[60, 2] = 1.0, 1700.0
    (first,) = hangs(tmp_path / "twice.jsonl", own)
    assert first["rank"] == 2, "the second pause is hardly longer than the first: it recurs"


def test_a_hang_is_reported_although_a_sample_was_lost(tmp_path: Path) -> None:
    own = usual()
    own[PAUSE, LATE] = 1800.0
    (hang,) = hangs(tmp_path / "steps.jsonl", own, lost=(2,))
    assert hang["rank"] == LATE
    assert not hangs(tmp_path / "many.jsonl", own, lost=(1, 2)), "a quarter of the ranks may be blocked too"
    assert not hangs(tmp_path / "late.jsonl", own, lost=(LATE,))


@pytest.mark.parametrize("busy", [[0, 5], list(range(8)), [0, 1, 2, 4, 5]])
def test_a_long_pause_of_several_nodes_is_no_hang(tmp_path: Path, busy: list[int]) -> None:
    own = usual()
    own[PAUSE, busy] = 1800.0
    assert not hangs(tmp_path / "steps.jsonl", own)


def test_a_rank_that_waited_for_some_of_the_time_is_not_accused(tmp_path: Path) -> None:
    own = usual()
    own[PAUSE, LATE], own[PAUSE, 2] = 1800.0, 600.0
    assert not hangs(tmp_path / "steps.jsonl", own), "another rank was busy for a third of the time"
