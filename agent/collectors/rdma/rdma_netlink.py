"""Collector of an RDMA device's hardware counters (one netlink message per port) and of port counters in files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agent.collectors.block import Block
from agent.collectors.rdma.rdma_series import NETLINK_WORKER, RETRY_SECONDS, Naming, Series
from agent.schema.errors import SourceError
from agent.schema.frame import Column
from agent.sources.counter_files import CounterFiles
from agent.sources.rdma.infiniband import RdmaDevice
from agent.sources.rdma.netlink import RdmaNetlink, Shape


class _Answer(NamedTuple):
    """Positions of the values in the netlink response of one port, and of the gauges and counters that publish them."""

    shape: Shape
    at: int
    """Index of the port's first counter in the block."""
    counters: npt.NDArray[np.intp]
    """Positions of the counters in the response, in the order of the block: intp [counters]."""
    gauges: tuple[tuple[int, int, float], ...]
    """For each gauge: its position in the response, its index among the block's gauges, and the factor to its base
    unit."""


class NetlinkCounters:
    """Collector that queries each port of a device at every run.

    failures: consecutive failed runs. After FAILURES of them, the parent makes new collectors for the device,
    because reloading its driver changes the device's index.
    """

    worker = NETLINK_WORKER
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
        """Query the device once. Raise UnsupportedError or SourceError if it does not respond.

        series: counters that are read from files, in addition to the counters from netlink. naming: chooses the series
        of each counter from netlink.
        """
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
        """Query each port and make the block of series: first counters of files, then those of each port's response."""
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
            responses = self._query()
            if responses is None:
                # The driver's counters changed: optional ones were switched on or off.
                self._lay_out()
                responses = self._query()
                if responses is None:
                    raise SourceError("the driver's counters changed between two responses")
        except SourceError as error:
            self.failures += 1
            # The device responded before, so an UnsupportedError is not permanent: convert it and retry.
            raise SourceError(f"{self.name}: {error}") from None
        self.failures = 0
        block = self._block
        block.clear()
        self._files.read_into(self._cells, self._valid)
        for answer, values in zip(self._answers, responses, strict=True):
            end = answer.at + len(answer.counters)
            block.counters[answer.at : end] = np.array(values, np.uint64)[answer.counters]
            block.counters_valid[answer.at : end] = True
            for place, gauge, scale in answer.gauges:
                block.set_gauge(gauge, values[place] * scale)
        return block

    def _query(self) -> list[tuple[int, ...]] | None:
        """Return the netlink values of each port; None if the structure of a response has changed."""
        responses: list[tuple[int, ...]] = []
        for port, answer in zip(self._ports, self._answers, strict=True):
            values = answer.shape.values(self._netlink.buffer, self._netlink.statistics(self._index, int(port)))
            if values is None:
                return None
            responses.append(values)
        return responses

    def unreadable(self) -> int | None:
        """Return the number of files that returned no number when they were last read; None before the first run."""
        return self._files.unreadable()

    def close(self) -> None:
        self._files.close()
        self._netlink.close()
