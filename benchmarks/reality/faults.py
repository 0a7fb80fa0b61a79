"""Faults that the operating system injects into a running job. Each is a context: leaving it ends the fault."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reality.site import Site, processes

PERIOD_US = 100_000
"""Length of a period in which a CPU quota applies, in microseconds."""

LIMIT_STEP, LIMIT_SECONDS = 4 << 20, 6.0
"""By how much a memory limit goes down at once, in bytes, and for how long."""
DATASET = "/dataset."
"""Part of the path of a mapped dataset."""

SPIN = ("/bin/sh", "-c", "while :; do :; done")


@dataclass(frozen=True, slots=True)
class Gang:
    """A running job on the site's nodes."""

    site: Site
    job: str
    nodes: tuple[str, ...]
    """Node of each rank."""
    processors: tuple[float, ...]
    """CPU seconds a second of each rank before the fault."""
    steps_a_second: float
    """Speed before the fault."""
    folder: Path
    """Folder of the datasets."""

    def group(self, hierarchy: str, rank: int) -> Path:
        return self.site.rank_group(hierarchy, self.nodes[rank], self.job, rank)

    def processes(self, rank: int) -> list[int]:
        return processes(self.group("cpu", rank))

    def ranks_on(self, nodes: Sequence[str]) -> list[int]:
        return [rank for rank, node in enumerate(self.nodes) if node in nodes]


@contextlib.contextmanager
def cpu_quota(gang: Gang, ranks: Sequence[int], factor: float) -> Iterator[None]:
    """Limit the ranks to their CPU time divided by `factor`."""
    groups = [gang.group("cpu", rank) for rank in ranks]
    for rank, group in zip(ranks, groups, strict=True):
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(max(1000, round(PERIOD_US * gang.processors[rank] / factor))))
    try:
        yield
    finally:
        for group in groups:
            with contextlib.suppress(OSError):  # the rank has ended
                (group / "cpu.cfs_quota_us").write_text("-1")


@contextlib.contextmanager
def cpu_load(gang: Gang, ranks: Sequence[int], factor: float) -> Iterator[None]:
    """Run busy processes in the ranks' control groups, which have a CPU quota: they take a part of it."""

    def enter(group: Path) -> Callable[[], object]:
        return lambda: (group / "cgroup.procs").write_text("0")

    loads = [
        subprocess.Popen(SPIN, stdin=subprocess.DEVNULL, preexec_fn=enter(gang.group("cpu", rank)))
        for rank in ranks
        for _ in range(max(1, round(factor - 1)))
    ]
    try:
        yield
    finally:
        for load in loads:
            load.kill()
            load.wait()


@contextlib.contextmanager
def slow_link(gang: Gang, nodes: Sequence[str], factor: float) -> Iterator[None]:
    """Divide the speed of the nodes' links by `factor`."""
    for node in nodes:
        gang.site.set_rate(node, gang.site.rate_mbit / factor)
    try:
        yield
    finally:
        for node in nodes:
            gang.site.set_rate(node, gang.site.rate_mbit)


@contextlib.contextmanager
def disk_throttle(gang: Gang, ranks: Sequence[int], factor: float, step_bytes: int) -> Iterator[None]:
    """Limit the ranks' reads to their present rate divided by `factor`."""
    device = disk_of(gang.folder)
    files = [gang.group("blkio", rank) / "blkio.throttle.read_bps_device" for rank in ranks]
    for file in files:
        file.write_text(f"{device} {round(gang.steps_a_second * step_bytes / factor)}")
    try:
        yield
    finally:
        for file in files:
            with contextlib.suppress(OSError):
                file.write_text(f"{device} 0")


def disk_of(folder: Path) -> str:
    """Return major:minor of the disk on which the folder is. For a partition it is that of the whole disk."""
    number = folder.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not block.exists():
        raise FileNotFoundError(f"{folder} is on no block device: use a folder on a disk")
    if (block / "partition").exists():
        block = block.resolve().parent
    return (block / "dev").read_text().strip()


