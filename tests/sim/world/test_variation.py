"""Unequal GPUs, drift, GPU models and clocks of one job; and no difference for jobs without them."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import FEATURE
from scheduler_feedback.sim.world.fault import Fault
from scheduler_feedback.sim.world.outputs.array_output import PERFECT, World
from scheduler_feedback.sim.world.outputs.frame_output import FrameExit
from scheduler_feedback.sim.world.physics import hardware
from scheduler_feedback.sim.world.traits import Traits
from tests.sim.world.jobs import job

BEFORE = 218.029805896674
"""End of the last block of ``test_jobs_without_these_properties_are_as_before`` in the version before them."""


def kernels_of(traits: Traits, until: float = 100.0) -> np.ndarray:
    one = job(512, traits=traits)
    one.advance_to(until)
    mean: np.ndarray = np.concatenate([block.kernels for block in one.blocks]).mean(axis=0)
    return mean


def test_gpus_differ_as_published() -> None:
    ranges = []
    for seed in range(12):
        speed = kernels_of(Traits(seed=seed, spread=True), 20.0)
        stages = speed.reshape(-1, 64)  # ranks of a stage have the same work
        low, middle, high = np.quantile(stages / np.median(stages, axis=1, keepdims=True), [0.0035, 0.5, 0.9965])
        ranges.append((high - low) / middle)
    assert np.mean(ranges) == pytest.approx(0.08, abs=0.025)
    assert max(ranges) < 0.23


def test_slow_chips_have_a_lower_clock_at_the_power_cap() -> None:
    one = job(64, traits=Traits(seed=4, spread=True))
    telemetry = World([one], 1, 10.0, PERFECT).tick(100.0)
    clock = telemetry.counters.values[FEATURE["sm_clock"]][1:].mean(axis=0)
    kernels = one.blocks[-1].kernels.mean(axis=0)
    assert np.corrcoef(clock, kernels)[0, 1] < -0.7
    assert telemetry.counters.values[FEATURE["power_throttle"]][1:].mean() > 0.3


def test_drift_is_slow_and_lasts() -> None:
    one = job(64, traits=Traits(seed=4, drift=True))
    one.advance_to(4000.0)
    rows = np.concatenate([block.kernels for block in one.blocks])
    own = rows / np.median(rows, axis=1, keepdims=True)
    minutes = own[: len(own) // 30 * 30].reshape(-1, 30, 64).mean(axis=1)
    change = minutes - minutes.mean(axis=0)
    assert 0.003 < change.std() < 0.03
    next_minute = np.mean(change[1:] * change[:-1]) / change.var()
    late = np.mean(change[40:] * change[:-40]) / change.var()
    assert next_minute > 0.8 > 0.5 > late


def test_a_rack_is_slower_at_one_time_of_the_day() -> None:
    one = job(64, seconds=30.0, traits=Traits(seed=4, drift=True))
    one.block_seconds = 600.0
    one.advance_to(2 * 86_400.0)
    rows = np.concatenate([block.kernels.mean(axis=1) for block in one.blocks])
    times = np.concatenate([block.begin for block in one.blocks])
    wave = np.exp(2j * np.pi * times / 86_400.0)
    assert abs((rows / rows.mean() - 1.0) @ wave) * 2 / len(rows) > 0.003


@pytest.mark.parametrize("model", [hardware.A100, hardware.H200])
def test_whole_nodes_have_the_other_model(model: hardware.GpuModel) -> None:
    one = job(64, traits=Traits(seed=2, other_model=model))
    assert one.variation is not None
    nodes = one.variation.other.reshape(8, 8)
    assert (nodes.all(axis=1) == nodes.any(axis=1)).all()
    assert 1 <= nodes.all(axis=1).sum() <= 4
    counters = World([one], 1, 10.0, PERFECT).tick(100.0).counters.values
    clock, watts = (counters[FEATURE[name]][1:].mean(axis=0) for name in ("sm_clock", "power"))
    kernels = one.blocks[-1].kernels.mean(axis=0)
    there, usual = one.variation.other, ~one.variation.other
    if model is hardware.A100:
        assert kernels[there].mean() / kernels[usual].mean() == pytest.approx(2.6, abs=0.2)
        assert clock[there].max() <= 1.41e9 < clock[usual].min()
        assert watts[there].max() < hardware.A100.limit_watts
    else:
        assert kernels[there].mean() / kernels[usual].mean() == pytest.approx(0.97, abs=0.02)


def test_frames_name_the_other_model() -> None:
    one = job(16, traits=Traits(seed=2, other_model=hardware.A100))
    names = set()
    for _, layout, _ in FrameExit([one], 1).until(3.0):
        names |= {dict(c.labels)["model"] for c in layout.gauges if c.metric == "gangwatch_gpu_info"}
    assert names == {hardware.H100.name, hardware.A100.name}


def test_wrong_clocks_shift_the_times_of_a_host_and_nothing_else() -> None:
    ends, seconds = [], []
    for wrong in (False, True):
        one = job(64, traits=Traits(seed=3, wrong_clocks=wrong))
        steps = World([one], 1, 10.0, PERFECT).tick(60.0).jobs[0].steps
        assert steps is not None
        ends.append(steps.end_ns / 1e9)
        seconds.append(steps.seconds)
    assert np.array_equal(seconds[0], seconds[1])
    shift = (ends[1] - ends[0]).mean(axis=0).reshape(8, 8)
    assert np.ptp(shift, axis=1).max() < 1e-3  # all ranks of a host have the same clock
    assert 0.05 < np.abs(shift).max() < 2.0
    assert np.median(np.abs(shift)) < 0.02


def test_wrong_clocks_are_in_frames_too() -> None:
    offsets = {}
    for wrong in (False, True):
        one = job(64, traits=Traits(seed=3, wrong_clocks=wrong))
        for _, _, frame in FrameExit([one], 1).until(2.0):
            offsets[frame.node, wrong] = frame.wall_ns
    nodes = {node for node, _ in offsets}
    assert max(abs(offsets[node, True] - offsets[node, False]) for node in nodes) > 50_000_000


def test_jobs_without_these_properties_are_as_before() -> None:
    plain = job(64)
    seeded = job(64, traits=Traits(seed=9))
    for one in (plain, seeded):
        one.faults.append(one.solved(Fault("clock-lock", "j", (9,), 50.0, 100.0)))
        one.advance_to(200.0)
    assert np.array_equal(plain.blocks[-1].kernels, seeded.blocks[-1].kernels)
    assert plain.now == pytest.approx(BEFORE, rel=1e-12)
