"""`gangwatch simulate compare`: its figures by hand on a small trace, its table, and its errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gangwatch.cli import cli
from scheduler_feedback.core.state import FAIR_POLICY, Backfilling, Order, Policy, Sharing
from scheduler_feedback.sim.comparison import compared, policy_of, size_class
from scheduler_feedback.sim.job_trace import Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation, read_trace


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Write four jobs of two users for a cluster of four slots, and one that is too large.

    The first holds three slots for 100 s. The wide one waits for all four. The short one fits next to the first.
    """
    path = tmp_path / "jobs.jsonl"
    lines = [
        {"submitted_seconds": 0, "run_seconds": 100, "ranks": 3, "user": "ann"},
        {"submitted_seconds": 1, "run_seconds": 50, "ranks": 4, "user": "bob"},
        {"submitted_seconds": 2, "run_seconds": 20, "ranks": 1, "user": "ann"},
        {"submitted_seconds": 3, "run_seconds": 5, "ranks": 1, "user": "ann"},
        {"submitted_seconds": 4, "run_seconds": 5, "ranks": 9, "user": "ann"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(jobs: Path, *arguments: str) -> Result:
    options = ("--jobs", str(jobs), "--format", "gangwatch", "--nodes", "1x4")
    return CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["simulate", "compare", *options, *arguments])


def document(jobs: Path, *arguments: str) -> dict[str, Any]:
    done = run(jobs, *arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_figures_are_those_by_hand(jobs: Path) -> None:
    none, easy = document(jobs, "fifo+none", "fifo+easy")["policies"]
    # Without backfill the jobs run one after another from 0, 100, 150 and 150.
    assert none["avg_jct_seconds"] == pytest.approx((100 + 149 + 168 + 152) / 4)
    assert none["avg_queue_seconds"] == pytest.approx((0 + 99 + 148 + 147) / 4)
    assert (none["max_queue_seconds"], none["makespan_seconds"]) == pytest.approx((148, 170))
    assert none["utilization"] == pytest.approx((3 * 100 + 4 * 50 + 20 + 5) / (4 * 170))
    # With EASY the two small jobs run in the slot that is free: from 2 to 22, and from 22 to 27.
    assert easy["avg_jct_seconds"] == pytest.approx((100 + 149 + 20 + 24) / 4)
    assert (easy["jobs"], easy["unfinished"], easy["refused"]) == (4, 0, 1)
    # A run of 5 s counts as 10 s in a slowdown.
    assert easy["per_user"]["ann"] == pytest.approx(
        {"jobs": 3, "avg_jct_seconds": 48, "avg_queue_seconds": 19 / 3, "avg_slowdown": (1 + 1 + 2.4) / 3}
    )
    assert easy["per_user"]["bob"]["avg_slowdown"] == pytest.approx(149 / 50)
    means = [(1 + 1 + 2.4) / 3, 149 / 50]
    assert easy["user_fairness"] == pytest.approx(sum(means) ** 2 / (2 * sum(one**2 for one in means)))
    assert {name: one["jobs"] for name, one in easy["per_size"].items()} == {"1": 2, "2-8": 2}
    assert easy["lost_slot_hours"] == 0


def test_restarts_lose_slot_hours(jobs: Path) -> None:
    options = ("--restartable", "--restart-cost", "30", "--first", "2")
    (found,) = document(jobs, "srtf+greedy+preempt", *options)["policies"]
    # The wide job needs less than the first one has left and runs from 1 to 51. Then the first pays 30 s on 3 slots.
    assert found["preemptions"] == 1 and found["makespan_seconds"] == pytest.approx(1 + 50 + 30 + 99)
    assert found["lost_slot_hours"] * 3600 == pytest.approx(3 * 30)


def test_a_configuration_file_is_a_policy_with_its_queues(jobs: Path, tmp_path: Path) -> None:
    file = tmp_path / "limited.toml"
    file.write_text('[policy]\norder = "fair"\nqueues = [{ name = "default", limit = 3 }]\n')
    limited, free = document(jobs, str(file), "fair", "--estimates", "exact")["policies"]
    assert limited["name"] == str(file)
    assert (limited["refused"], free["refused"]) == (2, 1), "the wide job exceeds the queue's limit"


def test_only_the_first_jobs_are_simulated(jobs: Path) -> None:
    assert document(jobs, "fifo", "--first", "2")["policies"][0]["jobs"] == 2


def test_the_table_has_a_row_for_each_policy_size_and_user(jobs: Path) -> None:
    done = run(jobs, "fifo+none", "fifo+easy")
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    assert "FIGURE fifo+none fifo+easy" in lines
    assert "JCT s 142 73" in lines
    assert any(line.startswith("USER FAIRNESS ") for line in lines)
    for begin in ("2-8 fifo+easy 2 ", "bob fifo+none 1 "):
        assert any(line.startswith(begin) for line in lines), begin
    assert max(map(len, done.output.splitlines())) <= 80, "a terminal of 80 characters shows it"


def test_a_comparison_runs_what_simulate_runs(jobs: Path) -> None:
    found = document(jobs, "srsf+conservative")["policies"][0]
    arguments = ["--jobs", str(jobs), "--format", "gangwatch", "--nodes", "1x4"]
    alone = CliRunner().invoke(cli, ["simulate", *arguments, "--order", "srsf", "--backfill", "conservative", "--json"])
    report = json.loads(alone.stdout)
    for key in ("jobs", "avg_jct_seconds", "p99_jct_seconds", "max_queue_seconds", "makespan_seconds", "utilization"):
        assert found[key] == report[key], key


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("nothing",), "'nothing' is not ORDER[+BACKFILL][+SIZES][+SHARING][+preempt]; an order is one of fifo, sjf"),
        (("fifo+easy+greedy",), "more than one rule of backfill"),
        (("fifo+gandiva+muri",), "more than one rule"),
        (("fifo+preempt+preempt",), "a part twice"),
        (("absent.toml",), "absent.toml: no such file"),
        (("fifo", "fifo"), "fifo is named twice"),
        (("fifo", "--load", "0"), "it must be more than 0"),
        (("fifo", "--restart-cost", "-1"), "it cannot be less than 0"),
        (("fifo", "--html", "/absent/page.html"), "its folder does not exist"),
        (("fifo", "--gpu-watts", "50"), "requires 2 arguments"),
        (("fifo", "--gpu-watts", "50", "inf"), "must be two numbers of watts"),
        ((), "Missing argument 'POLICY...'"),
    ],
)
def test_errors_name_the_argument(jobs: Path, arguments: tuple[str, ...], reason: str) -> None:
    done = run(jobs, *arguments)
    assert done.exit_code == 2 and reason in done.output


