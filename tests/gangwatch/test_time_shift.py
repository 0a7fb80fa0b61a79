"""The wait of a process before its steps: on the order's grid, bounded, and on lease."""

from __future__ import annotations

import pytest

from gangwatch.reporting import time_shift
from gangwatch.reporting.time_shift import LEASE_NS, TimeShift, wait_of

MS = 1_000_000


class Clock:
    """A clock that only waits advance, and the steps of a training."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 10**15
        self.waits: list[float] = []
        monkeypatch.setattr(time_shift, "monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr(time_shift, "time_ns", lambda: self.now_ns)
        monkeypatch.setattr(time_shift, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def steps(self, shift: TimeShift, count: int, ms: float) -> list[int]:
        """Make steps of this length, and return the wait before each in ns."""
        waits = []
        for _ in range(count):
            waits.append(shift.begin())
            self.now_ns += round(ms * MS)
        return waits


def test_the_wait_ends_at_the_next_time_of_the_grid_unless_it_is_just_over() -> None:
    assert [wait_of(100, 7, at) for at in (7, 17, 18, 106, 107)] == [0, 0, 89, 1, 0]


def test_steps_begin_at_the_times_of_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, shift = Clock(monkeypatch), TimeShift()
    assert clock.steps(shift, 3, 100) == [0, 0, 0]
    shift.take({"period_ns": 104 * MS, "offset_ns": 50 * MS})
    clock.steps(shift, 3, 100)
    assert clock.steps(shift, 5, 100) == [4 * MS] * 5
    shift.take(None)
    assert clock.steps(shift, 2, 100) == [0, 0]


def test_all_waits_are_at_most_a_quarter_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong order, whose period is far longer than the steps."""
    clock, shift = Clock(monkeypatch), TimeShift()
    clock.steps(shift, 3, 100)
    shift.take({"period_ns": 60_000 * MS, "offset_ns": 0})
    waits = clock.steps(shift, 200, 100)
    assert max(waits) <= 100 * MS
    assert sum(waits) <= 200 * 100 * MS // 4 + 100 * MS
    clock.steps(shift, 1, 3_600_000)
    assert shift.begin() <= 100 * MS, "one long step, such as a checkpoint, allows no longer wait"


def test_an_order_ends_without_renewal_and_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, shift = Clock(monkeypatch), TimeShift()
    clock.steps(shift, 3, 100)
    order = {"period_ns": 120 * MS, "offset_ns": 0}
    shift.take(order)
    clock.steps(shift, 3, 100)
    assert clock.steps(shift, 1, 100) == [20 * MS]
    clock.now_ns += LEASE_NS
    assert clock.steps(shift, 3, 100) == [0, 0, 0]
    shift.take(order)
    shift.end()
    assert clock.steps(shift, 3, 100) == [0, 0, 0]


@pytest.mark.parametrize(
    "order",
    [None, 5, [], {}, {"period_ns": 1000, "offset_ns": 0}, {"period_ns": 10**15, "offset_ns": 0},
     {"period_ns": 1e8, "offset_ns": 0}, {"period_ns": True, "offset_ns": 0}, {"period_ns": "9", "offset_ns": 0}],
)  # fmt: skip
def test_an_invalid_order_delays_nothing(monkeypatch: pytest.MonkeyPatch, order: object) -> None:
    clock, shift = Clock(monkeypatch), TimeShift()
    clock.steps(shift, 3, 100)
    shift.take({"period_ns": 120 * MS, "offset_ns": 0})
    shift.take(order)
    assert clock.steps(shift, 5, 100) == [0] * 5


def test_the_first_steps_are_not_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, shift = Clock(monkeypatch), TimeShift()
    shift.take({"period_ns": 120 * MS, "offset_ns": 3 * MS})
    assert clock.steps(shift, 2, 100) == [0, 0], "nothing says how long its steps are"
