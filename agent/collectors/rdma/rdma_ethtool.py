"""Pause frames, discards and errors of the wire: what an RDMA device's network driver counts, every ten seconds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agent.collectors.block import Block
from agent.collectors.rdma.ethtool_counters import ethtool_counter
from agent.collectors.rdma.rdma_series import NETLINK_LANE, SLOW_SECONDS, column_of
from agent.schema.errors import SourceError, UnsupportedError
from agent.schema.frame import Column
from agent.sources.rdma.ethtool import StatisticsSource
from agent.sources.rdma.infiniband import RdmaDevice


class _Port(NamedTuple):
    """One port's statistics: which of them are published, and where they stand in the block from there on.

    counters: places in the driver's list. gauges: place and factor of each level.
    """

    netdev: str
    names: tuple[str, ...]
    counter_at: int
    counters: npt.NDArray[np.intp]
    gauge_at: int
    gauges: tuple[tuple[int, float], ...]


class EthtoolCounters:
    """Reads the statistics of each port's netdev; a port without one has none."""

    lane = NETLINK_LANE

    def __init__(self, device: RdmaDevice, source: StatisticsSource) -> None:
        self.name = f"rdma-ethtool/{device.name}"
        self.interval_seconds = SLOW_SECONDS
        self._device = device.name
        self._netdevs = [(port.number, port.netdev) for port in device.ports if port.netdev]
        self._source = source
        self._ports: list[_Port] = []
        self._block = Block()

    def collect(self) -> Block:
        """Raises UnsupportedError where none of the netdevs has statistics, SourceError where none could be asked."""
        told: dict[str, tuple[tuple[str, ...], npt.NDArray[np.uint64]]] = {}
        errors: list[SourceError] = []
        for _, netdev in self._netdevs:
            try:
                statistics = self._source.read(netdev)
            except SourceError as error:
                errors.append(error)
                continue
            told[netdev] = (statistics.names, statistics.values.copy())
        if not told:
            failed = [error for error in errors if not isinstance(error, UnsupportedError)]
            if failed or not self._ports:
                raise (failed or errors)[0]
            # They had statistics before: a driver that is being loaded again is no reason never to ask again.
            raise SourceError(str(errors[0]))
        if any(port.netdev in told and told[port.netdev][0] is not port.names for port in self._ports) or not (
            self._ports
        ):
            self._lay_out({netdev: names for netdev, (names, _) in told.items()})
        block = self._block
        block.clear()
        for port in self._ports:
            if port.netdev not in told:
                continue
            values = told[port.netdev][1]
            end = port.counter_at + len(port.counters)
            block.counters[port.counter_at : end] = values[port.counters]
            block.counters_valid[port.counter_at : end] = True
            for index, (place, scale) in enumerate(port.gauges, port.gauge_at):
                block.set_gauge(index, float(values[place]) * scale)
        return block

    def _lay_out(self, names_of: dict[str, tuple[str, ...]]) -> None:
        """Make the block for the names that the drivers have now; a netdev that did not answer keeps its columns."""
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
