"""Real speeds in simulations: the file, the interpolation, the progress of gangs, and what the scheduler learns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from agent.schema.errors import TraceError
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Estimates, Order, Policy
from scheduler_feedback.sim.job_trace import Trace, TraceJob
from scheduler_feedback.sim.simulation import Simulation
from scheduler_feedback.sim.speeds.measured_speeds import MeasuredSpeeds, measured_speeds, read_speeds

HEADER = "workload,gpu_type,ranks,level,rate\n"
LINES = (
    ("bert", "slow", 1, 0, 10.0),
    ("bert", "slow", 4, 0, 20.0),
    ("bert", "slow", 8, 1, 20.0),
    ("bert", "fast", 1, 0, 40.0),
)


def test_more_ranks_than_a_node_was_measured_with_are_as_fast_as_on_several_nodes() -> None:
    speeds = measured_speeds([("a", "t4", 4, 0, 40.0), ("a", "t4", 8, 1, 70.0), ("a", "t4", 16, 1, 30.0)])
    assert speeds.rate("a", "t4", 4, 0) == pytest.approx(40.0)
    assert speeds.rate("a", "t4", 8, 0) == pytest.approx(70.0)
    assert speeds.rate("a", "t4", 16, 0) == pytest.approx(40.0), "not slower than with fewer ranks on one node"
    assert speeds.rate("a", "t4", 16, 1) == pytest.approx(30.0)


def test_rates_between_and_beyond_the_measured_ranks() -> None:
    speeds = measured_speeds(LINES)
    assert speeds.rate("bert", "slow", 2, 0) == pytest.approx(10 * math.sqrt(2))
    assert speeds.rate("bert", "slow", 16, 0) == pytest.approx(20.0), "the last rate stays"
    assert speeds.rate("bert", "slow", 4, 1) == pytest.approx(10.0), "below the first, in proportion"
    assert speeds.rate("bert", "slow", 8, 3) == pytest.approx(20.0), "a level without lines"
    assert speeds.rate("bert", "other", 1, 0) is None and speeds.rate("gpt", "slow", 1, 0) is None
    spec = JobSpec("j", ("x",), 4, workload="bert")
    assert speeds.speed(spec, "fast", 1, 0, 0) == pytest.approx(2.0), "relative to four slow GPUs"
    assert speeds.speed(structs.replace(spec, workload="gpt"), "fast", 1, 0, 0) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEADER, "contains no speed"),
        ("workload,ranks\n", "no column 'gpu_type'"),
        (HEADER + "a,t,1,node\n", "line 2, column 5: 4 cells under a header of 5"),
        (HEADER + "a,t,0,node,1\n", "line 2, column ranks: 0 is less than 1"),
        (HEADER + "a,t,1.5,node,1\n", "1.5 is not a whole number"),
        (HEADER + "a,t,9999999,node,1\n", "9999999 is more than"),
        (HEADER + "a,t,1,room,1\n", "column level: 'room' is unknown; use node, rack, spine, cluster"),
        (HEADER + "a,t,1,node,0\n", "column rate: must be more than 0"),
        (HEADER + "a,t,1,node,nan\n", "is not finite"),
        (HEADER + "a,t,1,node,1\na,t,1,node,2\n", "line 3, column ranks: is listed twice"),
    ],
)
def test_a_wrong_file_of_speeds_is_refused(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "speeds.csv"
    file.write_text(text)
    with pytest.raises(TraceError, match=why.replace("(", r"\(")):
        read_speeds(file)


def job(job_id: str, ranks: int, seconds: float = 1000.0, at: float = 0.0, **spec: Any) -> TraceJob:
    made = JobSpec(job_id, ("simulated",), ranks, workload="bert", user="u", **spec)
    return TraceJob(job_id, 1, round(at * 1e9), seconds, made)


def run(jobs: list[TraceJob], nodes: list[NodeSeen], speeds: MeasuredSpeeds | None, **policy: Any) -> dict[str, float]:
    """Return the completion time of each job in seconds."""
    chosen: dict[str, Any] = {"order": Order.FIFO, "estimates": Estimates.EXACT}
    engine = Simulation(Trace("t", tuple(jobs)), tuple(nodes), Policy(**(chosen | policy)), speeds=speeds).engine()
    engine.run()
    found = {}
    for name, course in engine.courses.items():
        assert course.ended_ns is not None
        found[name] = (course.ended_ns - course.submitted_ns) / 1e9
    return found


def test_gangs_progress_with_the_speed_of_their_type_and_size() -> None:
    speeds = measured_speeds(LINES)
    nodes = [NodeSeen("s", 4, gpu_type="slow")]
    assert run([job("a", 4)], nodes, speeds)["a"] == pytest.approx(1000.0)
    elastic = {"min_ranks": 1, "max_ranks": 4, "restartable": True}
    jobs = [job("wide", 3, seconds=1e4), job("a", 4, at=1.0, **elastic)]
    assert run(jobs, nodes, speeds)["a"] == pytest.approx(2000.0, rel=0.01), "one GPU is half as fast as four"
    assert run(jobs, nodes, None)["a"] == pytest.approx(4000.0, rel=0.01)
    assert run([job("a", 1)], [NodeSeen("f", 4, gpu_type="fast")], speeds)["a"] == pytest.approx(250.0)


def test_the_scheduler_learns_which_type_is_faster() -> None:
    """No speeds are given. Once both types were measured, a job waits for the fast one although a slow one is free."""
    speeds = measured_speeds(LINES)
    nodes = [NodeSeen("a", 1, gpu_type="slow"), NodeSeen("b", 1, gpu_type="fast")]
    jobs = [job("first", 1, 4000.0), job("second", 1, 4000.0)]
    jobs += [job("next", 1, 20_000.0, at=4100.0), job("last", 1, 20_000.0, at=4200.0)]
    learnt, linear = run(jobs, nodes, speeds), run(jobs, nodes, speeds, learn_speeds=False)
    assert sum(learnt.values()) < 0.9 * sum(linear.values())


def test_equal_seeds_report_equal_speeds() -> None:
    speeds = measured_speeds(LINES)
    jobs = [job("a", 1, 500.0), job("b", 2, 500.0)]

    def learnt(seed: int) -> object:
        nodes = (NodeSeen("s", 4, gpu_type="slow"),)
        engine = Simulation(Trace("t", tuple(jobs)), nodes, speeds=speeds, seed=seed).engine()
        engine.run()
        return {key: [(row.ranks, row.log_rate) for row in rows] for key, rows in engine.state.speeds.items()}

    assert learnt(1) == learnt(1) != learnt(2)
