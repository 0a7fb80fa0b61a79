"""The host: processors, memory, pressure-stall, disks, network interfaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from agent.collectors.block import Block
from agent.schema.errors import SourceError
from agent.schema.frame import Column
from agent.sources.files import KeptFile
from agent.sources.proc import (
    CPU_MODES,
    TICK_NS,
    CpuTimes,
    Disk,
    Interface,
    Memory,
    Paging,
    Pressure,
    Scheduler,
    parse_diskstats,
    parse_loadavg,
    parse_meminfo,
    parse_net_dev,
    parse_pressure,
    parse_scheduler,
    parse_stat,
    parse_vmstat,
)
from agent.sources.sysfs import whole_disks

RESOURCES = ("cpu", "io", "memory")
"""Files in /proc/pressure that are collected (``irq`` exists where IRQ time accounting is built in)."""

POD_INTERFACES = ("veth", "cali", "lxc", "tap")
"""Beginnings of names of the host's ends of containers' and machines' interfaces: they come and go with pods, each
would be a new series, and what they carry is counted on the uplink too."""

_MS_WRAP = 1 << 32
"""The kernel prints a disk's milliseconds as an unsigned int: it wraps after 49.7 days of them."""

_DISK = (
    "gangwatch_host_disk_read_bytes_total",
    "gangwatch_host_disk_written_bytes_total",
    "gangwatch_host_disk_io_time_seconds_total",
    "gangwatch_host_disk_reads_total",
    "gangwatch_host_disk_writes_total",
    "gangwatch_host_disk_read_time_seconds_total",
    "gangwatch_host_disk_write_time_seconds_total",
)

_T = TypeVar("_T")


def _parse_stat(data: bytes) -> tuple[CpuTimes, Scheduler | None]:
    """Both things that stand in /proc/stat, read once; a container runtime's own /proc/stat has only the first."""
    times = parse_stat(data)
    try:
        return times, parse_scheduler(data)
    except SourceError:
        return times, None


class _Milliseconds:
    """A disk's time without the wrap of the kernel's 32-bit milliseconds."""

    __slots__ = ("_newest_ms", "_wraps")

    def __init__(self) -> None:
        self._newest_ms = 0
        self._wraps = 0

    def nanoseconds(self, milliseconds: int) -> int:
        # A device that went and came back between two samples begins at 0: only a fall from the upper half is a wrap.
        if milliseconds < self._newest_ms:
            self._wraps = self._wraps + 1 if self._newest_ms - milliseconds > _MS_WRAP // 2 else 0
        self._newest_ms = milliseconds
        return (self._wraps * _MS_WRAP + milliseconds) * 1_000_000


