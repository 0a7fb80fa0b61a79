"""Collectors of RDMA devices: port counters, hardware counters of every driver, port states.

Counters of congestion, loss and volume are read every interval, through open descriptors or with one netlink message
per port. Values that change rarely are read every 15 s. A parent collector lists the devices every 15 s and has a few
collectors for each device. If a device is removed, stuck or faulty, only its own series are affected.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agent.collectors.block import Block, Collector
from agent.collectors.rdma.rdma_counters import FIRST, MLX5, is_fast
from agent.collectors.rdma.rdma_ethtool import EthtoolCounters
from agent.collectors.rdma.rdma_namespaces import ForeignDevices
from agent.collectors.rdma.rdma_netlink import NetlinkCounters
from agent.collectors.rdma.rdma_series import RETRY_SECONDS, SLOW_SECONDS, WORKER, Naming, Series
from agent.schema.errors import SourceError, UnsupportedError
from agent.schema.frame import Column
from agent.sources.counter_files import CounterFiles
from agent.sources.rdma.ethtool import Ethtool, RecordedEthtool, StatisticsSource
from agent.sources.rdma.infiniband import DeviceFinder, RdmaDevice, parse_rate, parse_state
from agent.sources.rdma.netlink import RdmaNetlink
from agent.sources.sysfs.sysfs import is_kernel_tree, is_number, read_text

log = logging.getLogger(__name__)

DISCOVERY_SECONDS = 15.0

_STATES = (
    "gangwatch_rdma_port_state",
    "gangwatch_rdma_port_physical_state",
    "gangwatch_rdma_port_rate_bytes_per_second",
    "gangwatch_rdma_port_lanes",
)


class FileCounters:
    """Collector of one device's counters. Each counter has its own file, which stays open."""

    worker = WORKER

    def __init__(self, name: str, series: Sequence[Series], interval_seconds: float) -> None:
        self.name = name
        self.interval_seconds = interval_seconds
        self._files = CounterFiles(
            [one.path for one in series], keep=True, retry_runs=round(RETRY_SECONDS / interval_seconds)
        )
        self._block = Block((), [one.column for one in series])
        self._cells = self._block.counters.data
        self._valid = self._block.counters_valid.data

    def collect(self) -> Block:
        """Read all files. Raise SourceError if no file is readable, for example because the device was removed."""
        if not self._files.read_into(self._cells, self._valid) and self._files.skipped() < len(self._files):
            raise SourceError(f"{self.name}: none of its {len(self._files)} counter files is readable")
        return self._block

    def unreadable(self) -> int | None:
        """Return the number of files that returned no number when they were last read; None before the first run."""
        return self._files.unreadable()

    def close(self) -> None:
        self._files.close()


class SlowCounters:
    """Collector of values that are read every 15 s: port states and rates, gauges, and counters that change rarely.

    first: files that are read before all others at every run, because the driver requires it.
    """

    worker = WORKER

    def __init__(self, device: RdmaDevice, series: Sequence[Series], first: Sequence[str]) -> None:
        self.name = f"rdma-slow/{device.name}"
        self.interval_seconds = SLOW_SECONDS
        counters = [one for one in series if not one.meaning.gauge]
        self._levels = [one for one in series if one.meaning.gauge]
        self._ports = [f"{device.path}/ports/{port.number}" for port in device.ports]
        self._files = CounterFiles(
            [one.path for one in counters],
            keep=False,
            retry_runs=round(RETRY_SECONDS / SLOW_SECONDS),
            first=first,
        )
        states = (
            Column(metric, (("device", device.name), ("port", port.number)))
            for port in device.ports
            for metric in _STATES
        )
        self._block = Block(
            [*(one.column for one in self._levels), *states],
            [one.column for one in counters],
        )
        self._cells = self._block.counters.data
        self._valid = self._block.counters_valid.data
        self._levels_unreadable = 0

    def collect(self) -> Block:
        """Read all values. Raise SourceError if neither a counter nor a state is readable."""
        block = self._block
        block.clear()
        good = self._files.read_into(self._cells, self._valid)
        unreadable = 0
        for index, level in enumerate(self._levels):
            text = read_text(level.path)
            if is_number(text):
                block.set_gauge(index, int(text) * level.meaning.scale)
            else:
                unreadable += 1
        self._levels_unreadable = unreadable
        for position, folder in enumerate(self._ports):
            good += self._set_state(len(self._levels) + position * len(_STATES), folder)
        if not good and (self._ports or len(self._files)):
            raise SourceError(f"{self.name}: neither counters nor the state of a port are readable")
        return block

    def _set_state(self, at: int, folder: str) -> int:
        """Set the state and rate of one port from the files in `folder`, and return how many of these files are valid.

        at: index of the port's first gauge in the block.
        """
        good = 0
        for index, file in enumerate(("state", "phys_state")):
            try:
                self._block.set_gauge(at + index, parse_state(read_text(f"{folder}/{file}")))
                good += 1
            except ValueError:
                continue
        try:
            rate, lanes = parse_rate(read_text(f"{folder}/rate"))
        except ValueError:
            return good
        self._block.set_gauge(at + 2, rate)
        if lanes is not None:
            self._block.set_gauge(at + 3, lanes)
        return good + 1

    def unreadable(self) -> int | None:
        """Return the number of files that returned no number when they were last read; None before the first run."""
        counters = self._files.unreadable()
        return None if counters is None else counters + self._levels_unreadable

    def close(self) -> None:
        self._files.close()


