"""Other parallel layouts: interleaved pipelines, sharded parameters, local SGD, contention on a GPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import FEATURE
from scheduler_feedback.sim.world import layouts
from scheduler_feedback.sim.world.course import Course
from scheduler_feedback.sim.world.fault import Fault
from scheduler_feedback.sim.world.outputs.array_output import PERFECT, World
from scheduler_feedback.sim.world.outputs.frame_output import FrameExit
from scheduler_feedback.sim.world.physics import local_rounds, pipeline
from tests.sim.world.jobs import job


def of(layout: str, gpus: int = 64, seconds: float = 2.0, seed: int = 3) -> Course:
    return job(made=layouts.LAYOUTS[layout]("j", gpus, seconds, np.random.default_rng(seed)))


def with_fault(one: Course, disorder: str, ranks: tuple[int, ...] = (9,), severity: float = 0.2) -> Fault:
    fault = one.solved(Fault(disorder, "j", ranks, 0.0, 1e6, severity=severity))
    one.faults.append(fault)
    return fault


def slowdown(one: Course) -> float:
    taken = sum(float((b.end - b.begin).sum()) for b in one.blocks)
    return taken / sum(float(b.without.sum()) for b in one.blocks) - 1.0


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
@pytest.mark.parametrize("seconds", [0.4, 8.0])
def test_a_layout_takes_about_the_requested_time(layout: str, seconds: float) -> None:
    assert of(layout, seconds=seconds).usual == pytest.approx(seconds, rel=0.25)


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
@pytest.mark.parametrize("disorder", ["clock-lock", "nvlink", "nic-errors"])
def test_a_fault_costs_its_severity_in_every_layout(layout: str, disorder: str) -> None:
    one = of(layout)
    with_fault(one, disorder)
    one.advance_to(200.0)
    assert slowdown(one) == pytest.approx(0.2, abs=0.06)


def test_one_stage_fills_each_node() -> None:
    one = of("stage-a-node", 32)
    stage = one.plan.coordinates()[0]
    assert np.array_equal(stage, one.place.node)
    with pytest.raises(ValueError, match="one stage a node needs 32"):
        of("stage-a-node", 16)


# --- interleaved pipelines --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stages", "microbatches", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 12, 4)])
def test_interleaved_operations_follow_their_dependencies(stages: int, microbatches: int, chunks: int) -> None:
    order = pipeline.schedule(stages, microbatches, chunks)
    assert len(order) == len(set(order)) == 2 * stages * chunks * microbatches
    place = {operation: number for number, operation in enumerate(order)}
    for m in range(microbatches):
        parts = [(True, part, m) for part in range(stages * chunks)]
        parts += [(False, part, m) for part in reversed(range(stages * chunks))]
        assert all(place[first] < place[second] for first, second in pairwise(parts))


@pytest.mark.parametrize("chunks", [2, 4])
def test_chunks_divide_the_bubble(chunks: int) -> None:
    stages, microbatches = 4, 8
    forward = np.full((1, stages), 1.0)
    weight, begin = np.ones((1, microbatches)), np.zeros((1, stages))
    usual = pipeline.finish(forward, 2.0 * forward, weight, np.zeros((1, stages - 1)), begin).max()
    found = pipeline.finish(forward, 2.0 * forward, weight, np.zeros((1, stages)), begin, chunks).max()
    work = 3.0 * microbatches
    assert usual - work == pytest.approx(3.0 * (stages - 1))
    assert found - work == pytest.approx(3.0 * (stages - 1) / chunks)


def test_the_last_stage_of_an_interleaved_pipeline_sends_to_the_first() -> None:
    one = of("interleaved")
    plain = job(made=replace(one.plan, chunks=1))
    sent = []
    for course in (one, plain):
        counters = World([course], 1, 10.0, PERFECT).tick(60.0).counters.values
        sent.append(counters[FEATURE["nic_transmit_bytes"]][1:].mean())
    assert sent[0] > 1.2 * sent[1]


# --- sharded jobs -----------------------------------------------------------------------------------------------------


def test_a_sharded_job_gathers_all_the_time_and_reports_no_waits() -> None:
    one = of("sharded", seconds=4.0)
    telemetry = World([one], 1, 1.0, PERFECT).tick(60.0)
    steps = telemetry.jobs[0].steps
    assert steps is not None
    assert np.isnan(steps.wait_seconds).all()
    assert np.isfinite(steps.seconds).all()
    sent = telemetry.counters.values[FEATURE["nic_transmit_bytes"]][5:]
    assert sent.min() > 0.3 * sent.mean() > 0.0  # the exchange is not only at the end of a step
    layers = 3.0 * one.plan.layers * one.plan.gathered_bytes * one.plan.microbatches
    assert sent.mean() * one.usual == pytest.approx(layers, rel=0.1)


def test_frames_of_a_sharded_job_have_no_waits() -> None:
    one = of("sharded", 16, 0.4)
    records = [r for _, _, frame in FrameExit([one], 1).until(5.0) for r in frame.records if hasattr(r, "wait_ns")]
    assert records and all(record.wait_ns is None for record in records)


def test_a_slow_rank_of_a_sharded_job_slows_all_ranks() -> None:
    one = of("sharded")
    with_fault(one, "clock-lock")
    one.advance_to(60.0)
    kernels = one.blocks[-1].kernels.mean(axis=0)
    assert kernels.argmax() == 9
    assert kernels[9] / np.median(kernels) > 1.15


def test_hidden_collectives_cost_nothing_until_they_are_slower_than_kernels() -> None:
    made = replace(layouts.sharded("j", 64, 2.0, np.random.default_rng(3)), contention=0.0)
    fault = job(made=made).solved(Fault("nic-errors", "j", (9,), 0.0, 1e6, severity=0.2))
    usual = replace(made, gathered_bytes=made.gathered_bytes / 2)
    later = job(made=usual).solved(Fault("nic-errors", "j", (9,), 0.0, 1e6, severity=0.2))
    assert later.magnitude > 1.5 * fault.magnitude


# --- contention -------------------------------------------------------------------------------------------------------


def test_kernels_take_longer_while_a_slow_exchange_runs_beside_them() -> None:
    made = layouts.contended("j", 64, 2.0, np.random.default_rng(3))
    longer = []
    for contention in (0.0, 0.3):
        one = job(made=replace(made, contention=contention))
        one.advance_to(60.0)
        before = one.blocks[0].kernels.mean()
        sick = job(made=replace(made, contention=contention))
        with_fault(sick, "nic-errors")
        sick.advance_to(60.0)
        longer.append(sick.blocks[0].kernels.mean() / before - 1.0)
    assert longer[0] == pytest.approx(0.0, abs=0.001)
    assert longer[1] > 0.005


# --- local SGD --------------------------------------------------------------------------------------------------------


def test_replicas_only_meet_at_the_end_of_a_round() -> None:
    alone = np.array([[1.0, 2.0], [1.0, 1.0], [1.0, 3.0], [1.0, 1.0]])
    job_seconds, own = local_rounds.finish(alone, np.full(4, 0.5), 2)
    assert job_seconds.tolist() == [2.0, 1.5, 3.0, 1.5]
    assert own.tolist() == [[1.0, 2.0], [2.5, 1.5], [1.0, 3.0], [3.5, 1.5]]
    with pytest.raises(ValueError, match="3 steps are not whole rounds of 2"):
        local_rounds.finish(alone[:3], np.zeros(3), 2)


def test_a_slow_replica_ends_its_steps_later_and_others_wait_once_a_round() -> None:
    one = of("local-sgd", 128)
    with_fault(one, "clock-lock", severity=0.5)
    steps = World([one], 1, 10.0, PERFECT).tick(200.0).jobs[0].steps
    assert steps is not None
    replica = one.plan.coordinates()[1]
    slow, other = replica == replica[9], replica != replica[9]
    last = steps.number % one.plan.sync_steps == 0
    assert last.any()
    lengths = steps.seconds[~last]
    assert lengths[:, slow].mean() > 1.4 * lengths[:, other].mean()
    waits = steps.wait_seconds / steps.seconds
    assert waits[last][:, other].mean() > 2.0 * waits[~last][:, other].mean()
    ends = steps.end_ns[last]
    assert np.ptp(ends, axis=1).max() < 5e6
    inside = steps.end_ns[steps.number % one.plan.sync_steps == one.plan.sync_steps - 1]
    assert np.ptp(inside, axis=1).min() > 1e9


def test_ranks_of_slow_replicas_are_in_earlier_steps() -> None:
    one = of("local-sgd", 128, 1.0)
    with_fault(one, "clock-lock", severity=0.5)
    world = World([one], 1, 10.0, PERFECT)
    behind = 0
    for _ in range(20):
        opened = world.tick(5.0).jobs[0].open_steps
        assert opened is not None
        behind = max(behind, int(opened[:, 0].max() - opened[9, 0]))
    assert behind >= 1


def test_bytes_move_only_at_the_end_of_a_round() -> None:
    one = of("local-sgd", 128, 4.0)
    every = job(made=replace(one.plan, sync_steps=1))
    moved = []
    for course in (one, every):
        counters = World([course], 1, 1.0, PERFECT).tick(8 * 4.0 * one.plan.sync_steps).counters.values
        moved.append(counters[FEATURE["nic_transmit_bytes"]][1:].mean())
    between = one.plan.stage_bytes * one.plan.microbatches * (1.0 if one.plan.stages > 1 else 0.0)
    assert moved[0] < moved[1] - 0.5 * (moved[1] - between / one.usual)
