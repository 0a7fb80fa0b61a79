"""Node: its frames contain the newest block of each collector, even if some collectors fail or hang."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.collectors import COLLECTORS, Machine, make_collectors
from agent.collectors.block import Block, RecordSource
from agent.node import Node
from agent.rank_attribution import Attribution
from agent.runner import STALE_SECONDS, next_due_ns
from agent.schema.catalog import BY_NAME
from agent.schema.clock import ManualClock
from agent.schema.errors import ConfigError, SourceError, UnsupportedError
from agent.schema.frame import MAX_RECORDS, Column, EventRecord, Frame, Layout, check_fits
from tests.agent.scripted_collectors import COUNTER, GAUGE, Recorder, ScriptedCollector, fail, value, wait_until
from tests.exporter.fake_nodes import Workshop


def event(number: int) -> EventRecord:
    return EventRecord("xid", str(number), number)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(monotonic_ns=5_000_000_000)


@pytest.fixture
def started() -> Iterator[Callable[[Node], Node]]:
    nodes: list[Node] = []

    def start(node: Node) -> Node:
        nodes.append(node)
        node.start()
        return node

    yield start
    for node in nodes:
        node.stop()


def test_a_frame_contains_the_blocks_of_the_collectors(clock: ManualClock) -> None:
    first, second = ScriptedCollector("first"), ScriptedCollector("second")
    second.block = Block([Column("gangwatch_host_cpus")], [])
    second.act = lambda collector: collector.block
    node = Node("n0", [first, second], clock, version="9.9.9")
    layout, frame = newest = node.tick()
    check_fits(layout, frame)
    assert node.newest() is newest
    assert (frame.node, frame.seq, frame.agent_id, frame.boot_id) == ("n0", 1, node.agent_id, node.boot_id)
    assert [tier.name for tier in layout.tiers] == ["node", "first", "second"]
    assert value(newest, GAUGE.metric) == 1
    assert value(newest, COUNTER.metric, device="sda") == 2**60 + 1
    assert math.isnan(value(newest, "gangwatch_host_cpus") or 0.0)
    assert value(newest, "gangwatch_agent_info", boot_id=node.boot_id, version="9.9.9") == 1
    assert value(newest, "gangwatch_agent_frames_total") == 1
    for name in ("first", "second"):
        assert value(newest, "gangwatch_collector_success", collector=name) == 1
        assert value(newest, "gangwatch_collector_failures_total", collector=name) == 0
    assert {column.metric: column.tier for column in layout.gauges if column.metric.startswith("gangwatch_host")} == {
        GAUGE.metric: 1,
        "gangwatch_host_cpus": 2,
    }
    for is_counter, columns in ((False, layout.gauges), (True, layout.counters)):
        for column in columns:
            metric = BY_NAME[column.metric]
            assert (metric.kind == "counter") is is_counter
            assert tuple(name for name, _ in column.labels) == metric.labels
    assert node.tick()[1].seq == 2


def test_only_due_collectors_run_on_request(clock: ManualClock) -> None:
    fast, slow = (
        ScriptedCollector("fast"),
        ScriptedCollector("slow", interval_seconds=10.0, block=Block([Column("gangwatch_host_cpus")])),
    )
    slow.act = lambda collector: collector.block
    node = Node("n0", [fast, slow], clock)
    for _ in range(20):
        node.tick(due_only=True)
        clock.advance(1.0)
    assert (fast.runs, slow.runs) == (20, 3), "at once, then on its schedule"


def test_an_idle_collector_runs_half_as_often_and_is_not_stale(clock: ManualClock) -> None:
    sampling = ScriptedCollector("sampling", interval_seconds=0.5)
    node = Node("n0", [sampling], clock)
    runs: list[int] = []
    for idle in (False, True, False):
        sampling.idle = idle  # type: ignore[attr-defined]
        before = sampling.runs
        for _ in range(40):
            layout, frame = node.tick(due_only=True)
            assert value((layout, frame), "gangwatch_collector_success", collector="sampling") == 1
            clock.advance(0.25)
        runs.append(sampling.runs - before)
    assert [round(count, -1) for count in runs] == [20, 10, 20]


def test_the_time_of_a_tier_is_taken_before_the_read(clock: ManualClock) -> None:
    def slow(collector: ScriptedCollector) -> Block:
        clock.advance(0.25)
        return collector.block

    node = Node("n0", [ScriptedCollector("slow", slow)], clock)
    began_ns = clock.monotonic_ns()
    newest = node.tick()
    assert newest[1].tier_ns.tolist() == [began_ns + 250_000_000, began_ns]
    assert value(newest, "gangwatch_collector_duration_seconds", collector="slow") == 0.25
    assert value(newest, "gangwatch_collector_sample_age_seconds", collector="slow") == 0.25


def test_a_failing_collector_becomes_stale_and_stops_no_other(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = ScriptedCollector("good"), ScriptedCollector("bad")
    bad.block = Block([Column("gangwatch_host_cpus")], [Column("gangwatch_agent_frames_total")])
    bad.block.set_gauge(0, 2.0)
    bad.act = lambda collector: collector.block
    node = Node("n0", [good, bad], clock)
    node.tick()

    bad.act = fail
    clock.advance(1.0)
    newest = node.tick()
    assert value(newest, "gangwatch_collector_success", collector="bad") == 0, "its newest run failed"
    assert value(newest, "gangwatch_collector_failures_total", collector="bad") == 1
    assert value(newest, "gangwatch_host_cpus") == 2, "its newest sample is not stale yet"

    clock.advance(2.1)
    layout, frame = newest = node.tick()
    assert math.isnan(value(newest, "gangwatch_host_cpus") or 0.0)
    assert value(newest, "gangwatch_collector_sample_age_seconds", collector="bad") == pytest.approx(3.1)
    assert value(newest, GAUGE.metric) == 3
    assert value(newest, "gangwatch_collector_success", collector="good") == 1
    assert frame.tier_ns[2] == 5_000_000_000, "the time of its newest sample"

    bad.act = lambda collector: collector.block
    newest = node.tick()
    assert value(newest, "gangwatch_host_cpus") == 2
    assert value(newest, "gangwatch_collector_success", collector="bad") == 1
    assert newest[0] is layout, "the same blocks: the same layout"


def test_a_bug_in_a_collector_affects_only_that_collector(clock: ManualClock) -> None:
    def broken(collector: ScriptedCollector) -> Block:
        raise ZeroDivisionError("a bug")

    newest = Node("n0", [ScriptedCollector("broken", broken), ScriptedCollector("good")], clock).tick()
    assert value(newest, "gangwatch_collector_failures_total", collector="broken") == 1
    assert value(newest, "gangwatch_collector_success", collector="good") == 1


def test_an_error_is_logged_once_and_again_after_a_while(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    def broken(collector: ScriptedCollector) -> Block:
        raise SourceError("/proc/stat: gone" if collector.runs != 3 else "/proc/stat: another")

    node = Node("n0", [ScriptedCollector("broken", broken)], clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            node.tick()
        assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["gone", "another"]
        clock.advance(3600)
        node.tick()
    assert len(caplog.records) == 3


def test_a_collector_unsupported_by_the_machine_is_not_listed(clock: ManualClock) -> None:
    def unsupported(collector: ScriptedCollector) -> Block:
        if collector.runs > 1:
            raise UnsupportedError("the GPU was taken out")
        return collector.block

    node = Node("n0", [ScriptedCollector("absent", unsupported), ScriptedCollector("good")], clock)
    before, _ = node.tick()
    assert "absent" in [tier.name for tier in before.tiers]
    newest = node.tick()
    check_fits(*newest)
    assert [tier.name for tier in newest[0].tiers] == ["node", "good"]
    assert value(newest, GAUGE.metric) == 2
    with pytest.raises(KeyError):
        value(newest, "gangwatch_collector_success", collector="absent")


def test_only_a_new_block_makes_a_new_layout(clock: ManualClock) -> None:
    collector = ScriptedCollector()
    node = Node("n0", [collector], clock)
    first, _ = node.tick()
    assert node.tick()[0] is first
    collector.block = Block([GAUGE], [COUNTER, Column(COUNTER.metric, (("device", "sdb"),))])
    second, frame = node.tick()
    assert second.layout_id != first.layout_id
    check_fits(second, frame)


def test_a_frame_does_not_change_after_later_runs(clock: ManualClock) -> None:
    node = Node("n0", [ScriptedCollector()], clock)
    before = node.tick()
    node.tick()
    assert value(before, GAUGE.metric) == 1
    assert value(before, COUNTER.metric, device="sda") == 2**60 + 1


def test_records_are_numbered_and_dropped_records_leave_a_gap(clock: ManualClock) -> None:
    recorder = Recorder()
    assert isinstance(recorder, RecordSource) and not isinstance(ScriptedCollector(), RecordSource)
    node = Node("n0", [ScriptedCollector(), recorder], clock)
    recorder.waiting = [event(1), event(2)]
    frame = node.tick()[1]
    assert (frame.record_seq, frame.records) == (1, (event(1), event(2)))
    frame = node.tick()[1]
    assert (frame.record_seq, frame.records) == (3, ())
    recorder.waiting = [event(number) for number in range(MAX_RECORDS + 5)]
    frame = node.tick()[1]
    assert (frame.record_seq, len(frame.records)) == (3 + 5, MAX_RECORDS)
    assert frame.records[0] == event(5), "the oldest are dropped"
    recorder.waiting = [event(7)]
    assert node.tick()[1].record_seq == 3 + MAX_RECORDS + 5


def test_duplicate_collector_names_are_rejected() -> None:
    with pytest.raises(ValueError, match="the same name"):
        Node("n0", [ScriptedCollector("a"), ScriptedCollector("a")])


# --- running ----------------------------------------------------------------------------------------------------------


def test_frame_times_do_not_drift_and_missed_frames_are_skipped() -> None:
    due, instants = 1_000, []
    for took in (300, 300, 2_500, 1_000, 0):
        instants.append(due)
        due = next_due_ns(due, 1_000, due + took)
    # The third takes two and a half intervals: 4,000 and 5,000 are skipped, 6,000 is on time.
    assert instants == [1_000, 2_000, 3_000, 6_000, 8_000]


def test_a_started_node_makes_frames_until_it_is_stopped(started: Callable[[Node], Node]) -> None:
    collector = ScriptedCollector()
    collector.interval_seconds = 0.02
    node = Node("n0", [collector], interval_seconds=0.02)
    received: queue.SimpleQueue[int] = queue.SimpleQueue()
    node.add_listener(lambda layout, frame: received.put(frame.seq))
    started(node)
    assert [received.get(timeout=10) for _ in range(5)] == [1, 2, 3, 4, 5]
    with pytest.raises(RuntimeError):
        node.tick()
    with pytest.raises(RuntimeError):
        node.start()
    node.stop()
    assert collector.closed == 1
    stopped_at = node.newest()
    time.sleep(0.1)
    assert node.newest() is stopped_at


def test_a_stuck_collector_becomes_stale_and_does_not_delay_the_stop(started: Callable[[Node], Node]) -> None:
    release = threading.Event()

    def stuck_later(collector: ScriptedCollector) -> Block:
        if collector.runs > 1:
            release.wait(60)
        collector.block.set_gauge(0, 1.0)
        return collector.block

    stuck, good = ScriptedCollector("stuck", stuck_later), ScriptedCollector("good")
    stuck.interval_seconds = good.interval_seconds = 0.05
    good.block = Block([Column("gangwatch_host_cpus")], [COUNTER])
    node = started(Node("n0", [stuck, good], interval_seconds=0.05))
    try:

        def is_stale() -> bool:
            newest = node.newest()
            return newest is not None and value(newest, "gangwatch_collector_success", collector="stuck") == 0

        wait_until(lambda: stuck.runs > 1)
        began = time.monotonic()
        wait_until(is_stale)
        assert time.monotonic() - began < STALE_SECONDS + 15
        newest = node.newest()
        assert newest is not None
        assert math.isnan(value(newest, GAUGE.metric) or 0.0)
        assert value(newest, "gangwatch_collector_success", collector="good") == 1
        before = good.runs
        wait_until(lambda: good.runs > before)
        node.stop()
        assert (stuck.closed, good.closed) == (0, 1), "a stuck collector cannot be closed"
    finally:
        release.set()


def test_a_listener_receives_every_frame_until_it_is_removed(clock: ManualClock) -> None:
    node = Node("n0", [], clock)
    received: list[int] = []
    remove = node.add_listener(lambda layout, frame: received.append(frame.seq))
    node.tick()
    node.tick()
    remove()
    node.tick()
    assert received == [1, 2]


def test_a_listener_that_raises_is_removed(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    def broken(layout: Layout, frame: Frame) -> None:
        raise RuntimeError("the loop is closed")

    received: list[int] = []
    node = Node("n0", [], clock)
    node.add_listener(broken)
    node.add_listener(lambda layout, frame: received.append(frame.seq))
    node.tick()
    node.tick()
    assert received == [1, 2]
    assert len(caplog.records) == 1


def test_make_collectors_gives_the_collectors_that_this_machine_supports(tmp_path: Path) -> None:
    machine = Machine(Attribution(None), nvml_library=f"{tmp_path}/no-such.so", step_socket=f"{tmp_path}/steps.sock")
    collectors, left_out = make_collectors(machine)
    assert len(collectors) + len(left_out) == len(COLLECTORS)
    names = [one.name for one in collectors]
    assert {"host", "process", "steps"} <= set(names)
    node = Node("n0", collectors)
    check_fits(*node.tick())
    node.stop()


def test_every_collector_has_the_name_of_its_entry(tmp_path: Path) -> None:
    with Workshop(tmp_path).node("h100") as node:
        root = str(node.tree.root)
        machine = Machine(
            *(Attribution(None, root), f"{tmp_path}/steps.sock", root, root, str(node.fake.library)),
            kernel_log=str(node.tree.kernel_log),
        )
        names: dict[str, str] = {}
        for name, make in COLLECTORS.items():
            with contextlib.suppress(UnsupportedError):
                made = make(machine)
                names[name] = made.name
                made.close()
    assert all(name == of_collector for name, of_collector in names.items())
    assert {"nvml", "rdma", "steps", "host", "attribution", "kernel_log"} <= names.keys()


def test_the_configuration_switches_collectors_off_and_on(tmp_path: Path) -> None:
    def names(collectors: dict[str, bool]) -> set[str]:
        made, left_out = make_collectors(replace(machine, collectors=collectors))
        for one in made:
            one.close()
        assert len(made) + len(left_out) == len(COLLECTORS)
        disabled = {reason.partition(":")[0] for reason in left_out if "disabled by the configuration" in reason}
        assert not disabled & {one.name for one in made}
        return {one.name for one in made}

    machine = Machine(Attribution(None), nvml_library=f"{tmp_path}/no-such.so")
    everything = names({})
    assert names({"network": False}) == everything - {"network"}
    assert names({"*": False, "host": True}) == {"host"}
    assert names({"*": False}) == set()
    with pytest.raises(ConfigError, match="no collector is named 'networks': did you mean network"):
        names({"networks": False})
    with pytest.raises(ConfigError, match="no collector is named '0': the names are host, "):
        names({"0": True})
