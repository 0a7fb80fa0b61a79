"""Step time without the suspects that `gangwatch detect` reports, compared with jobs whose true value is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.telemetry import Shape
from scheduler_feedback.step_traces.counterfactual import slowdown_to_equal_peers, without_seconds
from tests.detect.traces import detect, of_kind

SHARED = 0.2


def job(path: Path, slow: dict[int, list[tuple[int, int, float]]], lost: float = 0.0, ranks: int = 16) -> float:
    """Write 300 steps of a job. Return its mean step time without the slow ranks.

    slow: rank -> (first step, last step, factor of its own time). lost: share of samples that are missing.
    """
    random = np.random.default_rng(17)
    own = random.lognormal(0.0, 0.01, (300, ranks))
    healthy = own.max(axis=1) + SHARED
    for rank, episodes in slow.items():
        for first, last, factor in episodes:
            own[first : last + 1, rank] *= factor
    seconds = own.max(axis=1) + SHARED
    with path.open("w") as file:
        for (step, rank), mine in np.ndenumerate(own):
            if random.random() >= lost:
                row = {"step": step, "rank": rank, "seconds": seconds[step], "wait_seconds": seconds[step] - mine}
                file.write(json.dumps(row) + "\n")
    return float(healthy.mean())


def test_all_episodes_of_a_rank_count(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    healthy = job(path, {3: [(60, 110, 1.5), (190, 240, 1.5)]})
    found = detect(path)
    assert len(of_kind(found, "straggler")) == 2
    gain = found["job"]["step_seconds"] - found["job"]["without_suspects_seconds"]
    assert gain == pytest.approx(found["job"]["step_seconds"] - healthy, rel=0.1)


def test_lost_samples_do_not_hide_the_gain(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    healthy = job(path, {3: [(60, 299, 1.5)]}, lost=0.05, ranks=128)  # every step lacks a sample
    found = detect(path)["job"]
    assert found["step_seconds"] - found["without_suspects_seconds"] == pytest.approx(
        found["step_seconds"] - healthy, rel=0.12
    )
    assert found["slowdown"] > 1.2


def test_steps_of_unknown_waits_count_in_both_means() -> None:
    seconds = np.full((4, 5), 1.0)
    own = np.full((4, 5), 0.5)
    seconds[2:] = 3.0
    own[:, 1] = 0.9
    own[2:] = np.nan
    shape = Shape("j", 1, np.arange(5), tuple(f"n-{rank}" for rank in range(5)))
    found = without_seconds(shape, np.arange(4), seconds, own, {1: [(0, 3)]})
    assert found == pytest.approx((0.6 + 0.6 + 3.0 + 3.0) / 4)
    assert slowdown_to_equal_peers(seconds, own) == pytest.approx(1.0 / (0.1 + 0.58))
    assert np.isnan(without_seconds(shape, np.arange(4), seconds, np.full((4, 5), np.nan), {1: [(0, 3)]}))
