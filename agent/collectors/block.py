"""What a collector gives: a block of columns with their newest values; and what a collector is.

A collector knows one family of metrics. It reads when told to, from one thread at a time, and hands over its
``Block``: the node copies the values into the next frame. Nothing here knows of frames, tiers or time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import numpy as np

from agent.schema.frame import Column, CounterArray, GaugeArray, Record, ValidArray

_MOST = (1 << 64) - 1


class Block:
    """The series of one collector and their newest values; everything is absent until it is set.

    gauge_columns, counter_columns: what the values mean; ``tier`` stays 0, the node rewrites it.
    gauges: float64 [gauge columns], NaN where absent, in the catalogue's base units.
    counters: uint64 [counter columns], in the catalogue's ``integer_unit``.
    counters_valid: bool [counter columns], False where absent.

    The columns of a block never change: where the set of series does, the collector returns a new block, and the node
    sees by identity that it has to send a new layout.
    """

    __slots__ = ("counter_columns", "counters", "counters_valid", "gauge_columns", "gauges")

    def __init__(self, gauge_columns: Iterable[Column] = (), counter_columns: Iterable[Column] = ()) -> None:
        self.gauge_columns: tuple[Column, ...] = tuple(gauge_columns)
        self.counter_columns: tuple[Column, ...] = tuple(counter_columns)
        self.gauges: GaugeArray = np.full(len(self.gauge_columns), np.nan, np.float64)
        self.counters: CounterArray = np.zeros(len(self.counter_columns), np.uint64)
        self.counters_valid: ValidArray = np.zeros(len(self.counter_columns), np.bool_)

    def set_gauge(self, index: int, value: float) -> None:
        """Give gauge column `index` a value."""
        self.gauges[index] = value

    def set_counter(self, index: int, value: int) -> None:
        """Give counter column `index` a value, which turns at 2^64: nanoseconds of 256 processors do in two years.

        Raises OverflowError for a negative one.
        """
        self.counters[index] = value if value <= _MOST else value & _MOST
        self.counters_valid[index] = True

    def clear(self) -> None:
        """Make every value absent; a collector does so before it sets what it could read this time."""
        self.gauges.fill(np.nan)
        self.counters_valid.fill(False)


class Collector(Protocol):
    """One family of metrics at one interval. ``name`` is also the name of its tier.

    Three attributes may be there besides. ``lane: str`` (by default its name): collectors of one lane are run one after
    another in one thread. ``phase: float`` (by default the node spreads them): where in its interval it is run, 0 to 1.
    ``idle: bool`` (by default False): that there was nothing to read at the newest run, so that it is run less often.

    Methods are called from one thread at a time: the lane's, or a fresh one after a call got stuck. Making a collector
    may raise UnsupportedError where the machine has nothing for it to read; it is then left out, which is no failure.
    """

    @property
    def name(self) -> str: ...

    @property
    def interval_seconds(self) -> float: ...

    def collect(self) -> Block:
        """Read, and give the block: the same object as the last time unless the set of series changed.

        A single value that could not be read is left absent. Raises SourceError where the whole reading failed, and
        UnsupportedError where it will never succeed on this machine.
        """
        ...

    def close(self) -> None:
        """Give back descriptors and handles; nothing is called after it."""
        ...


@runtime_checkable
class Parent(Protocol):
    """A collector that finds others: those of each device, which come and go."""

    def members(self) -> tuple[Collector, ...]:
        """The collectors that there are now, after the newest run; called in the thread that ran it.

        The node compares them by identity: it runs those that are new, and closes those that are gone, in their own
        lane's thread. A device that comes back is a new object, of the same name if you like.
        """
        ...


@runtime_checkable
class Releasable(Protocol):
    """A collector that holds a device which an operator may want to reset."""

    def release(self) -> None:
        """Give the device back; the collector is not run until ``acquire``. Also called before the first run.

        Called in the lane's thread, for members before their parent where both are of one lane.
        """
        ...

    def acquire(self) -> None:
        """The device may be taken again: the next run does so."""
        ...


@runtime_checkable
class RecordSource(Protocol):
    """A collector that also has records to put into frames."""

    def take_records(self) -> list[Record]:
        """The records since the last call, oldest first; they are the caller's now.

        Called once a frame from the node's thread, while ``collect`` may be running in the collector's own: it must
        not wait for anything (a lock around it is never held during a read).
        """
        ...
