"""Hangs of jobs that report neither steps nor collectives, found by counters. A pause of the job is no hang.

A rank that waits in a collective polls on its GPU, which gives a typical SM activity. A rank with another activity is
accused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scheduler_feedback.core.telemetry.steps.gang_attempts import FloatArray
from scheduler_feedback.core.telemetry.telemetry import FEATURE, FEATURES, Counters, JobTelemetry, Shape, Telemetry
from scheduler_feedback.core.verdict import Abstention, Cause, Cleared, Finding, Kind, Verdict
from scheduler_feedback.detectors.hang.hang import HangDetector
from scheduler_feedback.detectors.hang.unreported_hang import Traffic
from tests.detectors.alone import alone

NS = 1_000_000_000
START = 1_700_000_000 * NS
RANKS = 16
STOPS = 300
POLLS = np.full(RANKS, 0.18)


def reported(
    busy: FloatArray, lasts: int = 120, pause: int = 0, writes: bool = False, seconds: float = 1.0, stops: int = STOPS
) -> list[Finding]:
    """Return the results for a job that transfers nothing for `lasts` seconds and then continues.

    busy: SM activity in that time, [ranks]. pause: seconds of an earlier pause. writes: whether the host of rank 3
    waits for its disks.
    """
    shape = Shape("job", 1, np.arange(RANKS), tuple(f"n{rank // 8}" for rank in range(RANKS)))
    detector = alone(HangDetector())
    found: list[Finding] = []
    second = 0.0
    while second < stops + lasts + 20:
        second += seconds
        made = np.zeros((len(FEATURES), 1, RANKS), np.float32)
        active = stops < second <= stops + lasts
        moves = not active and not 100 < second <= 100 + pause
        made[FEATURE["nvlink_bytes"]] = 1e9 * moves
        made[FEATURE["nic_transmit_bytes"]] = 1e8 * moves + 1e3
        made[FEATURE["sm_active"], 0] = 0.8 if moves else busy
        if writes and active:
            made[FEATURE["io_waiting"], 0, :8] = 0.5
        now = START + round(second * NS)
        telemetry = Telemetry(now, (JobTelemetry(shape),), Counters(np.array([now]), seconds, made), (), {})
        found += detector.tick(telemetry)
    return found


def without(rank: int, busy: float = 0.0) -> FloatArray:
    found = POLLS.copy()
    found[rank] = busy
    return found


@pytest.mark.parametrize("seconds", [1.0, 10.0, 30.0])
@pytest.mark.parametrize("busy", [0.0, 1.0])
def test_a_rank_that_does_not_poll_has_not_arrived(seconds: float, busy: float) -> None:
    found = reported(without(3, busy), seconds=seconds)
    assert [type(one) for one in found] == [Verdict, Cleared]
    verdict = found[0]
    assert isinstance(verdict, Verdict)
    assert (verdict.kind, verdict.rank, verdict.cause) == (Kind.HANG, 3, Cause.NEVER_ARRIVED)
    assert 40.0 <= (verdict.last_wall_ns - verdict.first_wall_ns) * 1e-9 <= 40.0 + 2 * seconds


def test_if_all_ranks_poll_no_rank_is_accused() -> None:
    found = reported(POLLS)
    assert [type(one) for one in found] == [Abstention]


@pytest.mark.parametrize(
    ("busy", "more"),
    [
        (np.zeros(RANKS), {}),  # it saves, or evaluates elsewhere
        (without(3), {"lasts": 35}),
        (without(3), {"lasts": 120, "pause": 90}),  # it paused for nearly as long before
        (without(3), {"writes": True}),
        (without(3) * np.linspace(0.7, 1.3, RANKS), {}),  # they start up at different speeds
        (without(3), {"stops": 100}),  # new: the length of its pauses is unknown
    ],
)
def test_a_pause_is_no_hang(busy: FloatArray, more: dict[str, Any]) -> None:
    assert not reported(busy, **more)


def test_half_of_the_ranks_are_not_accused() -> None:
    busy = POLLS.copy()
    busy[[1, 2, 3, 9, 10, 11]] = 0.0
    assert [type(one) for one in reported(busy)] == [Abstention]


def window(moved: float, known: int = RANKS, busy: float = 0.2) -> np.ndarray:
    """Return counters [features, ranks]. Only the first `known` ranks have values."""
    values = np.full((len(FEATURES), RANKS), np.nan, np.float32)
    values[[FEATURE["nvlink_bytes"], FEATURE["nic_transmit_bytes"], FEATURE["io_waiting"]], :known] = [
        [moved],
        [0],
        [0],
    ]
    values[FEATURE["sm_active"], :known] = busy
    return values


def test_a_window_with_less_than_half_of_the_ranks_is_ignored() -> None:
    """With stale agents, a job seems to transfer nothing, or to resume."""
    shape = Shape("job", 1, np.arange(RANKS), ("n",) * RANKS)
    traffic = Traffic(shape)
    for second in range(1, 301):
        traffic.take(window(1e9), second * NS)
    assert (traffic.usual, traffic.idle_windows, traffic.longest) == (pytest.approx(2e9 / 2), 0, 0.0)
    for second in range(301, 360):
        traffic.take(window(0.0, known=RANKS // 2), second * NS)
    assert (traffic.idle_windows, traffic.moved_ns) == (0, 300 * NS)
    assert traffic.stuck(360 * NS) is None
    for second in range(360, 420):
        traffic.take(window(0.0, known=RANKS // 2 + 1), second * NS)
    assert traffic.idle_windows == 60
    assert not traffic.take(window(1e9, known=3), 420 * NS) and traffic.idle_windows == 60
    assert traffic.take(window(1e9, known=RANKS), 421 * NS), "traffic after a pause"
    assert (traffic.idle_windows, traffic.longest) == (0, pytest.approx(121.0))
