"""Mapping of the counters of an RDMA device to unique series, independent of the driver's names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from agent.collectors.rdma.rdma_counters import FIRST, Meaning, hardware_counter, own_name, port_counter
from agent.schema.frame import Column
from agent.sources.rdma.infiniband import Port, RdmaDevice

WORKER = "sysfs"
"""Name of the worker thread of collectors that read files."""

NETLINK_WORKER = "netlink"
"""Name of the worker thread of collectors that use sockets. They have a separate thread, because the kernel may lock
sockets for a long time."""

SLOW_SECONDS = 15.0

RETRY_SECONDS = 600.0
"""Time in seconds after which a file that returned no number is read again. Earlier retries might fill the kernel log,
since each read may write a line to it (node_exporter issue 3434)."""


class Series(NamedTuple):
    """One counter of a device and the series that publishes it.

    path: the counter's file, '' if it is not read from a file.
    """

    path: str
    column: Column
    meaning: Meaning


def column_of(meaning: Meaning, device: str, port: str) -> Column:
    labels = sorted((("device", device), ("port", port), *meaning.labels))
    return Column(meaning.metric, tuple(labels), width=meaning.width)


class Naming:
    """Mapping of the counters of one device to unique series."""

    def __init__(self, device: RdmaDevice) -> None:
        self._device = device
        # If sysfs does not name the driver, take it from the prefix of the device name (mlx5_0).
        self._driver = device.driver or device.name.partition("_")[0]
        self._taken: set[tuple[str, tuple[tuple[str, str], ...]]] = set()

    def port_counters(self, port: Port) -> list[Series]:
        """Return the series of the counter files in the port's folder ``counters``."""
        folder = f"{self._device.path}/ports/{port.number}/counters"
        return [self._series(f"{folder}/{file}", file, port_counter(file), port.number) for file in port.counters]

    def hardware_files(self, port: Port) -> list[Series]:
        """Return the series of the counter files in the port's folder ``hw_counters``."""
        folder = f"{self._device.path}/ports/{port.number}/hw_counters"
        # Read FIRST before the others: it makes mlx5 query the device, and the others are then served from memory.
        ordered = sorted(port.hardware_counters, key=lambda file: file != FIRST)
        return [self._hardware(f"{folder}/{file}", file, port.number) for file in ordered]

    def device_files(self) -> list[Series]:
        """Return the series of the counter files in the device's own folder ``hw_counters``.

        Their label `port` is ''.
        """
        folder = f"{self._device.path}/hw_counters"
        return [self._hardware(f"{folder}/{file}", file, "") for file in self._device.hardware_counters]

    def hardware(self, names: Iterable[str], port: str) -> list[Series]:
        """Return the series of the counters in `names`, which netlink reports."""
        return [self._hardware("", name, port) for name in names]

    def _hardware(self, path: str, file: str, port: str) -> Series:
        return self._series(path, file, hardware_counter(self._driver, file), port)

    def _series(self, path: str, file: str, meaning: Meaning, port: str) -> Series:
        column = column_of(meaning, self._device.name, port)
        if (column.metric, column.labels) in self._taken:
            # Two counters have the same meaning, for example if a driver has an old and a new name.
            meaning = own_name(file)._replace(width=meaning.width)
            column = column_of(meaning, self._device.name, port)
        self._taken.add((column.metric, column.labels))
        return Series(path, column, meaning)