def test_options_of_simulate_before_compare_are_refused(jobs: Path) -> None:
    arguments = ["compare", "--jobs", str(jobs), "--format", "gangwatch", "--nodes", "1x4", "fifo"]
    done = CliRunner().invoke(cli, ["simulate", "--seed", "3", *arguments])
    assert done.exit_code == 2 and "--seed: write the options of `compare` after `compare`" in done.output


@pytest.mark.parametrize("missing", ["--jobs", "--format", "--nodes"])
def test_simulate_still_names_a_missing_option(jobs: Path, missing: str) -> None:
    given = {"--jobs": str(jobs), "--format": "gangwatch", "--nodes": "1x4"}
    arguments = [text for name, value in given.items() if name != missing for text in (name, value)]
    done = CliRunner().invoke(cli, ["simulate", *arguments])
    assert done.exit_code == 2 and f"Missing option '{missing}'" in done.output


def test_names_of_policies() -> None:
    assert policy_of("fair") == replace(FAIR_POLICY, preempt=False)
    assert policy_of("las+preempt+greedy") == Policy(order=Order.LAS, backfill=Backfilling.GREEDY, preempt=True)
    assert policy_of("fifo").backfill is Backfilling.EASY
    assert policy_of("fifo+muri").sharing is Sharing.MURI


