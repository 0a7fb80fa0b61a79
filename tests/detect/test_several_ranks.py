"""Several slow ranks of one job: one verdict for all of them, also if all ranks have constant differences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.detect.traces import detect, of_kind

STEPS = 180
COLLECTIVE_SECONDS = 0.2


def own_times(ranks: int) -> np.ndarray:
    """Return one second of compute for each step and rank, with 1 % noise."""
    return np.exp(np.random.default_rng(3).normal(0.0, 0.01, (STEPS, ranks)))


def detected(path: Path, own: np.ndarray, ranks_a_stage: int = 0, ranks_a_node: int = 8) -> dict[str, Any]:
    """Return the report of `gangwatch detect` on a job in which all ranks wait for the slowest one."""
    lines = []
    for step, row in enumerate(own.tolist()):
        seconds = max(row) + COLLECTIVE_SECONDS
        for rank, compute in enumerate(row):
            line = {"step": step, "rank": rank, "node": f"n{rank // ranks_a_node}", "seconds": seconds}
            line["wait_seconds"] = seconds - compute
            if ranks_a_stage:
                line |= {"stage": rank // ranks_a_stage, "dp_rank": rank % ranks_a_stage}
            lines.append(json.dumps(line))
    path.write_text("\n".join(lines))
    return detect(path)


def offsets(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in of_kind(found, "workload") if one["cause"] == "standing-offset"]


@pytest.mark.parametrize("sick", [(8, 12), (9, 11, 14)])
def test_sick_ranks_of_a_node_that_is_a_stage_get_one_verdict(tmp_path: Path, sick: tuple[int, ...]) -> None:
    own = own_times(32)
    own[80:, sick] *= 1.5
    found = detected(tmp_path / "t.jsonl", own, ranks_a_stage=8)
    (verdict,) = of_kind(found, "straggler")
    assert set(verdict["ranks"]) == set(sick)
    assert verdict["node"] == "n1"
    assert verdict["confidence"] >= 0.9
    assert verdict["slowdown"] == pytest.approx(1.7 / 1.2, rel=0.03), "the cost of the set, not of one rank"
    assert not offsets(found)


def test_a_slowdown_that_began_is_no_constant_offset(tmp_path: Path) -> None:
    own = own_times(8)
    own[45:, [2, 4]] *= 1.4
    found = detected(tmp_path / "t.jsonl", own)
    assert not offsets(found)
    assert of_kind(found, "straggler") or of_kind(found, "unknown"), "it is reported as what it is"


def test_a_small_offset_that_began_after_the_warm_up_is_not_constant(tmp_path: Path) -> None:
    own = own_times(16)
    own[40:, 8:16] *= 1.06
    assert not offsets(detected(tmp_path / "t.jsonl", own))


def test_a_rank_with_an_offset_that_becomes_slower_by_a_fifth_may_be_faulty(tmp_path: Path) -> None:
    own = own_times(16)
    own[:, 7] *= 1.32
    own[30:, 7] *= 1.2
    assert not offsets(detected(tmp_path / "t.jsonl", own))


def test_a_rank_that_alone_slows_a_job_down_may_be_faulty_although_others_have_offsets(tmp_path: Path) -> None:
    own = own_times(16)
    own[:, 3] *= 1.17
    own[:, 7] *= 1.32
    (found,) = offsets(detected(tmp_path / "t.jsonl", own))
    assert found["ranks"] == [3, 7]
    assert found["confidence"] < 0.9
    (reason,) = [one for one in found["evidence"] if one["measure"] == "step_seconds_without_one_rank"]
    assert reason["value"] == pytest.approx(1.39, rel=0.02)


def test_ranks_with_constant_offsets_get_one_verdict_with_the_cost_of_each(tmp_path: Path) -> None:
    own = own_times(16)
    own[:, 3] *= 1.07
    own[:, 7] *= 1.30
    (found,) = offsets(detected(tmp_path / "t.jsonl", own))
    assert (found["rank"], found["ranks"]) == (None, [3, 7])
    assert found["slowdown"] == pytest.approx(1.5 / 1.22, rel=0.03), "the cost of the set"
    alone = [one for one in found["evidence"] if one["measure"] == "step_seconds_of_one_rank"]
    assert [one["value"] / one["reference"] for one in alone] == pytest.approx([1.5 / 1.22, 1.27 / 1.22], rel=0.03)


def test_one_rank_with_a_constant_offset_is_named(tmp_path: Path) -> None:
    own = own_times(16)
    own[:, 7] *= 1.30
    (found,) = offsets(detected(tmp_path / "t.jsonl", own))
    assert (found["rank"], found["ranks"]) == (7, [])
    assert found["slowdown"] == pytest.approx(1.5 / 1.22, rel=0.03)


def test_a_slow_node_is_accused_though_it_is_half_of_the_job(tmp_path: Path) -> None:
    own = own_times(16)
    own[80:, 8:] *= 1.5
    (verdict,) = of_kind(detected(tmp_path / "t.jsonl", own), "straggler")
    assert (verdict["node"], verdict["ranks"]) == ("n1", list(range(8, 16)))
    assert verdict["confidence"] >= 0.9


def test_two_ranks_of_a_small_job_are_accused(tmp_path: Path) -> None:
    own = own_times(8)
    own[80:, [0, 5]] *= 1.5
    found = of_kind(detected(tmp_path / "t.jsonl", own, 4, ranks_a_node=4), "straggler")
    assert {one["rank"] for one in found} == {0, 5}


def test_three_ranks_of_a_small_job_are_not_accused(tmp_path: Path) -> None:
    own = own_times(8)
    own[80:, [0, 3, 5]] *= 1.5
    assert not of_kind(detected(tmp_path / "t.jsonl", own, ranks_a_node=2), "straggler")


@pytest.mark.parametrize(("last", "accused"), [(STEPS, True), (88, False)])
def test_a_node_with_several_whole_stages_is_accused_if_all_of_them_stay_slow(
    tmp_path: Path, last: int, accused: bool
) -> None:
    own = own_times(16)
    own[80:last, :8] *= 1.3
    found = of_kind(detected(tmp_path / "t.jsonl", own, ranks_a_stage=4), "straggler")
    assert [(one["node"], one["ranks"]) for one in found] == [("n0", list(range(8)))] * accused
    assert all(one["confidence"] >= 0.9 and one["detected_step"] >= 90 for one in found)


def test_stages_that_change_by_different_factors_are_the_jobs_own_doing(tmp_path: Path) -> None:
    own = own_times(16)
    own[80:, :4] *= 1.5
    own[80:, 4:8] *= 1.1
    assert not of_kind(detected(tmp_path / "t.jsonl", own, ranks_a_stage=4), "straggler")


def test_a_slow_first_stage_that_is_one_node_has_no_confident_cause(tmp_path: Path) -> None:
    """Without counters, missing input of the first stage and a slow node look the same."""
    own = own_times(32)
    own[80:, :8] *= 1.5
    found = detected(tmp_path / "t.jsonl", own, ranks_a_stage=8)
    assert of_kind(found, "workload")
    assert all(one["confidence"] < 0.9 for one in found["verdicts"])


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize(("last", "accused"), [(STEPS, True), (88, False)])
def test_a_later_stage_that_is_one_node_and_stays_slow_is_a_slow_node(
    tmp_path: Path, stage: int, last: int, accused: bool
) -> None:
    """Only the first stage reads input. The work of a later stage does not change during a run."""
    ranks = list(range(8 * stage, 8 * stage + 8))
    own = own_times(32)
    own[80:last, ranks] *= 1.5
    found = detected(tmp_path / "t.jsonl", own, ranks_a_stage=8)
    of_node = of_kind(found, "straggler")
    assert [(one["node"], one["ranks"], one["confidence"] >= 0.9) for one in of_node] == [
        (f"n{stage}", ranks, True)
    ] * accused
    assert not accused or not of_kind(found, "stage_imbalance"), "the same ranks are not also the job's own work"


def test_an_offset_far_from_all_others_may_be_slow_hardware(tmp_path: Path) -> None:
    own = own_times(16)
    own[:, 7] *= 1.2
    (found,) = offsets(detected(tmp_path / "t.jsonl", own))
    assert found["confidence"] < 0.9
    assert "hardware of this rank may be slow" in str(found["evidence"])


def test_a_fault_that_becomes_slow_again_at_a_period_and_stays_slow_is_accused(tmp_path: Path) -> None:
    own = own_times(8)
    for first, last in ((50, 58), (90, 98), (130, STEPS)):
        own[first:last, 5] *= 1.5
    found = of_kind(detected(tmp_path / "t.jsonl", own), "straggler")
    (verdict,) = [one for one in found if one["confidence"] >= 0.9]
    assert {one["rank"] for one in found} == {5} and verdict["detected_step"] >= 165


@pytest.mark.parametrize("count", [4, 9, 25])
def test_only_a_slowdown_that_lasted_is_accused_after_its_end(tmp_path: Path, count: int) -> None:
    own = own_times(8)
    own[80 : 80 + count, 5] *= 1.5
    found = detected(tmp_path / "t.jsonl", own)
    assert [one["rank"] for one in of_kind(found, "straggler")] == [5] * (count >= 9)
    assert len(of_kind(found, "unknown")) == (count < 9), "a verdict answers the doubt before it"
    if count < 9:
        (note,) = of_kind(found, "unknown")
        assert note["rank"] == 5 and note["first_step"] == note["last_step"] == 82
        cut = detected(tmp_path / "t.jsonl", own[: note["detected_step"] + 1])
        assert of_kind(cut, "unknown") == [note], "a file that ends there has the same"


def test_a_node_that_is_slow_from_the_start_may_be_of_another_model(tmp_path: Path) -> None:
    own = own_times(16)
    own[:, 8:] *= 1.5
    found = detected(tmp_path / "t.jsonl", own)
    assert not of_kind(found, "straggler")
    assert "of another model" in str(of_kind(found, "unknown"))
    own = own_times(16)
    own[:, 9] *= 1.5
    (verdict,) = of_kind(detected(tmp_path / "t.jsonl", own, ranks_a_stage=16), "straggler")
    assert verdict["rank"] == 9, "a single rank is still accused"


@pytest.mark.parametrize(("count", "accused"), [(16, False), (60, True)])
def test_a_whole_node_must_stay_slow_for_longer_than_one_rank(tmp_path: Path, count: int, accused: bool) -> None:
    """Several stalls of its data loader in a row slow all ranks of a node for sixteen steps."""
    own = own_times(32)
    own[80 : 80 + count, :8] *= 1.5
    found = of_kind(detected(tmp_path / "t.jsonl", own), "straggler")
    assert bool([one for one in found if one["confidence"] >= 0.9]) == accused
