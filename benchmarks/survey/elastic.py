"""Rows of elastic sizes by learnt speeds: Voda and ONES, Optimus, Sia.

Ten traces of Sia's artifact (``sia_data``) on its 64 GPUs of three types. The real speed of a gang is the measured one
of its GPU type, ranks and placement. Every job can run with any number of GPUs, at the cost of a restart. Compared is
the same scheduler with the assumption that speed is proportional to ranks, and with the given speed of one GPU of each
type. The learnt speeds come from reports of the jobs' own attempts only, with an error of 3 %.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import fmean

from benchmarks.survey import sia_data
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval
from scheduler_feedback.core.state import Estimates, Order, Policy, Sizes
from scheduler_feedback.sim.simulation import Simulation

POLICY = Policy(order=Order.SRTF, estimates=Estimates.EXACT, throughput=sia_data.given_speeds())

MEASURE = f"average JCT with learnt speeds / with proportional speeds, {sia_data.TRACES} traces of Sia's artifact"

NO_FIGURE = "no published figure is for these jobs with fixed batches"


def rows() -> list[Row]:
    """Return the rows of this module."""
    return [
        Row("Voda, ONES", "sizes by measured speed-up", MEASURE, None, "survey", lambda: _outcome(Sizes.SPEEDUP)),
        Row("Optimus", "marginal gain of workers", MEASURE, None, "Peng et al., EuroSys'18",
            lambda: _outcome(Sizes.REMAINING)),
        Row("Sia", "goodput-optimal size and type", MEASURE, None, "Subramanya et al., SOSP'23",
            lambda: _outcome(Sizes.GOODPUT)),
    ]  # fmt: skip


@cache
def average_jct(trace: int, sizes: Sizes | None, learns: bool) -> float:
    """Return the average completion time in seconds. sizes: None if jobs have the fixed sizes of the trace."""
    policy = replace(POLICY, sizes=sizes or Sizes.IDLE, learn_speeds=learns)
    simulation = Simulation(
        sia_data.trace(trace, elastic=sizes is not None),
        sia_data.nodes(),
        policy,
        speeds=sia_data.speeds(),
        seed=trace,
    )
    report = simulation.run()
    assert report.avg_jct_seconds is not None and not report.unfinished, "all jobs end"
    return report.avg_jct_seconds


def shares(sizes: Sizes, other: Sizes | None, learns: bool) -> tuple[float, ...]:
    """Return by trace the average JCT with learnt speeds, divided by that of another choice of sizes."""
    return tuple(
        average_jct(trace, sizes, True) / average_jct(trace, other, learns) for trace in range(1, sia_data.TRACES + 1)
    )


def _outcome(sizes: Sizes) -> Outcome:
    found = shares(sizes, sizes, False)
    versus = {
        "fixed sizes": shares(sizes, None, False),
        "elastic only into idle slots, proportional": shares(sizes, Sizes.IDLE, False),
        "elastic only into idle slots, learnt": shares(sizes, Sizes.IDLE, True),
    }
    hours = fmean(average_jct(trace, sizes, True) for trace in range(1, sia_data.TRACES + 1)) / 3600
    text = "; ".join(f"/ {name} {fmean(one):.3f} +-{interval(one):.3f}" for name, one in versus.items())
    reason = f"+-{interval(found):.3f} (95 %); {hours:.3f} h; {text}; {NO_FIGURE}"
    return Outcome(None, round(fmean(found), 4), reason)
