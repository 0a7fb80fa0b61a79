"""Process collector on real processes that run a test's commands, and otherwise on written /proc files."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.host.rank_processes import ProcessCollector, StorageBytes
from agent.rank_attribution import RankFile
from agent.schema.errors import SourceError
from agent.schema.process_state import ProcessState
from agent.sources.proc.proc import (
    PAGE_BYTES,
    TICK_NS,
    parse_process_io,
    parse_process_stat,
    parse_schedstat,
    parse_statm,
    read_process_stat,
)
from tests.agent.catalogued import assert_catalogued, counter, gauge

CPU = "gangwatch_rank_cpu_seconds_total"
WAIT = "gangwatch_rank_runqueue_wait_seconds_total"
STOPPED = "gangwatch_rank_stopped_samples_total"
SAMPLES = "gangwatch_rank_samples_total"
FAULTS = "gangwatch_rank_major_page_faults_total"
WRITTEN = "gangwatch_rank_written_bytes_total"
LABELS = {"attempt": "1", "gang": "j-000001", "rank": "0"}

OBEDIENT = """
import os, subprocess, sys, threading, time

def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

for line in sys.stdin:
    result = eval(line)
    print(result, flush=True)
"""


class Rank:
    """Real process that evaluates expressions sent by the test, and its rank file's content."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", OBEDIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stat = read_process_stat("/proc", self.process.pid)
        assert stat is not None
        self.file = RankFile("j-000001", 1, 0, self.process.pid, stat.start_time)
        self.alive = True

    def ranks(self) -> list[RankFile]:
        return [self.file] if self.alive else []

    def do(self, expression: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture
def rank() -> Iterator[Rank]:
    one = Rank()
    yield one
    one.process.kill()
    one.process.communicate()


@pytest.fixture(params=[None, 0], ids=["kept descriptors", "no descriptor to spare"])
def collector(request: pytest.FixtureRequest, rank: Rank) -> Iterator[ProcessCollector]:
    # With this interval, every run also scans for children.
    before = descriptors()
    one = ProcessCollector(rank, interval_seconds=2.0, most_descriptors=request.param)
    yield one
    one.close()
    assert descriptors() == before, "all descriptors are closed"


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def value(collector: ProcessCollector, metric: str) -> int:
    found = counter(collector.collect(), metric, **LABELS)
    assert found is not None
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "the condition was not true within 30 s"
        time.sleep(0.01)


def test_processor_time_is_counted(rank: Rank, collector: ProcessCollector) -> None:
    block = collector.collect()
    assert_catalogued(block)
    rank.do("burn(0.2)")
    used_ns = int(rank.do("time.process_time_ns()"))
    assert used_ns <= value(collector, CPU) <= used_ns + 10**9
    assert collector.collect() is block


def test_time_of_an_ended_thread_is_kept(rank: Rank, collector: ProcessCollector) -> None:
    rank.do("[burner := threading.Thread(target=burn, args=(0.2,)), burner.start()]")
    wait_until(lambda: value(collector, CPU) > 100_000_000)
    assert gauge(collector.collect(), "gangwatch_rank_threads", **LABELS) in (1, 2)
    rank.do("burner.join()")
    before = value(collector, CPU)
    rank.do("burn(0.05)")
    assert value(collector, CPU) >= before + 50_000_000


def test_time_of_a_child_counts_for_the_rank_and_is_kept(rank: Rank, collector: ProcessCollector) -> None:
    burn = "import sys, time\\nwhile time.process_time() < 0.3: pass\\nprint(flush=True)\\nsys.stdin.read()"
    rank.do(
        f"[child := subprocess.Popen([sys.executable, '-c', '{burn}'], stdin=subprocess.PIPE, stdout=subprocess.PIPE),"
        " child.stdout.readline()]"
    )
    assert value(collector, CPU) >= 300_000_000
    assert gauge(collector.collect(), "gangwatch_rank_threads", **LABELS) == 2
    before = value(collector, CPU)
    rank.do("[child.stdin.close(), child.wait()]")
    assert value(collector, CPU) >= before
    assert gauge(collector.collect(), "gangwatch_rank_threads", **LABELS) == 1


def test_an_orphaned_child_still_counts_for_the_rank(rank: Rank, collector: ProcessCollector) -> None:
    grandchild = "[sys.executable, '-c', 'import sys; sys.stdin.read()']"
    between = f"import subprocess, sys; child = subprocess.Popen({grandchild}); print(child.pid, flush=True); input()"
    rank.do(
        f'[child := subprocess.Popen([sys.executable, "-c", "{between}"], stdin=subprocess.PIPE,'
        " stdout=subprocess.PIPE), child.stdout.readline()]"
    )
    assert gauge(collector.collect(), "gangwatch_rank_threads", **LABELS) == 3
    rank.do("[child.kill(), child.wait()]")
    # The orphan reads the same pipe; the rank still holds its other end.
    assert gauge(collector.collect(), "gangwatch_rank_threads", **LABELS) == 2
    rank.do("child.stdin.close()")
    wait_until(lambda: gauge(collector.collect(), "gangwatch_rank_threads", **LABELS) == 1)


def test_the_state_of_the_processes_is_reported(rank: Rank, collector: ProcessCollector) -> None:
    """Expect the states running, stopped, stopped child, zombie that was not reaped, and ended."""

    def state() -> float | None:
        return gauge(collector.collect(), "gangwatch_rank_process_state", **LABELS)

    assert state() == ProcessState.RUNNING
    os.kill(rank.process.pid, signal.SIGSTOP)
    wait_until(lambda: state() == ProcessState.STOPPED)
    os.kill(rank.process.pid, signal.SIGCONT)
    wait_until(lambda: state() == ProcessState.RUNNING)
    child = int(rank.do("(child := subprocess.Popen(['sleep', '60'])).pid"))
    assert state() == ProcessState.RUNNING
    os.kill(child, signal.SIGSTOP)
    wait_until(lambda: state() == ProcessState.STOPPED)
    rank.do("[child.kill(), child.wait()]")
    wait_until(lambda: state() == ProcessState.RUNNING)
    rank.process.kill()
    wait_until(lambda: state() == ProcessState.ZOMBIE)
    rank.alive = False  # the source of ranks no longer lists it
    assert state() == ProcessState.ZOMBIE
    rank.process.wait()
    assert collector.collect().gauge_columns == ()


def test_a_stopped_process_has_stopped_samples(rank: Rank, collector: ProcessCollector) -> None:
    rank.do("0")
    assert (value(collector, STOPPED), value(collector, SAMPLES)) == (0, 2)
    os.kill(rank.process.pid, signal.SIGSTOP)
    os.waitpid(rank.process.pid, os.WUNTRACED)
    assert (value(collector, STOPPED), value(collector, SAMPLES)) == (1, 4)
    os.kill(rank.process.pid, signal.SIGCONT)
    rank.do("0")
    assert (value(collector, STOPPED), value(collector, SAMPLES)) == (2, 6)


def test_bytes_of_a_child_are_counted_once(rank: Rank, collector: ProcessCollector, tmp_path: Path) -> None:
    write = f"import os, sys; f = open('{tmp_path}/x', 'wb'); f.write(bytes(1 << 20)); f.flush(); os.fsync(f.fileno())"
    rank.do(
        f'[child := subprocess.Popen([sys.executable, "-c", "{write}; print(flush=True); input()"],'
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE), child.stdout.readline()]"
    )
    seen = value(collector, WRITTEN)
    rank.do("[child.kill(), child.wait()]")
    for _ in range(3):
        collector.collect()
    # After the parent has waited for the child, the kernel adds the child's bytes to the parent's.
    kernel = parse_process_io(Path(f"/proc/{rank.process.pid}/io").read_bytes()).written_bytes
    assert seen <= value(collector, WRITTEN) == kernel


