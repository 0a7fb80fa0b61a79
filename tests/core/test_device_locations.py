"""Owner of each GPU that nodes list: the first node that lists it, as long as it reports."""

from __future__ import annotations

from scheduler_feedback.core.telemetry.device_locations import STALE_NS, Parts


def test_a_stale_owner_loses_its_part_and_disputes_it_when_it_returns() -> None:
    received_ns = {"first": 1, "second": 1}
    parts = Parts(received_ns.__getitem__)
    gpu = frozenset({"GPU-1"})
    for _ in range(2):
        assert parts.list("first", gpu, 1) == frozenset()
        assert parts.list("second", gpu, 1) == gpu
    late_ns = received_ns["second"] = STALE_NS + 2
    assert parts.list("second", gpu, late_ns) == frozenset()
    received_ns["first"] = late_ns
    assert parts.list("first", gpu, late_ns) == gpu, "the node has lost its part"
    assert parts.list("first", frozenset({"GPU-2"}), late_ns) == frozenset()
    assert parts.list("second", frozenset({"GPU-2"}), late_ns) == frozenset({"GPU-2"})
