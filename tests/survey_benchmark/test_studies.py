"""Studies of the survey: trading of GPU types, predicted memory, goodput, and which jobs need one node."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.survey import distance, learnt_memory, memory, sia_data, trading
from benchmarks.survey.gavel_data import GPU_TYPES
from benchmarks.survey.sia_goodput import OPTIONS, GoodputJob, best, choose, costs, models


def test_trading_leaves_no_user_below_its_own_share() -> None:
    for seed in range(3):
        found = trading.users(seed)
        before = [user.work() for user in found]
        assert trading.trade(found) > 0
        after = [user.work() for user in found]
        assert all(a >= b - 1e-9 for a, b in zip(after, before, strict=True))
        assert sum(before) < sum(after) <= trading.most_work(found) + 1e-6
        for kind in range(len(GPU_TYPES)):
            assert sum(user.gpus[kind] for user in found) == pytest.approx(trading.GPUS)
            assert min(user.gpus[kind] for user in found) > -1e-9


def test_users_with_equal_gains_do_not_trade() -> None:
    found = [trading.User((1.0, 2.0, 4.0), [4.0] * 3) for _ in range(3)]
    assert trading.trade(found) == 0


def test_trainings_go_to_the_first_gpu_with_room_for_what_they_need() -> None:
    failed, used = memory.placed([20_000.0, 30_000.0, 20_000.0], [19_000.0, 29_000.0, 19_000.0])
    assert (failed, round(used, 6)) == (0, round(67_000 / (2 * memory.GPU_MIB), 6))
    failed, _ = memory.placed([20_000.0, 20_000.0], [21_000.0, 21_000.0])
    assert failed == 2, "both are on a GPU whose memory they exceed"


def test_predictions_of_held_out_trainings_are_close() -> None:
    _, mib = memory.measured()
    learnt, others = list(range(0, len(mib), 2)), list(range(1, len(mib), 2))
    found, margin = memory.predicted(learnt, others)
    assert np.mean(np.abs(found / mib[others] - 1)) < 0.02
    assert 1.0 < margin < 1.2


def test_more_gpus_and_larger_batches_give_more_goodput_until_the_gradient_is_exact() -> None:
    one, eight = (next(o for o in OPTIONS if o.gpu_type == "a100" and o.ranks == n) for n in (1, 8))
    sizes = models()["imagenet"]["sizes"]
    noisy, exact = (1.0, 50.0), (1.0, 0.001)
    alone, together = best("imagenet", one, sizes[-1], noisy), best("imagenet", eight, sizes[-1], noisy)
    assert alone is not None and together is not None
    assert alone[0] < together[0] < 8 * alone[0]
    small = best("imagenet", eight, sizes[-1], exact)
    assert small is not None and small[1] < together[1]


def test_a_new_job_gets_one_gpu_and_then_at_most_twice_what_it_has_had() -> None:
    job = GoodputJob(0.0, "cifar10", 4096.0)
    assert {OPTIONS[n].ranks for n, cost in enumerate(costs(job, 60.0)) if cost < float("inf")} == {1}
    job.option = choose([job], 60.0)[0]
    assert job.option is not None
    job.step(60.0, 60.0)
    assert max(OPTIONS[n].ranks for n, cost in enumerate(costs(job, 120.0)) if cost < float("inf")) == 2


def test_a_job_that_restarts_keeps_its_gpus() -> None:
    job = GoodputJob(0.0, "bert", 96.0, option=0, restart_left=30.0, gradient=(1.0, 10.0), tried={"t4": 8})
    assert choose([job], 600.0) == [0]
    job.restart_left = 0.0
    assert choose([job], 600.0) != [0]


def test_some_models_lose_on_several_nodes_and_others_hardly() -> None:
    found = {(w, 8): distance.loss(w, 8) for w in sia_data.speeds().usual}
    assert max(found.values()) > distance.MOST_LOSS > min(found.values())


def test_half_of_the_users_declare_more_memory_than_their_jobs_need() -> None:
    trace, peaks = learnt_memory.jobs_of(3, changed=0.0)
    known, same = learnt_memory.jobs_of(3, known=True, changed=0.0)
    assert peaks == same and len(trace.jobs) == learnt_memory.JOBS
    assert all(job.spec.slot_memory_mib == peaks[job.job_id] for job in known.jobs)
    declared = [job for job in trace.jobs if job.spec.slot_memory_mib]
    assert 0.2 < len(declared) / len(trace.jobs) < 0.8
    over = [job.spec.slot_memory_mib / peaks[job.job_id] for job in declared]
    assert min(over) > 1.25 and max(over) < 1.8