def test_page_faults_that_read_from_the_disk_are_counted(
    rank: Rank, collector: ProcessCollector, tmp_path: Path
) -> None:
    path = tmp_path / "mapped"
    path.write_bytes(os.urandom(4 << 20))
    before = value(collector, FAULTS)
    rank.do(f"[file := open('{path}', 'rb'), os.fsync(file.fileno()), os.posix_fadvise(file.fileno(), 0, 0, 4)]")
    mapped = "__import__('mmap').mmap(file.fileno(), 0, prot=1)"
    rank.do(f"[view := {mapped}, view.madvise(1), sum(view[at] for at in range(0, len(view), 4096))]")
    kernel = int(Path(f"/proc/{rank.process.pid}/stat").read_text().rpartition(")")[2].split()[9])
    assert before < value(collector, FAULTS) == kernel


def test_an_ended_rank_is_removed(rank: Rank, collector: ProcessCollector) -> None:
    first = collector.collect()
    assert len(first.counter_columns) == 8
    rank.process.kill()
    rank.process.wait()
    gone = collector.collect()
    assert not gone.counters_valid.any() and all(math.isnan(one) for one in gone.gauges), (
        "absent until the rank is removed"
    )
    rank.alive = False
    assert collector.collect().counter_columns == ()


# --- written trees ---------------------------------------------------------------------------------------------------


def write_process(
    proc: Path, pid: int, parent: int, start_time: int = 5, state: str = "S", ran: int = 7, io: bool = True
) -> None:
    # By proc(5)'s field numbers: state, parent, threads, start time, block-I/O ticks.
    known = {3: state, 4: str(parent), 20: "1", 22: str(start_time), 42: "9"}
    fields = [known.get(number, "0") for number in range(3, 53)]
    folder = proc / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(f"{pid} (a) b) {' '.join(fields)}\n")
    (folder / "statm").write_text("9 3 1 1 0 2 0\n")
    (folder / "task" / str(pid) / "schedstat").write_text(f"{ran} 11 1\n")
    if io:
        (folder / "io").write_text("rchar: 1\nwchar: 1\nread_bytes: 100\nwrite_bytes: 200\ncancelled_write_bytes: 0\n")


