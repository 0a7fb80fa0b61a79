"""Faults of the benchmark: each slows a real process and is removed afterwards, even if the benchmark is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.reality import run, site
from benchmarks.reality.faults import Gang, disk_of, inject
from benchmarks.reality.site import GROUPS, Site, SiteError, processes, sweep
from tests import needs

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

MEASURED_SECONDS = 2.0

COMPUTE = """
import sys, time
counter = open(sys.argv[1], "wb", buffering=0)
while True:
    until = time.thread_time() + 0.004
    while time.thread_time() < until:
        pass
    counter.write(b".")
"""

READ_DISK = """
import mmap, os, random, sys, time
counter, file = open(sys.argv[1], "wb", buffering=0), os.open(sys.argv[2], os.O_RDONLY | os.O_DIRECT)
buffer = mmap.mmap(-1, 1 << 19)
while True:
    os.preadv(file, [buffer], random.randrange(64) << 19)
    time.sleep(0.01)
    counter.write(b".")
"""

READ_PAGES = """
import mmap, os, random, sys
counter, file = open(sys.argv[1], "wb", buffering=0), os.open(sys.argv[2], os.O_RDONLY)
pages = mmap.mmap(file, 0, prot=mmap.PROT_READ)
pages.madvise(mmap.MADV_RANDOM)
for at in range(0, len(pages), 4096):
    pages[at]
while True:
    for _ in range(64):
        pages[random.randrange(len(pages) >> 12) << 12]
    counter.write(b".")
"""

SEND = """
import os, socket, sys
counter = open(sys.argv[1], "wb", buffering=0)
with socket.create_server(("0.0.0.0", 7000)) as server:
    peer, _ = server.accept()
while peer.recv(1 << 16, socket.MSG_WAITALL):
    counter.write(b".")
