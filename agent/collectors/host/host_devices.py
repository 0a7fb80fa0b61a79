"""Collector of the host's disks and network interfaces. It runs every 5 s because there are many of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from agent.collectors.block import Block
from agent.schema.errors import SourceError
from agent.schema.frame import Column
from agent.sources.files import KeptFile
from agent.sources.proc.host_figures import disks, interfaces
from agent.sources.proc.proc import parse_in_flight
from agent.sources.sysfs.sysfs import whole_disks

INTERVAL_SECONDS = 5.0

POD_INTERFACES = ("veth", "cali", "lxc", "tap")
"""Name prefixes of the host side of virtual interfaces of containers and VMs. These interfaces are skipped: each pod
would create new series, and the uplink counts their traffic too."""

_MS_WRAP = 1 << 32
"""Range of the kernel's disk times. The kernel keeps the milliseconds as a 32-bit number, which restarts at 0 after
49.7 days of disk time."""

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
    """Disk time of one device, which continues to increase when the kernel's 32-bit milliseconds restart at 0."""

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
    """Collector of disk and interface counters, which psutil reads.

    Values of an unreadable file are absent. The run fails if neither file is readable.
    """

    name = "host-devices"
    worker = "host"
    interval_seconds = INTERVAL_SECONDS

    def __init__(self, proc_root: str = "/proc", sys_root: str = "/sys") -> None:
        self._proc_root = proc_root
        self._sys_root = sys_root
        self._diskstats = KeptFile(f"{proc_root}/diskstats")
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
        listed = _try(errors, lambda: disks(self._proc_root))
        in_flight = _try(errors, lambda: parse_in_flight(self._diskstats.read()))
        networks = _try(errors, lambda: interfaces(self._proc_root))
        if listed is None and networks is None:
            raise errors[0]
        own_disks, own_interfaces = self._own_disks(listed), self._own_interfaces(networks)
        self._follow_devices(tuple(own_disks), tuple(own_interfaces))
        self._block.clear()
        self._set_disks(own_disks, in_flight or {})
        self._set_interfaces(len(_DISK) * len(self._disks), own_interfaces)
        return self._block

    def close(self) -> None:
        self._diskstats.close()

    def _own_disks(self, listed: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if listed is None:
            return {}
        names = frozenset(listed)
        if names != self._listed:
            # List /sys/block only if a device was added or removed.
            self._listed = names
            self._whole = whole_disks(self._sys_root)
        if self._whole is None:
            return {}
        return {name: disk for name, disk in listed.items() if name in self._whole}

    @staticmethod
    def _own_interfaces(networks: Mapping[str, Any] | None) -> Mapping[str, Any]:
        return {name: one for name, one in (networks or {}).items() if not name.startswith(POD_INTERFACES)}

    def _follow_devices(self, disk_names: tuple[str, ...], interface_names: tuple[str, ...]) -> None:
        """Make a new block of series if disks or interfaces were added or removed.

        An empty list (unreadable file) leaves the series of its devices unchanged.
        """
        disk_names = disk_names or self._disks
        interface_names = interface_names or self._interfaces
        if disk_names == self._disks and interface_names == self._interfaces:
            return
        self._disks = disk_names
        self._interfaces = interface_names
        self._times = {
            name: self._times.get(name) or (_Milliseconds(), _Milliseconds(), _Milliseconds()) for name in disk_names
        }
        self._block = self._make_block()

    def _set_disks(self, own: Mapping[str, Any], in_flight: Mapping[str, int]) -> None:
        for position, (name, disk) in enumerate(own.items()):
            busy, reading, writing = self._times[name]
            values = (
                disk.read_bytes,
                disk.write_bytes,
                busy.nanoseconds(disk.busy_time),
                disk.read_count,
                disk.write_count,
                reading.nanoseconds(disk.read_time),
                writing.nanoseconds(disk.write_time),
            )
            for at, value in enumerate(values, len(_DISK) * position):
                self._block.set_counter(at, value)
            requests = in_flight.get(name)
            if requests is not None:
                self._block.set_gauge(position, requests)

    def _set_interfaces(self, index: int, own: Mapping[str, Any]) -> None:
        for position, interface in enumerate(own.values()):
            at = index + len(_NETWORK) * position
            self._block.set_counter(at, interface.bytes_recv)
            self._block.set_counter(at + 1, interface.bytes_sent)
            self._block.set_counter(at + 2, interface.errin)
            self._block.set_counter(at + 3, interface.errout)


def _try(errors: list[SourceError], read: Callable[[], _T]) -> _T | None:
    """Return the result of `read`. If it fails, append the error and return None."""
    try:
        return read()
    except SourceError as error:
        errors.append(error)
        return None
