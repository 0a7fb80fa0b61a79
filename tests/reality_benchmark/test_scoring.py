"""Scoring of the benchmark's runs, its tables, and continued campaigns, on hand-written rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reality import campaign, figures, score
from benchmarks.reality.cases import FAULTS, HEALTHY, Case, case

Row = dict[str, Any]
NODES = ["node-0", "node-0", "node-1", "node-1"]


def verdict(**given: Any) -> Row:
    usual = {
        "kind": "straggler", "cause": "cpu-contention", "rank": 2, "ranks": [], "node": "node-1", "device": "",
        "aggressor": "", "confidence": 0.99, "first_seconds": 5.0, "sure_seconds": 8.0, "sentence": "...",
    }  # fmt: skip
    return usual | given


def row(name: str = "cpu-quota-rank", *found: Row, culprits: tuple[int, ...] = (2,), **given: Any) -> Row:
    healthy = name in HEALTHY
    jobs: Row = {"undisturbed": {"nodes": NODES, "verdicts": []}}
    jobs["undisturbed" if healthy else "disturbed"] = {"nodes": NODES, "verdicts": list(found)}
    usual = {
        "seed": 1, "class": name, "healthy": healthy, "framework": "ddp", "ranks": 4, "jobs": jobs,
        "culprits": [] if healthy else list(culprits), "load_average": 2.0, "seconds": 60.0,
    }  # fmt: skip
    return usual | ({} if healthy else {"severity": 1.5}) | given


@pytest.mark.parametrize(
    ("one", "mark"),
    [
        (row("cpu-quota-rank", verdict()), "right"),
        (row("cpu-quota-rank", verdict(rank=1)), "wrong_rank"),
        (row("cpu-quota-rank", verdict(ranks=[1, 2])), "wrong_rank"),
        (row("cpu-quota-rank", verdict(kind="hang")), "wrong_kind"),
        (row("cpu-quota-rank", verdict(first_seconds=-0.5)), "innocent"),
        (row("cpu-quota-rank", verdict(kind="interference", aggressor="j-2")), "wrong_rank"),
        (row("cpu-quota-rank", verdict(kind="workload", cause="checkpoint")), "untrue"),
        (row("cpu-quota-rank", verdict(kind="unknown", cause="unknown")), "unjudged"),
        (row("cpu-quota-node", verdict(rank=-1), culprits=(2, 3)), "right"),
        (row("cpu-quota-node", verdict(rank=3), culprits=(2, 3)), "right"),
        (row("cpu-quota-rank", verdict(rank=-1)), "wrong_rank"),
        (row("shared-uplink", verdict(kind="interference", aggressor="j-2"), culprits=()), "right"),
        (row("shared-uplink", verdict(), culprits=()), "wrong_rank"),
        (row("never-arrives", verdict(kind="hang", cause="never-arrived"), severity=None), "right"),
        (row("never-arrives", verdict(), severity=None), "wrong_kind"),
        (row("quiet", verdict()), "innocent"),
        (row("evaluation", verdict(kind="workload", cause="evaluation")), "right"),
        (row("quiet", verdict(kind="workload", cause="evaluation")), "untrue"),
        (row("quiet", verdict(kind="workload", cause="standing-offset")), "unjudged"),
    ],
)
def test_a_verdict_is_marked(one: Row, mark: str) -> None:
    assert [v["mark"] for v in score.verdicts(one)] == [mark]


def test_the_outcome_of_a_run_comes_from_confident_verdicts() -> None:
    assert score.outcome(row("cpu-quota-rank")) == "missed"
    assert score.outcome(row("cpu-quota-rank", verdict(confidence=0.6))) == "missed"
    assert score.outcome(row("cpu-quota-rank", verdict(rank=1), verdict())) == "right"
    assert score.outcome(row("cpu-quota-rank", verdict(rank=1))) == "wrong_rank"
    assert score.outcome(row("quiet", verdict(confidence=0.6))) == "quiet"
    assert score.outcome(row("quiet", verdict())) == "accused"
    assert score.delay_seconds(row("cpu-quota-rank", verdict(sure_seconds=12.0), verdict())) == 8.0


def test_an_accused_undisturbed_job_of_a_pair_counts_as_healthy_accused() -> None:
    one = row("cpu-quota-rank", verdict())
    one["jobs"]["undisturbed"]["verdicts"].append(verdict(rank=0))
    ours = figures.figures([one, row("quiet")])["ours"]
    assert ours["healthy_accused"]["of"] == [1, 2]
    assert ours["precision_at_90"]["of"] == [1, 2]
    assert ours["wrong_rank"]["of"] == [1, 2]


def test_an_accusation_before_the_fault_counts_as_healthy_accused() -> None:
    one = row("cpu-quota-rank", verdict(), verdict(rank=0, first_seconds=-3.0))
    del one["jobs"]["undisturbed"]  # a run whose periods belong to one job
    ours = figures.figures([one, row("cpu-quota-rank", verdict())])["ours"]
    assert ours["healthy_accused"]["of"] == [1, 2]


def test_the_document_counts_each_run_once() -> None:
    rows = [
        row("cpu-quota-rank", verdict()),
        row("cpu-quota-rank", verdict(rank=0), framework="moe"),
        row("cpu-quota-rank", severity=1.01),
        row("never-arrives", severity=None),
        row("evaluation", verdict(kind="workload", cause="evaluation")),
        row("quiet", discarded="too few steps"),
    ]
    document = figures.figures(rows)
    assert document["ours"]["recall"]["of"] == [1, 3]
    assert document["ours"]["recall_waits_known"]["of"] == [1, 2]
    assert document["ours"]["precision_at_90"]["of"] == [2, 3]
    assert document["ours"]["healthy_accused"]["of"] == [0, 5]
    assert document["runs"]["discarded"] == {"too few steps": 1}
    assert document["runs"]["below_the_bar"] == 1
    first = document["classes"][0]
    assert (first["fault"], first["runs"], first["missed"]) == ("never-arrives", 1, 1)
    assert [wrong["named"] for wrong in document["wrong"]] == [[0]]
    assert len(list(figures.table(document))) == 8


def test_no_rows_give_none_and_not_zero() -> None:
    ours = figures.figures([])["ours"]
    assert ours["recall"] == {"value": None, "of": [0, 0], "interval": None}
    assert ours["calibration_error"] is None


def test_calibration_compares_frequency_with_confidence() -> None:
    sure = [{"confidence": 1.0, "mark": "right"}] * 3 + [{"confidence": 1.0, "mark": "wrong_rank"}]
    assert figures.calibration_error(sure) == 0.25


def test_every_class_comes_in_turn_and_a_seed_always_gives_the_same_case() -> None:
    cases = [case(seed) for seed in range(200)]
    assert {one.name for one in cases} == {*FAULTS, *HEALTHY}
    assert cases[40] == case(40)
    for one in cases:
        assert 2 <= one.ranks <= 8
        assert all(0 <= rank < one.ranks for rank in one.culprits)
        assert bool(one.culprits) == (not one.healthy and one.name != "shared-uplink")
        assert one.framework != "pipeline" or one.ranks % 2 == 0
        assert (one.name, one.framework) not in (("recompiles", "numpy"), ("uneven-batches", "pipeline"))
    assert {one.framework for one in cases} == {"numpy", "ddp", "fsdp2", "pipeline", "moe"}


def test_a_campaign_continues_after_the_runs_of_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done: list[int] = []

    def perform(one: Case) -> Row:
        done.append(one.seed)
        return row("quiet", seed=one.seed) if one.seed != 2 else row("quiet", seed=2, discarded="too few steps")

    path = tmp_path / "rows.jsonl"
    campaign.run(1, 60, path, perform, target=2)
    with path.open("a") as file:
        file.write('{"seed": 4, "cl')  # the machine lost power here
    rows = campaign.run(1, 60, path, perform, target=4)
    assert done == [1, 2, 3, 4, 5], "a discarded run is not repeated"
    assert [json.loads(line)["seed"] for line in path.read_text().splitlines()] == [one["seed"] for one in rows]
    assert "discarded: too few steps" in capsys.readouterr().err
    assert campaign.run(1, 0, path, perform) == rows, "no time is left"


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"seed": 1}\n')
    with pytest.raises(campaign.ResultFileError, match="line 1"):
        campaign.read(path)


def test_nothing_of_the_simulator_is_loaded() -> None:
    code = (
        "import sys, benchmarks.reality.__main__\n"
        "print([name for name in sys.modules if name.startswith(('scheduler_feedback', 'benchmarks.traces'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_prints_a_table_without_running(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row("cpu-quota-rank", verdict())) + "\n")
    command = [sys.executable, "-m", "benchmarks.reality", "--show", "--resume", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "| cpu-quota-rank | 1.5 | 1 | 1 | 0 | 0 | 0 | 8.0 |" in done.stdout
    document = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True).stdout)
    assert document["ours"]["recall"]["value"] == 1.0
