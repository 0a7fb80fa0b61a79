"""Interface of collectors, and the block of columns that a collector returns.

A collector reads one family of metrics. It is called from one thread at a time and returns its ``Block``, whose values
the node copies into the next frame. This module is independent of frames, tiers and time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import numpy as np

from agent.schema.frame import Column, CounterArray, GaugeArray, Record, ValidArray

_MOST = (1 << 64) - 1


class Block:
    """Series of one collector and their newest values. A value is absent until it is set.

    gauge_columns, counter_columns: the series; their ``tier`` is 0 and is set by the node. gauges: one float64 for each
    gauge column, in the catalogue's base units; NaN if absent. counters: one uint64 for each counter column, in the
    catalogue's ``integer_unit``. counters_valid: one bool for each counter column; False if the counter is absent.

    The columns of a block never change. If the set of series changes, the collector returns a new block. The node
    compares blocks by identity and sends a new layout for a new block.
    """

    __slots__ = ("counter_columns", "counters", "counters_valid", "gauge_columns", "gauges")

    def __init__(self, gauge_columns: Iterable[Column] = (), counter_columns: Iterable[Column] = ()) -> None:
        self.gauge_columns: tuple[Column, ...] = tuple(gauge_columns)
        self.counter_columns: tuple[Column, ...] = tuple(counter_columns)
        self.gauges: GaugeArray = np.full(len(self.gauge_columns), np.nan, np.float64)
        self.counters: CounterArray = np.zeros(len(self.counter_columns), np.uint64)
        self.counters_valid: ValidArray = np.zeros(len(self.counter_columns), np.bool_)

    def set_gauge(self, index: int, value: float) -> None:
        """Set the value of gauge column `index`."""
        self.gauges[index] = value

    def set_counter(self, index: int, value: int) -> None:
        """Set the value of counter column `index`.

        The counter wraps at 2^64. A total of the nanoseconds of 256 processors reaches 2^64 in two years. Raise
        OverflowError for a negative value.
        """
        self.counters[index] = value if value <= _MOST else value & _MOST
        self.counters_valid[index] = True

    def clear(self) -> None:
        """Make every value absent. Collectors call this before they set the values of a run."""
        self.gauges.fill(np.nan)
        self.counters_valid.fill(False)


class Collector(Protocol):
    """Reader of one family of metrics at one interval. ``name`` is also the name of its tier.

    Optional attributes:
    ``worker: str`` (default: its name): collectors of one worker run one after another in one thread.
    ``phase: float`` (default: spread by the node): position of its runs in the interval, 0 to 1.
    ``idle: bool`` (default: False): the last run found nothing to read, so the collector runs less often.

    Methods are called from one thread at a time: the worker's, or a new one after a call got stuck. The constructor may
    raise UnsupportedError if the machine has nothing to read. The collector is then omitted, which is not a failure.
    """

    @property
    def name(self) -> str: ...

    @property
    def interval_seconds(self) -> float: ...

    def collect(self) -> Block:
        """Read the values and return the block: the same object as before unless the set of series changed.

        A value that cannot be read is absent. Raise SourceError if nothing could be read, and UnsupportedError if
        reading will never succeed on this machine.
        """
        ...

    def close(self) -> None:
        """Release descriptors and handles. No method is called afterwards."""
        ...


@runtime_checkable
class Parent(Protocol):
    """Collector that creates other collectors, such as one for each device."""

    def members(self) -> tuple[Collector, ...]:
        """Return the current member collectors. Called after each run in its thread.

        The node compares them by identity. It runs new members, and closes removed ones in their worker's thread. A
        device that reappears is a new object, which may have the same name.
        """
        ...


@runtime_checkable
class Releasable(Protocol):
    """Collector that holds a device open and can release it, for example so that an operator can reset the device."""

    def release(self) -> None:
        """Release the device. The collector does not run until ``acquire``. May be called before the first run.

        Called in the worker's thread, for members before their parent if both are in one worker.
        """
        ...

    def acquire(self) -> None:
        """Allow the next run to open the device again."""
        ...


@runtime_checkable
class RecordSource(Protocol):
    """Collector that also returns records for frames."""

    def take_records(self) -> list[Record]:
        """Return the records since the last call, oldest first, and remove them from this collector.

        Called once per frame from the node's thread, possibly while ``collect`` runs in another. It must not block: do
        not hold its lock during a read.
        """
        ...
