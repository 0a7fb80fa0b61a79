"""Collector of the host's disks and network interfaces. It runs every 5 s because there are many of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from agent.collectors.block import Block
from agent.schema.errors import SourceError
from agent.schema.frame import Column
from agent.sources.files import KeptFile
from agent.sources.proc.proc import Disk, Interface, parse_diskstats, parse_net_dev
from agent.sources.sysfs.sysfs import whole_disks

INTERVAL_SECONDS = 5.0

POD_INTERFACES = ("veth", "cali", "lxc", "tap")
"""Name prefixes of the host side of virtual interfaces of containers and VMs. They are skipped: each pod would create
new series, and the uplink counts their traffic too."""

_MS_WRAP = 1 << 32
"""Value at which a disk's milliseconds wrap. The kernel prints them as an unsigned int, which is 49.7 days of disk
time."""

_DISK = (
    "gangwatch_host_disk_read_bytes_total",
    "gangwatch_host_disk_written_bytes_total",
    "gangwatch_host_disk_io_time_seconds_total",
    "gangwatch_host_disk_reads_total",
    "gangwatch_host_disk_writes_total",
    "gangwatch_host_disk_read_time_seconds_total",
    "gangwatch_host_disk_write_time_seconds_total",
)

_NETWORK = (
    "gangwatch_host_network_receive_bytes_total",
    "gangwatch_host_network_transmit_bytes_total",
    "gangwatch_host_network_receive_errors_total",
    "gangwatch_host_network_transmit_errors_total",
)

_T = TypeVar("_T")


class _Milliseconds:
    """Disk time with the wraps of the kernel's 32-bit milliseconds undone."""

    __slots__ = ("_newest_ms", "_wraps")

    def __init__(self) -> None:
        self._newest_ms = 0
        self._wraps = 0

    def nanoseconds(self, milliseconds: int) -> int:
        # A device that was replaced between two samples starts at 0: only a fall by over half the range is a wrap.
        if milliseconds < self._newest_ms:
            self._wraps = self._wraps + 1 if self._newest_ms - milliseconds > _MS_WRAP // 2 else 0
        self._newest_ms = milliseconds
        return (self._wraps * _MS_WRAP + milliseconds) * 1_000_000


class HostDeviceCollector:
    """Collector that reads the machine's /proc through open descriptors. The columns of an unreadable file are absent.

    The run fails if neither file is readable.
    """

    name = "host-devices"
    worker = "host"
    interval_seconds = INTERVAL_SECONDS

    def __init__(self, proc_root: str = "/proc", sys_root: str = "/sys") -> None:
        self._sys_root = sys_root
        self._diskstats = KeptFile(f"{proc_root}/diskstats")
        # If the host's /proc is mounted into a container, net/ is the container's own: process 1 has the host's.
        self._net_dev = (KeptFile(f"{proc_root}/1/net/dev"), KeptFile(f"{proc_root}/net/dev"))
        self._listed: frozenset[str] = frozenset()
        self._whole: frozenset[str] | None = None
        self._disks: tuple[str, ...] = ()
        self._interfaces: tuple[str, ...] = ()
        self._times: dict[str, tuple[_Milliseconds, ...]] = {}
        self._block = self._make_block()

    def _make_block(self) -> Block:
        disks = [(("device", disk),) for disk in self._disks]
        interfaces = [(("device", interface),) for interface in self._interfaces]
        counters = [Column(metric, labels) for labels in disks for metric in _DISK]
        counters.extend(Column(metric, labels) for labels in interfaces for metric in _NETWORK)
        return Block([Column("gangwatch_host_disk_requests_in_flight", labels) for labels in disks], counters)

    def collect(self) -> Block:
        errors: list[SourceError] = []
        listed = _read(errors, parse_diskstats, self._diskstats)
        networks = _read(errors, parse_net_dev, *self._net_dev)
        if listed is None and networks is None:
            raise errors[0]
        disks, interfaces = self._own_disks(listed), self._own_interfaces(networks)
        self._follow_devices(disks, interfaces)
        self._block.clear()
        self._set_disks(disks)
        self._set_interfaces(len(_DISK) * len(self._disks), interfaces)
        return self._block

    def close(self) -> None:
        for file in (self._diskstats, *self._net_dev):
            file.close()

    def _own_disks(self, disks: list[Disk] | None) -> list[Disk]:
        if disks is None:
            return []
        names = frozenset(disk.name for disk in disks)
        if names != self._listed:
            # List /sys/block only if a device was added or removed.
            self._listed = names
            self._whole = whole_disks(self._sys_root)
        if self._whole is None:
            return []
        return [disk for disk in disks if disk.name in self._whole]

    @staticmethod
    def _own_interfaces(interfaces: list[Interface] | None) -> list[Interface]:
        return [one for one in interfaces or () if not one.name.startswith(POD_INTERFACES)]

    def _follow_devices(self, disks: list[Disk], interfaces: list[Interface]) -> None:
        """Make a new block if disks or interfaces were added or removed. An unreadable file does not remove devices."""
        disk_names = tuple(disk.name for disk in disks) or self._disks
        interface_names = tuple(interface.name for interface in interfaces) or self._interfaces
        if disk_names == self._disks and interface_names == self._interfaces:
            return
        self._disks = disk_names
        self._interfaces = interface_names
        self._times = {
            name: self._times.get(name) or (_Milliseconds(), _Milliseconds(), _Milliseconds()) for name in disk_names
        }
        self._block = self._make_block()

    def _set_disks(self, disks: list[Disk]) -> None:
        for position, disk in enumerate(disks):
            busy, reading, writing = self._times[disk.name]
            values = (
                disk.read_bytes,
                disk.written_bytes,
                busy.nanoseconds(disk.io_ms),
                disk.reads,
                disk.writes,
                reading.nanoseconds(disk.read_ms),
                writing.nanoseconds(disk.write_ms),
            )
            for at, value in enumerate(values, len(_DISK) * position):
                self._block.set_counter(at, value)
            self._block.set_gauge(position, disk.in_flight)

    def _set_interfaces(self, index: int, interfaces: list[Interface]) -> None:
        for position, interface in enumerate(interfaces):
            at = index + len(_NETWORK) * position
            self._block.set_counter(at, interface.receive_bytes)
            self._block.set_counter(at + 1, interface.transmit_bytes)
            self._block.set_counter(at + 2, interface.receive_errors)
            self._block.set_counter(at + 3, interface.transmit_errors)


def _read(errors: list[SourceError], parse: Callable[[bytes], _T], *files: KeptFile) -> _T | None:
    """Return the content of the first readable file. If no file is readable, append the last error and return None."""
    for position, file in enumerate(files):
        try:
            return parse(file.read())
        except SourceError as error:
            if position == len(files) - 1:
                errors.append(error)
    return None
