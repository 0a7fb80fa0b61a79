"""Time shifts on their way to a job: only the controller's certificate can order them, and they are bounded leases."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agent.collectors.steps.step_collector import StepCollector
from agent.rank_attribution import Attribution
from agent.schema.frame import StepRecord
from agent.schema.identity import CONTROLLER, Certificate
from agent.sources.steps.shift_orders import LEASE_SECONDS, MOST_GANGS, Shift, ShiftOrders
from exporter.security.frame_readers import FrameReaders
from exporter.security.security import Security
from exporter.server import SHIFTS_HEADER, FrameStream, ThreadedServer, agent_app
from exporter.serving.http_messages import Request
from gangwatch.daemons.agent_daemon import _shift_with
from gangwatch.steps import Reporter
from scheduler_feedback.core.job import TimeShift
from scheduler_feedback.feed import Feed
from scheduler_feedback.feed import feed as feed_module
from scheduler_feedback.feed.feed_with_readers import FeedWithReaders
from scheduler_feedback.feed.leased_orders import LeasedOrders
from scheduler_feedback.feed.shift_orders import NONE, WORD, order_line
from tests.agent.test_steps_collector import OffsetClock
from tests.feed import test_feed_over_tls
from tests.security.test_identity import Site
from tests.security.test_power_orders import made_frame

PERIOD_NS = 40_000_000


@pytest.mark.parametrize("processes", [0, 1])
def test_an_order_of_the_controller_reaches_a_reporter_and_delays_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setattr(feed_module, "DISCOVERY_SECONDS", 0.05)
    monkeypatch.setattr(test_feed_over_tls, "Feed", partial(FeedWithReaders, processes=processes))
    site, made, shifts = Site(tmp_path), made_frame(), ShiftOrders()
    readers = FrameReaders((CONTROLLER,), site.authority.path / "revoked.json")
    orders = LeasedOrders(WORD)
    original = Feed.__init__

    def with_orders(self: Feed, *arguments: object, **more: object) -> None:
        original(self, *arguments, **more)  # type: ignore[arg-type]
        self.orders = (orders,)

    monkeypatch.setattr(Feed, "__init__", with_orders)
    path = str(tmp_path / "agent.sock")
    collector = StepCollector(path, Attribution(str(tmp_path / "ranks")), shifts=shifts)
    reporter = Reporter({"GANGWATCH_SOCKET": path, "GANGWATCH_JOB": "j 1", "RANK": "0"})
    other = Reporter({"GANGWATCH_SOCKET": path, "GANGWATCH_JOB": "j-2", "RANK": "0"})
    off = Reporter({"GANGWATCH_SOCKET": path, "GANGWATCH_JOB": "j 1", "RANK": "1", "GANGWATCH_TIME_SHIFTS": "off"})
    gang = f"uid-{os.getuid()}/j 1"
    app = agent_app(lambda: made, lambda _: lambda: None, shift=_shift_with(shifts, readers))

    def ordered(feed: Feed, _count: int) -> bool:
        line = order_line({gang: TimeShift(PERIOD_NS, 7)})
        orders.replace({"n0": line}, feed._clock.monotonic_ns())
        return shifts.newest()[1] == {gang: Shift(PERIOD_NS, 7)}

    security = Security(site.web_config(site.issue("node", "n0")), readers=readers)
    try:
        with ThreadedServer(app, security=security) as server:
            test_feed_over_tls.follow(site.agents, server.url, site.credentials(site.issue("controller")), ordered)
        begun = []
        for number in range(400):
            for one in (other, off):
                with one.step():
                    pass
            with reporter.step():
                begun.append(time.time_ns())
                time.sleep(0.03)
            collector.collect()
            if number > 5 and sum(on_grid(one) for one in begun[-6:]) == 6:
                break
        assert sum(on_grid(one) for one in begun[-6:]) == 6, "its steps begin at the times of the grid"
        assert other.waited_ns == off.waited_ns == 0
        steps = [one for one in collector.take_records() if isinstance(one, StepRecord) and one.member.gang == gang]
        last = max((one for one in steps if one.member.rank == 0), key=lambda one: one.step)
        assert last.duration_ns > 36_000_000, "the wait is part of the step"
    finally:
        for one in (reporter, other, off):
            one.close()
        collector.close()


def on_grid(begun_ns: int) -> bool:
    return (begun_ns - 7) % PERIOD_NS < PERIOD_NS // 9


def test_a_revoked_controller_orders_no_shifts(tmp_path: Path) -> None:
    site, shifts = Site(tmp_path), ShiftOrders()
    readers = FrameReaders((CONTROLLER,), site.authority.path / "revoked.json")
    shift = _shift_with(shifts, readers)
    assert shift is not None and _shift_with(shifts, None) is None and _shift_with(None, readers) is None
    site.issue("controller")
    request = Request("GET", "/frames", "", {}, certificate=Certificate(frozenset({CONTROLLER}), "AB", 0.0, 1e12))
    assert shift(request, {"j": (1, 0)})
    site.authority.revoke("controller", "", "stolen")
    readers.read()
    assert not shift(request, {"j": (2, 0)})
    assert shifts.newest()[1] == {"j": Shift(1, 0)}


def test_a_process_of_the_node_cannot_order_shifts_over_loopback() -> None:
    """On loopback there is no certificate: any tenant of the node could connect and delay the others."""
    made, asked = made_frame(), list[Mapping[str, tuple[int, int]]]()

    def shift(_request: Request, shifts: Mapping[str, tuple[int, int]]) -> bool:
        asked.append(shifts)
        return True

    app = agent_app(lambda: made, lambda _: lambda: None, shift=shift)
    with ThreadedServer(app) as server:
        port = urlsplit(server.url).port
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.sendall(b"GET /frames HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert SHIFTS_HEADER.lower().encode() not in client.recv(65536).lower()
            client.sendall(order_line({"j-1": TimeShift(1000, 0)}))
            while client.recv(65536):
                pass  # the agent closes the stream
    assert not asked


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        (order_line({"a/b c": TimeShift(1000, 10), "s-7.0": TimeShift(5, 0)}), {"a/b c": (1000, 10), "s-7.0": (5, 0)}),
        (NONE, {}),
        (b"time-shifts j=0/0\n", None),
        (b"time-shifts j=5\n", None),
        (b"time-shifts j=-5/0\n", None),
        (b"time-shifts j=5/0x1\n", None),
        (b"time-shifts  j=5/0\n", None),
        (b"time-shifts" + b" j=1/0" * 65 + b"\n", None),
        (b"time-shifts " + b"x" * 20000, None),
    ],
)  # fmt: skip
def test_orders_are_parsed_strictly(line: bytes, taken: dict[str, tuple[int, int]] | None) -> None:
    found: list[Mapping[str, tuple[int, int]]] = []

    def shift(shifts: Mapping[str, tuple[int, int]]) -> bool:
        found.append(shifts)
        return True

    stream = FrameStream((), lambda _: None, shift=shift)
    assert stream.take_request(line[:7]) and stream.take_request(line[7:]) is (taken is not None)
    assert found == ([] if taken is None else [taken])
    assert FrameStream((), lambda _: None).take_request(order_line({"j": TimeShift(5, 0)})) is False


def test_an_order_that_is_not_renewed_ends() -> None:
    clock = OffsetClock()
    orders = ShiftOrders(clock)
    orders.order({f"j-{number}": (1000, 0) for number in range(MOST_GANGS + 5)})
    number, shifts = orders.newest()
    assert len(shifts) == MOST_GANGS
    clock.ahead_ns = round((LEASE_SECONDS - 1) * 1e9)
    assert orders.newest() == (number, shifts)
    clock.ahead_ns += 2 * 10**9
    assert orders.newest()[1] == {} and orders.newest()[0] > number
