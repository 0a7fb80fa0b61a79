"""Ranks whose times drift slowly: a long deviation of one rank is not a fault."""

from __future__ import annotations

import numpy as np

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.steps.baseline import learn
from scheduler_feedback.detectors.straggler.alarm_case import Case, Judged
from scheduler_feedback.detectors.straggler.slow_drift import DRIFT_SIGMAS, sigmas_of_drift
from tests.detectors.gang_windows import where_of, windows_of
from tests.detectors.test_persistence import everything, sure

STEPS, RANKS, BLOCK, SUSPECT = 240, 48, 20, 20


def drifting(sigma: float, far: float) -> FloatArray:
    """Return compute seconds of ranks that drift: after 60 steps, each has another level for BLOCK steps at a time.

    The suspect is `far` standard deviations above the mean from step 120 to 139.
    """
    rng = np.random.default_rng(3)
    levels = np.clip(rng.normal(0.0, sigma, (STEPS // BLOCK, RANKS)), -2 * sigma, 2 * sigma)
    levels[:3] = 0.0
    levels[120 // BLOCK, SUSPECT : SUSPECT + 4] = 0.0  # its node
    levels[120 // BLOCK, SUSPECT] = far * sigma
    noise = rng.normal(0.0, 0.01, (STEPS, RANKS))
    return np.exp(np.repeat(levels, BLOCK, axis=0) + noise)


def accused(own: FloatArray) -> set[int]:
    return sure([one for one in everything(own, upto=STEPS) if isinstance(one, Verdict)])


def test_a_long_drift_is_not_accused() -> None:
    assert not accused(drifting(0.06, 4.0))


def test_a_fault_far_beyond_the_drift_is_found() -> None:
    assert accused(drifting(0.06, 7.0)) == {SUSPECT}


def case_of(own: FloatArray, rank: int, alarmed: set[int]) -> Case:
    where = where_of(own.shape[1])
    windows = windows_of(own, where)
    interval = [Judged(window, np.zeros(own.shape[1])) for window in windows[20:]]
    baseline = learn(windows[:20], None, where)
    return Case(
        rank=rank, ranks=tuple(range(own.shape[1])), where=where, interval=interval, baseline=baseline,
        best_step_seconds=1.0, alarmed=frozenset(alarmed), others_spread=0.0, shared_machine=False, switches=Switches(),
    )  # fmt: skip


def test_alarmed_ranks_and_few_ranks_show_no_drift() -> None:
    own = np.exp(np.random.default_rng(1).normal(0.0, 0.001, (40, 9)))
    own[20:, :4] *= 1.3
    assert sigmas_of_drift(case_of(own, 0, {0, 1, 2})) > DRIFT_SIGMAS
    assert np.isinf(sigmas_of_drift(case_of(own, 0, {0, 1, 2, 3, 4, 5})))
    assert abs(sigmas_of_drift(case_of(own[:20].repeat(2, axis=0), 7, set()))) < DRIFT_SIGMAS
