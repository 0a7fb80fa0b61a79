"""Row of Dally: waits for one node, by the learnt cost of distance.

Ten traces of Sia's artifact (``sia_data``), at twice its rate of arrivals, with fixed sizes. Gangs of 2 to 8 GPUs
prefer one node. On several nodes they have the measured speed there, which depends on the model: some lose nothing.
Compared are waits of a fixed time, and waits for at most the time that the gang would lose on several nodes, learnt
from the jobs' reports (``level_patience``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from statistics import fmean

from msgspec import structs

from benchmarks.survey import sia_data
from benchmarks.survey.row import Outcome, Row
from benchmarks.survey.shares import interval
from scheduler_feedback.core.cluster import Level
from scheduler_feedback.core.job import JobSpec
from scheduler_feedback.core.state import Estimates, Order, Policy
from scheduler_feedback.sim.job_trace import Trace
from scheduler_feedback.sim.simulation import Simulation

POLICY = Policy(order=Order.FIFO, estimates=Estimates.EXACT, throughput=sia_data.given_speeds())
LOAD = 2.0
PATIENCE_SECONDS = (0.0, 600.0, 3600.0)
"""Fixed waits."""

MOST_SECONDS = 14_400.0
"""Longest learnt wait."""


def rows() -> list[Row]:
    """Return the rows of this module."""
    measure = f"average JCT with learnt waits / with the best fixed wait, {sia_data.TRACES} traces of Sia's artifact"
    skewed = f"average JCT, one node required for all jobs = 1, {sia_data.TRACES} traces of Sia's artifact"
    return [
        Row("Dally", "delay timers tuned from the learnt cost of distance", measure, None, "survey", _measured),
        Row("Tiresias", "skew profile: which jobs need consolidation", skewed, None,
            "Gu et al., NSDI'19 (other traces)", _skew),
    ]  # fmt: skip


MOST_LOSS = 0.1
"""A job requires one node if it loses more than this part of its speed on two, on the GPU type where it loses most."""


@cache
def loss(workload: str, ranks: int) -> float:
    """Return the largest part of its speed that the job loses on several nodes, as measured."""
    rates = (
        (sia_data.speeds().rate(workload, name, ranks, 0), sia_data.speeds().rate(workload, name, ranks, 1))
        for name in sia_data.GPUS
    )
    return max((1 - apart / near for near, apart in rates if near and apart), default=0.0)


def _trace(number: int, requires: Callable[[JobSpec], bool]) -> Trace:
    """Return the trace. requires: which gangs of 2 to 8 GPUs require one node instead of preferring it."""
    level = Level.NODE
    found = sia_data.trace(number, elastic=False)
    jobs = tuple(
        replace(
            job,
            spec=structs.replace(job.spec, preferred_level=level, required_level=level if requires(job.spec) else None),
        )
        if 1 < job.spec.ranks <= 8
        else job
        for job in found.jobs
    )
    return replace(found, jobs=jobs)


@cache
def average_jct(number: int, patience_seconds: float, learns: bool, fixed: bool = False, skewed: bool = False) -> float:
    """Return the average completion time in seconds. fixed: all gangs require one node. skewed: those that
    lose more than MOST_LOSS of their speed on several."""
    policy = replace(POLICY, level_patience_seconds=patience_seconds, learn_speeds=learns)
    trace = _trace(number, lambda spec: fixed or (skewed and loss(spec.workload, spec.ranks) > MOST_LOSS))
    nodes = sia_data.nodes()
    report = Simulation(trace, nodes, policy, load=LOAD, speeds=sia_data.speeds(), seed=number).run()
    assert report.avg_jct_seconds is not None and not report.unfinished, "all jobs end"
    return report.avg_jct_seconds


def _skew() -> Outcome:
    traces = range(1, sia_data.TRACES + 1)
    some = [average_jct(n, 0.0, False, skewed=True) for n in traces]
    others = {
        "one node required for all": [average_jct(n, 0.0, False, fixed=True) for n in traces],
        "for none": [average_jct(n, 0.0, False) for n in traces],
    }
    shares = {name: tuple(a / b for a, b in zip(some, one, strict=True)) for name, one in others.items()}
    text = "; ".join(f"/ {name} {fmean(one):.3f} +-{interval(one):.3f}" for name, one in shares.items())
    reason = f"one node required for gangs that lose more than {MOST_LOSS:.0%} as measured; {text}"
    return Outcome(None, round(fmean(shares["one node required for all"]), 4), reason)


def _measured() -> Outcome:
    traces = range(1, sia_data.TRACES + 1)
    learnt = [average_jct(n, MOST_SECONDS, True) for n in traces]
    others = {f"a wait of {one:g} s": [average_jct(n, one, False) for n in traces] for one in PATIENCE_SECONDS}
    others["no wait, speeds learnt"] = [average_jct(n, 0.0, True) for n in traces]
    others["one node required"] = [average_jct(n, 0.0, False, fixed=True) for n in traces]
    shares = {name: tuple(a / b for a, b in zip(learnt, one, strict=True)) for name, one in others.items()}
    fixed = [f"a wait of {one:g} s" for one in PATIENCE_SECONDS]
    best = max(fixed, key=lambda name: fmean(shares[name]))
    text = "; ".join(f"/ {name} {fmean(one):.3f} +-{interval(one):.3f}" for name, one in shares.items())
    return Outcome(None, round(fmean(shares[best]), 4), f"the best is {best}; {text}")
