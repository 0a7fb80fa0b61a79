"""Fingerprint of telemetry and verdicts: equal for equal frames, and different if one value differs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from benchmarks.ingest.fingerprint import Hashed, fingerprint
from scheduler_feedback.core.telemetry.series import series_queue
from scheduler_feedback.core.telemetry.steps import record_queue


def test_tables_and_records_have_the_same_fingerprint() -> None:
    found = [fingerprint(6, 6, 3, hashing=True, as_tables=as_tables) for as_tables in (True, False)]
    assert found[0] == found[1] and found[0]["frames"] > 30
    assert fingerprint(6, 6, 4, hashing=True)["telemetry"] != found[0]["telemetry"]


@pytest.mark.parametrize("most", [1, 5, 40])
def test_batches_of_any_size_have_the_same_fingerprint(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With batches of one, each frame is processed alone. Frames are lost, repeated and late, and agents restart."""
    found = fingerprint(12, 8, 5, hashing=True)
    for module in (series_queue, record_queue):
        monkeypatch.setattr(module, "MOST_QUEUED", most)
    assert fingerprint(12, 8, 5, hashing=True) == found and found["frames"] > 90


@dataclass
class Value:
    number: float
    array: np.ndarray[tuple[int], np.dtype[np.float64]]


def test_every_bit_counts() -> None:
    def digest(number: float, last: float) -> str:
        hashed = Hashed()
        hashed.add([{"a": Value(number, np.array([1.0, last]))}])
        return hashed.hexdigest()

    assert digest(1.0, np.nan) == digest(1.0, np.nan)
    assert len({digest(1.0, 2.0), digest(1.0, np.nextafter(2.0, 3.0)), digest(1.5, 2.0), digest(1.0, -0.0)}) == 4
