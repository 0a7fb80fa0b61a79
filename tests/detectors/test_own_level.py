"""A rank that was slow from the start and is not accused is compared with its own past, once that is known."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.verdict import Verdict
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.steps.baseline import learn
from scheduler_feedback.detectors.straggler.cusum import ALARM, judge_window
from scheduler_feedback.detectors.straggler.gang_state import INTERVAL_WINDOWS, ActiveVerdict, GangState
from scheduler_feedback.detectors.straggler.own_level import learn_levels, note_refusal
from tests.detectors.gang_windows import shape_of, where_of, windows_of
from tests.detectors.test_persistence import OF_NODE, STEPS, own_times, results, sure

OTHER_MODEL = tuple((rank, 0, STEPS, 1.22) for rank in OF_NODE)
"""The GPUs of one of four nodes are slower for the whole run."""


def accused(own: FloatArray) -> set[int]:
    return sure([one for one in results(own) if isinstance(one, Verdict)])


def test_gpus_of_a_slower_model_are_not_accused() -> None:
    assert not accused(own_times(*OTHER_MODEL))


def test_a_fault_of_two_slower_gpus_is_found() -> None:
    assert accused(own_times(*OTHER_MODEL, (8, 150, STEPS, 1.4), (10, 150, STEPS, 1.4))) == {8, 10}


def test_a_fault_of_another_node_is_found_beside_slower_gpus() -> None:
    assert accused(own_times(*OTHER_MODEL, (2, 150, STEPS, 1.5))) == {2}


def test_a_rank_that_is_slow_from_the_start_and_accused_keeps_its_verdict() -> None:
    own = own_times((5, 0, STEPS, 1.9))
    found = [one for one in results(own, laid_out=True) if isinstance(one, Verdict)]
    assert sure(found) == {5}


# --- one alarm --------------------------------------------------------------------------------------------------------

RANK = 3


def state_of(own: FloatArray, windows: int, final: bool = True) -> GangState:
    """Return the state after windows in which the checks refused each alarm. The first dozen is the warm-up."""
    where = where_of(own.shape[1])
    baseline = learn(windows_of(own[:12], where), None, where, final)
    watched = GangState(1, tuple(range(own.shape[1])), where, 0, shape_of(own.shape[1]))
    watched.forget_course()
    watched.baseline = baseline
    for window in windows_of(own[:windows], where):
        judge_window(watched, watched.baseline, window, Switches())
        raised = np.flatnonzero(watched.score >= ALARM).tolist()
        for rank in raised:
            note_refusal(watched, watched.baseline, rank, True)
        learn_levels(watched, watched.baseline, raised)
    return watched


def slow_from_start(watched: GangState) -> bool:
    assert watched.baseline is not None
    return bool(watched.baseline.from_start[RANK])


def test_the_level_is_known_after_two_dozen_windows() -> None:
    own = own_times((RANK, 0, STEPS, 1.3))
    assert slow_from_start(state_of(own, INTERVAL_WINDOWS))
    watched = state_of(own, INTERVAL_WINDOWS + 4)
    assert watched.baseline is not None
    assert not slow_from_start(watched)
    assert watched.baseline.reference[RANK] == pytest.approx(1.3, rel=0.02)
    assert watched.score[RANK] == 0.0
    assert watched.since[RANK] == -1
    again = state_of(own, INTERVAL_WINDOWS + 40)
    assert again.score[RANK] < ALARM
    assert max(judged.sigmas[RANK] for judged in again.history) < 6.0, "the old alarm is not a spell of the rank"


def test_a_fault_that_grows_stays_an_alarm() -> None:
    own = own_times((RANK, 0, STEPS, 1.3))
    own[:, RANK] *= 1.003 ** np.arange(STEPS)
    assert slow_from_start(state_of(own, 60))


def test_a_rank_that_passes_the_checks_again_starts_anew() -> None:
    watched = state_of(own_times((RANK, 0, STEPS, 1.3)), 20)
    assert watched.baseline is not None
    assert watched.refused_since
    note_refusal(watched, watched.baseline, RANK, False)
    assert not watched.refused_since


def test_before_the_warm_up_ends_no_level_is_known() -> None:
    assert slow_from_start(state_of(own_times((RANK, 0, STEPS, 1.3)), 60, final=False))


def test_an_accused_rank_keeps_its_alarm() -> None:
    watched = state_of(own_times((RANK, 0, STEPS, 1.3)), INTERVAL_WINDOWS)
    assert watched.baseline is not None
    watched.active[RANK] = ActiveVerdict("v", 0, 0.95)
    watched.counted += INTERVAL_WINDOWS
    learn_levels(watched, watched.baseline, [RANK])
    assert slow_from_start(watched)
