"""Collector of an RDMA device's network driver statistics: pause frames, discards and physical errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agent.collectors.block import Block
from agent.collectors.rdma.ethtool_counters import ethtool_counter
from agent.collectors.rdma.rdma_series import NETLINK_WORKER, SLOW_SECONDS, column_of
from agent.schema.errors import SourceError, UnsupportedError
from agent.schema.frame import Column
from agent.sources.rdma.ethtool import StatisticsSource
from agent.sources.rdma.infiniband import RdmaDevice


class _Port(NamedTuple):
    """Published statistics of one port: where each is in the driver's list, and which gauge or counter publishes it."""

    netdev: str
    names: tuple[str, ...]
    """Names of all statistics that the network driver reports for the port."""
    counter_at: int
    """Index of the port's first counter in the block."""
    counters: npt.NDArray[np.intp]
    """Positions of the published counters in the driver's list of statistics: intp [counters]."""
    gauge_at: int
    """Index of the port's first gauge in the block."""
    gauges: tuple[tuple[int, float], ...]
    """For each published gauge: its position in the driver's list of statistics, and the factor to the metric's base
    unit."""


class EthtoolCounters:
    """Collector of the statistics of each port's network device (netdev). A port without a netdev has no statistics."""

    worker = NETLINK_WORKER

    def __init__(self, device: RdmaDevice, source: StatisticsSource) -> None:
        self.name = f"rdma-ethtool/{device.name}"
        self.interval_seconds = SLOW_SECONDS
        self._device = device.name
        self._netdevs = [(port.number, port.netdev) for port in device.ports if port.netdev]
        self._source = source
        self._ports: list[_Port] = []
        self._block = Block()

    def collect(self) -> Block:
        """Read all statistics and return the block.

        Raise UnsupportedError if no netdev has statistics, SourceError if none could be read.
        """
        found: dict[str, tuple[tuple[str, ...], npt.NDArray[np.uint64]]] = {}
        errors: list[SourceError] = []
        for _, netdev in self._netdevs:
            try:
                statistics = self._source.read(netdev)
            except SourceError as error:
                errors.append(error)
                continue
            found[netdev] = (statistics.names, statistics.values.copy())
        if not found:
            failed = [error for error in errors if not isinstance(error, UnsupportedError)]
            if failed or not self._ports:
                raise (failed or errors)[0]
            # The netdevs had statistics before, so the driver is probably being reloaded: retry.
            raise SourceError(str(errors[0]))
        if any(port.netdev in found and found[port.netdev][0] is not port.names for port in self._ports) or not (
            self._ports
        ):
            self._lay_out({netdev: names for netdev, (names, _) in found.items()})
        block = self._block
        block.clear()
        for port in self._ports:
            if port.netdev not in found:
                continue
            values = found[port.netdev][1]
            end = port.counter_at + len(port.counters)
            block.counters[port.counter_at : end] = values[port.counters]
            block.counters_valid[port.counter_at : end] = True
            for index, (place, scale) in enumerate(port.gauges, port.gauge_at):
                block.set_gauge(index, float(values[place]) * scale)
        return block

    def _lay_out(self, names_of: dict[str, tuple[str, ...]]) -> None:
        """Make the block of series for the drivers' current names. A netdev that did not respond keeps its series."""
        before = {port.netdev: port.names for port in self._ports}
        counters: list[Column] = []
        gauges: list[Column] = []
        self._ports = []
        for number, netdev in self._netdevs:
            names = names_of.get(netdev) or before.get(netdev, ())
            taken: set[Column] = set()
            counter_at, gauge_at = len(counters), len(gauges)
            places: list[int] = []
            levels: list[tuple[int, float]] = []
            for place, name in enumerate(names):
                meaning = ethtool_counter(name)
                if meaning is None:
                    continue
                column = column_of(meaning, self._device, number)
                if column in taken:
                    continue
                taken.add(column)
                if meaning.gauge:
                    gauges.append(column)
                    levels.append((place, meaning.scale))
                else:
                    counters.append(column)
                    places.append(place)
            self._ports.append(_Port(netdev, names, counter_at, np.array(places, np.intp), gauge_at, tuple(levels)))
        self._block = Block(gauges, counters)

    def close(self) -> None:
        self._source.close()
