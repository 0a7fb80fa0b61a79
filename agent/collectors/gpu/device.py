"""Collector of one GPU. It consists of parts, and each part uses one kind of driver call.

Values that the GPU does not support have no series. If a GPU is lost, only its own collectors fail. A dead library
makes all GPU collectors fail until the parent (agent/collectors/gpu/nvml_collector.py) has reopened it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from agent.collectors.block import Block
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, Query, Values


def series(metric: str, device: Device, **labels: str) -> Column:
    """Return the column (one series) of a metric for this GPU."""
    return Column(metric, tuple(sorted({"gpu": device.uuid, **labels}.items())))


WORKER = "nvml"
"""Name of the worker that all GPU collectors share. It has one thread, because the driver serialises its callers."""


class Part(Protocol):
    """Some series of one GPU, and the code that reads their values from the driver."""

    @property
    def gauges(self) -> Sequence[Column]: ...

    @property
    def counters(self) -> Sequence[Column]: ...

    def place(self, values: Values) -> None:
        """Set the arrays into which ``read`` writes the values of this part's gauges and counters."""
        ...

    def read(self) -> None:
        """Read the values into the arrays that ``place`` has set. The caller must first make all values absent.

        Raise GpuLostError or LibraryDeadError.
        """
        ...


class SingleCall:
    """One driver call, and the series that publish its results.

    values: function that returns the results of the newest call; a result that is NaN is absent.
    """

    def __init__(
        self,
        query: Query,
        values: Callable[[], Sequence[float]],
        gauges: Iterable[Column] = (),
        counters: Iterable[Column] = (),
    ) -> None:
        """Make the call once to find out whether the GPU supports it. If not, this object has no series.

        values: function that returns the values of all gauges, followed by the values of all counters.
        """
        self._query = query
        self._values = values
        query.ask()
        self.gauges: tuple[Column, ...] = () if query.gone else tuple(gauges)
        self.counters: tuple[Column, ...] = () if query.gone else tuple(counters)

    @property
    def answers(self) -> bool:
        return not self._query.gone

    def place(self, values: Values) -> None:
        # Setting an item of a memoryview costs a tenth of numpy's time for a short sequence.
        self._gauge_cells: Any = values.gauges.data  # typeshed knows memoryviews of integers only
        self._counter_cells: Any = values.counters.data
        self._valid_cells = values.counters_valid.data

    def read(self) -> None:
        if not self._query.ask():
            return
        values = self._values()
        count = len(self.gauges)
        cells = self._gauge_cells
        for index in range(count):
            cells[index] = values[index]
        for index in range(len(self.counters)):
            self._counter_cells[index] = values[count + index]
            self._valid_cells[index] = True


class DeviceCollector:
    """Collector that reads the parts of one GPU, one after another, into one block of series.

    make: makes the parts and finds out what the GPU supports. The first run calls it in the worker's thread. If the
    series of a part change during a run, a new block is made.
    """

    worker = WORKER

    def __init__(
        self,
        name: str,
        device: Device,
        make: Callable[[Device], Iterable[Part]],
        interval_seconds: float,
        phase: float = 0.0,
    ) -> None:
        self.name = name
        self.device = device
        self.interval_seconds = interval_seconds
        self.phase = phase
        self._make = make
        self._parts: Sequence[Part] | None = None
        self._shape: list[tuple[Sequence[Column], Sequence[Column]]] = []
        self._block = Block()

    def collect(self) -> Block:
        device = self.device
        device.library.check_alive()
        with device.library.using():
            device.check_present()
            if self._parts is None:
                self._parts = self._make_parts()
                self._lay_out(self._parts)
            self._block.clear()
            for part in self._parts:
                part.read()
            if self._changed(self._parts):
                self._lay_out(self._parts)
                for part in self._parts:
                    part.read()
        return self._block

    def _make_parts(self) -> Sequence[Part]:
        """Make all parts. If one part fails, close the parts that were made before it."""
        parts: list[Part] = []
        try:
            for part in self._make(self.device):
                parts.append(part)
        except BaseException:
            self._give_back(parts)
            raise
        return parts

    def _changed(self, parts: Sequence[Part]) -> bool:
        for part, (gauges, counters) in zip(parts, self._shape, strict=True):
            if part.gauges is not gauges or part.counters is not counters:
                return True
        return False

    def _lay_out(self, parts: Sequence[Part]) -> None:
        """Make a block of the series of all parts, and give each part its slice of the block's arrays."""
        self._shape = [(part.gauges, part.counters) for part in parts]
        block = Block(
            (column for part in parts for column in part.gauges),
            (column for part in parts for column in part.counters),
        )
        gauge_at = counter_at = 0
        for part in parts:
            gauge_end, counter_end = gauge_at + len(part.gauges), counter_at + len(part.counters)
            part.place(
                Values(
                    block.gauges[gauge_at:gauge_end],
                    block.counters[counter_at:counter_end],
                    block.counters_valid[counter_at:counter_end],
                )
            )
            gauge_at, counter_at = gauge_end, counter_end
        self._block = block

    def release(self) -> None:
        """Close the parts. The parent collector closes the library."""
        self.close()

    def acquire(self) -> None:
        """Do nothing: the parent collector reopens the library and makes new collectors."""

    def close(self) -> None:
        """Close the GPU's open parts."""
        self._give_back(self._parts or ())
        self._parts = None

    def _give_back(self, parts: Sequence[Part]) -> None:
        for part in parts:
            give_back = getattr(part, "close", None)
            if give_back is not None and not self.device.library.closed:
                give_back()
