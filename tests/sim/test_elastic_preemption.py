"""Elastic gangs under scheduling orders that preempt: every pass ends, and no gang is stopped again and again."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scheduler_feedback.core.state import Order
from scheduler_feedback.sim.job_trace import TraceJob
from tests.sim.scenario import FIFO_EASY, ends, job, simulation, starts

_PREEMPTING = (Order.SRTF, Order.SRSF, Order.LAS, Order.THEMIS, Order.FAIR)


def elastic(job_id: str, at: float, ranks: int, run_seconds: float, least: int) -> TraceJob:
    return job(
        job_id, at, ranks, run_seconds, min_ranks=least, max_ranks=2 * ranks, restartable=True, preemptible=True,
        time_limit_seconds=run_seconds,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("order", _PREEMPTING)
def test_a_day_of_elastic_and_rigid_gangs_ends(order: Order, seed: int) -> None:
    draw = random.Random(seed)
    jobs = []
    for number in range(40):
        ranks, at, seconds = draw.choice((2, 4, 6, 8)), draw.uniform(0, 400), draw.uniform(20, 900)
        if draw.random() < 0.6:
            jobs.append(elastic(f"e{number}", at, ranks, seconds, max(1, ranks // 4)))
        else:
            jobs.append(job(f"r{number}", at, ranks, seconds, restartable=True, preemptible=True))
    jobs.sort(key=lambda each: each.submitted_ns)
    engine = simulation(jobs, 3, 4, policy=replace(FIFO_EASY, order=order, preempt=True)).engine()
    report = engine.run()
    assert (report.jobs, report.unfinished) == (40, 0)
    assert report.preemptions <= 5 * 40, "a gang is stopped for arrivals and ends, not in turn with another"


def test_an_elastic_gang_leaves_slots_to_a_gang_chosen_after_it() -> None:
    jobs = [job("first", 0, 8, 10), *(elastic(f"e{number}", 1, 6, 100 + number, 2) for number in range(3))]
    policy = replace(FIFO_EASY, order=Order.SRTF, preempt=True)
    engine = simulation(jobs, 1, 8, policy=policy).engine()
    report = engine.run()
    assert starts(engine) == {"first": 0, "e0": 10, "e1": 10, "e2": 10}, "with 4, 2 and 2 ranks"
    assert report.preemptions == 0


def test_an_elastic_gang_that_must_shrink_goes_before_jobs_behind_it() -> None:
    """The elastic gang restarts with fewer ranks. The job behind it gets none of these slots."""
    jobs = [
        elastic("elastic", 0, 8, 100, 2),
        job("short", 5, 4, 10, restartable=True, preemptible=True),
        job("long", 5, 4, 5000, restartable=True, preemptible=True),
    ]
    policy = replace(FIFO_EASY, order=Order.SRTF, preempt=True)
    engine = simulation(jobs, 1, 8, policy=policy).engine()
    report = engine.run()
    assert starts(engine) == {"elastic": 0, "short": 5, "long": 15}
    assert ends(engine) == {"short": 15, "elastic": 195, "long": 5015}
    assert report.preemptions == 1, "long does not start at 5 s, to be stopped again for elastic"
