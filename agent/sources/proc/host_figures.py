"""Figures of the host that psutil reads: CPU times, memory, disks, network interfaces.

psutil reads the folder in its variable PROCFS_PATH, and some of its functions read this machine's own files if that
folder lacks a file. The functions here take the folder as an argument, never read another machine's files, and raise
SourceError, with the name of the file, for whatever psutil can't read or parse. docs/adr/0058 lists what psutil lacks.
"""

from __future__ import annotations

import errno
import math
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import psutil

from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.proc.proc import CLOCK_TICKS_PER_SECOND

CPU_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""CPU modes in the order of /proc/stat. Guest time is omitted, since user and nice already include it."""

_MOST = (1 << 64) - 1
"""Highest value of a kernel counter."""

_root_lock = threading.Lock()
"""Lock of psutil.PROCFS_PATH, which is one variable for all threads."""


class Memory(NamedTuple):
    """Memory of the host in bytes. available_bytes is None if the kernel does not report it."""

    total_bytes: int
    available_bytes: int | None


def cpu_ticks(proc_root: str) -> tuple[int, ...]:
    """Return the CPU times as sums over all CPUs, in ticks, in the order of CPU_MODES.

    Raise SourceError if psutil can't read them.
    """
    times = _read(proc_root, "stat", psutil.cpu_times)
    seconds = [getattr(times, mode) for mode in CPU_MODES if hasattr(times, mode)]
    if not all(math.isfinite(one) and one >= 0 for one in seconds):
        raise SourceError(f"{proc_root}/stat: CPU times {seconds}")
    return tuple(round(one * CLOCK_TICKS_PER_SECOND) for one in seconds)


def memory(proc_root: str) -> Memory:
    """Return the host's memory. Raise SourceError if psutil can't read it."""
    found = _read(proc_root, "meminfo", psutil.virtual_memory)
    _check(f"{proc_root}/meminfo", (found.total, found.available))
    # psutil returns 0 for the available memory if it could neither read nor estimate it.
    return Memory(found.total, None if found.available == 0 else found.available)


def disks(proc_root: str) -> Mapping[str, Any]:
    """Return psutil's counters (`sdiskio`) of every block device and partition, by name, in the order of the file.

    The times are milliseconds, which the kernel keeps as 32-bit numbers. Raise SourceError if psutil can't read them.
    """
    if not os.path.exists(f"{proc_root}/diskstats"):  # psutil would read this machine's /sys instead
        raise UnsupportedError(f"{proc_root}/diskstats: {os.strerror(errno.ENOENT)}")
    return _devices(proc_root, "diskstats", psutil.disk_io_counters, perdisk=True, nowrap=False)


def interfaces(proc_root: str) -> Mapping[str, Any]:
    """Return psutil's counters (`snetio`) of every network interface, by name, in the order of the file.

    If the host's /proc is mounted into a container, net/ is the container's own, and process 1 has the host's. Raise
    SourceError if psutil can't read them.
    """
    try:
        return _devices(f"{proc_root}/1", "net/dev", psutil.net_io_counters, pernic=True, nowrap=False)
    except SourceError:
        return _devices(proc_root, "net/dev", psutil.net_io_counters, pernic=True, nowrap=False)


def _devices(root: str, file: str, function: Callable[..., Any], **options: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, counters in (_read(root, file, function, **options) or {}).items():
        _check(f"{root}/{file}", counters)
        # A name may have any bytes but '/', ':' and white space. psutil decodes invalid UTF-8 to surrogates.
        found[name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")] = counters
    return found


def _check(path: str, numbers: tuple[int, ...]) -> None:
    """Raise SourceError if a number is not a count of the kernel: int() also accepts signs and any length."""
    if not all(0 <= number <= _MOST for number in numbers):
        raise SourceError(f"{path}: {numbers!r:.80}")


def _read(root: str, file: str, function: Callable[..., Any], **options: bool) -> Any:
    """Return the result of psutil's function for the folder `root`, in which it reads `file`.

    Raise UnsupportedError if the file does not exist, SourceError if psutil fails.
    """
    path = f"{root}/{file}"
    with _root_lock:
        before = psutil.PROCFS_PATH
        psutil.PROCFS_PATH = root
        try:
            return function(**options)
        except FileNotFoundError as error:
            raise UnsupportedError(f"{path}: {error.strerror}") from None
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}") from None
        except Exception as error:  # malformed content: psutil raises whatever its parsing code raises
            raise SourceError(f"{path}: psutil can't parse it: {type(error).__name__}: {error}") from None
        finally:
            psutil.PROCFS_PATH = before
