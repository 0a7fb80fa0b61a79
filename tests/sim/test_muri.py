"""`--preset muri` gives the published figures and, on resampled traces, those of an independent implementation."""

from __future__ import annotations

import csv
import random
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler_feedback.core.state import Order
from scheduler_feedback.sim.engine import Engine
from scheduler_feedback.sim.simulated_nodes import grid
from scheduler_feedback.sim.simulation import Simulation, read_trace
from tests import needs
from tests.sim import muri_reference
from tests.sim.scenario import FIFO_EASY

PUBLISHED = {
    ("muri-trace1.csv", "srtf"): (1370.603, 26045.466),
    ("muri-trace1.csv", "srsf"): (980.141, 26065.759),
    ("muri-trace1.csv", "las"): (3330.371, 23556.410),
    ("muri-trace3.csv", "srtf"): (193.082, 8174.135),
    ("muri-trace3.csv", "srsf"): (185.022, 8174.135),
    ("muri-trace3.csv", "las"): (347.213, 8174.226),
}
"""(average JCT, makespan) in thousands of seconds (Rivendile/Muri, simulator/draw_fig9-10.py: the authors' results)."""


def simulate(path: Path, order: str) -> Engine:
    policy = replace(FIFO_EASY, order=Order(order))
    return Simulation(read_trace(path, "muri"), grid(8, 8), policy, preset="muri").engine()


@pytest.mark.parametrize(("name", "order"), PUBLISHED)
@pytest.mark.slow
def test_the_preset_gives_the_published_figures(name: str, order: str) -> None:
    report = simulate(needs.data("jobs", name), order).run()
    jct, makespan = PUBLISHED[name, order]
    assert report.unfinished == 0 and report.preemptions > 100
    assert report.avg_jct_seconds == pytest.approx(jct * 1000, rel=0.02)
    assert report.makespan_seconds == pytest.approx(makespan * 1000, rel=0.02)


def test_the_order_themis_by_these_rules_plans_only_at_events() -> None:
    """Passes by time alone, one a minute, would cost each gang its start time each minute: days of simulated stalls."""
    engine = simulate(needs.data("jobs", "muri-trace3.csv"), "themis")
    report = engine.run()
    assert report.unfinished == 0
    assert engine.state.cycle < 20 * report.jobs
    assert report.avg_jct_seconds is not None and report.avg_jct_seconds < 397_058.802, "published, by its program"


@pytest.mark.parametrize("order", ["srtf", "srsf", "las"])
def test_the_reference_gives_the_published_figures(order: str) -> None:
    done = muri_reference.run(needs.data("jobs", "muri-trace3.csv"), order)
    jct, makespan = PUBLISHED["muri-trace3.csv", order]
    assert sum(end - submitted for submitted, end in done.values()) / len(done) == pytest.approx(jct * 1000, rel=1e-5)
    assert max(end for _, end in done.values()) == pytest.approx(makespan * 1000, rel=1e-5)


def resampled(path: Path, seed: int, jobs: int) -> None:
    """Write a resampled trace: jobs drawn with replacement, with arrival intervals drawn from the original ones."""
    with needs.data("jobs", "muri-trace1.csv").open() as file:
        rows = list(csv.DictReader(file))
    chance = random.Random(seed)
    at = 0
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, rows[0].keys())
        out.writeheader()
        for number in range(jobs):
            out.writerow({**chance.choice(rows), "job_id": number, "submit_time": at})
            at += int(chance.choice(rows)["interval"])


@pytest.mark.parametrize("order", ["srtf", "srsf", "las"])
@pytest.mark.parametrize("seed", [1, 2])
def test_resampled_traces_agree_with_the_reference(tmp_path: Path, seed: int, order: str) -> None:
    path = tmp_path / "trace.csv"
    resampled(path, seed, 250)
    engine = simulate(path, order)
    report = engine.run()
    expected = muri_reference.run(path, order)
    jct = sum(end - submitted for submitted, end in expected.values()) / len(expected)
    assert report.preemptions > 20
    # The published LAS runs, and so the reference, round the instants of demotion up to whole seconds.
    assert report.avg_jct_seconds == pytest.approx(jct, rel=0.01 if order == "las" else 1e-4)
    assert report.makespan_seconds == pytest.approx(max(end for _, end in expected.values()), rel=0.002)


def test_a_replan_costs_each_continuing_job_its_start_time() -> None:
    trace = read_trace(needs.data("jobs", "muri-trace3.csv"), "muri")
    two = [replace(job, submitted_ns=n * 100 * 10**9, run_seconds=1000.0) for n, job in enumerate(trace.jobs[:2])]
    engine = Simulation(
        replace(trace, jobs=tuple(two)), grid(8, 8), replace(FIFO_EASY, order=Order.SRTF), preset="muri"
    ).engine()
    engine.run()
    first, second = (engine.courses[job.job_id] for job in two)
    assert first.job.spec.workload == "shufflenet_v2_x1_0" and first.job.spec.ranks == 4
    assert first.ended_ns is not None and second.ended_ns is not None
    assert first.ended_ns - first.submitted_ns == (1015 + 5) * 10**9, "one replan at the second's arrival"
    assert second.ended_ns - second.submitted_ns == (1015 + 5) * 10**9, "one replan at the first's end: resnet18 on 4"
