"""Simulation engine: results computed by hand, and properties of arbitrary simulations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_feedback.core.state import Backfilling, State
from scheduler_feedback.cycle import Outcome
from scheduler_feedback.sim.engine import Journal
from tests.sim.scenario import FIFO_EASY, ends, job, simulation, starts


def test_first_come_first_served_on_one_node() -> None:
    engine = simulation([job("a", 0, 2, 100), job("b", 10, 1, 50), job("c", 20, 2, 30)], 1, 2).engine()
    report = engine.run()
    assert starts(engine) == {"a": 0, "b": 100, "c": 150}
    assert ends(engine) == {"a": 100, "b": 150, "c": 180}
    assert (report.jobs, report.unfinished, report.backfilled, report.decisions) == (3, 0, 0, 3)
    assert report.avg_jct_seconds == pytest.approx((100 + 140 + 160) / 3)
    assert report.p50_jct_seconds == 140
    assert report.p99_jct_seconds == 160
    assert report.makespan_seconds == 180
    assert report.avg_queue_seconds == pytest.approx((0 + 90 + 130) / 3)
    assert report.max_queue_seconds == 130
    assert report.utilization == pytest.approx((200 + 50 + 60) / (2 * 180))
    assert report.fragmentation == 1.0, "the only free slot was on b's node"


def test_a_job_is_backfilled_if_it_delays_no_other() -> None:
    jobs = [job("long", 0, 2, 100), job("wide", 1, 4, 50), job("fits", 2, 2, 98), job("too long", 3, 2, 200)]
    engine = simulation(jobs, 2, 2).engine()
    report = engine.run()
    assert starts(engine) == {"long": 0, "wide": 100, "fits": 2, "too long": 150}
    assert report.backfilled == 1
    none = simulation(jobs, 2, 2, policy=replace(FIFO_EASY, backfill=Backfilling.NONE)).engine()
    none.run()
    assert starts(none)["fits"] == 150


def test_ends_and_arrivals_at_one_instant_make_one_cycle() -> None:
    seen: list[tuple[int, int]] = []

    class Counting(Journal):
        def write(self, now_ns: int, events: object, outcome: Outcome, state: State) -> None:
            seen.append((now_ns, len(outcome.actions)))

    engine = simulation([job("a", 0, 1, 10), job("b", 0, 1, 10), job("c", 10, 2, 5)], 1, 2).engine(Counting())
    engine.run()
    instants = [at_ns for at_ns, actions in seen if actions]
    assert len(instants) == len(set(instants)) == 2
    assert starts(engine) == {"a": 0, "b": 0, "c": 10}


def test_a_gang_larger_than_the_cluster_is_rejected_and_others_continue() -> None:
    engine = simulation([job("a", 0, 1, 10), job("huge", 1, 5, 10), job("b", 2, 4, 10)], 2, 2).engine()
    report = engine.run()
    assert (report.jobs, report.unfinished) == (2, 0)
    [refused] = report.refused
    assert refused["job"] == "huge"
    assert "asks for 5 ranks; this cluster can hold at most 4 (2 nodes x 2 slots)" in str(refused["reason"])


def test_jobs_of_zero_length_and_equal_arrivals_complete() -> None:
    engine = simulation([job(str(number), 5, 2, 0) for number in range(20)], 1, 2).engine()
    report = engine.run()
    assert report.jobs == 20
    assert set(ends(engine).values()) == {0.0}


def test_the_same_simulation_gives_the_same_report() -> None:
    def once() -> dict[str, object]:
        jobs = [job(str(n), n % 7, 1 + n % 5, 10 + 13 * n % 90) for n in range(200)]
        report = simulation(sorted(jobs, key=lambda one: one.submitted_ns), 3, 4).run()
        return {name: getattr(report, name) for name in report.__dataclass_fields__ if "second" not in name[:4]}

    first, second = once(), once()
    for timed in ("wall_seconds", "jobs_per_second", "decision_ms"):
        first.pop(timed, None), second.pop(timed, None)
    assert first == second


def test_two_gangs_never_share_a_slot_and_every_gang_is_whole() -> None:
    jobs = [job(str(n), n * 3, 1 + n % 6, 20 + 31 * n % 170) for n in range(300)]
    engine = simulation(jobs, 3, 4).engine()
    engine.run()
    assert len(engine.spans) == 300
    moves = []
    for span in engine.spans:
        assert sum(span.nodes.values()) == engine.courses[span.job_id].job.spec.ranks
        for node, ranks in span.nodes.items():
            moves += [(span.began_ns, 1, node, ranks), (span.ended_ns, 0, node, -ranks)]
    held = dict.fromkeys(engine.account.capacity, 0)
    for _, _, node, ranks in sorted(moves):
        held[node] += ranks
        assert 0 <= held[node] <= engine.account.capacity[node]


def test_progress_is_reported() -> None:
    reported: list[tuple[int, int]] = []
    simulation([job(str(n), n, 1, 5) for n in range(10)], 1, 1).run(
        lambda ended, of_all: reported.append((ended, of_all))
    )
    assert reported[-1] == (10, 10)
    assert reported == sorted(reported)


def test_load_scales_the_arrivals() -> None:
    jobs = [job("a", 0, 1, 10), job("b", 100, 1, 10)]
    assert simulation(jobs, 1, 1).run().makespan_seconds == 110
    assert simulation(jobs, 1, 1, load=4.0).run().makespan_seconds == 35


@pytest.mark.parametrize("backfill", list(Backfilling))
def test_a_job_without_run_time_ends_at_its_start(backfill: Backfilling) -> None:
    jobs = [job("long", 0, 2, 100), job("wide", 1, 4, 50), job("empty", 2, 1, 0)]
    engine = simulation(jobs, 2, 2, policy=replace(FIFO_EASY, backfill=backfill)).engine()
    assert engine.run().unfinished == 0
    assert ends(engine)["empty"] == starts(engine)["empty"]
