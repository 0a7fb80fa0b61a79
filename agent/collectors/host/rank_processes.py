"""Collector of the ranks' processes: CPU time, run-queue wait, storage, memory, page faults, and stopped states.

A rank consists of its main process and all descendants of this process. When a thread or child ends, the kernel
drops its values (schedstat) or adds them to the parent that waited for it (io). Therefore the collector adds up the
differences between its reads, and its counters never decrease.
"""

from __future__ import annotations

import resource
from typing import Protocol

from agent.collectors.block import Block
from agent.rank_attribution import RankFile
from agent.schema.frame import Column
from agent.schema.process_state import OF_LETTER, ProcessState
from agent.sources.files import read_file
from agent.sources.proc.proc import TICK_NS, children_by_parent, children_of, threads_of
from agent.sources.proc.process_reader import DescriptorBudget, KeptProcess

COUNTERS = (
    "gangwatch_rank_cpu_seconds_total",
    "gangwatch_rank_runqueue_wait_seconds_total",
    "gangwatch_rank_block_io_seconds_total",
    "gangwatch_rank_stopped_samples_total",
    "gangwatch_rank_samples_total",
    "gangwatch_rank_read_bytes_total",
    "gangwatch_rank_written_bytes_total",
    "gangwatch_rank_major_page_faults_total",
)
GAUGES = ("gangwatch_rank_memory_resident_bytes", "gangwatch_rank_threads", "gangwatch_rank_process_state")

DISCOVERY_SECONDS = 2.0
"""Interval in seconds of searching for new child processes. A search costs as much as the rest of a sample (one more
file per thread). A child's values are counted from its start when it is found. Only children that live shorter than
this interval are missed."""

STOPPED_STATES = "Tt"
"""States of a stopped process in proc(5): T means stopped by a signal, t stopped by a tracer."""

ZOMBIE = "Z"
"""State in proc(5) of a process that has ended and whose parent has not yet waited for it. The bytes of the process are
not yet added to the parent."""

HAND_OVER_SAMPLES = 2
"""Number of samples within which the bytes of an ended child appear in its parent. They appear in the same sample, or
in the next one if the parent was read first."""


class Ranks(Protocol):
    """Interface that lists the ranks' main processes."""

    def ranks(self) -> list[RankFile]:
        """Return the ranks of this node with a live process, sorted."""
        ...


class StorageBytes:
    """Total bytes that a rank read from storage or wrote to it, each counted once.

    When a child ends and its parent waits for it, the kernel adds the child's bytes to the parent (wait_task_zombie
    in kernel/exit.c). To count these bytes once, they are subtracted from the rank's next new bytes, down to zero.
    """

    __slots__ = ("_handed_over", "_samples_left", "total")

    def __init__(self) -> None:
        self.total = 0
        self._handed_over = 0
        self._samples_left = 0

    def add(self, appeared: int, ended: int) -> None:
        """Add the bytes of one sample to the total.

        appeared: new bytes of the rank's living processes. ended: bytes, already counted, of the processes that ended
        since the last sample.
        """
        if ended:
            self._handed_over += ended
            self._samples_left = HAND_OVER_SAMPLES
        known = min(appeared, self._handed_over)
        self.total += appeared - known
        self._handed_over -= known
        self._samples_left -= 1
        if self._samples_left <= 0:
            self._handed_over = 0


