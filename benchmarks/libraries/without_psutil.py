"""The host's figures as gangwatch read them before psutil: kept descriptors and its own parsers.

It has the names of agent/sources/proc/host_figures.py, in whose place a variant of the agent imports it.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from agent.sources.files import KeptFile

CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


class Memory(NamedTuple):
    total_bytes: int
    available_bytes: int | None


class Disk(NamedTuple):
    read_count: int
    read_bytes: int
    read_time: int
    write_count: int
    write_bytes: int
    write_time: int
    busy_time: int


class Interface(NamedTuple):
    bytes_recv: int
    errin: int
    bytes_sent: int
    errout: int


@cache
def _file(path: str) -> KeptFile:
    return KeptFile(path)


def cpu_ticks(proc_root: str) -> tuple[int, ...]:
    return tuple(map(int, _file(f"{proc_root}/stat").read().split(b"\n", 1)[0].split()[1:9]))


def memory(proc_root: str) -> Memory:
    data = _file(f"{proc_root}/meminfo").read()
    return Memory(_kilobytes(data, b"MemTotal:"), _kilobytes(data, b"MemAvailable:"))


def _kilobytes(data: bytes, key: bytes) -> int:
    start = data.index(key)
    return int(data[start : start + 80].split(None, 2)[1]) * 1024


def disks(proc_root: str) -> dict[str, Disk]:
    found = {}
    for line in _file(f"{proc_root}/diskstats").read().splitlines():
        words = line.split()
        count, _, sectors, milliseconds, writes, _, written, writing, _, busy = map(int, words[3:13])
        found[words[2].decode()] = Disk(count, sectors * 512, milliseconds, writes, written * 512, writing, busy)
    return found


def interfaces(proc_root: str) -> dict[str, Interface]:
    found = {}
    for line in _file(f"{proc_root}/net/dev").read().splitlines()[2:]:
        name, _, rest = line.rpartition(b":")
        words = [*map(int, rest.split())]
        found[name.strip().decode()] = Interface(words[0], words[2], words[8], words[10])
    return found
