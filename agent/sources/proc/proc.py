"""Pure parsers of files in /proc, and a few functions that read files of processes.

The formats are in proc(5), Documentation/filesystems/proc.rst, Documentation/admin-guide/iostats.rst and
Documentation/accounting/psi.rst of the kernel. Parsers take the content of a file. If the content is malformed, they
raise SourceError, which names the file.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from agent.schema.errors import SourceError
from agent.sources.files import MOST_DIGITS, read_file, whole

CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
"""Number of clock ticks per second in /proc (USER_HZ): 100 on all common Linux systems."""

TICK_NS = 1_000_000_000 // CLOCK_TICKS_PER_SECOND

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

SECTOR_BYTES = 512
"""Size in bytes of a sector in /proc/diskstats, independent of the device's sector size
(Documentation/admin-guide/iostats.rst)."""

CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""CPU modes of /proc/stat in file order. Guest time is omitted, since user and nice already include it."""


# --- the machine -----------------------------------------------------------------------------------------------------


class CpuTimes(NamedTuple):
    """CPU times in /proc/stat: sum over all CPUs in ticks, by CPU_MODES (fewer modes on old kernels), and the number of
    CPUs online.
    """

    ticks: tuple[int, ...]
    processors: int


def parse_stat(data: bytes) -> CpuTimes:
    """Return the CPU times of /proc/stat."""
    lines = data.split(b"\n")
    if not lines[0].startswith(b"cpu "):
        raise SourceError(f"/proc/stat: begins with {lines[0][:20]!r}, expected 'cpu '")
    processors = 0
    for line in lines[1:]:
        if not line.startswith(b"cpu"):
            break
        processors += 1
    try:
        ticks = tuple(map(whole, lines[0].split()[1 : 1 + len(CPU_MODES)]))
    except ValueError:
        raise SourceError(f"/proc/stat: {lines[0][:80]!r}") from None
    return CpuTimes(ticks, processors)


class Scheduler(NamedTuple):
    """Values of /proc/stat: number of context switches since boot, of running tasks, and of tasks blocked on I/O."""

    context_switches: int
    running: int
    blocked: int


def parse_scheduler(data: bytes) -> Scheduler:
    """Return the numbers of context switches and tasks of /proc/stat."""
    return Scheduler(
        _line_number(data, b"ctxt ", "/proc/stat"),
        _line_number(data, b"procs_running ", "/proc/stat"),
        _line_number(data, b"procs_blocked ", "/proc/stat"),
    )


class Paging(NamedTuple):
    """Counts of /proc/vmstat: page faults with disk I/O, and out-of-memory kills (None before Linux 4.13)."""

    major_faults: int
    kills: int | None


def parse_vmstat(data: bytes) -> Paging:
    """Return the paging counters of /proc/vmstat."""
    kills = _line_number(data, b"oom_kill ", "/proc/vmstat") if b"\noom_kill " in data else None
    return Paging(_line_number(data, b"pgmajfault ", "/proc/vmstat"), kills)


def _line_number(data: bytes, key: bytes, file: str) -> int:
    """Return the number after a key at the start of a line."""
    start = data.find(b"\n" + key)
    if start < 0:
        raise SourceError(f"{file}: no {key.decode().strip()}")
    start += 1 + len(key)
    end = data.find(b"\n", start)
    digits = data[start : end if end >= 0 else len(data)].strip()
    if not digits.isdigit() or len(digits) > MOST_DIGITS:
        raise SourceError(f"{file}: {data[start - len(key) : start + 40]!r}")
    return int(digits)


def parse_loadavg(data: bytes) -> float:
    """Return the load average over one minute from /proc/loadavg."""
    try:
        return float(data.split(b" ", 1)[0])
    except ValueError:
        raise SourceError(f"/proc/loadavg: {data[:40]!r}") from None


class Memory(NamedTuple):
    """Values of /proc/meminfo in bytes; available is None before Linux 3.14."""

    total_bytes: int
    available_bytes: int | None


