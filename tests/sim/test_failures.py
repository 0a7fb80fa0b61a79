"""Nodes that fail in a simulation: published rates, lost work, retries, and the return of the node."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gangwatch.commands.offline.simulate import simulate
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Backfilling, Estimates, Order, Policy
from scheduler_feedback.sim.disturbances import Disturbances
from scheduler_feedback.sim.engine import Engine, Settings
from scheduler_feedback.sim.failures import BY_GPU, BY_NODE, NODE_DAYS, NodeFailure, drawn
from scheduler_feedback.sim.faults import Faults
from scheduler_feedback.sim.job_trace import EPOCH_NS, Trace, TraceJob
from scheduler_feedback.sim.simulated_nodes import grid

SECOND = 10**9
DAY = 86_400 * SECOND
POLICY = Policy(order=Order.FIFO, backfill=Backfilling.EASY, estimates=Estimates.EXACT, start_timeout_seconds=0.0)


def test_failures_have_the_published_rates() -> None:
    """2,000 nodes for 100 days: the expected number is 586, its standard deviation 24."""
    found = drawn(grid(2000, 8), 0, 100 * DAY, 3)
    a_node_day = sum([*BY_GPU.values(), *BY_NODE.values()]) / NODE_DAYS
    assert a_node_day == pytest.approx(2.93e-3, rel=0.01)
    expected = 2000 * 100 * a_node_day
    assert abs(len(found) - expected) < 4 * expected**0.5
    by_component = Counter(failure.component for failure in found)
    assert abs(by_component["GPU"] - expected * 148 / 324) < 4 * (expected * 148 / 324) ** 0.5
    assert set(by_component) <= {*BY_GPU, *BY_NODE}
    assert drawn(grid(2000, 8), 0, 100 * DAY, 3) == found != drawn(grid(2000, 8), 0, 100 * DAY, 4)


def test_a_node_with_fewer_gpus_fails_less_often_and_never_while_it_is_away() -> None:
    small, large = (len(drawn(grid(2000, slots), 0, 100 * DAY, 1)) for slots in (1, 8))
    assert small < 0.4 * large, "268 of the 324 failures are those of GPUs"
    away: dict[str, int] = {}
    for failure in drawn(grid(20, 8), 0, 100_000 * DAY, 1):
        assert failure.at_ns >= away.get(failure.node, 0) and failure.lasts_ns > 0
        away[failure.node] = failure.at_ns + failure.lasts_ns


def run(*failures: tuple[str, float, float], nodes: int = 2, **spec: Any) -> Engine:
    """Simulate a job of 200 s on one node, with a restart cost of 5 s. failures: (node, at, lasts) in seconds."""
    job = TraceJob("j", 2, 0, 200.0, JobSpec("j", ("x",), 2, **spec))
    drawn_before = tuple(
        NodeFailure(node, EPOCH_NS + round(at * SECOND), round(lasts * SECOND), "GPU") for node, at, lasts in failures
    )
    disturbances = Disturbances(Faults(failures=drawn_before), None)
    engine = Engine(Trace("t", (job,)), grid(nodes, 2), Settings(POLICY, 5.0), disturbances)
    engine.run()
    return engine


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({}, 100 + 5 + 200),  # not restartable: it begins again
        ({"restartable": True}, 100 + 5 + 200),  # it saves only on request, so the attempt's work is lost
        ({"restartable": True, "checkpoint_interval_seconds": 30.0}, 100 + 5 + 110),  # saved after 90 s
    ],
)
def test_a_failed_node_costs_the_work_since_the_last_checkpoint(spec: dict[str, Any], seconds: float) -> None:
    engine = run(("n0", 100.0, 1e6), max_retries=1, **spec)
    course = engine.courses["j"]
    assert course.ended_ns is not None
    assert (course.ended_ns - course.submitted_ns) / SECOND == seconds
    assert engine.account.failures == 1


def test_a_job_without_a_retry_fails_and_the_reason_names_the_node() -> None:
    engine = run(("n0", 100.0, 1e6))
    assert engine.courses["j"].ended_ns is None and engine.waiting == 0
    assert [one["reason"] for one in engine.refused] == ["never ended: n0 failed: GPU"]


def test_a_job_waits_for_the_repair_if_no_other_node_is_free() -> None:
    engine = run(("n0", 100.0, 50.0), nodes=1, max_retries=1)
    course = engine.courses["j"]
    assert course.ended_ns is not None
    assert (course.ended_ns - course.submitted_ns) / SECOND == 100 + 50 + 5 + 200
    assert course.waiting_ns == 50 * SECOND


def test_failures_of_other_nodes_and_after_the_end_change_nothing() -> None:
    engine = run(("n1", 10.0, 5.0), ("n0", 300.0, 1e6))
    course = engine.courses["j"]
    assert course.ended_ns is not None and course.ended_ns - course.submitted_ns == 200 * SECOND
    assert engine.account.failures == 0


def test_the_command_simulates_failures_with_retries_and_checkpoints(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    lines = [f"2017-10-09 07:00:00,{30 * 86400}.0,8,1.0,vc" for _ in range(40)]
    file.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n" + "\n".join(lines) + "\n")
    common = ["--jobs", str(file), "--format", "philly", "--nodes", "40x8", "--faults", "failures", "--json"]

    def figures(*more: str) -> dict[str, Any]:
        done = CliRunner().invoke(simulate, [*common, *more])
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    without, retried = figures(), figures("--retries", "9")
    saved = figures("--retries", "9", "--checkpoint-interval", "3600")
    assert without["failures"] == without["unfinished"] > 0
    assert retried["unfinished"] == saved["unfinished"] == 0
    assert saved["avg_jct_seconds"] < retried["avg_jct_seconds"]
    refused = CliRunner().invoke(simulate, [*common, "--checkpoint-interval", "0"])
    assert refused.exit_code != 0
    assert "must be more than 0" in " ".join(refused.output.split())
