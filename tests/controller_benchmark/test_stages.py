"""Cost of a frame by stage of processing: each stage of the product runs, on real frames over TLS."""

from __future__ import annotations

import pytest

from benchmarks.ingest import stages
from scheduler_feedback.core.telemetry.fleet import Fleet
from tests.needs import component


def test_each_frame_passes_every_stage_once(monkeypatch: pytest.MonkeyPatch) -> None:
    component("openssl", "openssl")
    observed: list[bool] = []
    observe = Fleet.observe

    def count(*arguments: object) -> bool:
        observed.append(observe(*arguments))  # type: ignore[arg-type]
        return observed[-1]

    monkeypatch.setattr(Fleet, "observe", count)
    found = stages.measure(nodes=20, seconds=2, seed=1)
    assert found.keys() == set(stages.STAGES)
    assert all(microseconds > 0 for microseconds in found.values())
    assert observed == [True] * 20 * (stages.WARM_SECONDS + 2), "the fleet took every frame as new"