def parse_meminfo(data: bytes) -> Memory:
    """Parse /proc/meminfo. A kB in this file is 1024 bytes."""
    total = _meminfo_bytes(data, b"MemTotal:")
    if total is None:
        raise SourceError("/proc/meminfo: no MemTotal")
    return Memory(total, _meminfo_bytes(data, b"MemAvailable:"))


def _meminfo_bytes(data: bytes, key: bytes) -> int | None:
    start = data.find(b"\n" + key)
    if start >= 0:
        start += 1
    elif data.startswith(key):
        start = 0
    else:
        return None
    words = data[start : start + 80].split(None, 2)
    try:
        return whole(words[1]) * 1024
    except (IndexError, ValueError):
        raise SourceError(f"/proc/meminfo: {data[start : start + 40]!r}") from None


class Pressure(NamedTuple):
    """Totals of one file in /proc/pressure in microseconds. full: None if not reported (cpu before Linux 5.13)."""

    some_us: int
    full_us: int | None


def parse_pressure(data: bytes) -> Pressure:
    """Parse /proc/pressure/{cpu,memory,io}."""
    some: int | None = None
    full: int | None = None
    for line in data.split(b"\n"):
        if not line:
            continue
        kind, _, rest = line.partition(b" ")
        try:
            total = whole(rest.rpartition(b"total=")[2])
        except ValueError:
            raise SourceError(f"/proc/pressure: {line[:80]!r}") from None
        if kind == b"some":
            some = total
        elif kind == b"full":
            full = total
    if some is None:
        raise SourceError(f"/proc/pressure: no 'some' in {data[:40]!r}")
    return Pressure(some, full)


class Disk(NamedTuple):
    """One line of /proc/diskstats. Counts of milliseconds wrap at 2^32.

    read_ms, write_ms: total time of requests; io_ms: time with a request in progress; in_flight: number of requests in
    progress.
    """

    name: str
    read_bytes: int
    written_bytes: int
    io_ms: int
    reads: int
    writes: int
    read_ms: int
    write_ms: int
    in_flight: int


def parse_diskstats(data: bytes) -> list[Disk]:
    """Parse /proc/diskstats: every block device and partition in file order."""
    disks: list[Disk] = []
    for line in data.split(b"\n"):
        words = line.split()
        if len(words) < 14:
            # Skip partitions of kernels before 2.6.25, which have four fields.
            continue
        try:
            disks.append(
                Disk(
                    words[2].decode(),
                    whole(words[5]) * SECTOR_BYTES,
                    whole(words[9]) * SECTOR_BYTES,
                    whole(words[12]),
                    whole(words[3]),
                    whole(words[7]),
                    whole(words[6]),
                    whole(words[10]),
                    whole(words[11]),
                )
            )
        except ValueError:
            raise SourceError(f"/proc/diskstats: {line[:80]!r}") from None
    return disks


class Interface(NamedTuple):
    """Counters of one network interface: one line of /proc/net/dev."""

    name: str
    receive_bytes: int
    receive_errors: int
    transmit_bytes: int
    transmit_errors: int


def parse_net_dev(data: bytes) -> list[Interface]:
    """Parse /proc/net/dev: every interface of the network namespace in file order."""
    interfaces: list[Interface] = []
    for line in data.split(b"\n")[2:]:
        if not line:
            continue
        # Names of aliases contain a colon, and old kernels write no space after the name: split at the last colon.
        name, _, rest = line.rpartition(b":")
        words = rest.split()
        try:
            interfaces.append(
                Interface(name.strip().decode(), whole(words[0]), whole(words[2]), whole(words[8]), whole(words[10]))
            )
        except (ValueError, IndexError):
            raise SourceError(f"/proc/net/dev: {line[:80]!r}") from None
    return interfaces


# --- processes -------------------------------------------------------------------------------------------------------


class ProcessStat(NamedTuple):
    """Used fields of /proc/PID/stat. pid and start_time (in clock ticks since boot) together identify a process."""

    pid: int
    state: str
    parent: int
    threads: int
    start_time: int
    block_io_ticks: int