"""


class Bench:
    """Benchmark machine with one process, rank 1 on node-1, which counts its work."""

    def __init__(self, made: Site, folder: Path) -> None:
        self.site, self.folder = made, folder
        self.started: list[subprocess.Popen[bytes]] = []
        made.write(folder / "site.json")
        (folder / "go").touch()

    def start(self, program: str, *arguments: str, rank: int = 1) -> None:
        script = self.folder / f"program-{rank}.py"
        script.write_text(textwrap.dedent(program))
        environment = os.environ | {"GANGWATCH_NODE": f"node-{rank}", "RANK": str(rank), "GANGWATCH_JOB": "j-1"}
        environment["GANGWATCH_NODES"] = "node-0:1,node-1:1"
        enter = str(run.PROGRAMS / "enter.py")
        command = [sys.executable, enter, str(self.folder / "site.json"), str(self.folder / "go")]
        command += [sys.executable, str(script), *arguments]
        self.started.append(subprocess.Popen(command, env=environment))

    def rate(self) -> float:
        """Return the work that the process does in a second."""
        path, begun = self.folder / "count", time.monotonic()
        first = path.stat().st_size if path.exists() else 0
        time.sleep(MEASURED_SECONDS)
        return ((path.stat().st_size if path.exists() else 0) - first) / (time.monotonic() - begun)

    def wait(self) -> None:
        path, until = self.folder / "count", time.monotonic() + 60
        while not path.exists() or path.stat().st_size < 5:
            assert time.monotonic() < until, "the process did not start"
            time.sleep(0.05)

    def slowdown(self, name: str, **numbers: float) -> float:
        """Return the factor by which the fault slows the process, compared with the time just before."""
        self.wait()
        before = self.rate()
        gang = Gang(self.site, "j-1", ("node-0", "node-1"), (0.5, 0.5), before, self.folder)
        with inject(name, gang, [1], numbers):
            during = self.rate()
        after = self.rate()
        assert after > 1.2 * during, "the fault has ended"
        return before / max(during, 0.1)

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    needs.virtual_nodes()
    folder = run.datasets() / f"test-{os.getpid()}"  # a disk; the folder of temporary files may be in memory
    folder.mkdir(exist_ok=True)
    with Site(2, 200, limits=getattr(request, "param", {})) as made:
        own = Bench(made, folder)
        try:
            yield own
        finally:
            own.close()
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
    assert left_of(os.getpid()) == []


QUOTA = {"cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": "10000"}
DATASET = str(run.CHECKOUT / ".cache" / "reality" / "dataset.0")


def test_a_cpu_quota_slows_a_rank(bench: Bench) -> None:
    bench.start(COMPUTE, str(bench.folder / "count"))
    assert bench.slowdown("cpu-quota-rank", factor=4.0) > 1.5


@pytest.mark.parametrize("bench", [QUOTA], indirect=True)
def test_load_in_its_group_slows_a_rank(bench: Bench) -> None:
    bench.start(COMPUTE, str(bench.folder / "count"))
    assert bench.slowdown("cpu-load-rank", factor=4.0) > 1.5


def test_a_throttled_disk_slows_a_rank(bench: Bench) -> None:
    bench.start(READ_DISK, str(bench.folder / "count"), DATASET)
    assert bench.slowdown("disk-throttle", factor=3.0, step_bytes=float(1 << 19)) > 1.5


def test_a_memory_limit_slows_a_rank(bench: Bench) -> None:
    bench.start(READ_PAGES, str(bench.folder / "count"), DATASET)
    assert bench.slowdown("memory-limit", share=0.8, mapped_bytes=float(32 << 20)) > 1.5


def test_signals_slow_a_rank(bench: Bench) -> None:
    bench.start(COMPUTE, str(bench.folder / "count"))
    assert bench.slowdown("stop-continue", share=0.6, seed=1.0) > 1.3


def test_a_stopped_rank_does_nothing(bench: Bench) -> None:
    bench.start(COMPUTE, str(bench.folder / "count"))
    assert bench.slowdown("never-arrives") > 20


def test_a_slow_link_slows_a_transfer(bench: Bench) -> None:
    bench.start(SEND, str(bench.folder / "count"))
    address = bench.site.node(1).address
    sender = f"""
        import socket, time
        for _ in range(200):
            try:
                peer = socket.create_connection(({address!r}, 7000))
                break
            except OSError:
                time.sleep(0.1)
        while True:
            peer.sendall(bytes(1 << 16))
    """
    bench.start(sender, rank=0)
    assert bench.slowdown("slow-link", factor=4.0) > 1.5


def test_an_unknown_fault_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match="'rain' is not a fault"):
        inject("rain", Gang(bench.site, "j-1", (), (), 0.0, bench.folder), [], {})


def test_the_disk_of_a_folder_in_memory_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match="/dev/shm is on no block device"):
        disk_of(Path("/dev/shm"))


def left_of(owner: int) -> list[str]:
    """Return control groups, interfaces and namespaces of the benchmark process that still exist."""
    places = [*(GROUPS / name for name in site.HIERARCHIES), Path("/sys/class/net"), Path("/run/netns")]
    return [
        str(entry) for place in places if place.exists() for entry in place.iterdir() if f"gwr{owner}" in entry.name
    ]


HOLD = """
import subprocess, sys, time
from benchmarks.reality.site import Site
with Site(2, 200) as made:
    child = subprocess.Popen(["sleep", "600"], preexec_fn=made.enter_daemons)
    print(child.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_an_ended_benchmark(number: signal.Signals) -> None:
    needs.virtual_nodes()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert holder.stdout is not None
    with holder.stdout:
        child = int(holder.stdout.readline())
    assert left_of(holder.pid)
    assert child in processes(GROUPS / "cpu" / f"gwr{holder.pid}n0" / "daemons")
    holder.send_signal(number)
    holder.wait()
    if number is signal.SIGKILL:
        assert left_of(holder.pid)
        assert holder.pid in sweep()
    assert left_of(holder.pid) == []
    assert not Path(f"/proc/{child}/cwd").exists()


def test_without_root_the_reason_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SiteError, match="run it as root"):
        Site(1, 100)


def test_without_cgroup_v1_the_reason_is_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(site, "GROUPS", tmp_path)
    with pytest.raises(SiteError, match="cgroup v1 is needed"):
        Site(1, 100)
