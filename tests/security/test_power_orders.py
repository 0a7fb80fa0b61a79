"""Orders of power limits: only the controller's certificate can give them, and only where the operator allows it."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec import structs

from agent.power_leases import Allowed, PowerLeases
from agent.schema.errors import ConfigError
from agent.schema.frame import Frame, Layout, make_layout
from agent.schema.identity import CONTROLLER, Certificate
from exporter.security.frame_readers import FrameReaders
from exporter.security.security import Security
from exporter.server import LIMITS_HEADER, FrameStream, ThreadedServer, agent_app
from exporter.serving import agent_http
from exporter.serving.http_messages import Request
from gangwatch.configuration.sections import AgentSection
from gangwatch.daemons.agent_daemon import _leases_of, _limit_with
from gangwatch.state_folder import StateFolder
from scheduler_feedback.feed import Feed, shift_orders
from scheduler_feedback.feed import feed as feed_module
from scheduler_feedback.feed.feed_with_readers import FeedWithReaders
from scheduler_feedback.feed.leased_orders import OLD_SECONDS, RENEW_SECONDS, LeasedOrders
from scheduler_feedback.feed.power_orders import NONE, WORD, order_line
from tests.exporter.sample_frames import small_frame, small_layout
from tests.feed import test_feed_over_tls
from tests.security.test_identity import Site

GPU = "GPU-00000001-0000-4000-8000-000000000000"


def made_frame() -> tuple[Layout, Frame]:
    layout = structs.replace(small_layout(), node="n0")
    layout = make_layout("n0", layout.tiers, layout.gauges, layout.counters)
    return layout, structs.replace(small_frame(layout), node="n0", layout_id=layout.layout_id)


@pytest.mark.parametrize("processes", [0, 1])
def test_the_controllers_certificate_sets_limits_and_a_revoked_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setattr(feed_module, "DISCOVERY_SECONDS", 0.05)
    monkeypatch.setattr(test_feed_over_tls, "Feed", partial(FeedWithReaders, processes=processes))
    site, made = Site(tmp_path), made_frame()
    readers = FrameReaders((CONTROLLER,), site.authority.path / "revoked.json")
    leases = PowerLeases(Allowed(200.0, 700.0), tmp_path / "leases.json", "boot")
    app = agent_app(lambda: made, lambda _: lambda: None, limit=_limit_with(leases, readers))
    orders = LeasedOrders(WORD)
    original = Feed.__init__

    def with_orders(self: Feed, *arguments: object, **more: object) -> None:
        original(self, *arguments, **more)  # type: ignore[arg-type]
        self.orders = (orders,)

    monkeypatch.setattr(Feed, "__init__", with_orders)

    def ordered(feed: Feed, _count: int) -> bool:
        limits = {f"GPU-00000001-0000-4000-8000-{number:012x}": 300.0 for number in range(16)}
        assert len(order_line(limits)) > 700, "more than one read of a small buffer"
        orders.replace({"n0": order_line(limits)}, feed._clock.monotonic_ns())
        return all(leases.wanted(gpu) == 300.0 for gpu in limits)

    security = Security(site.web_config(site.issue("node", "n0")), readers=readers)
    with ThreadedServer(app, security=security) as server:
        credentials = site.credentials(site.issue("controller"))
        began = time.monotonic()
        test_feed_over_tls.follow(site.agents, server.url, credentials, ordered)
        assert time.monotonic() - began < RENEW_SECONDS, "with the first order, not with its repetition"
        limit = _limit_with(leases, readers)
        assert limit is not None
        request = Request("GET", "/frames", "", {}, certificate=Certificate(frozenset({CONTROLLER}), "AB", 0.0, 1e12))
        assert limit(request, {GPU: 350.0})
        site.authority.revoke("controller", "", "stolen")
        readers.read()
        assert not limit(request, {GPU: 400.0}), "it is checked with each order, not only when the stream is opened"
        assert leases.wanted(GPU) == 350.0


@pytest.mark.parametrize("processes", [0, 1])
def test_an_agent_that_takes_no_orders_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    """An agent of an earlier release, or without this order, closes the stream of a controller that sends it one."""
    monkeypatch.setattr(feed_module, "DISCOVERY_SECONDS", 0.05)
    monkeypatch.setattr(test_feed_over_tls, "Feed", partial(FeedWithReaders, processes=processes))
    monkeypatch.setattr(agent_http, "STREAM_POLL_SECONDS", 0.05)  # without frames, it reads orders at this interval
    site, made, said = Site(tmp_path), made_frame(), list[bytes]()
    take = FrameStream.take_request
    monkeypatch.setattr(FrameStream, "take_request", lambda stream, data: said.append(data) or take(stream, data))
    app = agent_app(lambda: made, lambda _: lambda: None)
    kinds = LeasedOrders(WORD), LeasedOrders(shift_orders.WORD)
    connected: list[float] = []

    def offered(feed: Feed, count: int) -> bool:
        feed.orders = kinds
        for kind in kinds:
            kind.replace({"n0": kind.word + b" a=1\n"}, feed._clock.monotonic_ns())
        connected.extend([time.monotonic()] if count and not connected else [])
        return bool(connected) and time.monotonic() - connected[0] > 1.5

    readers = FrameReaders((CONTROLLER,), site.authority.path / "revoked.json")
    security = Security(site.web_config(site.issue("node", "n0")), readers=readers)
    with ThreadedServer(app, security=security) as server:
        test_feed_over_tls.follow(site.agents, server.url, site.credentials(site.issue("controller")), offered)
    assert not any(b"power-limits" in data or b"time-shifts" in data for data in said)


def test_a_process_of_the_node_cannot_set_limits_over_loopback() -> None:
    """On loopback there is no certificate: any tenant of the node could connect."""
    made, asked = made_frame(), list[Mapping[str, float]]()

    def limit(_request: Request, limits: Mapping[str, float]) -> bool:
        asked.append(limits)
        return True

    app = agent_app(lambda: made, lambda _: lambda: None, limit=limit)
    with ThreadedServer(app) as server:
        port = urlsplit(server.url).port
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.sendall(b"GET /frames HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = client.recv(65536)
            assert b"200 OK" in head
            assert LIMITS_HEADER.lower().encode() not in head.lower()
            client.sendall(order_line({GPU: 300.0}))
            while client.recv(65536):
                pass  # the agent closes the stream
    assert not asked


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        (order_line({GPU: 300.0, "GPU-b": 250.4}), {GPU: 300.0, "GPU-b": 250.0}),
        (NONE, {}),
        (b"power-limits GPU-a=\n", None),
        (b"power-limits GPU-a=-5\n", None),
        (b"power-limits GPU-a=1e5\n", None),
        (b"power-limits  GPU-a=5\n", None),
        (b"power-limits ../x=5\n", None),
        (b"power-limits" + b" g=1" * 65 + b"\n", None),
        (b"power-limits " + b"x" * 6000, None),
    ],
)
def test_orders_are_parsed_strictly(line: bytes, taken: dict[str, float] | None) -> None:
    found: list[Mapping[str, float]] = []

    def limit(limits: Mapping[str, float]) -> bool:
        found.append(limits)
        return True

    stream = FrameStream((), lambda _: None, limit=limit)
    assert stream.take_request(line[:7]) and stream.take_request(line[7:]) is (taken is not None)
    assert found == ([] if taken is None else [taken])
    assert FrameStream((), lambda _: None).take_request(order_line({GPU: 300.0})) is False, "no client may set any"


def test_an_agent_that_others_could_order_refuses_to_start(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    allowed = AgentSection(power_limits="300..700", web_config="web.yml")
    with pytest.raises(ConfigError, match=r"agent\.power_limits: only the controller's certificate may set limits"):
        _leases_of(allowed, state, "n0", None)
    assert _leases_of(AgentSection(), state, "n0", None) is None
    assert _leases_of(allowed, state, "n0", FrameReaders((CONTROLLER,))) is not None


def test_orders_are_repeated_changed_and_dropped_when_the_scheduler_is_stuck() -> None:
    orders, line = LeasedOrders(WORD), order_line({GPU: 300.0})
    assert orders.due("n0", b"", 0, 0) == b"", "an agent without an order is sent nothing"
    orders.replace({"n0": line}, 0)
    assert orders.due("n0", b"", 0, 0) == line
    assert orders.due("n0", line, 0, 10 * 10**9) == b""
    assert orders.due("n0", line, 0, round(RENEW_SECONDS * 1e9)) == line
    assert orders.due("n0", line, 0, round((OLD_SECONDS + 1) * 1e9)) == b"", "the leases end"
    orders.replace({}, 0)
    assert orders.due("n0", line, 0, 0) == NONE
