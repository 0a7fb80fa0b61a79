"""Hardware counters of an RDMA device in one netlink message a port, and the port counters that only files tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agent.collectors.block import Block
from agent.collectors.rdma.rdma_series import NETLINK_LANE, RETRY_SECONDS, Naming, Series
from agent.schema.errors import SourceError
from agent.schema.frame import Column
from agent.sources.counter_files import CounterFiles
from agent.sources.rdma.infiniband import RdmaDevice
from agent.sources.rdma.netlink import RdmaNetlink, Shape


class _Answer(NamedTuple):
    """What one port's answer is made of.

    counters: places in the answer of those that are counts; they stand in the block from `at` on, in this order.
    gauges: place in the answer, gauge column and factor of each level.
    """

    shape: Shape
    at: int
    counters: npt.NDArray[np.intp]
    gauges: tuple[tuple[int, int, float], ...]


class NetlinkCounters:
    """Asks each port of a device every interval.

    failures: runs in a row that failed. After FAILURES the device's collectors are made anew, which finds out what
    answers now: an index is another one once the driver has been loaded again.
    """

    lane = NETLINK_LANE
    FAILURES = 3

    def __init__(
        self,
        device: RdmaDevice,
        index: int,
        series: Sequence[Series],
        naming: Naming,
        netlink: RdmaNetlink,
        interval_seconds: float,
    ) -> None:
        """series: counters of files, read beside. Asks once: raises UnsupportedError or SourceError where the device
        does not answer."""
        self.name = f"rdma/{device.name}"
        self.interval_seconds = interval_seconds
        self.failures = 0
        self._index = index
        self._ports = [port.number for port in device.ports]
        self._naming = naming
        self._netlink = netlink
        self._file_columns = [one.column for one in series]
        self._files = CounterFiles(
            [one.path for one in series], keep=True, retry_runs=round(RETRY_SECONDS / interval_seconds)
        )
        self._known: dict[tuple[str, str], Series] = {}
        self._answers: list[_Answer] = []
        self._lay_out()

    def _lay_out(self) -> None:
        """Ask each port, and make the block: counters of files first, then each port's in its answer's order."""
        counters = list(self._file_columns)
        gauges: list[Column] = []
        self._answers = []
        for port in self._ports:
            shape = Shape(self._netlink.buffer, self._netlink.statistics(self._index, int(port)))
            at = len(counters)
            counts: list[int] = []
            levels: list[tuple[int, int, float]] = []
            for place, name in enumerate(shape.names):
                series = self._series(name, port)
                if series.meaning.gauge:
                    levels.append((place, len(gauges), series.meaning.scale))
                    gauges.append(series.column)
                else:
                    counts.append(place)
                    counters.append(series.column)
            self._answers.append(_Answer(shape, at, np.array(counts, np.intp), tuple(levels)))
        self._block = Block(gauges, counters)
        self._cells = self._block.counters.data
        self._valid = self._block.counters_valid.data

    def _series(self, name: str, port: str) -> Series:
        if (name, port) not in self._known:
            (self._known[name, port],) = self._naming.hardware([name], port)
        return self._known[name, port]

    def collect(self) -> Block:
        try:
            told = self._ask()
            if told is None:
                # The driver has other counters than before: optional ones were switched on or off.
                self._lay_out()
                told = self._ask()
                if told is None:
                    raise SourceError("the driver's counters changed between two answers")
        except SourceError as error:
            self.failures += 1
            # It has answered before: that it does not now is no reason never to ask again.
            raise SourceError(f"{self.name}: {error}") from None
        self.failures = 0
        block = self._block
        block.clear()
        self._files.read_into(self._cells, self._valid)
        for answer, values in zip(self._answers, told, strict=True):
            end = answer.at + len(answer.counters)
            block.counters[answer.at : end] = np.array(values, np.uint64)[answer.counters]
            block.counters_valid[answer.at : end] = True
            for place, gauge, scale in answer.gauges:
                block.set_gauge(gauge, values[place] * scale)
        return block

    def _ask(self) -> list[tuple[int, ...]] | None:
        """Each port's values; None where an answer is not of the shape that it had."""
        told: list[tuple[int, ...]] = []
        for port, answer in zip(self._ports, self._answers, strict=True):
            values = answer.shape.values(self._netlink.buffer, self._netlink.statistics(self._index, int(port)))
            if values is None:
                return None
            told.append(values)
        return told

    def unreadable(self) -> int:
        """Counter files that are left alone at present because they gave no number."""
        return self._files.unreadable()

    def close(self) -> None:
        self._files.close()
        self._netlink.close()
