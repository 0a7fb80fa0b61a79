"""Repeated reading of a process and its threads through open descriptors.

An open descriptor under /proc/PID always refers to the same process or thread. After the end of this process or thread
every read fails with ESRCH, even if another process gets the same pid.
"""

from __future__ import annotations

import errno
import os

from agent.sources.files import read_file
from agent.sources.proc.proc import (
    ProcessStat,
    parse_process_io,
    parse_process_stat,
    parse_schedstat,
    parse_statm,
    threads_of,
)


class DescriptorBudget:
    """Number of descriptors that may still be opened for files of threads, and kept open.

    If it is 0, the files of further threads are opened and closed for each read.
    """

    __slots__ = ("left",)

    def __init__(self, most: int) -> None:
        self.left = most


class KeptThread:
    """Reader of the schedstat file of one thread: how long it ran, and how long it waited for a CPU.

    The file stays open if the budget of descriptors allows it.
    """

    __slots__ = ("_budget", "_descriptor", "_path", "run_ns", "wait_ns")

    def __init__(self, path: str, budget: DescriptorBudget) -> None:
        self._path = path
        self._budget = budget
        self._descriptor = -1
        self.run_ns = 0
        self.wait_ns = 0
        if budget.left > 0:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            budget.left -= 1

    def advance(self) -> tuple[int, int]:
        """Return how long the thread ran and how long it waited for a CPU since the last call, in nanoseconds.

        Raise OSError if the thread has ended.
        """
        data = os.pread(self._descriptor, 128, 0) if self._descriptor >= 0 else read_file(self._path)
        run_ns, wait_ns = parse_schedstat(data)
        if run_ns < self.run_ns or wait_ns < self.wait_ns:
            # Without an open descriptor this may be another thread with the same id: all of its time is new.
            self.run_ns = self.wait_ns = 0
        ran, waited = run_ns - self.run_ns, wait_ns - self.wait_ns
        self.run_ns, self.wait_ns = run_ns, wait_ns
        return ran, waited

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._budget.left += 1


class KeptProcess:
    """One process of a rank. Its open descriptors refer to this process even if another process gets its pid."""

    __slots__ = (
        "_budget",
        "_folder",
        "_io",
        "_stat",
        "_statm",
        "block_io_ticks",
        "major_faults",
        "pid",
        "proc_root",
        "read_bytes",
        "threads",
        "written_bytes",
    )

    def __init__(self, proc_root: str, pid: int, budget: DescriptorBudget) -> None:
        """Open the files of the process. Raise OSError if the process has ended."""
        self.proc_root = proc_root
        self.pid = pid
        self.block_io_ticks = self.major_faults = 0
        self.read_bytes = 0
        self.written_bytes = 0
        self.threads: dict[str, KeptThread] = {}
        self._budget = budget
        self._folder = f"{proc_root}/{pid}"
        self._io = self._statm = -1
        self._stat = os.open(f"{self._folder}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._statm = os.open(f"{self._folder}/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._stat)
            raise
        try:
            self._io = os.open(f"{self._folder}/io", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # Process of another user without permission to trace it. The other files are readable.
            pass

    def stat(self) -> ProcessStat | None:
        """Return the current /proc/PID/stat of the process; None if it ended and its parent has waited for it."""
        try:
            return parse_process_stat(os.pread(self._stat, 4096, 0))
        except OSError:
            return None

    def resident_bytes(self) -> int:
        """Return the resident memory of the process in bytes; 0 if the process has ended."""
        try:
            return parse_statm(os.pread(self._statm, 256, 0))
        except OSError:
            return 0

    def advance_threads(self, count: int) -> tuple[int, int, bool]:
        """Return (nanoseconds run, nanoseconds waited for a CPU, whether any thread was readable) since the last call.

        The times are sums over all threads. count: number of threads in /proc/PID/stat. If it differs from the
        number at the last call, or a thread has ended, the threads are listed again.
        """
        ran = waited = 0
        ended: list[str] = []
        for name, thread in self.threads.items():
            try:
                more_ran, more_waited = thread.advance()
            except OSError:
                ended.append(name)
                continue
            ran += more_ran
            waited += more_waited
        for name in ended:
            self.threads.pop(name).close()
        if ended or count != len(self.threads):
            for name in threads_of(self.proc_root, self.pid):
                if name in self.threads:
                    continue
                try:
                    thread = KeptThread(f"{self._folder}/task/{name}/schedstat", self._budget)
                except OSError:
                    continue
                try:
                    more_ran, more_waited = thread.advance()
                except OSError:
                    thread.close()
                    continue
                self.threads[name] = thread
                ran += more_ran
                waited += more_waited
        return ran, waited, bool(self.threads)

    def advance_io(self) -> tuple[int, int] | None:
        """Return the bytes that the process read and wrote since the last call; None if the agent may not read the
        counts."""
        if self._io < 0:
            return None
        try:
            newest = parse_process_io(os.pread(self._io, 4096, 0))
        except OSError as error:
            # ESRCH: it ended after its stat was read. Its last bytes are added to the parent that waits for it.
            return (0, 0) if error.errno == errno.ESRCH else None
        read = newest.read_bytes - self.read_bytes
        written = newest.written_bytes - self.written_bytes
        self.read_bytes, self.written_bytes = newest
        return read, written

    def close(self) -> None:
        for thread in self.threads.values():
            thread.close()
        self.threads.clear()
        os.close(self._stat)
        os.close(self._statm)
        if self._io >= 0:
            os.close(self._io)
        self._stat = self._statm = self._io = -1
