"""Faults from the first step: counters show them, although neither they nor the steps ever change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scheduler_feedback.core.verdict import Cause, Kind, Verdict
from scheduler_feedback.detectors import make_detection
from scheduler_feedback.detectors.ablation_switches import Switches
from scheduler_feedback.detectors.steps.baseline import learn
from scheduler_feedback.detectors.steps.places import middle_of_equals, places
from scheduler_feedback.detectors.straggler.cusum import _sigmas
from scheduler_feedback.detectors.straggler.gang_state import GangState
from scheduler_feedback.detectors.straggler.shown_from_start import learn_shown
from tests.detectors.gang_windows import shape_of, where_of, windows_of
from tests.detectors.test_detectors import Job, course, verdicts

RANKS = 16
NODE = np.arange(RANKS) // 4 == 1
RANK = np.arange(RANKS) == 5


def found_in(slow: float = 1.0, stages: bool = False, nodes: int = 4, **counters: Any) -> list[Verdict]:
    """Return the verdicts on a job of some nodes. The ranks of NODE take `slow` times as long since the start."""
    job = Job(ranks=RANKS, nodes=nodes)
    if stages:
        job.shape = replace(job.shape, stage=np.arange(RANKS) // 4)
    job.work = lambda second: np.where(NODE, 0.7 * slow, 0.7)
    for name, value in counters.items():
        make = value if callable(value) else (lambda second, value=value: np.asarray(value))
        job.feature[name] = make
    return [one for one in verdicts(course(make_detection(), [job], 100)) if one.kind in (Kind.STRAGGLER, Kind.HEALTH)]


@pytest.mark.parametrize(("counter", "cause"), [("cpu_waiting", Cause.CPU_CONTENTION), ("io_waiting", Cause.STORAGE)])
def test_a_node_whose_host_is_busy_since_the_start_is_slow_for_that_reason(counter: str, cause: Cause) -> None:
    (verdict, *more) = found_in(1.12, False, 4, **{counter: np.where(NODE, 0.3, 0.0)})
    assert not more
    assert (verdict.kind, verdict.cause, verdict.node, verdict.level) == (Kind.STRAGGLER, cause, "j-n1", "node")
    assert verdict.confidence >= 0.9


def test_neither_a_slower_node_nor_a_busy_host_is_enough() -> None:
    assert not found_in(1.12)
    assert not found_in(1.0, cpu_waiting=np.where(NODE, 0.3, 0.0))
    assert not found_in(1.12, cpu_waiting=np.where(~NODE, 0.3, 0.0)), "other hosts are busy"
    assert not found_in(1.12, cpu_waiting=np.where(NODE, 0.3, 0.0), stages=True), "its stage is on no other node"


@pytest.mark.parametrize(("alike", "accused"), [(1, [0]), (2, [0]), (3, []), (6, [])])
def test_a_node_that_is_as_slow_as_several_others_is_of_another_model(alike: int, accused: list[int]) -> None:
    """Only the counters of one of them have arrived. They differ from those of its peers, as those of its model do.

    Of 2,048 GPUs, 368 were of a slower model, and one of their nodes was to be left (benchmarks.detection, seed 1001).
    """
    where = where_of(64, [f"n{rank // 4:02d}" for rank in range(64)])
    own = np.tile(np.where(where.index < alike, 1.05, 0.7), (20, 1))
    watched: Any = SimpleNamespace(counted=10, where=where, baseline=learn(windows_of(own, where), None, where))
    watched.baseline = replace(watched.baseline, from_start=np.zeros(64, np.bool_))
    learn_shown(watched, watched.baseline, lambda rank: Cause.POWER if where.index[rank] == 0 else Cause.UNKNOWN)
    assert np.unique(where.index[watched.baseline.from_start]).tolist() == accused


@pytest.mark.parametrize("models", [(), ("A100", "H100"), ("H100", "H100"), ("", "H100")])
def test_a_node_with_gpus_of_another_model_is_not_compared_with_the_others(models: tuple[str, ...]) -> None:
    """Of its counters, the limited power is as usual for the model."""
    job = Job(ranks=RANKS, nodes=4)
    if models:
        job.shape = replace(job.shape, models=tuple(np.where(NODE, *models).tolist()))
    job.work = lambda second: np.where(NODE, 1.4, 0.7)
    job.feature["power_throttle"] = lambda second: np.where(NODE, 0.5, 0.0)
    accused = [one for one in verdicts(course(make_detection(), [job], 60)) if one.kind is Kind.STRAGGLER]
    assert bool(accused) == (models != ("A100", "H100"))


def test_a_rank_is_compared_with_ranks_of_its_role_and_model() -> None:
    stage, model = np.arange(16) // 8, np.tile(np.repeat([0, 1], 4), 2)
    shape = replace(shape_of(16, stage=stage.tolist()), models=tuple(f"m{one}" for one in model))
    values = stage * 10.0 + model
    assert np.array_equal(middle_of_equals(values, places(shape)), values)
    lone = replace(shape, models=("m2", *shape.models[1:]))
    assert np.isnan(middle_of_equals(values, places(lone))[:4]).all(), "its model, and three of the other, are too few"


def test_the_excess_over_peers_is_that_over_ranks_of_the_same_model() -> None:
    """A rank of the faster model takes half as long again, and still computes for less time than the slower model."""
    fast = np.arange(16) < 6
    where = places(replace(shape_of(16), models=tuple(np.where(fast, "H100", "A100").tolist())))
    usual = np.where(fast, 0.7, 1.4)
    baseline = learn(windows_of(np.tile(usual, (20, 1)), where), None, where)
    watched = GangState(1, tuple(range(16)), where, 0, baseline=baseline, score=np.zeros(16))
    [window] = windows_of((usual * np.where(np.arange(16) == 2, 1.5, 1.0))[None], where)
    assert np.flatnonzero(_sigmas(watched, baseline, window, Switches()) > 5).tolist() == [2]


def accused_for_power(step_seconds: float, tensor: float | None, experts: int = 1, seconds: int = 60) -> bool:
    """Return whether a rank that is slow since the start and has reached its power limit is accused.

    step_seconds: of a healthy job; counters have windows of a second. tensor: use of its tensor cores, 1 for that of
    its peers; None if it is unknown. experts: number of experts to which the job routes tokens.
    """
    job = Job(ranks=RANKS, nodes=4, step_seconds=step_seconds)
    job.shape = replace(job.shape, expert=np.arange(RANKS) % experts)
    job.work = lambda second: 0.7 * step_seconds * np.where(RANK, 1.4, 1.0)
    job.feature["power_throttle"] = lambda second: np.where(RANK, 0.5, 0.0)
    used = np.full(RANKS, np.nan) if tensor is None else 0.4 * np.where(RANK, tensor, 1.0)
    job.feature["tensor_active"] = lambda second: used
    found = [one for one in verdicts(course(make_detection(), [job], seconds)) if one.kind is Kind.STRAGGLER]
    assert all((one.rank, one.cause) == (5, Cause.POWER) for one in found)
    return any(one.confidence >= 0.9 for one in found)


def test_a_gpu_that_has_more_work_than_its_peers_may_reach_its_power_limit() -> None:
    """Two healthy jobs whose hot expert had not reported its tokens were to be moved (benchmarks.detection, seed
    1010)."""
    assert accused_for_power(0.5, tensor=1.0)
    assert not accused_for_power(0.5, tensor=1.4)


@pytest.mark.parametrize(("experts", "accused"), [(1, True), (4, False)])
def test_with_experts_a_limited_gpu_is_accused_only_if_it_has_no_more_work(experts: int, accused: bool) -> None:
    assert accused_for_power(0.5, None, experts) == accused, "its work is unknown"
    assert accused_for_power(32.0, 1.0, experts, seconds=1800) == accused, "too few steps in the mean of its work"
    assert accused_for_power(0.5, 1.0, experts) and accused_for_power(2.0, 1.0, experts)
    assert not accused_for_power(2.0, 1.4, experts)


@pytest.mark.parametrize(
    ("fast", "by_times", "shown"), [(0, True, True), (8, False, True), (14, False, False), (17, False, False)]
)
def test_a_node_that_only_stalled_in_the_warm_up_was_not_slow_from_the_start(
    fast: int, by_times: bool, shown: bool
) -> None:
    """Its data loader stalled in the warm-up, and each later stall counted as a fault of its GPUs, which had reached
    their power limit since the start (benchmarks.detection, seed 1022). fast: windows of 20 without a stall."""
    where = where_of(64, [f"n{rank // 4:02d}" for rank in range(64)])
    node = where.index == 0
    own = np.full((20, 64), 0.7)
    own[np.ix_(np.arange(20) >= fast, node)] *= 2.0
    learned = learn(windows_of(own, where), None, where)
    assert bool(learned.from_start[node].any()) == by_times
    unmarked = replace(learned, from_start=np.zeros(64, np.bool_))
    watched: Any = SimpleNamespace(counted=10, where=where, baseline=unmarked)
    learn_shown(watched, watched.baseline, lambda rank: Cause.POWER if node[rank] else Cause.UNKNOWN)
    assert bool(watched.baseline.from_start[node].all()) == shown


@pytest.mark.parametrize(
    ("counter", "value", "usual", "cause", "level"),
    [
        ("nvlink_errors", 3.0, 0.0, Cause.NVLINK, "gpu"),
        ("nic_physical_errors", 3.0, 0.0, Cause.NIC, "nic"),
        ("memory_errors", 8.0, 0.0, Cause.MEMORY, "gpu"),
        ("pcie_link", 0.5, 1.0, Cause.PCIE, "gpu"),
    ],
)
def test_a_part_that_fails_in_all_first_windows_is_reported(
    counter: str, value: float, usual: float, cause: Cause, level: str
) -> None:
    (verdict,) = found_in(1.0, False, 4, **{counter: np.where(RANK, value, usual)})
    assert (verdict.kind, verdict.cause, verdict.rank, verdict.level) == (Kind.HEALTH, cause, 5, level)
    assert verdict.slowdown == 1.0 and verdict.confidence >= 0.9


@pytest.mark.parametrize(
    "errors",
    [
        lambda second: np.where(RANK & (second % 9 != 4), 3.0, 0.0),  # one window without errors
        lambda second: np.where(RANK, 0.05, 0.0),  # few errors
        lambda second: np.where(RANK, 3.0, 1.0),  # other nodes have errors, too
        lambda second: np.where(RANK & (second > 8), np.nan, 3.0 * RANK),  # not known for long enough
    ],
)
def test_other_errors_since_the_start_are_left_to_maintenance(errors: Callable[[float], np.ndarray]) -> None:
    assert not found_in(nvlink_errors=errors)


@pytest.mark.parametrize("nodes", [1, 4])
def test_links_that_are_slow_everywhere_are_how_the_machines_are_built(nodes: int) -> None:
    assert not found_in(nodes=nodes, pcie_link=np.full(RANKS, 0.5))
