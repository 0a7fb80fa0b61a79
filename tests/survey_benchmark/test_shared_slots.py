"""Muri's groups by hand, and the predictor of interference on pairs that it has not seen."""

from __future__ import annotations

from statistics import fmean

import pytest

from benchmarks.survey.muri_groups import Group, GroupedJob, average_jct, fits, interleaved_seconds, pairs_of
from benchmarks.survey.shared_slots import held_out_errors, pair_speeds
from tests import needs


def job(stages: tuple[float, float, float], iterations: float = 100.0, gpus: int = 8, at: float = 0.0) -> GroupedJob:
    alone = sum(stages)
    return GroupedJob(gpus, at, iterations * alone, iterations, alone, stages, 0.0)


def test_two_jobs_that_use_different_resources_take_the_time_of_the_longer() -> None:
    # Storage of one while the other computes: max(6, 2 + 2) + max(0, 0 + 0), times the published overhead of two.
    assert interleaved_seconds(((0.0, 2.0, 2.0), (6.0, 0.0, 0.0))) == pytest.approx(6.0 * 1.33 / 1.015)


def test_pairs_that_use_the_resources_best_are_formed() -> None:
    busy, idle = (0.1, 3.0, 0.1), (3.0, 0.1, 0.1)
    found = pairs_of([Group([job(one)]) for one in (busy, busy, idle, idle)])
    kinds = sorted(tuple(sorted((*one.kind, *(other.kind if other else ())))) for one, other in found)
    assert kinds == [tuple(sorted((busy, idle)))] * 2


def test_jobs_that_fit_run_alone_and_others_in_groups() -> None:
    stages = (1.0, 1.0, 1.0)
    assert average_jct([job(stages)], 1, True) == pytest.approx(300.0)
    alone = average_jct([job(stages), job(stages)], 2, True)
    assert alone == pytest.approx(300.0), "two nodes: nobody shares"
    shared = average_jct([job((3.0, 0.1, 0.1)), job((0.1, 3.0, 0.1))], 1, True)
    assert shared < 1.5 * 320.0, "one node: faster than one after the other"


def test_large_gangs_need_empty_nodes() -> None:
    free = [8, 8]
    assert fits(free, 4) and free == [4, 8]
    assert not fits(free, 16)
    assert fits(free, 8) and free == [4, 0]


def test_held_out_pairs_are_predicted_better_than_by_the_mean() -> None:
    needs.data("interference", "gavel-throughputs.json")
    assert len(pair_speeds()) > 20
    found, mean = held_out_errors(0)
    assert fmean(found) < 0.6 * fmean(mean)
