"""Power limits of simulated GPUs: speeds, energy, and the scheduler's budget over a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.schema.errors import TraceError
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.job import JobSpec, Slot
from scheduler_feedback.core.state import Estimates, Policy
from scheduler_feedback.sim.engine import Engine
from scheduler_feedback.sim.job_trace import Trace, TraceJob
from scheduler_feedback.sim.simulation import Simulation
from scheduler_feedback.sim.speeds.gpu_power import GpuModel, PowerMeter, read_curves
from scheduler_feedback.sim.studies.power_caps import PowerPoint

CURVES = {"eager": (PowerPoint(100.0, 0.5, 90.0), PowerPoint(200.0, 1.0, 180.0)),
          "deaf": (PowerPoint(100.0, 1.0, 60.0), PowerPoint(200.0, 1.0, 60.0))}  # fmt: skip
MODEL = GpuModel(20.0, 100.0, 200.0, CURVES)


def engine_of(budget: float, *jobs: tuple[str, int, float, float]) -> Engine:
    """Return a simulation of two nodes with four GPUs. jobs: workload, ranks, submission, run time in seconds."""
    trace = tuple(
        TraceJob(
            f"j{number}", number, round(at * 1e9), seconds, JobSpec("j", ("x",), ranks, user="u", workload=workload)
        )
        for number, (workload, ranks, at, seconds) in enumerate(jobs)
    )
    policy = Policy(estimates=Estimates.EXACT, power_budget_watts=budget)
    return Simulation(Trace("t", trace), tuple(NodeSeen(f"n{n}", 4) for n in range(2)), policy, power=MODEL).engine()


def jct(engine: Engine) -> list[float]:
    report = engine.run()
    assert not report.unfinished
    return [((course.ended_ns or 0) - course.submitted_ns) / 1e9 for course in engine.courses.values()]


def test_points_between_measured_limits_are_interpolated() -> None:
    assert MODEL.at("eager", 150.0) == PowerPoint(150.0, 0.75, 135.0)
    assert MODEL.at("eager", 50.0) == CURVES["eager"][0]
    assert MODEL.at("eager", 300.0) == CURVES["eager"][1]
    assert MODEL.at("other", 200.0) == PowerPoint(200.0, 1.0, 200.0)
    assert MODEL.at("other", 100.0).speed == pytest.approx(0.7771)


def test_energy_counts_idle_gpus_and_those_of_gangs() -> None:
    meter = PowerMeter(MODEL, (NodeSeen("n", 2),), parked=False)
    meter.pass_time(0)
    assert meter.draw("a", "eager", (Slot("n", 0),), 10 * 10**9) == 1.0
    assert meter.joules == 400.0
    meter.draw("b", "deaf", (Slot("n", 0),), 20 * 10**9)  # shares the GPU: the higher one counts
    meter.leave("a", (Slot("n", 0),), 30 * 10**9)
    meter.leave("b", (Slot("n", 0),), 40 * 10**9)
    assert meter.joules == 400.0 + 2 * 2000.0 + 800.0
    assert (meter.watts, meter.most_watts) == (40.0, 200.0)


def test_without_a_budget_gpus_run_at_the_highest_limit() -> None:
    engine = engine_of(0.0, ("eager", 4, 0.0, 100.0))
    assert jct(engine) == [100.0]
    assert engine.meter is not None
    assert engine.meter.joules == 100.0 * (4 * 180.0 + 4 * 20.0)


def test_a_budget_slows_gangs_and_starts_lower_the_limits_of_others_first() -> None:
    alone = engine_of(880.0, ("eager", 4, 0.0, 100.0))
    assert jct(alone) == [pytest.approx(100.0, abs=2.1)], "the highest limit fits; it is set after two seconds"
    engine = engine_of(880.0, ("eager", 4, 0.0, 100.0), ("eager", 4, 50.0, 100.0))
    first, second = jct(engine)
    assert first > 130.0, "half of its work at the lower limit"
    assert second > 130.0
    assert engine.meter is not None
    assert engine.meter.most_watts <= 880.0


def test_watts_go_to_the_job_that_gains_once_that_is_learnt() -> None:
    engine = engine_of(960.0, ("deaf", 4, 0.0, 1000.0), ("eager", 4, 10.0, 1000.0))
    deaf, eager = jct(engine)
    assert deaf == 1000.0
    same = engine_of(0.0, ("eager", 4, 0.0, 1000.0))
    assert jct(same)[0] < eager < 1700.0, "an equal limit of 120 W would take 1,667 s"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("workload,limit_watts,speed\n", "no column watts"),
        ("workload,limit_watts,speed,watts\na,b,1,1\n", "line 2: a limit, speed or power is no number"),
        ("workload,limit_watts,speed,watts\na,100,0,1\n", "line 2: expected numbers above 0"),
        ("workload,limit_watts,speed,watts\na,100,nan,1\n", "line 2: expected numbers above 0"),
        ("\udcff", "can't decode"),
    ],
)
def test_a_bad_file_of_curves_is_refused_with_its_line(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "curves.csv"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(TraceError, match=error):
        read_curves(file)
