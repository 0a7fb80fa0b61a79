"""Time shifts in the controller: orders to the agents of a gang's ranks, and delays of reported steps."""

from __future__ import annotations

import numpy as np
import pytest

from agent.schema.frame import Column, Frame, Layout, Tier, make_layout
from scheduler_feedback.controller.reports.time_shift_reports import DELAY, STEPS, TimeShiftReports
from scheduler_feedback.core.events import SpeedMeasured, Tick
from scheduler_feedback.feed.leased_orders import LeasedOrders
from scheduler_feedback.feed.shift_orders import NONE, WORD, order_line
from tests.policies.test_time_shifts import job_of, measure, two_gangs


def layout_of(node: str, gang: str) -> Layout:
    labels = (("attempt", "1"), ("gang", gang), ("rank", "0"))
    return make_layout(node, [Tier("steps", 0.5)], [], [Column(STEPS, labels, 0), Column(DELAY, labels, 0)])


def frame_of(layout: Layout, steps: int, delay_ns: int, known: bool = True) -> Frame:
    counters, valid = np.array([steps, delay_ns], np.uint64), np.array([True, known])
    return Frame(
        layout.node, "boot", "agent", 1, layout.layout_id, 1, 1, np.array([1]), np.zeros(0), counters, valid
    )  # fmt: skip


def test_agents_of_shifted_gangs_get_orders_with_their_own_names_of_the_gangs() -> None:
    orders, changed = LeasedOrders(WORD), list[str]()
    reports = TimeShiftReports(orders, lambda gang: gang.partition(".")[0], changed.append)
    world, first, second = two_gangs()
    assert reports.measure(world.state, 1) == [] and reports.enabled
    raw = layout_of("agent-0", f"{first}.0")
    reports.take(raw, raw, frame_of(raw, 1, 0))
    for job in (first, second):
        measure(world, job)
    reports.measure(world.state, 2)
    shift = job_of(world, first).time_shift
    assert shift is not None
    assert orders.due("agent-0", b"", 0, 3) == order_line({f"{first}.0": shift})
    assert orders.due("agent-1", b"", 0, 3) == b""
    assert changed == [first, second]
    reports.measure(world.state, 4)
    assert changed == [first, second], "they are measured again only after a change"
    world.cycle(Tick())
    world.state.policy = type(world.state.policy)()
    reports.measure(world.state, 5)
    assert not reports.enabled and orders.due("agent-0", order_line({f"{first}.0": shift}), 3, 6) == NONE


def test_a_report_of_speed_gets_the_delay_of_its_own_steps() -> None:
    reports = TimeShiftReports(LeasedOrders(WORD), lambda gang: gang, lambda _job: None)
    reports.enabled = True
    layout, event = layout_of("n0", "j"), SpeedMeasured("j", 1, 2.0, 15.0)
    assert reports.with_delays([Tick(), event]) == [Tick(), event], "nothing is known"
    reports.take(layout, layout, frame_of(layout, 100, 10**9))
    reports.with_delays([event])
    reports.take(layout, layout, frame_of(layout, 120, 3 * 10**9))
    (found,) = reports.with_delays([event])
    assert isinstance(found, SpeedMeasured) and found.delay_seconds == pytest.approx(0.1)
    reports.take(layout, layout, frame_of(layout, 140, 0, known=False))
    assert reports.with_delays([event]) == [event], "its reporter cannot delay steps"
    reports.forget("j")
    assert reports.with_delays([event]) == [event]