class Written:
    def __init__(self, *files: RankFile) -> None:
        self.files = list(files)

    def ranks(self) -> list[RankFile]:
        return self.files


MAIN = RankFile("j-000001", 1, 0, 50, 5)


def test_descendants_are_found_by_parent_pids_without_children_files(tmp_path: Path) -> None:
    write_process(tmp_path, 50, 1)
    write_process(tmp_path, 51, 50)
    write_process(tmp_path, 52, 51)
    write_process(tmp_path, 60, 1)
    collector = ProcessCollector(Written(MAIN), str(tmp_path))
    block = collector.collect()
    assert counter(block, CPU, **LABELS) == 21
    assert counter(block, WAIT, **LABELS) == 33
    assert counter(block, WRITTEN, **LABELS) == 600
    assert gauge(block, "gangwatch_rank_memory_resident_bytes", **LABELS) == 9 * PAGE_BYTES
    collector.close()


def test_a_reused_pid_is_not_counted_for_the_rank(tmp_path: Path) -> None:
    write_process(tmp_path, 50, 1, start_time=6)
    collector = ProcessCollector(Written(MAIN), str(tmp_path))
    assert counter(collector.collect(), CPU, **LABELS) is None
    collector.close()


def test_a_rank_that_is_a_descendant_of_a_rank_is_counted_separately(tmp_path: Path) -> None:
    write_process(tmp_path, 50, 1)
    write_process(tmp_path, 51, 50)
    collector = ProcessCollector(Written(MAIN, RankFile("j-000001", 1, 1, 51, 5)), str(tmp_path))
    block = collector.collect()
    assert counter(block, CPU, **LABELS) == 7
    assert counter(block, CPU, **(LABELS | {"rank": "1"})) == 7
    collector.close()


@pytest.mark.parametrize(("setting", "expected"), [("0\n", None), ("1\n", 9 * TICK_NS), (None, 9 * TICK_NS)])
def test_block_io_is_absent_if_the_kernel_does_not_count_it(
    tmp_path: Path, setting: str | None, expected: int | None
) -> None:
    write_process(tmp_path, 50, 1)
    if setting is not None:
        (tmp_path / "sys" / "kernel").mkdir(parents=True)
        (tmp_path / "sys" / "kernel" / "task_delayacct").write_text(setting)
    collector = ProcessCollector(Written(MAIN), str(tmp_path))
    assert counter(collector.collect(), "gangwatch_rank_block_io_seconds_total", **LABELS) == expected
    collector.close()


def test_unreadable_values_are_absent_and_the_others_present(tmp_path: Path) -> None:
    write_process(tmp_path, 50, 1, io=False)
    collector = ProcessCollector(Written(MAIN), str(tmp_path))
    block = collector.collect()
    assert counter(block, WRITTEN, **LABELS) is None
    assert counter(block, CPU, **LABELS) == 7
    collector.close()


# --- bytes of ended children, parsers --------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40))))
def test_storage_bytes_never_fall(samples: list[tuple[int, int]]) -> None:
    counted = StorageBytes()
    for appeared, ended in samples:
        before = counted.total
        counted.add(appeared, ended)
        assert before <= counted.total <= before + appeared


@pytest.mark.parametrize(
    ("samples", "total"),
    [
        ([(100, 0), (5, 0)], 105),
        ([(100, 0), (100, 100)], 100),  # ended; added to the parent's count at once
        ([(100, 0), (0, 100), (100, 0)], 100),  # added to the parent's count one sample later
        ([(100, 0), (0, 100), (0, 0), (30, 0)], 130),  # no process waited for it: later bytes are new
        ([(100, 0), (130, 100)], 130),
    ],
)
def test_bytes_of_an_ended_child_are_counted_once(samples: list[tuple[int, int]], total: int) -> None:
    counted = StorageBytes()
    for appeared, ended in samples:
        counted.add(appeared, ended)
    assert counted.total == total


def test_a_process_name_may_contain_any_bytes() -> None:
    rest = " ".join(["R", "4", *["0"] * 15, "2", "0", "77", "0", "3", *["0"] * 18, "6"])
    for name in (b"python", b"a) S 1 (b", b"\xff\n)", b""):
        stat = parse_process_stat(b"12 (" + name + b") " + rest.encode())
        assert (stat.pid, stat.state, stat.parent, stat.threads, stat.start_time) == (12, "R", 4, 2, 77)


@pytest.mark.parametrize("parse", [parse_process_stat, parse_schedstat, parse_process_io, parse_statm])
@pytest.mark.parametrize("data", [b"", b"1 (a) S 1", b"x y z", b"read_bytes: x\n"])
def test_malformed_files_are_rejected(parse: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(SourceError):
        parse(data)
