"""A process of a rank as psutil reads it. It has the methods of agent/sources/proc/process_reader.py:KeptProcess."""

from __future__ import annotations

import psutil

from agent.sources.proc.proc import CLOCK_TICKS_PER_SECOND, ProcessStat

_LETTERS = {psutil.STATUS_STOPPED: "T", psutil.STATUS_TRACING_STOP: "t", psutil.STATUS_ZOMBIE: "Z"}


class PsutilProcess:
    """One process of a rank. psutil compares its creation time to detect that the pid belongs to another process."""

    def __init__(self, proc_root: str, pid: int, budget: object) -> None:
        """Raise OSError if the process has ended."""
        self.proc_root, self.pid = proc_root, pid
        self.block_io_ticks = self.major_faults = self.read_bytes = self.written_bytes = 0
        self._run_ns: dict[int, int] = {}
        try:
            self._process = psutil.Process(pid)
        except psutil.Error:
            raise ProcessLookupError(pid) from None

    def stat(self) -> ProcessStat | None:
        try:
            with self._process.oneshot():
                return ProcessStat(
                    self.pid,
                    _LETTERS.get(self._process.status(), "S"),
                    self._process.ppid(),
                    self._process.num_threads(),
                    round(self._process._proc.create_time(monotonic=True) * CLOCK_TICKS_PER_SECOND),
                    round(self._process.cpu_times().iowait * CLOCK_TICKS_PER_SECOND),
                    0,  # psutil does not have the major page faults of a process
                )
        except psutil.Error:
            return None

    def resident_bytes(self) -> int:
        try:
            return int(self._process.memory_info().rss)
        except psutil.Error:
            return 0

    def advance_threads(self, count: int) -> tuple[int, int, bool]:
        """Return the nanoseconds that the threads ran. psutil does not have how long they waited for a CPU."""
        ran = 0
        try:
            for thread in self._process.threads():
                newest = round(1e9 * (thread.user_time + thread.system_time))
                ran += newest - self._run_ns.get(thread.id, 0)
                self._run_ns[thread.id] = newest
        except psutil.Error:
            return 0, 0, False
        return ran, 0, True

    def advance_io(self) -> tuple[int, int] | None:
        try:
            newest = self._process.io_counters()
        except psutil.Error:
            return None
        moved = newest.read_bytes - self.read_bytes, newest.write_bytes - self.written_bytes
        self.read_bytes, self.written_bytes = newest.read_bytes, newest.write_bytes
        return moved

    def close(self) -> None:
        """Do nothing: psutil keeps nothing open."""
