"""Simulated jobs over time: effects of faults, values that faults do not change, and reproduction by seed."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_feedback.sim.world import clos_fabric, plan
from scheduler_feedback.sim.world.course import Course
from scheduler_feedback.sim.world.fault import DISORDERS, FORMS, Fault, Form
from scheduler_feedback.sim.world.plan import Workload

ONSET, LENGTH = 200.0, 400.0

SLOWING = [d.name for d in DISORDERS.values() if not d.lasting and d.name != "hot-expert"]


def course(gpus: int = 64, workload: Workload = "balanced", seconds: float = 2.0, seed: int = 5) -> Course:
    made = plan.make("j", gpus, workload, seconds, np.random.default_rng(1))
    return Course(made, clos_fabric.place(np.arange(gpus // 8), gpus), np.random.default_rng(seed))


def at_fault(one: Course, disorder: str) -> tuple[int, ...]:
    if disorder == "stage-imbalance":
        return tuple(np.flatnonzero(one.plan.coordinates()[0] == one.plan.stages - 1).tolist())
    many = DISORDERS[disorder].level in ("node", "job")
    return tuple(range(8, 16)) if many else (9,)


def with_fault(one: Course, disorder: str, severity: float = 0.2, form: Form = "step") -> Fault:
    fault = one.solved(Fault(disorder, "j", at_fault(one, disorder), ONSET, LENGTH, form, severity))
    one.faults.append(fault)
    return fault


def ratios(one: Course) -> tuple[np.ndarray, np.ndarray]:
    """Return (start of each step, length of each step divided by its length without faults)."""
    begin = np.concatenate([block.begin for block in one.blocks])
    ratio = np.concatenate([(block.end - block.begin) / block.without for block in one.blocks])
    return begin, ratio


@pytest.mark.parametrize("disorder", SLOWING)
def test_a_fault_costs_its_stated_slowdown_only_while_it_lasts(disorder: str) -> None:
    one = course()
    with_fault(one, disorder)
    one.advance_to(ONSET + LENGTH + 100.0)
    begin, ratio = ratios(one)
    # Heating and cooling take time, so thermal faults get more tolerance.
    settled = (begin > ONSET + 80.0) & (begin < ONSET + LENGTH - 30.0)
    after = begin > ONSET + LENGTH + 60.0
    assert ratio[begin < ONSET - 30.0] == pytest.approx(1.0, abs=1e-6)
    assert ratio[settled].mean() - 1.0 == pytest.approx(0.2, abs=0.05)
    assert ratio[after] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("severity", [0.03, 0.1, 0.5])
@pytest.mark.parametrize("workload", ["balanced", "moe", "unequal-stages"])
def test_magnitudes_are_solved_for_every_severity(severity: float, workload: Workload) -> None:
    for disorder in ("clock-lock", "nvlink", "nic-errors"):
        one = course(workload=workload)
        with_fault(one, disorder, severity)
        one.advance_to(ONSET + LENGTH)
        begin, ratio = ratios(one)
        assert ratio[begin > ONSET + 30.0].mean() - 1.0 == pytest.approx(severity, rel=0.25, abs=0.01)


@pytest.mark.parametrize("form", FORMS)
def test_faults_have_their_form_over_time(form: Form) -> None:
    fault = Fault("clock-lock", "j", (1,), 100.0, 200.0, form, period=20.0)
    times = np.arange(90.0, 310.0, 1.0)
    there = fault.intensity(times)
    assert there[times < 100.0].max() == 0.0
    assert there[times >= 300.0].max() == 0.0
    assert there.max() == 1.0
    if form == "ramp":
        assert (np.diff(there[(times >= 100.0) & (times < 300.0)]) >= 0).all()
    if form == "intermittent":
        assert there[(times >= 100.0) & (times < 300.0)].mean() == pytest.approx(0.7, abs=0.02)


def test_the_culprit_computes_longer_and_the_victims_wait() -> None:
    one = course()
    with_fault(one, "clock-lock")
    one.advance_to(ONSET + LENGTH)
    block = one.blocks[-1]
    kernels = block.kernels.mean(axis=0)
    assert int(kernels.argmax()) == 9
    assert kernels[9] / np.median(kernels) > 1.2
    assert np.sort(kernels)[-2] / np.median(kernels) < 1.05


def test_a_faulty_link_slows_all_ranks_equally() -> None:
    one = course()
    with_fault(one, "nvlink")
    one.advance_to(ONSET + LENGTH)
    kernels = one.blocks[-1].kernels.mean(axis=0)
    assert kernels[9] / np.median(kernels) < 1.05


@pytest.mark.parametrize("disorder", ["hang-compute", "hang-transport", "detachment"])
def test_a_hang_never_ends(disorder: str) -> None:
    one = course()
    one.faults.append(Fault(disorder, "j", (9,), ONSET, LENGTH))
    one.advance_to(ONSET + 1000.0)
    assert one.hung
    last = one.blocks[-1]
    assert last.begin[0] <= ONSET <= last.end[-1]
    assert last.end[-1] > 1e6
    assert last.hangs is not None and last.hangs[0] == 9


def test_only_the_same_seed_gives_the_same_course() -> None:
    ends = []
    for seed in (5, 5, 6):
        one = course(seed=seed)
        with_fault(one, "thermal")
        one.advance_to(400.0)
        ends.append(np.concatenate([block.end for block in one.blocks]))
    assert np.array_equal(ends[0], ends[1])
    assert not np.array_equal(ends[0][:10], ends[2][:10])


def test_fault_that_cannot_slow_the_job_is_refused() -> None:
    made = plan.make("j", 16, "balanced", 1.0, np.random.default_rng(2), communication=0.0)
    one = Course(made, clos_fabric.place(np.arange(2), 16), np.random.default_rng(5))
    with pytest.raises(ValueError, match="nic-errors cannot slow j by 50%"):
        one.solved(Fault("nic-errors", "j", (9,), ONSET, LENGTH, severity=0.5))


def test_interference_acts_only_while_both_send() -> None:
    one = course()
    other = Course(
        plan.make("b", 16, "balanced", 3.0, np.random.default_rng(4), communication=0.4),
        clos_fabric.place(np.arange(20, 22), 16),
        np.random.default_rng(8),
        begin=ONSET,
    )
    one.neighbours["b"] = other
    fault = one.solved(Fault("uplink-congestion", "j", tuple(range(64)), ONSET, LENGTH, severity=0.2, aggressor="b"))
    one.faults.append(fault)
    one.advance_to(ONSET + LENGTH)
    begin, ratio = ratios(one)
    during = ratio[begin > ONSET + 10.0]
    assert ratio[begin < ONSET - 30.0] == pytest.approx(1.0)
    assert 0.1 < during.mean() - 1.0 < 0.35
    assert during.std() > 0.02  # collectives between those of the aggressor are not slowed
