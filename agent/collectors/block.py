"""Interface of collectors, and the block of series that a collector returns.

A collector reads one family of metrics. It is called from one thread at a time and returns its ``Block``, whose values
the node copies into the next frame. This module does not depend on frames or time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import numpy as np

from agent.schema.frame import Column, CounterArray, GaugeArray, Record, ValidArray

_MOST = (1 << 64) - 1


class Block:
    """Series (columns) of one collector and their newest values. A value is absent until it is set.

    gauge_columns, counter_columns: the series. The collector leaves their ``tier`` at 0, and the node replaces it.
    gauges: one float64 for each gauge column, in the catalogue's base units; NaN if absent. counters: one uint64 for
    each counter column, in the catalogue's ``integer_unit``. counters_valid: one bool for each counter column; False if
    the counter is absent.

    The columns of a block never change. If the set of series changes, the collector returns a new Block object. The
    node sends a new layout whenever the object is not the same as before.
    """

    __slots__ = ("counter_columns", "counters", "counters_valid", "gauge_columns", "gauges")

    def __init__(self, gauge_columns: Iterable[Column] = (), counter_columns: Iterable[Column] = ()) -> None:
        self.gauge_columns: tuple[Column, ...] = tuple(gauge_columns)
        self.counter_columns: tuple[Column, ...] = tuple(counter_columns)
        self.gauges: GaugeArray = np.full(len(self.gauge_columns), np.nan, np.float64)
        self.counters: CounterArray = np.zeros(len(self.counter_columns), np.uint64)
        self.counters_valid: ValidArray = np.zeros(len(self.counter_columns), np.bool_)

    def set_gauge(self, index: int, value: float) -> None:
        """Set the value of the gauge at position `index` of ``gauge_columns``."""
        self.gauges[index] = value

    def set_counter(self, index: int, value: int) -> None:
        """Set the value of the counter at position `index` of ``counter_columns``.

        The counter wraps at 2^64. Raise OverflowError for a negative value.
        """
        self.counters[index] = value if value <= _MOST else value & _MOST
        self.counters_valid[index] = True

    def clear(self) -> None:
        """Make every value absent. Collectors call this before they set the values of a new reading."""
        self.gauges.fill(np.nan)
        self.counters_valid.fill(False)


class Collector(Protocol):
    """Reader of one family of metrics at one interval. ``name`` identifies it in metrics and in the layout.

    Optional attributes: ``worker: str`` (default: the collector's name): name of the worker thread. Collectors with the
    same worker run one after another in one thread. ``phase: float`` (default: chosen by the node): time of each run
    within the interval, from 0 (start) to 1 (end). ``idle: bool`` (default: False): whether the last run found nothing
    to read. The node runs an idle collector less often.

    Methods are called from one thread at a time. This is the worker thread, or a new thread after a call did not
    return. The constructor raises UnsupportedError if the machine has nothing to read; the agent then runs without
    this collector.
    """

    @property
    def name(self) -> str: ...

    @property
    def interval_seconds(self) -> float: ...

    def collect(self) -> Block:
        """Read the values and return the block. It is the same object as before unless the set of series changed.

        A value that cannot be read is absent. Raise SourceError if nothing could be read, and UnsupportedError if
        reading will never succeed on this machine.
        """
        ...

    def close(self) -> None:
        """Release descriptors and handles. The node calls no method of the collector afterwards."""
        ...


@runtime_checkable
class Parent(Protocol):
    """Collector that creates other collectors, such as one for each device."""

    def members(self) -> tuple[Collector, ...]:
        """Return the current member collectors (the collectors that this parent has created).

        The node calls this in the parent's thread after each run of the parent. It runs members that are new in the
        list. If a member is no longer in the list, its worker's thread closes it. A device that reappears must be a new
        object, which may have the same name.
        """
        ...


@runtime_checkable
class Releasable(Protocol):
    """Collector that holds a device open and can release it, for example so that an operator can reset the device."""

    def release(self) -> None:
        """Release the device. The collector does not run until ``acquire``. May be called before the first run.

        Called in the worker's thread. Members in the same worker as their parent are released before it.
        """
        ...

    def acquire(self) -> None:
        """Allow the next run to open the device again."""
        ...


@runtime_checkable
class RecordSource(Protocol):
    """Collector that also returns records, such as finished steps and events, for frames."""

    def take_records(self) -> list[Record]:
        """Return the records since the last call, oldest first, and remove them from this collector.

        The node's thread calls this once per frame, possibly while another thread runs ``collect``. It must not
        block, so ``collect`` must not hold its lock while it reads a device or file.
        """
        ...
