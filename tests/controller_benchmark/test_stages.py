"""Cost of a frame by stage of processing: each stage of the product runs, on real frames over TLS."""

from __future__ import annotations

import pytest

from agent.schema.frame import AnyLayout, Frame
from benchmarks.ingest import stages
from scheduler_feedback.core.telemetry.fleet import Fleet
from scheduler_feedback.core.telemetry.placements import Placements
from tests.needs import component


def test_each_frame_passes_every_stage_once(monkeypatch: pytest.MonkeyPatch) -> None:
    component("openssl", "openssl")
    observed: list[bool] = []
    observe = Fleet.observe

    def count(*arguments: object, **options: bool) -> bool:
        observed.append(observe(*arguments, **options))  # type: ignore[arg-type]
        return observed[-1]

    monkeypatch.setattr(Fleet, "observe", count)
    found = stages.measure(nodes=20, seconds=2, seed=1)
    assert (found.pop("sent"), found.pop("with_counters")) == (1.0, 1.0)
    assert found.keys() == set(stages.STAGES)
    assert all(microseconds > 0 for microseconds in found.values())
    assert observed == [True] * 20 * (stages.WARM_SECONDS + 2), "the fleet took every frame as new"


def test_frames_by_need_are_those_with_other_records_and_every_nth(monkeypatch: pytest.MonkeyPatch) -> None:
    component("openssl", "openssl")
    seen: list[tuple[str, int]] = []
    observe = Fleet.observe

    def record(fleet: Fleet, layout: AnyLayout, frame: Frame, received_ns: int, superseded: bool = False) -> bool:
        seen.append((frame.node, frame.seq))
        return observe(fleet, layout, frame, received_ns, superseded)

    monkeypatch.setattr(Fleet, "observe", record)
    never = stages.measure(nodes=4, seconds=7, seed=1, every=5, step_seconds=(1000.0, 1000.0))
    assert never["sent"] == round(1 / 7, 3), "the sixth of the measured frames 4 to 10, on each node"
    assert len(seen) == 4 * 2, "and the first frame of each node, during the warm-up"
    always = stages.measure(nodes=4, seconds=7, seed=1, every=5, step_seconds=(0.5, 0.5))
    assert always["sent"] == 1.0
    apart = stages.measure(nodes=5, seconds=10, seed=1, every=5, step_seconds=(0.5, 0.5), apart=True)
    assert (apart["sent"], apart["with_counters"]) == (1.0, 0.2), "records at once, counters in every fifth frame"


@pytest.mark.parametrize("kubernetes", [False, True])
@pytest.mark.parametrize("repeated", [False, True])
def test_every_backend_of_the_comparison_accepts_all_ranks(
    kubernetes: bool, repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused ranks would be folded at less cost."""
    component("openssl", "openssl")
    fleets: list[Fleet] = []

    def made(placements: Placements) -> Fleet:
        fleets.append(Fleet(placements))
        return fleets[0]

    monkeypatch.setattr(stages, "Fleet", made)
    stages.measure(nodes=20, seconds=2, seed=1, kubernetes=kubernetes, repeated=repeated, moves=3)
    (fleet,) = fleets
    assert sum(len(gang.ranks) for gang in fleet.gangs.values()) == 20 * 8
    assert fleet._membership is not None and not fleet._membership.refused