@contextlib.contextmanager
def memory_limit(gang: Gang, ranks: Sequence[int], share: float, mapped_bytes: int) -> Iterator[None]:
    """Take `share` of its mapped dataset from each rank's memory, so that it is read from the disk again and again.

    The kernel takes pages that the rank does not use first (of libraries, for example). So the limit goes down until
    the dataset has lost its share.
    """
    files = [gang.group("memory", rank) / "memory.limit_in_bytes" for rank in ranks]
    for rank, file in zip(ranks, files, strict=True):
        until = time.monotonic() + LIMIT_SECONDS
        while mapped_bytes_of(gang.processes(rank)) > (1 - share) * mapped_bytes and time.monotonic() < until:
            used = int((file.parent / "memory.usage_in_bytes").read_text())
            with contextlib.suppress(OSError):  # EBUSY: not enough could be reclaimed at once
                file.write_text(str(used - LIMIT_STEP))
            time.sleep(0.02)
    try:
        yield
    finally:
        for file in files:
            with contextlib.suppress(OSError):
                file.write_text("-1")


def mapped_bytes_of(pids: Sequence[int]) -> int:
    """Return how much of their mapped datasets these processes have in memory, in bytes."""
    total = 0
    for pid in pids:
        inside = False
        with contextlib.suppress(OSError):  # the process has ended
            for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
                name, _, rest = line.partition(" ")
                if not name.endswith(":"):
                    inside = DATASET in line
                elif inside and name == "Rss:":
                    total += int(rest.split()[0]) * 1024
    return total


@contextlib.contextmanager
def stop_continue(gang: Gang, ranks: Sequence[int], share: float, seed: int) -> Iterator[None]:
    """Stop and continue the ranks with signals at random, so that they are stopped for `share` of the time."""
    source, over = random.Random(seed), threading.Event()

    def disturb() -> None:
        while not over.is_set():
            held = source.uniform(0.05, 0.2)
            _signal(gang, ranks, signal.SIGSTOP)
            over.wait(held)
            _signal(gang, ranks, signal.SIGCONT)
            over.wait(held * (1 - share) / share)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def stop_for_ever(gang: Gang, ranks: Sequence[int]) -> Iterator[None]:
    """Stop the ranks: they never enter the next collective."""
    _signal(gang, ranks, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(gang, ranks, signal.SIGCONT)


@contextlib.contextmanager
def neighbour(go: Path) -> Iterator[None]:
    """Let the waiting neighbour job start. It ends with the run."""
    go.touch()
    yield


def _signal(gang: Gang, ranks: Sequence[int], number: signal.Signals) -> None:
    for rank in ranks:
        for pid in gang.processes(rank):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def inject(name: str, gang: Gang, ranks: Sequence[int], numbers: Mapping[str, float]) -> AbstractContextManager[None]:
    """Return the fault with this name. numbers: its size, by the name of the parameter."""
    nodes = sorted({gang.nodes[rank] for rank in ranks})
    factor = numbers.get("factor", 1.0)
    if name in ("cpu-quota-rank", "cpu-quota-node"):
        return cpu_quota(gang, ranks, factor)
    if name in ("cpu-load-rank", "cpu-load-node"):
        return cpu_load(gang, ranks, factor)
    if name in ("slow-link", "slow-links-of-two"):
        return slow_link(gang, nodes, factor)
    if name == "disk-throttle":
        return disk_throttle(gang, ranks, factor, int(numbers["step_bytes"]))
    if name == "memory-limit":
        return memory_limit(gang, ranks, numbers["share"], int(numbers["mapped_bytes"]))
    if name == "stop-continue":
        return stop_continue(gang, ranks, numbers["share"], int(numbers["seed"]))
    if name == "never-arrives":
        return stop_for_ever(gang, ranks)
    if name == "shared-uplink":
        return neighbour(gang.folder / "go.neighbour")
    raise ValueError(f"{name!r} is not a fault")
