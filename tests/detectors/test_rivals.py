"""Rivals: of several neighbours whose loads rise and fall with a job's loss, one is named or none."""

from __future__ import annotations

import numpy as np

from scheduler_feedback.detectors.interference.rivals import Series, equal_rivals


def bursts(seed: int, windows: int = 300) -> np.ndarray:
    """Return a load of 0 or 1 in bursts of ten windows."""
    return np.repeat(np.random.default_rng(seed).random(windows // 10) < 0.4, 10).astype(float)


def test_a_neighbour_with_the_same_load_is_an_equal_rival_and_another_load_is_none() -> None:
    load = bursts(1)
    lost = 0.2 * load + np.random.default_rng(2).normal(0.0, 0.01, len(load))
    found = [Series(name, lost, series) for name, series in (("j-1", load), ("j-2", load), ("j-3", bursts(3)))]
    assert equal_rivals(found[0], found) == ("j-2",)
    assert equal_rivals(found[0], [found[0], found[2]]) == ()


def test_a_rival_is_named_once() -> None:
    load = bursts(1)
    lost = 0.2 * load + np.random.default_rng(2).normal(0.0, 0.01, len(load))
    best, same = Series("j-1", lost, load), Series("j-2", lost, load)
    assert equal_rivals(best, [best, same, same, Series("j-0", lost, load)]) == ("j-0", "j-2")