@dataclass(frozen=True, slots=True)
class _Members:
    """Collectors of one RDMA device. index: the device's netlink index, None if netlink is not used."""

    device: RdmaDevice
    index: int | None
    fast: FileCounters | NetlinkCounters | None
    slow: SlowCounters
    ethtool: EthtoolCounters | None

    def collectors(self) -> Iterable[Collector]:
        return (one for one in (self.fast, self.slow, self.ethtool) if one is not None)

    def unreadable(self) -> float:
        """Return the number of files that returned no number; NaN until all have been read."""
        slow, fast = self.slow.unreadable(), 0 if self.fast is None else self.fast.unreadable()
        return math.nan if slow is None or fast is None else slow + fast

    def broken(self) -> bool:
        return isinstance(self.fast, NetlinkCounters) and self.fast.failures >= NetlinkCounters.FAILURES


class RdmaCollector:
    """Parent collector that finds the RDMA devices and makes the collectors of each.

    excluded: patterns of device names and PCI addresses that are not read. netlink: opens a netlink connection, None
    if the /sys tree is not that of the running kernel. ethtool: makes a source of network driver statistics.
    foreign: RDMA devices in containers, None if they are not read.
    """

    name = "rdma"
    worker = WORKER

    def __init__(
        self,
        sys_root: str = "/sys",
        interval_seconds: float = 1.0,
        *,
        excluded: Sequence[str] = (),
        netlink: Callable[[], RdmaNetlink] | None = None,
        ethtool: Callable[[], StatisticsSource] | None = None,
        foreign: ForeignDevices | None = None,
    ) -> None:
        self.interval_seconds = DISCOVERY_SECONDS
        self._finder = DeviceFinder(sys_root, excluded)
        self._fast_seconds = interval_seconds
        self._make_netlink = netlink
        self._make_ethtool = ethtool
        self._netlink = netlink() if netlink is not None else None
        self._members: dict[str, _Members] = {}
        self._foreign = foreign
        self._laid_out: list[object] | None = None
        self._block = Block()

    @classmethod
    def of(cls, sys_root: str, interval_seconds: float, excluded: Sequence[str] = ()) -> RdmaCollector:
        """Make a collector of the devices in `sys_root`.

        It also uses netlink and ethtool if `sys_root` is the running kernel's /sys.
        """
        if is_kernel_tree(sys_root):
            return cls(
                *(sys_root, interval_seconds),
                excluded=excluded,
                netlink=RdmaNetlink,
                ethtool=Ethtool,
                foreign=ForeignDevices(),
            )
        return cls(sys_root, interval_seconds, excluded=excluded, ethtool=lambda: RecordedEthtool(sys_root))

    def collect(self) -> Block:
        devices, left_out = self._finder.find()
        indexes = self._indexes() if devices else {}
        foreign = self._foreign
        if foreign is not None and self._netlink is not None:
            foreign.look(self._netlink)
        self._members = {device.name: self._member(device, indexes.get(device.name)) for device in devices}
        members = list(self._members.values())
        of_containers = foreign.members() if foreign is not None else ()
        before, shown = self._laid_out, [*members, *of_containers]
        if before is None or len(before) != len(shown) or any(a is not b for a, b in zip(before, shown, strict=True)):
            self._laid_out = list(shown)
            self._block = self._lay_out(members, foreign.names() if foreign is not None else ())
        block = self._block
        block.gauges.fill(1.0)
        block.set_gauge(0, len(members))
        block.set_gauge(1, len(left_out))
        block.set_gauge(2, float(foreign is not None and foreign.exclusive))
        block.set_gauge(3, foreign.unreadable if foreign is not None else 0)
        for index, one in enumerate(members, 4):
            block.set_gauge(index, one.unreadable())
        return block

    def members(self) -> tuple[Collector, ...]:
        """Return the collectors of all devices. The collectors of an unchanged device are the same objects as
        before."""
        own = (collector for one in self._members.values() for collector in one.collectors())
        return (*own, *(self._foreign.members() if self._foreign is not None else ()))

    def close(self) -> None:
        if self._netlink is not None:
            self._netlink.close()

    def _indexes(self) -> dict[str, int]:
        if self._netlink is None:
            return {}
        try:
            return self._netlink.devices()
        except UnsupportedError as error:
            log.info("RDMA hardware counters are read from files, because netlink is not supported: %s", error)
            self._netlink.close()
            self._netlink = None
        except SourceError as error:
            log.warning("RDMA hardware counters are read from files for now, because netlink failed: %s", error)
        return {}

    def _member(self, device: RdmaDevice, index: int | None) -> _Members:
        before = self._members.get(device.name)
        if before is not None and before.device == device and before.index == index and not before.broken():
            return before
        return self._make(device, index)

    def _make(self, device: RdmaDevice, index: int | None) -> _Members:
        naming = Naming(device)
        port_counters = [one for port in device.ports for one in naming.port_counters(port)]
        fast = [one for one in port_counters if is_fast(one.meaning)]
        slow = [one for one in port_counters if not is_fast(one.meaning)]
        collector: FileCounters | NetlinkCounters | None = None
        if index is not None and self._make_netlink is not None:
            try:
                collector = NetlinkCounters(device, index, fast, naming, self._make_netlink(), self._fast_seconds)
            except SourceError as error:
                log.info("RDMA hardware counters of %s are read from files: %s", device.name, error)
                naming = Naming(device)
                for port in device.ports:
                    naming.port_counters(port)
        by_message = isinstance(collector, NetlinkCounters)
        hardware = [one for port in device.ports for one in naming.hardware_files(port)]
        if by_message:
            # The message contains all counters. The lifespan is not a counter and is only in a file.
            hardware = [one for one in hardware if one.column.metric == "gangwatch_rdma_statistics_lifespan_seconds"]
        fast += [one for one in hardware if is_fast(one.meaning)]
        slow += [one for one in hardware if not is_fast(one.meaning)]
        slow += naming.device_files()
        if collector is None and fast:
            collector = FileCounters(f"rdma/{device.name}", fast, self._fast_seconds)
        return _Members(
            device,
            index,
            collector,
            SlowCounters(device, slow, () if by_message else _first_files(device)),
            self._ethtool(device),
        )

    def _ethtool(self, device: RdmaDevice) -> EthtoolCounters | None:
        if self._make_ethtool is None or not any(port.netdev for port in device.ports):
            return None
        return EthtoolCounters(device, self._make_ethtool())

    @staticmethod
    def _lay_out(members: Sequence[_Members], of_containers: Sequence[str]) -> Block:
        """Make the block of series: four gauges about all devices, the number of unreadable files of each device, and
        the info series."""
        gauges = [
            Column("gangwatch_rdma_devices"),
            Column("gangwatch_rdma_devices_excluded"),
            Column("gangwatch_rdma_namespaces_exclusive"),
            Column("gangwatch_rdma_namespaces_unreadable"),
        ]
        gauges += [Column("gangwatch_rdma_files_unreadable", (("device", one.device.name),)) for one in members]
        for one in members:
            device = one.device
            gauges.append(
                Column(
                    "gangwatch_rdma_device_info",
                    (
                        ("board_id", device.board_id),
                        ("device", device.name),
                        ("driver", device.driver),
                        ("firmware_version", device.firmware_version),
                        ("hca_type", device.hca_type),
                        ("numa_node", device.numa_node),
                        ("pci_address", device.pci_address),
                        ("physical_function", device.physical_function),
                    ),
                )
            )
            source = "netlink" if isinstance(one.fast, NetlinkCounters) else "files"
            gauges.append(
                Column("gangwatch_rdma_statistics_source_info", (("device", device.name), ("source", source)))
            )
            gauges.extend(
                Column(
                    "gangwatch_rdma_port_info",
                    (
                        ("device", device.name),
                        ("link_layer", port.link_layer),
                        ("netdev", port.netdev),
                        ("port", port.number),
                    ),
                )
                for port in device.ports
            )
        gauges.extend(
            Column("gangwatch_rdma_statistics_source_info", (("device", name), ("source", "namespace")))
            for name in of_containers
        )
        return Block(gauges)


def _first_files(device: RdmaDevice) -> list[str]:
    """Return the files that mlx5 requires to be read before its rarely changing counters; [] for other drivers."""
    if device.driver not in MLX5 and not device.name.startswith("mlx5"):
        return []
    return [
        f"{device.path}/ports/{port.number}/hw_counters/{FIRST}"
        for port in device.ports
        if FIRST in port.hardware_counters
    ]
