"""Added classes of the evaluation: the grid's runs stay the same, and each class is staged and scored as described."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.detection import campaign, class_report, healthy
from benchmarks.detection.__main__ import main, parsed
from benchmarks.detection.cells import Cell, Staged, drawn_of_class, stage
from benchmarks.detection.claims import Claim, ClaimLog
from benchmarks.detection.classes import CLASSES, Row, rows
from benchmarks.detection.fleet import Result
from benchmarks.detection.healthy import Health
from benchmarks.detection.healthy_traits import names_of
from benchmarks.detection.report import ours_more
from benchmarks.detection.score import Outcome, Truth, judge
from scheduler_feedback.sim.world.fault import DISORDERS
from scheduler_feedback.sim.world.traits import NO_TRAITS


def staged(name: str, disorder: str, severity: float = 0.2, gpus: int = 64, seed: int = 4_200_001) -> Staged:
    workload = CLASSES[name].workloads[0]
    found, _ = stage(Cell(disorder, severity, gpus, "step", workload, 1, 2.0, seed, of_class=name), 0)
    return found


@pytest.mark.parametrize(
    ("arguments", "count", "digest"),
    [("--quick --seed 950003", 110, "0827bc678769886e"), ("--seed 1 --cells 300", 300, "28f2e12bb21ece37")],
)
def test_the_grid_draws_the_same_runs_as_before(arguments: str, count: int, digest: str) -> None:
    # The digests are those of the version before the added classes.
    cells = campaign.chosen(parsed(arguments.split()))
    text = "\n".join(
        f"{c.disorder} {c.severity} {c.gpus} {c.form} {c.workload} {c.minutes} {c.step_seconds} {c.seed} {c.second}"
        for c in cells
    )
    assert len(cells) == count
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


def test_classes_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    everything, added = parsed([]), parsed(["--classes", "added"])
    assert everything.grid and not added.grid
    assert everything.classes == added.classes == tuple(CLASSES)
    assert parsed(["--classes", "grid"]).classes == ()
    few = parsed(["--classes", "drift,sharded", "--class-runs", "3"])
    assert {c.of_class for c in campaign.of_classes(few)} == {"drift", "sharded"}
    assert len(campaign.of_classes(few)) == 12
    rare = parsed(["--quick", "--classes", "loader-stalls", "--class-runs", "6"])
    assert {cell.minutes for cell in campaign.of_classes(rare)} == {10.0}
    assert campaign.chosen(few) == [] and campaign.located(few) == []
    with pytest.raises(SystemExit):
        parsed(["--classes", "drift,fancy"])
    assert "--classes: fancy; known are grid, added, all, recompiles" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parsed(["--class-runs", "-1"])
    assert "--class-runs: -1; a number of runs" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parsed(["--ablations", "--classes", "drift"])
    assert "--ablations runs the grid" in capsys.readouterr().err


def test_every_class_has_healthy_runs_or_faults_and_can_be_staged() -> None:
    for one in CLASSES.values():
        random = np.random.default_rng(3)
        made = [drawn_of_class(row, 4_200, n, random, (1,)) for n, row in enumerate(rows(one, (0.2,), random, 2))]
        assert len(made) == (4 if one.both else 2)
        assert any(cell.disorder != "none" for cell in made)
        for cell in made:
            found, _ = stage(cell, 0)
            assert found.victim.traits == NO_TRAITS or one.traits
            assert found.fault.begin == 0.0 if one.first_step else found.fault.begin >= 300.0
            if one.several:
                assert len(found.fault.ranks) in (2, 3)
            assert cell.second == ""


def test_several_sick_gpus_are_on_one_node() -> None:
    found = staged("several-gpus", "clock-lock")
    assert len({found.victim.place.nodes[rank] for rank in found.fault.ranks}) == 1
    assert len(found.fault.ranks) in (2, 3)


def test_the_ranks_of_a_capped_rack_are_all_of_four_nodes() -> None:
    found = staged("rack-cap", "rack-power-cap")
    assert len(found.fault.ranks) == 32
    assert len({found.victim.place.nodes[rank] for rank in found.fault.ranks}) == 4


def scored(one: Staged, after: float = 20.0, **changes: object) -> tuple[int, int, int]:
    given: dict[str, Any] = {"at": one.fault.begin + after, "key": "k", "job": one.cell.name, "kind": "straggler"}
    outcome = judge(Truth(one), [Claim(**(given | changes))], True)
    return outcome.tp, outcome.fp, outcome.fn


def test_a_verdict_about_a_set_must_not_name_an_innocent_rank() -> None:
    one = staged("several-gpus", "clock-lock")
    ranks, place = one.fault.ranks, one.victim.place
    innocent = next(r for r in range(64) if place.nodes[r] == place.nodes[ranks[0]] and r not in ranks)
    elsewhere = next(r for r in range(64) if place.nodes[r] != place.nodes[ranks[0]])
    assert scored(one, rank=ranks[0], node=place.nodes[ranks[0]]) == (1, 0, 0)
    assert scored(one, rank=ranks[-1], ranks=ranks) == (1, 0, 0)
    assert scored(one, rank=-1, node=place.nodes[ranks[0]], level="node") == (1, 0, 0)
    assert scored(one, rank=-1, device=place.gpus[ranks[1]], kind="health") == (1, 0, 0)
    assert scored(one, rank=innocent, node=place.nodes[innocent]) == (0, 1, 1)
    assert scored(one, rank=ranks[0], ranks=(*ranks, innocent)) == (0, 1, 1)
    assert scored(one, rank=-1, node=place.nodes[elsewhere], level="node") == (0, 1, 1)
    assert scored(one, rank=-1, device=place.gpus[innocent], kind="health") == (0, 1, 1)


def test_accusing_healthy_work_of_a_rank_is_wrong_and_silence_is_right() -> None:
    one = staged("recompiles", "rank-recompiles", 1.0)
    assert judge(Truth(one), [], True).fn == 0
    assert scored(one, rank=one.fault.ranks[0]) == (0, 1, 0)
    assert scored(one, kind="workload", cause="pauses") == (1, 0, 0)
    assert scored(one, kind="unknown") == (0, 0, 0)


def test_an_accusation_may_become_certain_later() -> None:
    one = staged("gpu-spread", "none", 1.0)
    claims = [Claim(one.fault.begin + after, "k", one.cell.name, "straggler", 3, confidence=sure)
              for after, sure in ((10.0, 0.8), (20.0, 0.95), (30.0, 0.7))]  # fmt: skip
    for count, sure in ((1, 0), (2, 1), (3, 1)):
        log = ClaimLog()
        log.add(claims[:count])
        outcome = judge(Truth(one), log.about(one.cell.name), True, log.highest)
        assert (outcome.fp, outcome.sure) == (1, sure)
    assert judge(Truth(one), claims[1:2], True).sure == 1


def test_any_accusation_of_a_healthy_run_is_wrong() -> None:
    one = staged("gpu-spread", "none", 1.0)
    assert judge(Truth(one), [], True).fn == 0
    assert scored(one, rank=3) == (0, 1, 0)
    assert scored(one, kind="workload", cause="whole-job") == (0, 1, 0)


def test_pauses_are_true_of_a_job_that_has_crashed() -> None:
    one = staged("restarts", "none", 1.0)
    crash = one.victim.traits.restarts[0]
    before, later = crash.at - one.fault.begin - 1.0, crash.at - one.fault.begin + 1.0
    assert scored(one, after=later, kind="workload", cause="pauses") == (0, 0, 0)
    assert scored(one, after=before, kind="workload", cause="pauses") == (0, 1, 0)
    assert scored(one, after=later, kind="hang", rank=3) == (0, 1, 0)


def test_steps_after_a_restart_are_followed() -> None:
    one = staged("restarts", "none", 1.0)
    truth = Truth(one)
    for until in np.arange(10.0, one.end, 10.0).tolist():
        one.victim.advance_to(until)
        truth.follow()
        one.victim.forget(until - 30.0)
    ends = np.concatenate(truth.ends)
    assert (np.diff(ends) > 0).all()
    assert np.diff(ends).max() >= one.victim.traits.restarts[0].seconds


def result(name: str, disorder: str, outcome: Outcome) -> Result:
    cell = Cell(disorder, 0.2, 64, "step", "balanced", 1, 2.0, 1, of_class=name)
    kind = DISORDERS[disorder]
    return Result(cell, kind.level, kind.family, 0.1, 2.0, None, 1.0, {"ours": outcome})


def test_the_table_counts_runs_of_a_class() -> None:
    results = [
        result(
            "drift", "none", Outcome(fp=2, false_kinds=["straggler", "workload"], confidences=[(0.95, False)], sure=1)
        ),
        result("drift", "none", Outcome()),
        result("drift", "nvlink", Outcome(tp=1, confidences=[(0.99, True)])),
        result("drift", "pcie", Outcome(fn=1, fp=1, false_kinds=["straggler"], confidences=[(0.8, False)])),
    ]
    healthy_row, faulty = class_report.table(results)
    keys = class_report.COLUMNS
    assert [healthy_row[key] for key in keys] == [2, 0, 0, 1, 1, 1, 1]
    assert [faulty[key] for key in keys] == [2, 1, 1, 0, 1, 0, 0]
    assert faulty["missed_faults"] == {"pcie": 1}
    text = list(class_report.lines([healthy_row, faulty]))
    assert len(text) == 3 and "straggler 1, workload 1" in text[1]
    assert list(class_report.lines([])) == []


def test_healthy_jobs_get_the_added_properties_only_if_asked() -> None:
    tasks = [Health("balanced", 20.0, 4_200_003 + number) for number in range(8)]
    plain = [course for task in tasks for course in healthy.jobs(task)]
    added = [course for task in tasks for course in healthy.jobs(replace(task, added=True))]
    assert [c.plan.gpus for c in plain] == [c.plan.gpus for c in added]
    assert [c.finish for c in plain] == [c.finish for c in added]
    assert all(c.traits == NO_TRAITS for c in plain)
    assert any(c.traits != NO_TRAITS for c in added)
    assert all(r.at > c.begin for c in added for r in c.traits.restarts)
    assert {name for c in plain for name in names_of(c.plan, c.traits)} == {"none"}
    assert {"drift", "gpu-spread"} <= {name for c in added for name in names_of(c.plan, c.traits)}


def test_accused_jobs_are_counted_by_property() -> None:
    one = healthy.run(Health("balanced", 4.0, 4_100_003, added=True))
    assert sum(jobs for jobs, _ in one.by_property.values()) >= one.jobs
    more = replace(one, by_property={"drift": (3, 1)})
    found = ours_more([], [replace(one, by_property={"drift": (2, 0), "none": (1, 1)}), more])
    assert found["accused_jobs_by_property"] == {"drift": {"jobs": 5, "accused": 1}, "none": {"jobs": 1, "accused": 1}}


@pytest.mark.slow
def test_only_the_added_classes_run(capsys: pytest.CaptureFixture[str]) -> None:
    command = "--quick --ours --classes drift,rack-cap --seed 4200 --healthy-days 0 --jobs 1"
    assert main(command.split()) == 0
    out = capsys.readouterr().out
    assert "drift, healthy" in out and "rack-cap, fault" in out


def test_rows_of_lasting_faults_have_no_severity() -> None:
    found = list(rows(CLASSES["async-saves"], (0.2,), np.random.default_rng(1), 2))
    assert {row.severity for row in found} == {1.0}
    assert isinstance(found[0], Row)


def test_tables_of_several_runs_are_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = Outcome(fp=1, false_kinds=["straggler"], confidences=[(0.95, False)], sure=1)
    tables = [
        class_report.table([result("drift", "none", wrong), result("drift", "pcie", Outcome(fn=1))]),
        class_report.table([result("drift", "none", wrong), result("sharded", "none", Outcome())]),
    ]
    files = []
    for number, one in enumerate(tables):
        files.append(str(tmp_path / f"{number}.json"))
        Path(files[-1]).write_text(json.dumps({"classes": one}))
    assert class_report.main(files) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].split()[:7] == ["drift,", "healthy", "2", "0", "0", "0", "2"]
    assert "straggler 2" in shown[1]
    assert [line.split()[0] for line in shown[1:]] == ["drift,", "drift,", "sharded,"]
    for text in ("[]", "{", "{}"):
        Path(files[0]).write_text(text)
        with pytest.raises(SystemExit):
            class_report.main(files)
        assert f"{files[0]}: not a document" in capsys.readouterr().err
