"""Physics of the simulated world, compared with hand-computed values and with real traces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_feedback.sim.world import clos_fabric, condition, plan
from scheduler_feedback.sim.world.physics import collective, hardware, pipeline, step_timing
from scheduler_feedback.sim.world.physics.power import EXPONENT, Governor
from tests import needs


def finished(stages: int, microbatches: int, forward: float, backward: float, transfer: float = 0.0) -> float:
    """Return the end of a pipeline whose stages all take the same time."""
    ones = np.ones((1, 1, stages))
    done = pipeline.finish(
        forward * ones,
        backward * ones,
        np.ones((1, 1, microbatches)),
        transfer * np.ones((1, 1, stages - 1)),
        0.0 * ones,
    )
    return float(done.max())


@given(st.integers(1, 8), st.integers(1, 24))
def test_an_even_pipeline_takes_its_microbatches_plus_one_bubble_a_stage(stages: int, microbatches: int) -> None:
    # Narayanan et al. 2021: (m + p - 1)(f + b) for 1F1B with m >= p; a pipeline never does better.
    taken = finished(stages, microbatches, 1.0, 2.0)
    assert taken >= 3.0 * microbatches
    if microbatches >= stages:
        assert taken == pytest.approx(3.0 * (microbatches + stages - 1))


def test_every_operation_follows_its_dependencies() -> None:
    order = pipeline.schedule(4, 6)
    place = {operation: at for at, operation in enumerate(order)}
    assert len(order) == 4 * 6 * 2
    for (forward, stage, m), at in place.items():
        if forward and stage:
            assert place[(True, stage - 1, m)] < at
        if not forward and stage < 3:
            assert place[(False, stage + 1, m)] < at
        if not forward:
            assert place[(True, stage, m)] < at


def test_a_slow_stage_sets_the_pace() -> None:
    slow = np.ones((1, 1, 4))
    slow[..., 2] = 1.5
    done = pipeline.finish(slow, 2 * slow, np.ones((1, 1, 16)), np.zeros((1, 1, 3)), np.zeros((1, 1, 4)))
    # The slow stage runs all its work; work before its first and after its last microbatch cannot overlap with it.
    assert 16 * 4.5 + 3 * 2 <= float(done.max()) <= 16 * 4.5 + 3 * 3


def test_rings_have_the_speed_of_their_slowest_link_and_trees_win_with_costly_hops() -> None:
    even, sick = np.full((1, 8), 50e9), np.full((1, 8), 50e9)
    sick[0, 3] = 10e9
    assert collective.ring(8e9, even, 8, 0.0)[0] == pytest.approx(2 * 7 / 8 * 8e9 / 50e9)
    assert collective.ring(8e9, sick, 8, 0.0)[0] == pytest.approx(2 * 7 / 8 * 8e9 / 10e9)
    many = np.full((1, 2048), 50e9)
    assert collective.tree(1e6, many, 2048, 1e-5)[0] < collective.ring(1e6, many, 2048, 1e-5)[0]
    assert collective.all_reduce(8e9, many, 2048, 1e-6)[0] == pytest.approx(
        min(collective.ring(8e9, many, 2048, 1e-6)[0], collective.tree(8e9, many, 2048, 1e-6)[0])
    )
    assert collective.ring(8e9, even, 1, 1.0)[0] == 0.0


def test_power_is_cubic_in_the_clock_and_the_cap_limits_the_clock() -> None:
    governor = Governor.of(hardware.H100, 4, np.random.default_rng(1))
    one = np.ones(4)
    dynamic = governor.watts(one, one, 0 * one) - hardware.H100.idle_watts
    half = governor.watts(0.5 * one, one, 0 * one) - hardware.H100.idle_watts
    assert half == pytest.approx(dynamic * 0.5**EXPONENT)
    governor.full_watts[:] = 900.0
    assert governor.watts(governor.free_clock(), one, 0 * one) == pytest.approx(hardware.H100.limit_watts)


def test_a_failing_cooler_first_heats_and_then_slows_the_gpu() -> None:
    governor = Governor.of(hardware.H100, 4, np.random.default_rng(1))
    compute, spin = np.full(4, 0.8), np.full(4, 0.2)
    hindrance = governor.hindrance_for(0.7, np.array([2]), compute, spin)
    early = governor.clocks(1.0, compute, spin, 1.0, hindrance)[0]
    for _ in range(40):
        late, thermal, _ = governor.clocks(5.0, compute, spin, 1.0, hindrance)
    assert early[2] > 0.95
    assert late[2] == pytest.approx(0.7, abs=0.02)
    assert governor.celsius[2] == pytest.approx(hardware.H100.limit_celsius, abs=0.5)
    assert np.delete(late, 2).min() > 0.95
    assert np.flatnonzero(thermal > 0.01).tolist() == [2]


@pytest.mark.parametrize("workload", plan.WORKLOADS)
@pytest.mark.parametrize("seconds", [0.3, 2.0, 15.0, 45.0])
def test_a_planned_job_takes_about_the_requested_time(workload: plan.Workload, seconds: float) -> None:
    for gpus in (16, 64, 256):
        made = plan.make("j", gpus, workload, seconds, np.random.default_rng(gpus))
        assert made.stages * made.data * made.tensor == gpus
        taken = step_timing.run(made, condition.calm(made.shape, made.microbatches)).seconds[0]
        assert 0.7 * seconds < taken < 1.4 * seconds


def test_unsupported_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="j: 24 GPUs; a multiple of 16"):
        plan.make("j", 24, "balanced", 1.0, np.random.default_rng(1))
    with pytest.raises(ValueError, match="two replicas"):
        plan.make("j", 1024, "dp2", 1.0, np.random.default_rng(1))


def test_clocks_slow_matrix_products_only() -> None:
    made = plan.make("j", 64, "balanced", 5.0, np.random.default_rng(1))
    calm = condition.calm(made.shape, made.microbatches)
    usual = step_timing.run(made, calm)
    calm.clock = 0.5 * np.ones((1, *made.shape))
    slowed = step_timing.run(made, calm)
    ratio = float(slowed.kernels.mean() / usual.kernels.mean())
    assert 1.8 < ratio < 2.0


def test_one_slow_rank_slows_all_and_waits_least_as_in_a_real_trace() -> None:
    parquet = needs.package("pyarrow.parquet")
    table = parquet.read_table(needs.data("steps", "bytedance-AR.parquet"))
    kinds, ranks = np.array(table["optype"].to_pylist()), np.array(table["rank"].to_pylist())
    seconds, stages = np.array(table["duration"].to_pylist()), np.array(table["stage"].to_pylist())
    computing = np.isin(kinds, ["forward-compute", "backward-compute"])
    own = np.bincount(ranks[computing], seconds[computing], minlength=ranks.max() + 1)
    first = np.unique(ranks[stages == stages[ranks == 0][0]])
    traced = own[0] / np.median(own[first])  # 2.35: rank 0's compute time divided by that of its stage

    # The same layout in the world: 4 stages x 4 replicas x 4 tensor ranks, with rank 0's tensor group equally slow.
    made = plan.make("j", 64, "balanced", 20.0, np.random.default_rng(3), per_node=4)
    calm = condition.calm(made.shape, made.microbatches)
    usual = step_timing.run(made, calm)
    calm.noise = np.ones((1, *made.shape))
    calm.noise[0, 0, 0, :] = traced
    slowed = step_timing.run(made, calm)
    wait = slowed.seconds[0] - slowed.kernels[0]
    peers = np.median(wait[0])
    assert slowed.seconds[0] / usual.seconds[0] == pytest.approx(1.973, rel=0.15)  # the authors' own figure
    assert wait[0, 0].max() / peers < 0.4  # the trace: 0.144
    assert wait[0, 1:].min() / peers > 0.9  # the trace: 0.995


def test_flows_on_one_link_share_it() -> None:
    random = np.random.default_rng(1)
    hashed = np.mean([clos_fabric.hashed_share(8, False, random).mean() for _ in range(200)])
    assert 0.5 < hashed < 1.0  # ECMP collides
    assert clos_fabric.hashed_share(8, True, random).tolist() == [1.0] * 8  # adaptive routing does not
    assert clos_fabric.hashed_share(32, True, random).tolist() == [0.5] * 32  # 32 ports, 16 uplinks
    assert (
        float(clos_fabric.marks_a_second(0.5))
        > float(clos_fabric.marks_a_second(0.9))
        > float(clos_fabric.marks_a_second(1.0))
        == 0
    )


def test_places_contain_shared_resources() -> None:
    here = clos_fabric.place(np.arange(30, 34), 32)
    assert here.crosses.all()
    assert here.uplinks[0] == "pod-0/rail-0"
    assert here.uplinks[31] == "pod-1/rail-7"
    two = (
        clos_fabric.place(np.arange(2), 8, (0, 2, 4, 6), shared=2),
        clos_fabric.place(np.arange(2), 8, (1, 3, 5, 7), shared=2),
    )
    assert two[0].nics == two[1].nics
    assert not set(two[0].gpus) & set(two[1].gpus)
    with pytest.raises(ValueError, match="9 ranks on 1 nodes"):
        clos_fabric.place(np.arange(1), 9)
