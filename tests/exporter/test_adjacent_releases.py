"""Agent and controller of adjacent releases exchange frames over HTTP, in both directions.

Messages of the other release are simulated: another version number, and additional fields and metrics.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path

import msgspec
import pytest

from agent.schema.catalog import BY_NAME
from agent.schema.clock import SystemClock
from agent.schema.frame import AnyLayout, Column, Frame, Layout, Member, OpenRecord, Tier, make_layout
from agent.schema.record_table import records_of
from agent.schema.wire import WIRE_VERSION, MessageSplitter, decode, encode_frame, encode_layout
from exporter import server
from exporter.server import ThreadedServer, agent_app
from scheduler_feedback.feed import Feed
from tests.exporter.sample_frames import frame_of

OF_NEXT_YEAR = Column("gangwatch_gpu_mood_ratio", (("gpu", "GPU-1"),))
KNOWN = Column("gangwatch_gpu_power_watts", (("gpu", "GPU-1"),))
COUNTED = Column("gangwatch_gpu_energy_joules_total", (("gpu", "GPU-1"),))


def as_of(version: int, message: bytes) -> bytes:
    """Return the message as a release with this version of the wire format would send it."""
    tree = msgspec.msgpack.decode(message)
    tree["v"] = version
    tree["of_another_release"] = {"deeply": [1, 2]}
    if tree["k"] == "layout":
        tree["layout"]["gauges"][0]["colour"] = "green"
    return msgspec.msgpack.encode(tree)


def follow(folder: Path, url: str, wanted: tuple[str, ...]) -> list[tuple[AnyLayout, Frame]]:
    """Return what a controller's feed receives from the agent until two frames arrive. Stop early if it logs an
    error."""
    got: list[tuple[AnyLayout, Frame]] = []
    (folder / "n0.json").write_text(json.dumps({"pid": 1, "start_time": 1, "node": "n0", "url": url, "later": 1}))
    feed = Feed(folder, lambda layout, frame, _ns: got.append((layout, frame)), wanted, SystemClock())

    async def run() -> None:
        running = asyncio.ensure_future(feed.run())
        try:
            async with asyncio.timeout(60):
                while not got and not (feed.streams and feed.streams["n0"].complaint):
                    await asyncio.sleep(0.01)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
    return got


OPEN = OpenRecord(Member("j-1", 1, 0), "step", 7, 100)


def made(layout: Layout) -> tuple[Layout, Frame]:
    frame = frame_of(layout, [612.5, 0.25][: len(layout.gauges)], [2**60 + 1])
    return layout, msgspec.structs.replace(frame, records=(OPEN,))


@pytest.mark.parametrize("version", [WIRE_VERSION - 1, WIRE_VERSION, WIRE_VERSION + 1])
@pytest.mark.parametrize("wanted", [(), ("gangwatch_gpu_power_watts", "gangwatch_gpu_energy_joules_total")])
def test_a_controller_receives_frames_of_an_agent_of_another_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, wanted: tuple[str, ...]
) -> None:
    assert OF_NEXT_YEAR.metric not in BY_NAME
    # The agent itself knows all of its metrics.
    layout = make_layout("n0", [Tier("any", 1.0)], [KNOWN] if wanted else [KNOWN, OF_NEXT_YEAR], [COUNTED])
    monkeypatch.setattr(server, "encode_frame", lambda *asked: as_of(version, encode_frame(*asked)))
    monkeypatch.setattr(server, "encode_layout", lambda layout: as_of(version, encode_layout(layout)))
    with ThreadedServer(agent_app(lambda: made(layout), lambda _: lambda: None)) as agent:
        ((received, frame), *_) = follow(tmp_path, agent.url, wanted)
    assert received.whole().gauges[0] == KNOWN and received.whole().counters == (COUNTED,)
    assert frame.gauges[0] == 612.5 and int(frame.counters[0]) == 2**60 + 1
    assert frame.table is not None and list(records_of(frame.table)) == [OPEN], "the controller asks for a table"


def test_an_agent_that_has_no_tables_sends_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases without tables ignore what the controller accepts."""
    monkeypatch.setattr(server, "wants_table", lambda _accept: False)
    layout = make_layout("n0", [Tier("any", 1.0)], [KNOWN], [COUNTED])
    with ThreadedServer(agent_app(lambda: made(layout), lambda _: lambda: None)) as agent:
        ((_, frame), *_) = follow(tmp_path, agent.url, ())
    assert frame.table is None and frame.records == (OPEN,)


def test_a_client_that_asks_for_no_table_gets_records() -> None:
    layout = make_layout("n0", [Tier("any", 1.0)], [KNOWN], [COUNTED])
    with ThreadedServer(agent_app(lambda: made(layout), lambda _: lambda: None)) as agent:
        asked = urllib.request.Request(f"{agent.url}/frames", headers={"Accept": "application/vnd.gangwatch.frame"})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            splitter, messages = MessageSplitter(), []
            while len(messages) < 2:
                messages += splitter.feed(answer.read1())
    frame = decode(messages[1])
    assert isinstance(frame, Frame) and frame.table is None and frame.records == (OPEN,)


def test_an_agent_serves_a_controller_that_requests_unknown_metrics(tmp_path: Path) -> None:
    layout = make_layout("n0", [Tier("any", 1.0)], [KNOWN], [COUNTED])
    with ThreadedServer(agent_app(lambda: made(layout), lambda _: lambda: None)) as agent:
        ((received, frame), *_) = follow(tmp_path, agent.url, (KNOWN.metric, OF_NEXT_YEAR.metric))
        asked = urllib.request.Request(
            f"{agent.url}/frames?metrics={KNOWN.metric},{OF_NEXT_YEAR.metric}", method="HEAD"
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert answer.headers[server.UNKNOWN_HEADER] == OF_NEXT_YEAR.metric, "the agent lists the unknown metrics"
    assert received.whole().gauges == (KNOWN,) and frame.gauges[0] == 612.5


@pytest.mark.parametrize("version", [WIRE_VERSION - 2, WIRE_VERSION + 2])
def test_releases_further_apart_report_the_incompatibility(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    layout = make_layout("n0", [Tier("any", 1.0)], [KNOWN], [COUNTED])
    monkeypatch.setattr(server, "encode_layout", lambda layout: as_of(version, encode_layout(layout)))
    with ThreadedServer(agent_app(lambda: made(layout), lambda _: lambda: None)) as agent:
        assert follow(tmp_path, agent.url, ()) == []
    assert f"wire version {version}" in caplog.text and "upgrade" in caplog.text
