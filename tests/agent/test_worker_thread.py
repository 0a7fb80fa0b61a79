"""Workers: collectors that share a thread, members that change, and the effect of a hung call on other workers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import pytest

from agent.node import Node
from agent.runner import MOST_SLOWING, OVER_BUDGET_RUNS
from agent.schema.clock import ManualClock
from agent.schema.errors import UnsupportedError
from agent.schema.frame import EventRecord, check_fits
from agent.worker_thread import HAND_OVER_SECONDS, MOST_ABANDONED
from tests.agent.scripted_collectors import (
    COUNTER,
    Finder,
    Hang,
    Holder,
    Recorder,
    ScriptedCollector,
    device,
    shown,
    value,
    wait_until,
)

INTERVAL = 0.05


@pytest.fixture
def started() -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def start(*collectors: ScriptedCollector) -> Node:
        node = Node("n0", collectors, interval_seconds=INTERVAL)
        nodes.append(node)
        node.start()
        return node

    yield start
    for node in nodes:
        node.stop()


def success(node: Node, name: str) -> float | int | None:
    return shown(node, "gangwatch_collector_success", collector=name)


def test_collectors_of_a_worker_share_a_thread_and_keep_their_intervals(started: Callable[..., Node]) -> None:
    fast = ScriptedCollector("fast", worker="one", interval_seconds=INTERVAL)
    slow = device("slow", worker="one", interval_seconds=10 * INTERVAL)
    alone = device("alone", interval_seconds=INTERVAL)
    started(fast, slow, alone)
    wait_until(lambda: slow.runs >= 3)
    assert fast.threads == slow.threads and len(fast.threads) == 1
    assert fast.threads.isdisjoint(alone.threads)
    # Both run within the first frame; after that the ratio is ten to one, apart from missed ticks.
    assert fast.runs > 2 * slow.runs


def test_phases_spread_the_collectors_of_a_worker() -> None:
    from agent.runner import Runner

    clock = ManualClock(monotonic_ns=7_000_000_000)
    runners = []
    for position in range(4):
        collector = ScriptedCollector(str(position), worker="gpus")
        collector.phase = position / 4  # type: ignore[attr-defined]
        runner = Runner(collector, clock)
        runner.schedule(7_000_000_000, 0, 1_000_000_000)
        runners.append(runner)
    assert [one.due_ns - 7_000_000_000 for one in runners] == [0, 250_000_000, 500_000_000, 750_000_000]
    clock.advance(3.6)
    for one in runners:
        one.run_once()
    # Schedules are absolute: a late run does not move the next one.
    assert [one.due_ns - 7_000_000_000 for one in runners] == [
        4_000_000_000,
        4_250_000_000,
        4_500_000_000,
        3_750_000_000,
    ]


def test_a_slow_collector_runs_at_once_and_then_at_its_phase() -> None:
    from agent.runner import Runner

    clock = ManualClock()
    collector = ScriptedCollector(interval_seconds=10.0)
    runner = Runner(collector, clock)
    runner.schedule(0, 4_200_000_000, 1_000_000_000)
    assert runner.due_ns == 200_000_000
    clock.advance(0.25)
    runner.run_once()
    assert runner.due_ns == 4_200_000_000
    clock.advance(4.0)
    runner.run_once()
    assert runner.due_ns == 14_200_000_000


# --- stuck -----------------------------------------------------------------------------------------------------------


def test_other_collectors_of_the_worker_continue_and_the_stuck_one_returns(started: Callable[..., Node]) -> None:
    hang = Hang()
    stuck = ScriptedCollector("stuck", hang.act, worker="driver", interval_seconds=INTERVAL)
    other = device("other", worker="driver", interval_seconds=INTERVAL)
    node = started(stuck, other)
    try:
        wait_until(lambda: stuck.runs == 2)
        before = other.runs
        took = wait_until(lambda: other.runs > before)
        assert took > HAND_OVER_SECONDS / 2
        wait_until(lambda: success(node, "stuck") == 0 and success(node, "other") == 1)
        assert shown(node, "gangwatch_collector_stuck", collector="stuck") == 1
        assert shown(node, "gangwatch_collector_stuck", collector="other") == 0
        assert shown(node, "gangwatch_agent_threads_abandoned") == 1
        assert shown(node, COUNTER.metric, device="sda") is None, "the stuck collector's series are absent"
        assert len(other.threads) == 2 and stuck.runs == 2
    finally:
        hang.released.set()
    wait_until(lambda: stuck.runs > 4)
    wait_until(lambda: success(node, "stuck") == 1 and shown(node, "gangwatch_agent_threads_abandoned") == 0)
    assert len(other.threads) == 2, "the worker has one thread again, the newer one"
    node.stop()
    assert (stuck.closed, other.closed) == (1, 1)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("n0/")]


def test_the_number_of_threads_is_limited_if_all_collectors_hang() -> None:
    from agent.runner import Runner
    from agent.worker_thread import Worker

    clock = ManualClock()
    hang = Hang(from_run=1)
    worker = Worker("driver", "test/driver", clock, lambda runner: None)
    every = [ScriptedCollector(str(number), hang.act, worker="driver") for number in range(MOST_ABANDONED + 3)]
    worker.start()
    for collector in every:
        worker.add(Runner(collector, clock))
    try:
        for turn in range(MOST_ABANDONED + 3):
            wait_until(lambda turn=turn: sum(collector.runs for collector in every) == min(turn, MOST_ABANDONED) + 1)  # type: ignore[misc]
            clock.advance(10)
            worker.hand_over(clock.monotonic_ns())
        assert worker.abandoned == MOST_ABANDONED
    finally:
        hang.released.set()
    wait_until(lambda: worker.abandoned == 0)
    worker.stop()
    worker.join(clock.monotonic_ns() + 20_000_000_000)
    assert [collector.closed for collector in every] == [1] * len(every)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test/driver")]


def test_a_collector_stuck_alone_in_its_worker_keeps_its_thread(started: Callable[..., Node]) -> None:
    hang = Hang()
    stuck = ScriptedCollector("stuck", hang.act, interval_seconds=INTERVAL)
    node = started(stuck)
    try:
        wait_until(lambda: shown(node, "gangwatch_collector_stuck", collector="stuck") == 1)
        assert success(node, "stuck") == 0
    finally:
        hang.released.set()
    wait_until(lambda: success(node, "stuck") == 1)
    assert len(stuck.threads) == 1


# --- members ---------------------------------------------------------------------------------------------------------


def test_columns_follow_the_members() -> None:
    clock = ManualClock()
    finder = Finder()
    node = Node("n0", [finder, ScriptedCollector("last")], clock)
    first, second = device("sda1"), device("sdb1")
    node.tick()
    finder.found = (first, second)
    newest = node.tick()
    check_fits(*newest)
    assert [tier.name for tier in newest[0].tiers] == ["node", "finder", "sda1", "sdb1", "last"]
    assert value(newest, COUNTER.metric, device="sda1") == 1
    before = newest[0]
    assert node.tick()[0] is before
    # Another object of the same name: the device disappeared and returned.
    finder.found = (second, again := device("sda1"))
    newest = node.tick()
    assert [tier.name for tier in newest[0].tiers] == ["node", "finder", "sdb1", "sda1", "last"]
    assert value(newest, COUNTER.metric, device="sda1") == 1
    assert (first.closed, second.closed, again.closed) == (1, 0, 0)
    finder.found = ()
    newest = node.tick()
    assert [tier.name for tier in newest[0].tiers] == ["node", "finder", "last"]
    node.stop()
    assert (first.closed, second.closed, again.closed, finder.closed) == (1, 1, 1, 1)


def test_nested_members_are_removed_with_their_parent() -> None:
    outer, inner, leaf = Finder("outer"), Finder("inner"), device("leaf")
    outer.found, inner.found = (inner,), (leaf,)
    node = Node("n0", [outer], ManualClock())
    assert [tier.name for tier in node.tick()[0].tiers] == ["node", "outer", "inner", "leaf"]

    def remove_members(collector: ScriptedCollector) -> object:
        raise UnsupportedError("no such bus")

    outer.act = remove_members  # type: ignore[assignment]
    assert [tier.name for tier in node.tick()[0].tiers] == ["node"]
    assert (outer.closed, inner.closed, leaf.closed) == (1, 1, 1)


def test_a_duplicate_member_name_is_a_failure_and_one_is_kept() -> None:
    finder = Finder()
    finder.found = (device("same"), device("same"))
    node = Node("n0", [finder], ManualClock())
    newest = node.tick()
    assert [tier.name for tier in newest[0].tiers] == ["node", "finder", "same"]
    assert value(newest, "gangwatch_collector_failures_total", collector="finder") == 1


def test_the_last_records_of_a_removed_member_are_kept() -> None:
    finder, recorder = Finder(), Recorder()
    finder.found = (recorder,)
    node = Node("n0", [finder], ManualClock())
    node.tick()
    recorder.waiting.append(EventRecord("xid", "gpu", 1))
    finder.found = ()
    assert node.tick()[1].records == (EventRecord("xid", "gpu", 1),)


def test_members_run_in_their_own_workers_and_are_closed_there(started: Callable[..., Node]) -> None:
    finder = Finder(interval_seconds=INTERVAL)
    near = device("near", worker="finder", interval_seconds=INTERVAL)
    far = device("far", worker="elsewhere", interval_seconds=INTERVAL)
    finder.found = (near, far)
    node = started(finder)
    wait_until(lambda: near.runs > 1 and far.runs > 1)
    assert near.threads == finder.threads and near.threads.isdisjoint(far.threads)
    finder.found = ()
    wait_until(lambda: near.closed + far.closed == 2)
    assert len(near.threads) == len(far.threads) == 1
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "n0/elsewhere"])
    wait_until(lambda: shown(node, COUNTER.metric, device="far") is None)


def test_a_member_removed_while_stuck_is_closed_when_its_call_returns(
    started: Callable[..., Node],
) -> None:
    hang = Hang()
    finder = Finder(interval_seconds=INTERVAL, worker="driver")
    stuck = ScriptedCollector("stuck", hang.act, worker="driver", interval_seconds=INTERVAL)
    finder.found = (stuck,)
    node = started(finder)
    try:
        wait_until(lambda: stuck.runs == 2 and success(node, "stuck") is not None)
        finder.found = ()
        wait_until(lambda: success(node, "stuck") is None)
        assert stuck.closed == 0 and shown(node, "gangwatch_agent_threads_abandoned") == 1
    finally:
        hang.released.set()
    wait_until(lambda: stuck.closed == 1)
    wait_until(lambda: shown(node, "gangwatch_agent_threads_abandoned") == 0)
    assert stuck.runs == 2


# --- release ---------------------------------------------------------------------------------------------------------


def test_devices_are_released_and_acquired_again(started: Callable[..., Node]) -> None:
    holder = Holder("holder", worker="driver", interval_seconds=INTERVAL)
    other = device("other", worker="driver", interval_seconds=INTERVAL)
    node = started(holder, other)
    wait_until(lambda: shown(node, COUNTER.metric, device="sda") is not None)
    assert shown(node, "gangwatch_agent_released") == 0 and node.holds_devices()
    node.release()
    wait_until(lambda: shown(node, "gangwatch_agent_released") == 1)
    assert not holder.held and not node.holds_devices()
    assert shown(node, COUNTER.metric, device="sda") is None and success(node, "holder") == 0
    runs, others = holder.runs, other.runs
    wait_until(lambda: other.runs > others + 3)
    assert holder.runs == runs and success(node, "other") == 1
    assert len(holder.threads) == 1, "in the worker's thread"
    node.acquire()
    wait_until(lambda: success(node, "holder") == 1)
    assert [holder.held, shown(node, "gangwatch_agent_released")] == [True, 0]


def test_a_stuck_collector_has_not_released_its_device(started: Callable[..., Node]) -> None:
    hang = Hang()
    holder = Holder("holder", hang.act, worker="driver", interval_seconds=INTERVAL)
    other = device("other", worker="driver", interval_seconds=INTERVAL)
    node = started(holder, other)
    try:
        wait_until(lambda: holder.runs == 2)
        node.release()
        wait_until(lambda: shown(node, "gangwatch_agent_threads_abandoned") == 1)
        assert shown(node, "gangwatch_agent_released") == 0 and holder.held
    finally:
        hang.released.set()
    wait_until(lambda: shown(node, "gangwatch_agent_released") == 1)
    assert not holder.held


def test_devices_are_released_without_threads_too() -> None:
    holder = Holder()
    node = Node("n0", [holder], ManualClock())
    node.tick()
    node.release()
    newest = node.tick()
    assert value(newest, "gangwatch_agent_released") == 1 and holder.runs == 1 and not holder.held
    assert value(newest, COUNTER.metric, device="sda") is None, "the columns remain, and are absent"
    node.acquire()
    assert value(node.tick(), COUNTER.metric, device="sda") == 2**60 + 2


# --- cost ------------------------------------------------------------------------------------------------------------


def test_an_expensive_collector_is_slowed_down_and_recovers() -> None:
    clock = ManualClock()
    cost = 0.8

    def slow(collector: ScriptedCollector) -> object:
        clock.advance(cost)
        return collector.block

    node = Node("n0", [ScriptedCollector("slow", slow)], clock)  # type: ignore[arg-type]
    intervals = []
    for _ in range(OVER_BUDGET_RUNS + 1):
        clock.advance(0.2)
        newest = node.tick()
        intervals.append(value(newest, "gangwatch_collector_interval_seconds", collector="slow"))
    assert intervals == [1] * (OVER_BUDGET_RUNS - 1) + [2, 2], "0.8 s is less than half of two seconds"
    cost = 1000.0
    for _ in range(100):
        newest = node.tick()
    assert value(newest, "gangwatch_collector_interval_seconds", collector="slow") == MOST_SLOWING
    assert newest[0].tiers[1].interval_seconds == 1.0, "the tier keeps its nominal interval"
    cost = 0.001
    for _ in range(100):
        newest = node.tick()
    assert value(newest, "gangwatch_collector_interval_seconds", collector="slow") == 1


def test_the_agent_reports_its_own_cost() -> None:
    def burn(collector: ScriptedCollector) -> object:
        sum(range(200_000))
        return collector.block

    node = Node("n0", [ScriptedCollector("burning", burn)], ManualClock())  # type: ignore[arg-type]
    newest = node.tick()
    spent = value(newest, "gangwatch_collector_cpu_seconds_total", collector="burning")
    altogether = value(newest, "gangwatch_agent_cpu_seconds_total")
    assert spent is not None and altogether is not None and 500_000 < spent < altogether
    for metric, least in (
        ("gangwatch_agent_memory_resident_bytes", 2**22),
        ("gangwatch_agent_open_descriptors", 3),
        ("gangwatch_agent_threads", 1),
    ):
        found = value(newest, metric)
        assert found is not None and not math.isnan(found) and found >= least
    assert value(newest, "gangwatch_agent_threads_abandoned") == 0


def test_a_clock_jump_affects_one_frame(started: Callable[..., Node]) -> None:
    """Simulate a suspended machine whose monotonic clock runs on, and a wall clock that is set back."""
    clock = ManualClock()
    collector = ScriptedCollector()
    node = Node("n0", [collector], clock)
    node.tick()
    clock.advance(3600)
    newest = node.tick()
    assert value(newest, "gangwatch_collector_success", collector="scripted") == 1
    assert newest[1].tier_ns[1] == newest[1].monotonic_ns
    clock._wall_ns -= 10**18
    newest = node.tick()
    assert newest[1].wall_ns < 10**18 and newest[1].seq == 3
    assert value(newest, "gangwatch_collector_sample_age_seconds", collector="scripted") == 0