class _Rank:
    """Processes of one rank, and the rank's totals since the collector found it."""

    __slots__ = (
        "block_io_ns",
        "io_readable",
        "main",
        "major_faults",
        "processes",
        "read",
        "resident_bytes",
        "run_ns",
        "samples",
        "schedstat_readable",
        "state",
        "stopped_samples",
        "threads",
        "wait_ns",
        "written",
    )

    def __init__(self, main: RankFile) -> None:
        self.main = main
        self.processes: dict[tuple[int, int], KeptProcess] = {}
        self.run_ns = self.wait_ns = self.block_io_ns = 0
        self.read = StorageBytes()
        self.written = StorageBytes()
        self.samples = self.stopped_samples = self.major_faults = 0
        self.resident_bytes = self.threads = 0
        self.schedstat_readable = self.io_readable = False
        self.state = ProcessState.RUNNING

    def sample(self) -> None:
        """Read every process once and remove ended ones."""
        self.resident_bytes = self.threads = 0
        self.schedstat_readable = False
        self.io_readable = True
        stopped = living = False
        main, main_state, worst = (self.main.pid, self.main.start_time), ProcessState.GONE, ProcessState.RUNNING
        read = written = ended_read = ended_written = 0
        for key, process in list(self.processes.items()):
            stat = process.stat()
            if stat is None:
                ended_read += process.read_bytes
                ended_written += process.written_bytes
                process.close()
                del self.processes[key]
                continue
            moved = process.advance_io()
            if moved is not None:
                read += moved[0]
                written += moved[1]
            if stat.state == ZOMBIE:
                if key == main:
                    main_state = ProcessState.ZOMBIE
                continue
            living = True
            worst = max(worst, OF_LETTER.get(stat.state, worst))
            if key == main:
                main_state = ProcessState.RUNNING
            self.io_readable = self.io_readable and moved is not None
            stopped = stopped or stat.state in STOPPED_STATES
            self.resident_bytes += process.resident_bytes()
            self.threads += stat.threads
            self.block_io_ns += max(0, stat.block_io_ticks - process.block_io_ticks) * TICK_NS
            process.block_io_ticks = stat.block_io_ticks
            self.major_faults += max(0, stat.major_faults - process.major_faults)
            process.major_faults = stat.major_faults
            ran, waited, readable = process.advance_threads(stat.threads)
            self.run_ns += ran
            self.wait_ns += waited
            self.schedstat_readable = self.schedstat_readable or readable
        self.read.add(read, ended_read)
        self.written.add(written, ended_written)
        self.state = main_state if main_state is not ProcessState.RUNNING else worst
        self.samples += living
        self.stopped_samples += stopped

    def is_zombie(self) -> bool:
        """Return whether the main process has ended and its parent has not waited for it."""
        process = self.processes.get((self.main.pid, self.main.start_time))
        stat = process.stat() if process is not None else None
        return stat is not None and stat.state == ZOMBIE

    def close(self) -> None:
        for process in self.processes.values():
            process.close()
        self.processes.clear()


