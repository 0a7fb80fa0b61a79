"""A collector of one GPU: made of parts, each of which knows one way of asking the driver.

What a GPU does not tell has no column. A GPU that is lost fails its own collectors and no others; a library that is
dead fails them all until the parent (agent/collectors/gpu/nvml_collector.py) has opened another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from agent.collectors.block import Block
from agent.schema.errors import SourceError
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device, Query, Values


def series(metric: str, device: Device, **labels: str) -> Column:
    """A column of this GPU's."""
    return Column(metric, tuple(sorted({"gpu": device.uuid, **labels}.items())))


LANE = "nvml"
"""The driver serialises its callers: its collectors share one thread."""


class Part(Protocol):
    """Some columns of one GPU, and how they are read."""

    @property
    def gauges(self) -> Sequence[Column]: ...

    @property
    def counters(self) -> Sequence[Column]: ...

    def place(self, values: Values) -> None:
        """Where the values go from now on: as many as ``gauges`` and ``counters``."""
        ...

    def read(self) -> None:
        """Set what can be read now; the rest is absent already. Raises GpuLostError, LibraryDeadError."""
        ...


class SingleCall:
    """A call that gives a few values. values: takes them out of the call's structures; NaN is absent."""

    def __init__(
        self,
        query: Query,
        values: Callable[[], Sequence[float]],
        gauges: Iterable[Column] = (),
        counters: Iterable[Column] = (),
    ) -> None:
        """Asks once, so that what never answers has no columns. values are the gauges', then the counters'."""
        self._query = query
        self._values = values
        query.ask()
        self.gauges: tuple[Column, ...] = () if query.gone else tuple(gauges)
        self.counters: tuple[Column, ...] = () if query.gone else tuple(counters)

    @property
    def answers(self) -> bool:
        return not self._query.gone

    def place(self, values: Values) -> None:
        # Setting an item of a memoryview costs a tenth of what numpy takes for a short sequence.
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
    """Reads one GPU's parts, one after another, into one block.

    make: makes the parts, asking the GPU what it answers; called by the first run, in the lane's thread. A part whose
    columns are others after a run than before has the block made anew.
    """

    lane = LANE

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
        if device.library.dead:
            raise SourceError("NVML: the library is dead; it is opened anew by the next run of its parent")
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
        """All parts; where one can't be made, those before it are given back."""
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
        """Make a block of all parts' columns, and give each part its piece of it."""
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
        """Give back what the parts hold; the library is the parent's."""
        self.close()

    def acquire(self) -> None:
        """The parent opens the library again, and makes new collectors of it."""

    def close(self) -> None:
        """Give back what the parts hold."""
        self._give_back(self._parts or ())
        self._parts = None

    def _give_back(self, parts: Sequence[Part]) -> None:
        for part in parts:
            give_back = getattr(part, "close", None)
            if give_back is not None and not self.device.library.closed:
                give_back()
