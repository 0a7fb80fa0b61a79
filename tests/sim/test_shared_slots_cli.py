"""`gangwatch simulate` and `simulate compare` with shared slots, and `gangwatch submit --stages`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agent.schema.errors import TraceError
from gangwatch.cli import cli

TOGETHER = {"a": {"b": 0.8}, "b": {"a": 0.8}}


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Write two jobs of 1,000 s, each of which needs all four slots of the cluster."""
    path = tmp_path / "jobs.jsonl"
    lines = [
        {"submitted_seconds": number, "run_seconds": 1000, "ranks": 4, "workload": name, "stages": stages}
        for number, (name, stages) in enumerate([("a", [3.0, 0.0]), ("b", [0.0, 3.0])])
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(TOGETHER))
    return path


def invoke(jobs: Path, *arguments: object) -> Result:
    given = ("simulate", *arguments, "--jobs", jobs, "--format", "gangwatch", "--nodes", "1x4", "--json")
    return CliRunner().invoke(cli, [str(one) for one in given])


def makespan(jobs: Path, *arguments: object) -> float:
    done = invoke(jobs, *arguments)
    assert done.exit_code == 0, done.output
    return float(json.loads(done.stdout)["makespan_seconds"])


def test_jobs_share_slots_at_the_given_speeds(jobs: Path, pairs: Path) -> None:
    fifo = ("--order", "fifo", "--shareable")
    assert makespan(jobs, *fifo) == pytest.approx(2000)
    assert makespan(jobs, *fifo, "--sharing", "gandiva", "--pair-speeds", pairs) == pytest.approx(1250, abs=5)
    assert makespan(jobs, *fifo, "--sharing", "gandiva", "--jobs-per-slot", 1) == pytest.approx(2000)


def test_without_shareable_jobs_nothing_is_shared(jobs: Path, pairs: Path) -> None:
    assert makespan(jobs, "--order", "fifo", "--sharing", "gandiva", "--pair-speeds", pairs) == pytest.approx(2000)


def test_a_rule_without_shareable_jobs_says_that_it_has_no_effect(jobs: Path) -> None:
    word = "gandiva has no effect"
    assert word in invoke(jobs, "--order", "fifo", "--sharing", "gandiva").output
    assert word not in invoke(jobs, "--order", "fifo", "--sharing", "gandiva", "--shareable").output
    assert word not in invoke(jobs, "--order", "fifo").output
    assert "muxflow has no effect" in invoke(jobs, "--order", "fifo", "--sharing", "muxflow", "--shareable").output
    given = ("simulate", "compare", "--jobs", jobs, "--format", "gangwatch", "--nodes", "1x4", "--json")
    done = CliRunner().invoke(cli, [*map(str, given), "fifo", "fifo+gandiva"])
    assert sum(word in note for note in json.loads(done.stdout)["notes"]) == 1


def test_stages_in_the_trace_decide_under_muri(jobs: Path) -> None:
    assert makespan(jobs, "--order", "fifo", "--sharing", "muri", "--shareable") == pytest.approx(1000, abs=5)


def test_opportunistic_jobs_are_ordinary_under_other_rules(jobs: Path, pairs: Path) -> None:
    leftovers = ("--order", "fifo", "--opportunistic", "1")
    assert makespan(jobs, *leftovers, "--pair-speeds", pairs) == pytest.approx(2000)
    assert json.loads(invoke(jobs, *leftovers, "--sharing", "antman").stdout)["jobs"] == 2


def test_a_configuration_file_has_the_rule_and_the_jobs_per_slot(jobs: Path, pairs: Path, tmp_path: Path) -> None:
    config = tmp_path / "gangwatch.toml"
    config.write_text('[cluster]\njobs_per_slot = 2\n[policy]\norder = "fifo"\nsharing = "gandiva"\n')
    shared = ("--config", config, "--shareable", "--pair-speeds", pairs)
    assert makespan(jobs, *shared) == pytest.approx(1250, abs=5)
    assert makespan(jobs, *shared, "--sharing", "none") == pytest.approx(2000), "options precede the file"


def test_compare_has_rules_for_shared_slots(jobs: Path, pairs: Path) -> None:
    done = invoke(jobs, "compare", "fifo", "fifo+gandiva", "--shareable", "--pair-speeds", pairs)
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)["policies"]
    assert [one["name"] for one in found] == ["fifo", "fifo+gandiva"]
    assert found[0]["makespan_seconds"] == pytest.approx(2000)
    assert found[1]["makespan_seconds"] == pytest.approx(1250, abs=5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "workload -> other workload -> speed"),
        ('{"a": {"b": 2}}', "a beside b: the speed 2 is not between 0 and 1"),
        ('{"a": {"b": -0.5}}', "is not between 0 and 1"),
        ("{}", "contains no speed"),
        ("{", "workload -> other workload -> speed"),
    ],
)
def test_a_wrong_file_of_speeds_is_refused(jobs: Path, tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    done = invoke(jobs, "--sharing", "gandiva", "--pair-speeds", path)
    assert isinstance(done.exception, TraceError)
    assert reason in str(done.exception)


@pytest.mark.parametrize("stages", ["", "0,0", "1,x", "-1,2", "nan,1"])
def test_submit_refuses_stages_that_are_no_durations(stages: str) -> None:
    done = CliRunner().invoke(cli, ["submit", "--stages", stages, "--", "true"])
    assert done.exit_code == 2 and "expected seconds of 0 or more" in done.output


@pytest.mark.parametrize("rule", ["fgd", "best-fit"])
def test_shares_of_openb_pods_start_beside_each_other(rule: str, tmp_path: Path) -> None:
    pods = tmp_path / "pods.csv"
    header = "name,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time\n"
    pods.write_text(header + "".join(f"p{number},1,{milli},LS,0,100,0\n" for number, milli in enumerate((400, 600))))
    given = ("simulate", "compare", "fifo", f"fifo+{rule}", "--jobs", str(pods), "--format", "openb", "--nodes", "1x1")
    done = CliRunner().invoke(cli, [*given, "--json"])
    assert done.exit_code == 0, done.output
    whole, shared = json.loads(done.stdout)["policies"]
    assert (whole["avg_queue_seconds"], shared["avg_queue_seconds"]) == (50, 0)
    assert (whole["makespan_seconds"], shared["makespan_seconds"]) == (200, 100)
