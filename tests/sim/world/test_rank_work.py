"""Healthy work of single ranks: which ranks it delays, when, and what their counters show."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import FEATURE
from scheduler_feedback.sim.world.course import Course
from scheduler_feedback.sim.world.fault import Fault
from scheduler_feedback.sim.world.outputs.array_output import PERFECT, World
from scheduler_feedback.sim.world.rank_work import SAVE_STEPS, WRITING_STEPS
from scheduler_feedback.sim.world.traits import Traits
from tests.sim.world.jobs import job

FROM, LENGTH = 100.0, 1500.0


def stalls(one: Course) -> np.ndarray:
    """Return the stall of each rank in each step: [steps, ranks]."""
    return np.concatenate([np.broadcast_to(b.stall, (len(b), b.stall.shape[1])) for b in one.blocks])


def begins(one: Course) -> np.ndarray:
    return np.concatenate([block.begin for block in one.blocks])


def test_only_the_recompiling_ranks_stall_for_seconds() -> None:
    ranks = (3, 20, 41)
    one = job()
    one.faults.append(Fault("rank-recompiles", "j", ranks, FROM, LENGTH))
    one.advance_to(FROM + LENGTH)
    long = stalls(one) > 1.0
    during = (begins(one) >= FROM) & (begins(one) < FROM + LENGTH)
    assert long[~during].sum() == 0
    assert set(np.flatnonzero(long.any(axis=0)).tolist()) <= set(ranks)
    assert 10 <= long[during].any(axis=1).sum() <= 60  # about one a minute, of one or two steps
    assert long.sum(axis=1).max() <= 2  # the ranks compile at different times


def test_a_recompiling_rank_uses_processors_and_its_gpu_is_idle() -> None:
    one = job(seconds=1.0)
    one.faults.append(Fault("rank-recompiles", "j", (3,), 60.0, LENGTH))
    telemetry = World([one], 1, 10.0, PERFECT).tick(400.0)
    processor = telemetry.counters.values[FEATURE["processor"]]
    assert np.nanmax(processor[:, 3]) > 2.5
    assert np.nanmax(np.delete(processor, 3, axis=1)) < 2.0


def test_a_stalled_loader_delays_all_ranks_of_its_node_together() -> None:
    node = tuple(range(16, 24))
    one = job()
    one.faults.append(Fault("loader-stalls", "j", node, FROM, LENGTH))
    one.advance_to(FROM + LENGTH)
    long = stalls(one) > 0.26  # garbage collection takes at most a quarter of a second
    own = long[:, 16:24]
    assert own.any(axis=1).sum() > 5
    assert (own.all(axis=1) == own.any(axis=1)).mean() > 0.99
    assert np.delete(long, node, axis=1).sum() <= 2  # rare short delays


def test_rank_0_saves_every_sixty_steps() -> None:
    one = job(seconds=1.0)
    one.faults.append(Fault("async-saves", "j", (0,), 0.0, 1e6))
    one.advance_to(400.0)
    numbers = np.concatenate([np.arange(b.first, b.first + len(b)) for b in one.blocks])
    saves = stalls(one)[:, 0] > 0.29
    assert set((numbers[saves] % SAVE_STEPS).tolist()) == {0}
    assert saves.sum() == (numbers % SAVE_STEPS == 0).sum() > 4
    busy = np.zeros(len(numbers))
    offset = 0
    for block in one.blocks:
        for signal in block.signals:
            if signal.feature == "processor":
                busy[offset : offset + len(block)] += signal.values
        offset += len(block)
    assert set((numbers[busy > 0] % SAVE_STEPS).tolist()) == set(range(WRITING_STEPS))


def test_a_popular_expert_takes_tokens_from_its_group() -> None:
    one, calm = job(workload="moe"), job(workload="moe")
    fault = one.solved(Fault("hot-expert", "j", (9,), 0.0, 1e6, severity=0.2))
    assert fault.magnitude > 0
    one.faults.append(fault)
    for course in (one, calm):
        course.advance_to(100.0)
    assert one.plan.expert > 1
    hot, usual = one.blocks[0], calm.blocks[0]
    assert hot.tokens is not None and usual.tokens is not None
    steps = min(len(hot), len(usual))
    group = slice(9 // one.plan.expert * one.plan.expert, (9 // one.plan.expert + 1) * one.plan.expert)
    assert hot.tokens[:steps, 9].mean() > 1.2 * usual.tokens[:steps, 9].mean()
    total = hot.tokens[:steps, group].sum(axis=1) / usual.tokens[:steps, group].sum(axis=1)
    assert total == pytest.approx(1.0, rel=1e-3)
    assert hot.kernels.mean(axis=0).argmax() == 9
    ratio = np.concatenate([(b.end - b.begin) / b.without for b in one.blocks])
    assert ratio.mean() - 1.0 == pytest.approx(0.2, abs=0.06)


def test_a_job_without_experts_has_no_popular_one() -> None:
    with pytest.raises(ValueError, match="j has no expert groups"):
        job().solved(Fault("hot-expert", "j", (9,), 0.0, 1e6, severity=0.2))


def test_habits_belong_to_the_healthy_job() -> None:
    habit = Fault("loader-stalls", "j", tuple(range(8)), 0.0, 1e6)
    one = job(traits=Traits(seed=1, habits=(habit,)))
    one.advance_to(600.0)
    assert (stalls(one)[:, :8] > 0.26).all(axis=1).sum() > 3
    for block in one.blocks:
        assert np.array_equal(block.end - block.begin, np.diff([block.begin[0], *block.end]))
        assert block.without == pytest.approx(block.end - block.begin)


def test_all_gpus_of_a_capped_rack_slow_down_together() -> None:
    rack = tuple(range(32))
    one = job()
    one.faults.append(one.solved(Fault("rack-power-cap", "j", rack, 100.0, 400.0, severity=0.2)))
    one.advance_to(300.0)
    kernels = one.blocks[-1].kernels.mean(axis=0)
    assert kernels[:32].min() > 1.1 * kernels[32:].max()
    assert {s.feature for b in one.blocks for s in b.signals} == {"power_throttle"}
