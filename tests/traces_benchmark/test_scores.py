"""Scoring of invented verdicts against invented faults, and the figures from invented rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.traces import __main__ as command
from benchmarks.traces import campaign
from benchmarks.traces.figures import calibration, figures
from benchmarks.traces.job import Truth
from benchmarks.traces.score import Outcome, score


def truth(**changes: Any) -> Truth:
    given: dict[str, Any] = {
        "name": "one-rank", "healthy": False, "layout": "ddp", "ranks": 16, "steps": 200, "waits": "known",
        "per_node": 8, "culprits": [5], "kinds": ["straggler", "health"], "onset": 100, "end": 199, "cost": 1.3,
        "gain": 0.1,
    }  # fmt: skip
    return Truth(**(given | changes))


def verdict(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "kind": "straggler", "rank": 5, "ranks": [], "node": "node-0", "aggressor": None, "cause": "unknown",
        "detected_step": 103, "confidence": 0.97,
    }  # fmt: skip
    return given | changes


def scored(one: Truth, *verdicts: dict[str, Any]) -> Outcome:
    return score({"verdicts": list(verdicts), "job": {"step_seconds": 2.0, "without_suspects_seconds": 1.8}}, one)


def test_the_culprit_in_time_is_right() -> None:
    found = scored(truth(), verdict())
    assert (found.outcome, found.found, found.complete, found.delay) == ("right", True, True, 3)
    assert found.gain_reported == pytest.approx(0.1)


def test_no_verdict_is_a_miss_and_unknown_is_only_a_note() -> None:
    assert (scored(truth()).outcome, scored(truth()).noted) == ("missed", False)
    found = scored(truth(), verdict(kind="unknown", rank=None, confidence=0.0))
    assert (found.outcome, found.noted, found.verdicts) == ("missed", True, [])
    assert not scored(truth(), verdict(kind="unknown", rank=None, confidence=0.0, detected_step=50)).noted


def test_a_long_step_has_to_be_mentioned_soon_after_it() -> None:
    one = truth(healthy=True, culprits=[], kinds=[], onset=-1, note_step=120)
    note = verdict(kind="unknown", rank=None, confidence=0.0)
    assert [scored(one, note | {"detected_step": step}).noted for step in (119, 120, 140, 141)] == [0, 1, 1, 0]
    assert figures([row(one, note)])["note_due_and_given"] == 0.0


def test_a_verdict_below_nine_tenths_does_not_count() -> None:
    found = scored(truth(), verdict(confidence=0.89))
    assert (found.outcome, found.found, found.verdicts[0].mark) == ("missed", False, "right")


def test_a_healthy_rank_of_a_faulty_job_is_a_wrong_rank_though_the_culprit_is_found() -> None:
    found = scored(truth(), verdict(), verdict(rank=6))
    assert (found.outcome, found.found) == ("wrong_rank", True)


def test_the_culprit_as_the_jobs_own_work_is_a_wrong_kind() -> None:
    found = scored(truth(), verdict(kind="workload", cause="standing-offset"))
    assert (found.outcome, found.contradicted) == ("wrong_kind", True)
    assert scored(truth(), verdict(detected_step=40)).outcome == "wrong_kind", "before the fault"


def test_a_node_may_be_named_by_its_sick_ranks_or_by_all_of_its_ranks() -> None:
    sick = truth(culprits=[8, 10, 12, 14], node=1)
    named = scored(sick, verdict(rank=None, node="node-1", ranks=[]))
    assert (named.found, named.complete) == (True, False)
    assert scored(sick, verdict(rank=8, ranks=list(range(8, 16)))).complete
    assert scored(sick, verdict(rank=8, ranks=[8, 12])).outcome == "right"
    assert scored(sick, verdict(rank=8, ranks=[8, 9, 11, 13])).outcome == "wrong_rank", "one culprit in four"
    assert scored(sick, verdict(rank=None, node="node-0", ranks=[])).outcome == "wrong_rank"


def test_only_one_of_two_culprits_is_right_but_not_complete() -> None:
    found = scored(truth(culprits=[5, 9]), verdict())
    assert (found.outcome, found.complete) == ("right", False)


def test_any_accusation_of_a_healthy_job_is_wrong_and_its_own_work_is_right() -> None:
    healthy = truth(healthy=True, culprits=[], kinds=[], onset=-1, own_causes=["checkpoint"], standing=[3])
    assert scored(healthy, verdict()).outcome == "wrong_rank"
    own = scored(healthy, verdict(kind="workload", cause="checkpoint", rank=None))
    assert (own.outcome, own.verdicts[0].mark) == ("right", "right")
    offset = verdict(kind="workload", cause="standing-offset", rank=3)
    assert scored(healthy, offset).verdicts[0].mark == "right"
    assert scored(healthy, offset | {"rank": 4}).verdicts[0].mark == "untrue"
    assert scored(healthy, verdict(kind="workload", cause="evaluation", rank=None)).verdicts[0].mark == "untrue"


def test_of_several_neighbours_only_the_disturbing_one_is_right() -> None:
    one = truth(culprits=[], kinds=["interference"], neighbours=["neighbour-1", "neighbour-2"])
    assert scored(one, verdict(kind="interference", rank=None, aggressor="neighbour-1")).outcome == "right"
    assert scored(one, verdict(kind="interference", rank=None, aggressor="neighbour-2")).outcome == "wrong_rank"
    assert scored(one, verdict()).outcome == "wrong_rank", "hardware is accused"


def test_calibration_compares_frequency_with_confidence() -> None:
    marks = [{"confidence": 0.95, "mark": mark} for mark in ("right", "right", "right", "innocent")]
    found = calibration([*marks, {"confidence": 1.0, "mark": "right"}])
    assert [(b["from"], b["verdicts"], b["right"]) for b in found["bins"]] == [(0.95, 4, 3), (0.98, 1, 1)]
    assert found["expected_calibration_error"] == pytest.approx(0.2 * 4 / 5)
    assert calibration([])["expected_calibration_error"] is None


def row(one: Truth, *verdicts: dict[str, Any]) -> dict[str, Any]:
    return {"seed": 1, "truth": one.as_dict(), "outcome": scored(one, *verdicts).as_dict()}


def test_the_figures_of_hand_made_rows() -> None:
    healthy = truth(name="plain", healthy=True, culprits=[], kinds=[], onset=-1, cost=1.0)
    found = figures(
        [
            row(truth(), verdict()),
            row(truth(), verdict(), verdict(rank=9)),
            row(truth(waits="null")),
            row(truth(cost=1.02)),  # too cheap to count for recall
            row(truth(name="slow-nic", localisable=False)),
            row(healthy, verdict(confidence=0.92)),
            row(healthy),
        ]
    )
    recall = found["recall_at_90"]
    assert (recall["waits_known"]["recall"], recall["waits_known"]["faults"]) == (1.0, 2)
    assert (recall["waits_unknown"]["recall"], recall["not_localisable_by_steps"]["faults"]) == (0.0, 1)
    assert found["precision_at_90"] == 0.5 and found["healthy_accused"] == 0.5 and found["wrong_rank"] == 0.5
    classes = {one["class"]: one for one in found["classes"]}
    assert [classes["one-rank"][key] for key in ("runs", "right", "wrong_rank", "missed")] == [4, 1, 1, 2]
    assert found["classes"][0]["class"] == "slow-nic", "the misses come first"


def test_constant_offsets_of_many_ranks_do_not_hide_a_wrong_accusation() -> None:
    healthy = truth(healthy=True, culprits=[], kinds=[], onset=-1, standing=list(range(10)))
    offsets = [verdict(kind="workload", cause="standing-offset", rank=rank) for rank in range(10)]
    found = figures([row(healthy, *offsets, verdict(rank=12)), row(truth(), verdict())])
    assert found["precision_at_90"] == pytest.approx(2 / 3, abs=1e-4)
    assert found["kind_confusion"] == 0.0
    found = figures([row(truth(), verdict(), verdict(kind="workload", cause="standing-offset"))])
    assert found["kind_confusion"] == 0.5


def test_the_command_continues_a_result_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    options = ["--classes", "plain,one-rank", "--most-ranks", "8", "--out", str(out), "--json", "--runs"]
    command.main([*options, "2"])
    first = out.read_text()
    out.write_text(first + '{"seed": 9')  # a run that was killed while it wrote
    assert len(capsys.readouterr().err.splitlines()) == 2
    command.main([*options, "2"])
    assert not capsys.readouterr().err, "nothing is run again"
    command.main([*options, "3"])
    document = json.loads(capsys.readouterr().out)
    assert document["traces"] == 3
    assert [one["seed"] for one in campaign.read_results(out)] == [1, 2, 3]


def test_a_longer_list_of_tasks_begins_with_the_shorter_one() -> None:
    names = ["plain", "drift", "hang"]
    longer = campaign.tasks(5, 8, names, 16)
    assert longer[:3] == campaign.tasks(5, 3, names, 16)
    assert [one.name for one in longer[:4]] == ["plain", "hang", "drift", "hang"]
    with pytest.raises(SystemExit):
        command.main(["--classes", "nothing"])
