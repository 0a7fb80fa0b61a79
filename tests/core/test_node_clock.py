"""Clock for a node's timestamps: the node's own if it is right, otherwise the controller's."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from scheduler_feedback.core.telemetry.node_clock import MOST_SKEW_NS, NodeClock

SECOND = 1_000_000_000
WALL = 1_800_000_000 * SECOND
HERE = WALL - 5000 * SECOND
"""The controller's wall time minus its monotonic time: it has been up for 5,000 s."""


@dataclass
class Node:
    """Node that sends one frame per second. booted: seconds from its boot to the boot of the controller's machine."""

    skew: float = 0.0
    booted: float = 700.0
    clock: NodeClock = field(default_factory=NodeClock)
    changes: int = 0

    def frame(self, second: float, delay: float = 0.01, here_ns: int = HERE) -> None:
        monotonic_ns = int((second + 5000 + self.booted) * SECOND)
        wall_ns = WALL + int((second + self.skew) * SECOND)
        received_ns = int((second + 5000 + delay) * SECOND)
        self.changes += self.clock.take(wall_ns, monotonic_ns, received_ns, here_ns)

    def error(self, second: float) -> float:
        """Return the difference in seconds between the wall time computed for an instant and the controller's."""
        read_ns = int((second + 5000 + self.booted) * SECOND) + self.clock.to_wall_ns
        return (read_ns - WALL) / SECOND - second


def test_a_right_clock_is_used_even_if_frames_arrive_late() -> None:
    chance, node = random.Random(3), Node(skew=0.004)
    for second in range(1800):
        node.frame(second, delay=0.01 + (chance.expovariate(0.5) if second % 7 else 0.0))
        assert node.clock.skew_ns == 0
        assert node.error(second) == pytest.approx(0.004, abs=1e-6)
    assert node.changes == 1


@pytest.mark.parametrize("skew", [-86400.0, -300.0, -2.5, 2.5, 300.0, 86400.0])
def test_a_wrong_clock_is_replaced_by_the_receive_times_of_frames(skew: float) -> None:
    node = Node(skew)
    for second in range(900):
        node.frame(second, delay=0.01 + (second % 5) * 0.3)
        if second > 5:
            assert node.error(second) == pytest.approx(0.01, abs=0.01)
    assert node.clock.skew_ns / SECOND == pytest.approx(skew, abs=0.1)
    assert node.changes <= 2


def test_a_clock_is_right_up_to_the_limit() -> None:
    limit = MOST_SKEW_NS / SECOND
    within, beyond = Node(limit - 0.1), Node(limit + 0.1)
    for second in range(20):
        within.frame(second)
        beyond.frame(second)
    assert within.clock.skew_ns == 0
    assert within.error(20) == pytest.approx(limit - 0.1)
    assert beyond.error(20) == pytest.approx(0.01, abs=0.001)


def test_a_corrected_clock_is_used_again() -> None:
    node = Node(300.0)
    for second in range(60):
        node.frame(second)
    node.skew = 0.0
    node.frame(60)
    assert node.clock.skew_ns == 0
    assert node.error(60) == pytest.approx(0.0, abs=1e-6)


def test_a_node_that_was_suspended_keeps_its_clock() -> None:
    """Its monotonic clock stopped while it was suspended, but its wall clock did not."""
    node = Node()
    for second in range(60):
        node.frame(second)
    node.booted -= 3600.0
    for second in range(3660, 3700):
        node.frame(second)
        assert node.clock.skew_ns == 0
        assert node.error(second) == pytest.approx(0.0, abs=1e-6)


def test_a_wrong_controller_clock_is_used_for_all_nodes() -> None:
    nodes = [Node(0.0), Node(0.2, booted=-100.0)]
    for second in range(30):
        for node in nodes:
            node.frame(second, here_ns=HERE - 600 * SECOND)
    for node in nodes:
        assert node.clock.skew_ns / SECOND == pytest.approx(600.0, abs=0.3)
        assert node.error(30) == pytest.approx(-600.0 + 0.01, abs=0.02)


def test_drift_between_monotonic_clocks_is_followed() -> None:
    """A drift of 50 ppm is a minute and a half in twenty days. The correction has steps of one second."""
    node = Node(300.0)
    for second in range(0, 20 * 86400, 30):
        node.booted = 700.0 - second * 50e-6
        node.skew = 300.0
        node.frame(second)
    assert node.error(20 * 86400 - 30) == pytest.approx(0.01, abs=1.05)


def test_receive_times_correct_nothing_without_a_node_clock() -> None:
    clock = NodeClock()
    assert clock.take(WALL, 500 * SECOND, 7 * SECOND, None)
    assert (clock.offset_ns, clock.skew_ns) == (WALL - 500 * SECOND, 0)
    assert not clock.take(WALL + SECOND, 501 * SECOND, 8 * SECOND, None)
