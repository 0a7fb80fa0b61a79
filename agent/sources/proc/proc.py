"""Pure parsers of what psutil lacks in /proc, and a few functions that read files of processes.

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

# --- the machine -----------------------------------------------------------------------------------------------------


def parse_cpu_count(data: bytes) -> int:
    """Return the number of CPUs online, each of which has a line in /proc/stat."""
    found = data.count(b"\ncpu")
    if not found:
        raise SourceError(f"/proc/stat: no CPU in {data[:20]!r}")
    return found


class Scheduler(NamedTuple):
    """Values of /proc/stat: number of context switches since boot, of running tasks, and of tasks blocked on I/O."""

    context_switches: int
    running: int
    blocked: int


def parse_scheduler(data: bytes) -> Scheduler:
    """Parse the numbers of context switches and tasks in /proc/stat."""
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
    """Parse the paging counters in /proc/vmstat."""
    kills = _line_number(data, b"oom_kill ", "/proc/vmstat") if b"\noom_kill " in data else None
    return Paging(_line_number(data, b"pgmajfault ", "/proc/vmstat"), kills)


def _line_number(data: bytes, key: bytes, file: str) -> int:
    """Return the number that follows the key at the start of a line of `data`.

    file: name of the file, for the error message.
    """
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
    """Parse the load average over one minute in /proc/loadavg."""
    try:
        return float(data.split(b" ", 1)[0])
    except ValueError:
        raise SourceError(f"/proc/loadavg: {data[:40]!r}") from None


class Pressure(NamedTuple):
    """Total times of one file in /proc/pressure, in microseconds.

    some_us: time in which at least one task waited. full_us: time in which all tasks waited; None if not reported (cpu
    before Linux 5.13).
    """

    some_us: int
    full_us: int | None


def parse_pressure(data: bytes) -> Pressure:
    """Parse /proc/pressure/{cpu,memory,io}: how long tasks waited for a resource."""
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


def parse_in_flight(data: bytes) -> dict[str, int]:
    """Return the number of requests in progress of each block device and partition in /proc/diskstats, by name."""
    found: dict[str, int] = {}
    for line in data.split(b"\n"):
        words = line.split()
        if len(words) < 14:
            continue  # the end of the file
        try:
            found[words[2].decode("utf-8", "replace")] = whole(words[11])
        except ValueError:
            raise SourceError(f"/proc/diskstats: {line[:80]!r}") from None
    return found


# --- processes -------------------------------------------------------------------------------------------------------


class ProcessStat(NamedTuple):
    """Fields of /proc/PID/stat that the agent uses. pid and start_time (clock ticks since boot) identify a process."""

    pid: int
    state: str
    parent: int
    threads: int
    start_time: int
    block_io_ticks: int
    major_faults: int


def parse_process_stat(data: bytes) -> ProcessStat:
    """Parse /proc/PID/stat.

    The process name in parentheses may contain any character, even parentheses and line ends.
    """
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
            major_faults=whole(words[9]),
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
    """Times in /proc/PID/task/TID/schedstat, in ns: time that the thread ran, and time that it waited for a CPU."""

    run_ns: int
    wait_ns: int


def parse_schedstat(data: bytes) -> SchedStat:
    """Parse the times in /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst)."""
    words = data.split()
    try:
        return SchedStat(whole(words[0]), whole(words[1]))
    except (ValueError, IndexError):
        raise SourceError(f"schedstat: {data[:40]!r}") from None


class ProcessIO(NamedTuple):
    """Bytes in /proc/PID/io that a process has read from storage and written to it.

    The counts include all threads. They also include children that have ended, after the process has waited for them.
    """

    read_bytes: int
    written_bytes: int


def parse_process_io(data: bytes) -> ProcessIO:
    """Parse the storage counters in /proc/PID/io."""
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

    Each thread's file contains the children that this thread started. The children of an ended thread are in another
    thread's file.
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
    """Return the children of every process, as pids by the parent's pid. For kernels without ``children`` files."""
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
