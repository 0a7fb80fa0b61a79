"""Reports of GPU power from frames, and the orders that follow from the scheduler's decisions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from agent.schema.frame import Column, Frame, Layout, Tier, make_layout
from scheduler_feedback.controller.reports.power_reports import (
    CALM_SECONDS,
    LIMIT,
    POWER,
    SETTABLE,
    SILENT_SECONDS,
    PowerReports,
)
from scheduler_feedback.core.events import Event, NodeSeen, PolicySet, PowerSeen
from scheduler_feedback.core.state import Policy
from scheduler_feedback.feed.leased_orders import LeasedOrders
from scheduler_feedback.feed.power_orders import WORD
from tests.cluster.cycle_world import SECOND, World

GPUS = ("GPU-a", "GPU-b")


def frame_of(seq: int, values: dict[str, dict[str, float]], node: str = "n0") -> tuple[Layout, Frame]:
    """Return a frame. values: by GPU; 'power', 'fixed', or the label of a settable limit."""
    columns, gauges = [], []
    for gpu, named in values.items():
        for name, value in named.items():
            metric = {"power": POWER, "fixed": LIMIT}.get(name, SETTABLE)
            labels = {"gpu": gpu} | ({} if name == "power" else {"limit": {"fixed": "current"}.get(name, name)})
            columns.append(Column(metric, tuple(sorted(labels.items()))))
            gauges.append(value)
    layout = make_layout(node, [Tier("node", 1.0)], columns, [])
    arrays: Any = np.array([0], np.int64), np.array(gauges), np.zeros(0, np.uint64), np.zeros(0, np.bool_)
    return layout, Frame(node, "boot", "agent", seq, layout.layout_id, 1, 1, *arrays)


def settable(current: float, power: float = 80.0, least: float = 300.0) -> dict[str, float]:
    return {"least": least, "most": 700.0, "current": current, "own": 700.0, "power": power}


class Site:
    """One node with two GPUs, and the reports of its agent. together: whether slots have no known GPU."""

    def __init__(self, budget: float = 1000.0, together: bool = False) -> None:
        self.world = World({}, Policy(power_budget_watts=budget))
        devices = () if together else GPUS
        self.world.cycle(NodeSeen("n0", 2, devices, gpu_type="H100"))
        self.orders, self.changed = LeasedOrders(WORD), list[str]()
        self.reports = PowerReports(self.orders, self.changed.append)
        self.now_ns, self.seq = 1_000 * SECOND, 0
        self.measure()

    def measure(self, seconds: float = 1.0) -> list[Event]:
        self.now_ns += round(seconds * SECOND)
        events = self.reports.measure(self.world.state, self.now_ns)
        if events:
            self.world.cycle(*events)
            self.reports.measure(self.world.state, self.now_ns)
        return events

    def frame(self, values: dict[str, dict[str, float]]) -> list[Event]:
        self.seq += 1
        layout, frame = frame_of(self.seq, values)
        self.reports.take("agent-0", layout, frame, self.now_ns)
        return self.measure()

    def order(self) -> bytes:
        return self.orders.due("agent-0", b"power-limits X=1\n", 0, self.now_ns)


def test_limits_are_reported_once_and_idle_gpus_are_asked_for_the_lowest() -> None:
    site = Site()
    [event] = site.frame({gpu: settable(700.0) for gpu in GPUS})
    assert isinstance(event, PowerSeen)
    assert [(one.least_watts, one.most_watts, one.limit_watts, one.idle_watts) for one in event.slots] == [
        (300.0, 700.0, 700.0, 80.0)
    ] * 2
    assert site.order() == b"power-limits GPU-a=300 GPU-b=300\n"
    assert site.frame({gpu: settable(700.0, 79.0) for gpu in GPUS}) == [], "nothing has changed"
    assert len(site.frame({gpu: settable(300.0) for gpu in GPUS})) == 1


def test_a_gang_gets_its_limit_and_a_change_restarts_its_measurement() -> None:
    site = Site()
    site.frame({gpu: settable(300.0) for gpu in GPUS})
    site.world.submit(2, 1000.0)
    site.measure()
    assert site.order() == b"power-limits GPU-a=471 GPU-b=471\n"
    assert site.changed == [], "its first limit is no change"
    site.frame({gpu: settable(471.0, 470.0) for gpu in GPUS})
    assert site.world.state.power["n0"][0].idle_watts == 80.0, "the power of a busy GPU is not that of an idle one"
    job = site.world.state.jobs["j-000001"]
    site.world.advance(60.0)
    site.world.state.power_rise_ns = 0
    site.world.cycle(PolicySet(Policy(power_budget_watts=700.0), "ann"))
    site.measure()
    assert job.power_limit_watts == 300.0
    assert site.changed == ["j-000001"]
    site.world.cycle(PolicySet(Policy(), "ann"))
    site.measure()
    assert site.order() == b"power-limits\n"


def test_a_silent_agent_counts_with_the_limits_that_it_restores() -> None:
    site = Site()
    site.frame({gpu: settable(300.0) for gpu in GPUS})
    assert site.measure(SILENT_SECONDS - 2) == []
    [event] = site.measure(3.0)
    assert isinstance(event, PowerSeen)
    assert [(one.settable, one.limit_watts) for one in event.slots] == [(False, 700.0)] * 2
    assert site.order() == b"power-limits GPU-a=300 GPU-b=300\n", "it may still listen"
    [event] = site.frame({gpu: settable(300.0) for gpu in GPUS})
    assert isinstance(event, PowerSeen)
    assert [(one.settable, one.limit_watts) for one in event.slots] == [(True, 300.0)] * 2


def test_gpus_without_settable_limits_count_with_the_present_one() -> None:
    site = Site()
    [event] = site.frame({gpu: {"fixed": 700.0, "power": 75.0} for gpu in GPUS})
    assert isinstance(event, PowerSeen)
    assert [(one.settable, one.limit_watts) for one in event.slots] == [(False, 700.0)] * 2
    site.frame({gpu: {"fixed": 700.0, "power": 75.0, "least": math.nan, "most": math.nan} for gpu in GPUS})
    assert not site.world.state.power["n0"][0].settable


def test_slots_without_known_gpus_get_one_limit() -> None:
    site = Site(together=True)
    site.frame({gpu: settable(300.0) for gpu in GPUS})
    assert site.world.state.power["n0"][0].together
    one, other = site.world.submit(1, 1000.0), site.world.submit(1, 1000.0)
    site.measure()
    jobs = site.world.state.jobs
    assert jobs[one].power_limit_watts == jobs[other].power_limit_watts == 471.0
    assert site.order() == b"power-limits GPU-a=471 GPU-b=471\n"


def test_a_node_with_more_slots_than_gpus_has_no_settable_limits() -> None:
    site = Site(together=True)
    site.frame({"GPU-a": settable(700.0)})
    assert [(one.settable, one.limit_watts) for one in site.world.state.power["n0"]] == [(False, 350.0)] * 2


def test_idle_power_follows_the_measured_one_in_steps() -> None:
    site = Site()
    site.frame({gpu: settable(300.0) for gpu in GPUS})
    site.now_ns += round(CALM_SECONDS * SECOND)
    for _ in range(30):
        site.frame({gpu: settable(300.0, 95.0) for gpu in GPUS})
    assert [one.idle_watts for one in site.world.state.power["n0"]] == [95.0, 95.0]


def test_without_a_budget_frames_are_not_looked_at() -> None:
    site = Site(budget=0.0)
    assert site.frame({gpu: settable(700.0) for gpu in GPUS}) == []
    assert not site.reports.enabled