class HostCollector:
    """Reads /proc of the whole machine through kept descriptors.

    A file that this kernel does not have leaves its columns absent; so does one that cannot be read this time. Only
    where not one of them could be read does the run fail.
    """

    name = "host"

    def __init__(self, proc_root: str = "/proc", sys_root: str = "/sys", interval_seconds: float = 1.0) -> None:
        self.interval_seconds = interval_seconds
        self._sys_root = sys_root
        self._stat = KeptFile(f"{proc_root}/stat")
        self._loadavg = KeptFile(f"{proc_root}/loadavg")
        self._meminfo = KeptFile(f"{proc_root}/meminfo")
        self._pressure = tuple(KeptFile(f"{proc_root}/pressure/{resource}") for resource in RESOURCES)
        self._vmstat = KeptFile(f"{proc_root}/vmstat")
        self._diskstats = KeptFile(f"{proc_root}/diskstats")
        # Under a host's /proc mounted into a container, net/ is the container's own: process 1 has the host's.
        self._net_dev = (KeptFile(f"{proc_root}/1/net/dev"), KeptFile(f"{proc_root}/net/dev"))
        self._errors: list[SourceError] = []
        self._highest_ticks = [0] * len(CPU_MODES)
        self._listed: frozenset[str] = frozenset()
        self._whole: frozenset[str] | None = None
        self._disks: tuple[str, ...] = ()
        self._interfaces: tuple[str, ...] = ()
        self._times: dict[str, tuple[_Milliseconds, ...]] = {}
        self._block = self._make_block()

    def _make_block(self) -> Block:
        """Fixed series first, so that their indexes are known: gauges 6; counters 8 modes, 3, 2 x 3 pressures, ..."""
        counters = [Column("gangwatch_host_cpu_seconds_total", (("mode", mode),)) for mode in CPU_MODES]
        counters.append(Column("gangwatch_host_context_switches_total"))
        counters.append(Column("gangwatch_host_major_page_faults_total"))
        counters.append(Column("gangwatch_host_out_of_memory_kills_total"))
        for resource in RESOURCES:
            labels = (("resource", resource),)
            counters.append(Column("gangwatch_host_pressure_waiting_seconds_total", labels))
            counters.append(Column("gangwatch_host_pressure_stalled_seconds_total", labels))
        for disk in self._disks:
            counters.extend(Column(metric, (("device", disk),)) for metric in _DISK)
        for interface in self._interfaces:
            labels = (("device", interface),)
            counters.append(Column("gangwatch_host_network_receive_bytes_total", labels))
            counters.append(Column("gangwatch_host_network_transmit_bytes_total", labels))
            counters.append(Column("gangwatch_host_network_receive_errors_total", labels))
            counters.append(Column("gangwatch_host_network_transmit_errors_total", labels))
        gauges = (
            Column("gangwatch_host_cpus"),
            Column("gangwatch_host_load1"),
            Column("gangwatch_host_memory_total_bytes"),
            Column("gangwatch_host_memory_available_bytes"),
            Column("gangwatch_host_processes_running"),
            Column("gangwatch_host_processes_blocked"),
            *(Column("gangwatch_host_disk_requests_in_flight", (("device", disk),)) for disk in self._disks),
        )
        return Block(gauges, counters)

    def collect(self) -> Block:
        self._errors.clear()
        times, scheduler = self._read(_parse_stat, self._stat) or (None, None)
        paging = self._read(parse_vmstat, self._vmstat)
        load = self._read(parse_loadavg, self._loadavg)
        memory = self._read(parse_meminfo, self._meminfo)
        pressures = [self._read(parse_pressure, file) for file in self._pressure]
        disks = self._own_disks(self._read(parse_diskstats, self._diskstats))
        interfaces = self._own_interfaces(self._read(parse_net_dev, *self._net_dev))
        if times is None and load is None and memory is None:
            raise self._errors[0]

        self._follow_devices(disks, interfaces)
        block = self._block
        block.clear()
        self._set_gauges(times, load, memory)
        index = self._set_times(times)
        index = self._set_tasks(index, scheduler, paging)
        index = self._set_pressures(index, pressures)
        index = self._set_disks(index, disks)
        self._set_interfaces(index, interfaces)
        return block

    def close(self) -> None:
        for file in (
            self._stat,
            self._vmstat,
            self._loadavg,
            self._meminfo,
            self._diskstats,
            *self._pressure,
            *self._net_dev,
        ):
            file.close()

    def _read(self, parse: Callable[[bytes], _T], *files: KeptFile) -> _T | None:
        """What the first readable file holds; None, and the error kept, where none can be read or parsed."""
        for position, file in enumerate(files):
            try:
                return parse(file.read())
            except SourceError as error:
                if position == len(files) - 1:
                    self._errors.append(error)
        return None

    def _own_disks(self, disks: list[Disk] | None) -> list[Disk]:
        if disks is None:
            return []
        names = frozenset(disk.name for disk in disks)
        if names != self._listed:
            # /sys/block is listed only when a device came or went.
            self._listed = names
            self._whole = whole_disks(self._sys_root)
        if self._whole is None:
            return []
        return [disk for disk in disks if disk.name in self._whole]

    @staticmethod
    def _own_interfaces(interfaces: list[Interface] | None) -> list[Interface]:
        return [one for one in interfaces or () if not one.name.startswith(POD_INTERFACES)]

    def _follow_devices(self, disks: list[Disk], interfaces: list[Interface]) -> None:
        """Make a new block where disks or interfaces came or went. An unreadable file is not a set without devices."""
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

    def _set_gauges(self, times: CpuTimes | None, load: float | None, memory: Memory | None) -> None:
        block = self._block
        if times is not None and times.processors:
            block.set_gauge(0, times.processors)
        if load is not None:
            block.set_gauge(1, load)
        if memory is not None:
            block.set_gauge(2, memory.total_bytes)
            if memory.available_bytes is not None:
                block.set_gauge(3, memory.available_bytes)

    def _set_times(self, times: CpuTimes | None) -> int:
        if times is not None:
            for index, ticks in enumerate(times.ticks):
                # The kernel lets idle and iowait step back when a processor wakes (proc(5)); a counter must not fall.
                self._highest_ticks[index] = max(self._highest_ticks[index], ticks)
                self._block.set_counter(index, self._highest_ticks[index] * TICK_NS)
        return len(CPU_MODES)

    def _set_tasks(self, index: int, scheduler: Scheduler | None, paging: Paging | None) -> int:
        block = self._block
        if scheduler is not None:
            block.set_counter(index, scheduler.context_switches)
            block.set_gauge(4, scheduler.running)
            block.set_gauge(5, scheduler.blocked)
        if paging is not None:
            block.set_counter(index + 1, paging.major_faults)
            if paging.kills is not None:
                block.set_counter(index + 2, paging.kills)
        return index + 3

    def _set_pressures(self, index: int, pressures: list[Pressure | None]) -> int:
        for pressure in pressures:
            if pressure is not None:
                self._block.set_counter(index, pressure.some_us * 1000)
                if pressure.full_us is not None:
                    self._block.set_counter(index + 1, pressure.full_us * 1000)
            index += 2
        return index

    def _set_disks(self, index: int, disks: list[Disk]) -> int:
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
            for at, value in enumerate(values, index + len(_DISK) * position):
                self._block.set_counter(at, value)
            self._block.set_gauge(6 + position, disk.in_flight)
        return index + len(_DISK) * len(self._disks)

    def _set_interfaces(self, index: int, interfaces: list[Interface]) -> None:
        for position, interface in enumerate(interfaces):
            at = index + 4 * position
            self._block.set_counter(at, interface.receive_bytes)
            self._block.set_counter(at + 1, interface.transmit_bytes)
            self._block.set_counter(at + 2, interface.receive_errors)
            self._block.set_counter(at + 3, interface.transmit_errors)
