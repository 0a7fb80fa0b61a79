"""Collector of the host: processors, memory, pressure stall. For disks and interfaces see host_devices.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from agent.collectors.block import Block
from agent.schema.errors import SourceError
from agent.schema.frame import Column
from agent.sources.files import KeptFile
from agent.sources.proc.host_figures import CPU_MODES, Memory, cpu_ticks, memory
from agent.sources.proc.proc import (
    TICK_NS,
    Paging,
    Pressure,
    Scheduler,
    parse_cpu_count,
    parse_loadavg,
    parse_pressure,
    parse_scheduler,
    parse_vmstat,
)

RESOURCES = ("cpu", "io", "memory")
"""Resources whose pressure files in /proc/pressure are read (``irq`` exists only with IRQ time accounting)."""

_T = TypeVar("_T")


def _parse_stat(data: bytes) -> tuple[int, Scheduler | None]:
    """Parse the number of CPUs and the scheduler values of /proc/stat.

    The second value is None if the file has only CPU times, as in some containers.
    """
    processors = parse_cpu_count(data)
    try:
        return processors, parse_scheduler(data)
    except SourceError:
        return processors, None


class HostCollector:
    """Collector that reads the machine's /proc: through psutil, and what psutil lacks through open descriptors.

    The values of a missing or unreadable file are absent. The run fails only if all files are unreadable.
    """

    name = "host"

    def __init__(self, proc_root: str = "/proc", interval_seconds: float = 1.0) -> None:
        self.interval_seconds = interval_seconds
        self._proc_root = proc_root
        self._stat = KeptFile(f"{proc_root}/stat")
        self._loadavg = KeptFile(f"{proc_root}/loadavg")
        self._pressure = tuple(KeptFile(f"{proc_root}/pressure/{resource}") for resource in RESOURCES)
        self._vmstat = KeptFile(f"{proc_root}/vmstat")
        self._errors: list[SourceError] = []
        self._highest_ticks = [0] * len(CPU_MODES)
        self._block = self._make_block()

    @staticmethod
    def _make_block() -> Block:
        counters = [Column("gangwatch_host_cpu_seconds_total", (("mode", mode),)) for mode in CPU_MODES]
        counters.append(Column("gangwatch_host_context_switches_total"))
        counters.append(Column("gangwatch_host_major_page_faults_total"))
        counters.append(Column("gangwatch_host_out_of_memory_kills_total"))
        for resource in RESOURCES:
            labels = (("resource", resource),)
            counters.append(Column("gangwatch_host_pressure_waiting_seconds_total", labels))
            counters.append(Column("gangwatch_host_pressure_stalled_seconds_total", labels))
        gauges = (
            Column("gangwatch_host_cpus"),
            Column("gangwatch_host_load1"),
            Column("gangwatch_host_memory_total_bytes"),
            Column("gangwatch_host_memory_available_bytes"),
            Column("gangwatch_host_processes_running"),
            Column("gangwatch_host_processes_blocked"),
        )
        return Block(gauges, counters)

    def collect(self) -> Block:
        self._errors.clear()
        ticks = self._try(lambda: cpu_ticks(self._proc_root))
        processors, scheduler = self._read(_parse_stat, self._stat) or (None, None)
        paging = self._read(parse_vmstat, self._vmstat)
        load = self._read(parse_loadavg, self._loadavg)
        found = self._try(lambda: memory(self._proc_root))
        pressures = [self._read(parse_pressure, file) for file in self._pressure]
        if ticks is None and load is None and found is None:
            raise self._errors[0]

        block = self._block
        block.clear()
        self._set_gauges(processors, load, found)
        index = self._set_times(ticks)
        index = self._set_tasks(index, scheduler, paging)
        self._set_pressures(index, pressures)
        return block

    def close(self) -> None:
        for file in (self._stat, self._vmstat, self._loadavg, *self._pressure):
            file.close()

    def _read(self, parse: Callable[[bytes], _T], file: KeptFile) -> _T | None:
        """Return the parsed content of the file. If this fails, store the error and return None."""
        return self._try(lambda: parse(file.read()))

    def _try(self, read: Callable[[], _T]) -> _T | None:
        """Return the result of `read`. If it fails, store the error and return None."""
        try:
            return read()
        except SourceError as error:
            self._errors.append(error)
            return None

    def _set_gauges(self, processors: int | None, load: float | None, found: Memory | None) -> None:
        block = self._block
        if processors is not None:
            block.set_gauge(0, processors)
        if load is not None:
            block.set_gauge(1, load)
        if found is not None:
            block.set_gauge(2, found.total_bytes)
            if found.available_bytes is not None:
                block.set_gauge(3, found.available_bytes)

    def _set_times(self, ticks: tuple[int, ...] | None) -> int:
        if ticks is not None:
            for index, newest in enumerate(ticks):
                # idle and iowait may decrease when a processor wakes (proc(5)); a counter must not decrease.
                self._highest_ticks[index] = max(self._highest_ticks[index], newest)
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

    def _set_pressures(self, index: int, pressures: list[Pressure | None]) -> None:
        for pressure in pressures:
            if pressure is not None:
                self._block.set_counter(index, pressure.some_us * 1000)
                if pressure.full_us is not None:
                    self._block.set_counter(index + 1, pressure.full_us * 1000)
            index += 2
