"""Collectors that run functions of a test, and helpers that read a frame."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from agent.collectors.block import Block, Collector
from agent.node import Node
from agent.schema.errors import SourceError
from agent.schema.frame import Column, Frame, Layout, Record

GAUGE = Column("gangwatch_host_load1")
COUNTER = Column("gangwatch_host_disk_read_bytes_total", (("device", "sda"),))


class ScriptedCollector:
    """Collector that runs a function of the test. The default function counts its runs in a gauge and a counter."""

    def __init__(
        self,
        name: str = "scripted",
        act: Callable[[ScriptedCollector], Block] | None = None,
        *,
        worker: str | None = None,
        interval_seconds: float = 1.0,
        block: Block | None = None,
    ) -> None:
        self.name = name
        self.worker = worker or name
        self.interval_seconds = interval_seconds
        self.block = block or Block([GAUGE], [COUNTER])
        self.act = act
        self.runs = 0
        self.closed = 0
        self.threads: set[int] = set()

    def collect(self) -> Block:
        self.runs += 1
        self.threads.add(threading.get_ident())
        if self.act is not None:
            return self.act(self)
        self.block.clear()
        self.block.set_gauge(0, self.runs)
        self.block.set_counter(0, 2**60 + self.runs)
        return self.block

    def close(self) -> None:
        self.closed += 1
        self.threads.add(threading.get_ident())


class Recorder(ScriptedCollector):
    """Collector that also emits records."""

    def __init__(self, name: str = "recorder") -> None:
        super().__init__(name)
        self.waiting: list[Record] = []

    def take_records(self) -> list[Record]:
        taken, self.waiting = self.waiting, []
        return taken


class Holder(ScriptedCollector):
    """Collector that keeps a device open."""

    held = True

    def release(self) -> None:
        self.held = False
        self.threads.add(threading.get_ident())

    def acquire(self) -> None:
        self.held = True


class Finder(ScriptedCollector):
    """Collector whose members are the collectors in ``found``."""

    def __init__(self, name: str = "finder", **arguments: float | str) -> None:
        super().__init__(name, block=Block(), act=lambda collector: collector.block, **arguments)  # type: ignore[arg-type]
        self.found: tuple[Collector, ...] = ()

    def members(self) -> tuple[Collector, ...]:
        return self.found


def device(name: str, **arguments: float | str) -> ScriptedCollector:
    """Return a collector whose series have this name as a label."""
    block = Block([], [Column(COUNTER.metric, (("device", name),))])

    def count(collector: ScriptedCollector) -> Block:
        block.set_counter(0, collector.runs)
        return block

    return ScriptedCollector(name, count, block=block, **arguments)  # type: ignore[arg-type]


def fail(collector: ScriptedCollector) -> Block:
    raise SourceError(f"run {collector.runs}")


class Hang:
    """Function that blocks until ``released`` is set. Pass ``act`` to a ``ScriptedCollector``."""

    def __init__(self, from_run: int = 2) -> None:
        self.released = threading.Event()
        self.from_run = from_run

    def act(self, collector: ScriptedCollector) -> Block:
        if collector.runs >= self.from_run and not self.released.wait(60):
            raise AssertionError("the test did not release the hanging call")
        if collector.block.counter_columns:
            collector.block.set_counter(0, collector.runs)
        return collector.block


def value(newest: tuple[Layout, Frame] | None, metric: str, **labels: str) -> float | int | None:
    """Return the value of a gauge (NaN if absent) or counter (None if absent). Raise KeyError if the frame lacks it."""
    wanted = (metric, tuple(sorted(labels.items())))
    if newest is None:
        raise KeyError(wanted)
    layout, frame = newest
    for index, column in enumerate(layout.gauges):
        if (column.metric, column.labels) == wanted:
            return float(frame.gauges[index])
    for index, column in enumerate(layout.counters):
        if (column.metric, column.labels) == wanted:
            return int(frame.counters[index]) if frame.counters_valid[index] else None
    raise KeyError(wanted)


def shown(node: Node, metric: str, **labels: str) -> float | int | None:
    """Return the value in the node's newest frame; None if the frame has no such series."""
    try:
        return value(node.newest(), metric, **labels)
    except KeyError:
        return None


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> float:
    """Wait until the condition is true. Return the seconds waited."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, f"the condition was not true within {seconds:g} s"
        time.sleep(0.005)
    return time.monotonic() - began