def test_sizes_are_in_one_class_each() -> None:
    assert [size_class(ranks) for ranks in (1, 2, 8, 9, 64, 65, 5000)] == [
        "1",
        "2-8",
        "2-8",
        "9-64",
        "9-64",
        "65+",
        "65+",
    ]


def test_goodput_and_energy_are_those_by_hand(jobs: Path) -> None:
    options = ("--restartable", "--restart-cost", "30", "--first", "2", "--gpu-watts", "50", "400")
    (found,) = document(jobs, "srtf+greedy+preempt", *options)["policies"]
    held, useful, seconds = 3 * 1 + 4 * 50 + 3 * (30 + 99), 3 * 100 + 4 * 50, 180
    assert found["utilization"] == pytest.approx(held / (4 * seconds))
    assert found["goodput"] == pytest.approx(useful / (4 * seconds))
    assert found["energy_kwh"] == pytest.approx((held * 400 + (4 * seconds - held) * 50) / 3.6e6)
    assert "ENERGY kWh" in run(jobs, "fifo", "--gpu-watts", "50", "400").output
    assert "ENERGY" not in run(jobs, "fifo").output
    assert document(jobs, "fifo")["policies"][0]["energy_kwh"] is None


def test_the_page_has_figures_and_curves_of_all_policies(jobs: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run(jobs, "fifo+none", "fifo+easy", "--html", str(page), "--json")
    assert done.exit_code == 0, done.output
    text = page.read_text()
    data = json.loads(text.partition('type="application/json">')[2].partition("</script>")[0])
    assert [one["name"] for one in data["policies"]] == ["fifo+none", "fifo+easy"]
    assert data["policies"] == [
        {**one, "wall_seconds": data["policies"][n]["wall_seconds"]}
        for n, one in enumerate(json.loads(done.stdout)["policies"])
    ]
    none, easy = data["curves"]
    assert (data["slots"], data["refusals"], data["policies"][0]["refused"]) == (4, 0, 1)
    # Three slots from 0, four from 100 to 150, one or two until 170.
    assert none["used"] == [[0.0, 3], [100.0, 4], [150.0, 2], [155.0, 1], [170.0, 0]]
    assert none["waiting"][-1] == [150.0, 0] and max(value for _, value in none["waiting"]) == 6
    assert (easy["jct"][0], easy["jct"][-1]) == (20.0, 149.0) and len(easy["slowdown"]) == 4


def test_a_page_needs_no_jobs_that_end(tmp_path: Path) -> None:
    jobs, page = tmp_path / "jobs.jsonl", tmp_path / "page.html"
    jobs.write_text(json.dumps({"submitted_seconds": 0, "run_seconds": 5, "ranks": 9, "queue": "</script>"}) + "\n")
    done = run(jobs, "fifo", "--html", str(page))
    assert done.exit_code == 0, done.output
    assert page.read_text().count("</script>") == 2, "a name in the data does not end its element"


def test_progress_counts_all_jobs(jobs: Path) -> None:
    trace: Trace = read_trace(jobs, "gangwatch")
    assert isinstance(trace.jobs[0], TraceJob)
    seen: list[tuple[int, int]] = []
    compared("x", Simulation(trace, grid(1, 4)), lambda ended, of_all: seen.append((ended, of_all)))
    assert seen[0] == (0, 4) and seen[-1] == (4, 4)


def test_a_trace_without_its_option_is_answered_with_the_option() -> None:
    done = CliRunner().invoke(cli, ["simulate", "jobs.csv"])
    assert done.exit_code == 2
    assert "'jobs.csv' is not a command. To simulate the jobs of a file: --jobs jobs.csv" in done.output
    assert "Did you mean 'compare'?" in CliRunner().invoke(cli, ["simulate", "compar"]).output