def parse_process_stat(data: bytes) -> ProcessStat:
    """Parse /proc/PID/stat. The name in parentheses may contain any character, including parentheses and line ends."""
    close = data.rfind(b")")
    words = data[close + 2 :].split()
    try:
        # words[0] is field 3 of proc(5).
        return ProcessStat(
            pid=whole(data[: data.index(b" ")]),
            state=words[0].decode("ascii"),
            parent=whole(words[1]),
            threads=whole(words[17]),
            start_time=whole(words[19]),
            block_io_ticks=whole(words[39]),
        )
    except (ValueError, IndexError):
        raise SourceError(f"/proc/PID/stat: {data[:80]!r}") from None


def parse_statm(data: bytes) -> int:
    """Return the resident memory in bytes from /proc/PID/statm. The value in /proc/PID/stat is an estimate."""
    try:
        return whole(data.split()[1]) * PAGE_BYTES
    except (ValueError, IndexError):
        raise SourceError(f"/proc/PID/statm: {data[:40]!r}") from None


class SchedStat(NamedTuple):
    """Times in /proc/PID/task/TID/schedstat: time that the thread ran, and time that it waited for a CPU."""

    run_ns: int
    wait_ns: int


def parse_schedstat(data: bytes) -> SchedStat:
    """Parse /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst)."""
    words = data.split()
    try:
        return SchedStat(whole(words[0]), whole(words[1]))
    except (ValueError, IndexError):
        raise SourceError(f"schedstat: {data[:40]!r}") from None


class ProcessIO(NamedTuple):
    """Bytes in /proc/PID/io that a process has read from and written to storage.

    They include all threads, and children that have ended and were waited for.
    """

    read_bytes: int
    written_bytes: int


def parse_process_io(data: bytes) -> ProcessIO:
    """Return the I/O counters of /proc/PID/io."""
    read = written = None
    for line in data.split(b"\n"):
        key, _, value = line.partition(b": ")
        try:
            if key == b"read_bytes":
                read = whole(value)
            elif key == b"write_bytes":
                written = whole(value)
        except ValueError:
            raise SourceError(f"/proc/PID/io: {line[:40]!r}") from None
    if read is None or written is None:
        raise SourceError(f"/proc/PID/io: no read_bytes and write_bytes in {data[:40]!r}")
    return ProcessIO(read, written)


def read_process_stat(proc_root: str, pid: int) -> ProcessStat | None:
    """Read /proc/PID/stat; return None if the process does not exist or has ended."""
    try:
        return parse_process_stat(read_file(f"{proc_root}/{pid}/stat"))
    except OSError:
        return None


def threads_of(proc_root: str, pid: int) -> list[str]:
    """Return the thread ids of the process, from /proc/PID/task; empty if the process has ended."""
    try:
        return os.listdir(f"{proc_root}/{pid}/task")
    except OSError:
        return []


def children_of(proc_root: str, pid: int, threads: list[str]) -> list[int] | None:
    """Return the children of the process's threads; None if the kernel has no ``children`` file (CONFIG_PROC_CHILDREN).

    Each thread lists only the children that it forked. If a thread has ended, another thread lists its children.
    """
    found: list[int] = []
    for thread in threads:
        try:
            found.extend(map(int, read_file(f"{proc_root}/{pid}/task/{thread}/children").split()))
        except FileNotFoundError:
            if os.path.exists(f"{proc_root}/{pid}/task/{thread}"):
                return None
        except (OSError, ValueError):
            continue
    return found


def children_by_parent(proc_root: str) -> dict[int, list[int]]:
    """Return the children of every process by reading all stat files, for kernels without ``children`` files."""
    children: dict[int, list[int]] = {}
    for name in os.listdir(proc_root):
        if name.isdecimal() and (stat := read_process_stat(proc_root, int(name))) is not None:
            children.setdefault(stat.parent, []).append(stat.pid)
    return children


def read_boot_id(proc_root: str) -> str:
    """Return the random id of this boot (/proc/sys/kernel/random/boot_id). Raise SourceError if it is not readable."""
    path = f"{proc_root}/sys/kernel/random/boot_id"
    try:
        return read_file(path).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: {error}") from None