class ProcessCollector:
    """Collector that samples the process tree of every rank, by default every half second to detect short stops.

    most_descriptors: maximum number of descriptors kept open for threads; by default half of the agent's own limit.
    """

    name = "process"
    worker = "host"

    def __init__(
        self,
        ranks: Ranks,
        proc_root: str = "/proc",
        interval_seconds: float = 0.5,
        most_descriptors: int | None = None,
    ) -> None:
        self.interval_seconds = interval_seconds
        self._source = ranks
        self._proc_root = proc_root
        if most_descriptors is None:
            most_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._budget = DescriptorBudget(most_descriptors)
        self._ranks: dict[tuple[int, int], _Rank] = {}
        self._block = Block()
        self._ticks_a_discovery = max(1, round(DISCOVERY_SECONDS / interval_seconds))
        self._tick = 0
        self._children_files = True
        self._block_io_counted = self._kernel_counts_block_io()

    def _kernel_counts_block_io(self) -> bool:
        """Return whether the kernel measures the time of processes in block I/O (delay accounting).

        It is off by default since Linux 5.14, and block I/O time then reads 0.
        """
        try:
            return read_file(f"{self._proc_root}/sys/kernel/task_delayacct").strip() != b"0"
        except OSError:
            return True

    @property
    def idle(self) -> bool:
        """True if the node has no rank."""
        return not self._ranks

    def collect(self) -> Block:
        changed = self._follow_ranks()
        if not changed and not self._ranks:
            return self._block
        if changed or self._tick % self._ticks_a_discovery == 0:
            self._discover()
        self._tick += 1
        for rank in self._ranks.values():
            rank.sample()
        if changed:
            self._block = self._make_block()
        self._fill()
        return self._block

    def close(self) -> None:
        for rank in self._ranks.values():
            rank.close()
        self._ranks.clear()

    def _follow_ranks(self) -> bool:
        """Add new ranks and remove ended ones. Return whether a rank was added or removed."""
        alive = {(main.pid, main.start_time): main for main in self._source.ranks()}
        # Keep a zombie, so that its state is published.
        alive |= {key: rank.main for key, rank in self._ranks.items() if key not in alive and rank.is_zombie()}
        if alive.keys() == self._ranks.keys():
            return False
        for key in self._ranks.keys() - alive.keys():
            self._ranks.pop(key).close()
        self._ranks = {key: self._ranks.get(key) or _Rank(main) for key, main in alive.items()}
        return True

    def _discover(self) -> None:
        """Find the descendants of every rank. A process stays with its rank even if it gets another parent."""
        by_parent: dict[int, list[int]] | None = None
        mains = {pid for pid, _ in self._ranks}
        for (main_pid, _), rank in self._ranks.items():
            self._take(rank, main_pid, None)
            queue = [process.pid for process in rank.processes.values() if process.stat() is not None]
            seen = set(queue)
            while queue:
                pid = queue.pop()
                children: list[int] | None = None
                if self._children_files:
                    children = children_of(self._proc_root, pid, threads_of(self._proc_root, pid))
                    self._children_files = children is not None
                if children is None:
                    if by_parent is None:
                        by_parent = children_by_parent(self._proc_root)
                    children = by_parent.get(pid, [])
                for child in children:
                    # A rank that was started by another rank is counted separately.
                    if child not in seen and child not in mains:
                        seen.add(child)
                        self._take(rank, child, pid)
                        queue.append(child)

    def _take(self, rank: _Rank, pid: int, parent: int | None) -> None:
        """Add the process to the rank, unless the process has ended or its pid belongs to another process now."""
        try:
            process = KeptProcess(self._proc_root, pid, self._budget)
        except OSError:
            return
        stat = process.stat()
        if stat is not None and (pid, stat.start_time) not in rank.processes:
            is_main = parent is None and stat.start_time == rank.main.start_time
            if is_main or stat.parent == parent:
                rank.processes[pid, stat.start_time] = process
                return
        process.close()

    def _make_block(self) -> Block:
        gauges: list[Column] = []
        counters: list[Column] = []
        for rank in self._ranks.values():
            labels = (
                ("attempt", str(rank.main.attempt)),
                ("gang", rank.main.gang),
                ("rank", str(rank.main.rank)),
            )
            gauges.extend(Column(metric, labels) for metric in GAUGES)
            counters.extend(Column(metric, labels) for metric in COUNTERS)
        return Block(gauges, counters)

    def _fill(self) -> None:
        block = self._block
        block.clear()
        for position, rank in enumerate(self._ranks.values()):
            if not rank.processes:
                continue
            at = position * len(GAUGES)
            block.set_gauge(at, rank.resident_bytes)
            block.set_gauge(at + 1, rank.threads)
            block.set_gauge(at + 2, rank.state)
            at = position * len(COUNTERS)
            if rank.schedstat_readable:
                block.set_counter(at, rank.run_ns)
                block.set_counter(at + 1, rank.wait_ns)
            if self._block_io_counted:
                block.set_counter(at + 2, rank.block_io_ns)
            block.set_counter(at + 3, rank.stopped_samples)
            block.set_counter(at + 4, rank.samples)
            if rank.io_readable:
                block.set_counter(at + 5, rank.read.total)
                block.set_counter(at + 6, rank.written.total)
            block.set_counter(at + 7, rank.major_faults)
