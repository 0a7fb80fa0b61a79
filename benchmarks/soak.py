"""Accelerated soak: a hundred thousand ticks of a whole agent with random faults, and the resources it leaks.

python -m benchmarks.soak --ticks 100000 --json

The product's own collectors read two fake GPUs, two fake NICs and a fake kubelet, each at its own interval. Their clock
advances a second a tick without waiting. Every few ticks a fault begins or ends: a GPU is lost, the driver is reloaded,
MIG is reconfigured, a NIC disappears, a file is replaced by something else, counters restart, processes and pods come
and go, the kubelet stops, or the GPUs are released. Then the same node runs in its own threads, while calls hang.

Resident memory, descriptors and threads are measured after a warm-up (a tenth of the ticks, and 700 at least), which
also fills numpy's cache of small arrays, and again at the end with all faults removed. Exits non-zero if memory grew by
2 MiB, if a descriptor or a thread is left over, if a collector is still failing, or if a rate was ever negative.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from agent.collectors import Machine, make_collectors
from agent.collectors.host import kubelet_pods, owners
from agent.node import Node
from agent.rank_attribution import Attribution
from agent.schema.clock import ManualClock
from agent.sources.nvml import nvml as nvml_source
from agent.sources.nvml import nvml_events
from agent.sources.proc.proc import PAGE_BYTES
from exporter.prometheus.exposition import Exposition, Settings
from gangwatch.process_limits import use_one_arena
from tests.agent.rates_of_frames import Rates
from tests.fakes.nvml.build import build as build_nvml
from tests.fakes.nvml.control import GPU_IS_LOST, SUCCESS, FakeNvml
from tests.fakes.processes import ProcTree
from tests.fakes.sysfs.tree import Tree, write_number
from tests.fakes.sysfs.tree import build as build_tree

GPUS = 2
NICS = 2

MOST_GROWTH_BYTES = 2 * 2**20

FAULT_EVERY = 6
"""Mean number of ticks between faults, and between repairs."""

SCRAPE_EVERY = 50
"""Ticks between renderings: the exporter renders and compresses the newest frame."""

COURSE_POINTS = 9
"""Number of samples of resident memory during the run, to show whether it keeps growing."""

LEAST_WARM_UP = 700
"""Enough ticks for every kind of fault to occur several times and to load every module and buffer that it needs."""

KUBELET_EVERY = 2_000
"""Ticks between restarts of the fake kubelet: each starts a process, so they are rarer than other faults."""


def shorten_retry_delays() -> None:
    """Shorten the product's retry delays of ten to thirty seconds to zero, because ticks take no time."""
    nvml_source.RETRY_LOST_SECONDS = 0.0
    nvml_events.WAIT_MILLISECONDS = 1
    kubelet_pods.LIST_NS = owners.RDMA_LIST_NS = 20_000_000


def resident_bytes() -> int:
    """Return this process's resident memory after garbage collection and after all free memory is given back."""
    gc.collect()
    # glibc keeps freed memory for later requests; give it back to measure only memory in use.
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def fill_numpys_cache() -> None:
    """Fill numpy's cache with seven freed arrays of every size below a kilobyte.

    That cache (numpy/_core/src/multiarray/alloc.c, NBUCKETS and NCACHE) is bounded, at 3.6 MB. It grows with every new
    array size, which here is whenever a fault changes a layout. Filling it first counts it from the beginning.
    """
    for size in range(1, 1024):
        held = [np.empty(size, np.uint8) for _ in range(7)]
        held.clear()


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class Kubelet:
    """A fake kubelet in its own process, so that its memory does not count as the agent's."""

    def __init__(self, path: Path, gpu: str) -> None:
        self._command = [sys.executable, "-m", "tests.fakes.kubelet", str(path), f"team/llama-0/main={gpu}"]
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._path.unlink(missing_ok=True)
        self._process = subprocess.Popen(self._command)
        while not self._path.exists():
            time.sleep(0.01)

    def pause(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Site:
    """The node under test and everything that can fail on it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.tree: Tree = build_tree(folder / "host", NICS, gpus=GPUS)
        root = str(self.tree.root)
        self.processes = ProcTree(self.tree.root)
        self.pods = folder / "pods"
        self.pods.mkdir()
        library = build_nvml(folder)
        self.nvml = FakeNvml(library)
        self.nvml.set_gpus(GPUS)
        self.nvml.set_default_pid(0)
        self.kubelet = Kubelet(folder / "kubelet.sock", "nvidia0")
        self.kubelet.start()
        self.machine = Machine(
            Attribution(None, root, pod_logs=str(self.pods)),
            proc_root=root,
            sys_root=root,
            nvml_library=str(library),
            kubelet_socket=str(folder / "kubelet.sock"),
            kernel_log=str(self.tree.kernel_log),
        )
        self.clock = ManualClock(monotonic_ns=time.monotonic_ns())
        self.node = self.make_node(self.clock)
        self.rates = Rates()
        self.exposition = Exposition(Settings(compatibility=("dcgm", "node_exporter", "rdma_exporter")))
        self.faults: dict[str, int] = {}
        self.healing: list[Callable[[], None]] = []
        self._next_pid = 1000

    def make_node(self, clock: ManualClock | None = None, interval_seconds: float = 1.0) -> Node:
        collectors, _ = make_collectors(replace(self.machine, interval_seconds=interval_seconds))
        return Node("soak", collectors, clock, interval_seconds, proc_root=str(self.tree.root))

    # --- faults ------------------------------------------------------------------------------------------------------

    def inject_fault(self) -> None:
        """Start one fault and remember how to repair it."""
        name = self.random.choice(
            ["lost", "reload", "mig", "nic", "file", "reset", "processes", "pods", "xid", "release", "log"]
        )
        self.faults[name] = self.faults.get(name, 0) + 1
        heal: Callable[[], None] | None = getattr(self, f"_{name}")()
        if heal is not None:
            self.healing.append(heal)

    def repair(self) -> None:
        """Repair the oldest fault."""
        if self.healing:
            self.healing.pop(0)()

    def _lost(self) -> Callable[[], None]:
        gpu = self.random.randrange(GPUS)
        self.nvml.set_gpu_code(gpu, GPU_IS_LOST)
        return lambda: self.nvml.set_gpu_code(gpu, SUCCESS)

    def _reload(self) -> Callable[[], None]:
        self.nvml.set_driver_loaded(False)
        return lambda: self.nvml.set_driver_loaded(True)

    def _mig(self) -> None:
        self.nvml.set_mig(self.random.randrange(GPUS), self.random.randrange(3))

    def _nic(self) -> Callable[[], None] | None:
        nic = self.tree.nics[self.random.randrange(NICS)]
        if not nic.device.exists():
            return None
        self.tree.remove_nic(nic.name)

        def back() -> None:
            if not nic.device.exists():
                self.tree.return_nic(nic.name)

        return back

    def _file(self) -> Callable[[], None] | None:
        file = self.tree.nics[self.random.randrange(NICS)].port / "counters" / "symbol_error"
        if not file.is_file():
            return None
        content = file.read_bytes()
        file.unlink()
        file.mkdir()

        def back() -> None:
            if file.is_dir():
                file.rmdir()
                file.write_bytes(content)

        return back

    def _reset(self) -> None:
        nic = self.tree.nics[self.random.randrange(NICS)]
        if nic.device.exists():
            write_number(nic.port / "counters" / "port_rcv_data", self.random.choice([0, 2**62, 2**64 - 1]))
            write_number(nic.port / "hw_counters" / "out_of_sequence", self.random.choice([0, 2**32 - 1]))

    def _processes(self) -> None:
        """Replace the processes on a GPU by one of another pod or job."""
        for folder in self.tree.root.glob("[1-9][0-9][0-9]*"):
            self.processes.remove(int(folder.name))
        self.nvml.clear_processes()
        for _ in range(self.random.randrange(4)):
            self._next_pid += 1
            job = self.random.randrange(10**6)
            self.processes.add(
                self._next_pid,
                f"/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0",
                environment={"SLURM_JOB_ID": str(job), "SLURM_PROCID": "3"},
            )
            self.nvml.add_process(self.random.randrange(GPUS), self._next_pid, 2**30)

    def _pods(self) -> None:
        for folder in self.pods.iterdir():
            folder.rmdir()
        for _ in range(self.random.randrange(5)):
            (self.pods / f"team_p{self.random.randrange(10**6)}_{self.random.randbytes(16).hex()}").mkdir()

    def _xid(self) -> None:
        self.nvml.push_xid(self.random.randrange(GPUS), self.random.choice([13, 31, 48, 79]))

    def _log(self) -> None:
        if self.tree.kernel_log.stat().st_size > 2**20:
            self.tree.kernel_log.write_text("")
        self.tree.log(f"NVRM: Xid (PCI:0000:1b:00): {self.random.choice([13, 31, 79])}, pid=1", time.monotonic())

    def _release(self) -> Callable[[], None]:
        self.node.release()
        return self.node.acquire

    # --- ticks -------------------------------------------------------------------------------------------------------

    def tick(self, number: int) -> None:
        if self.random.randrange(FAULT_EVERY) == 0:
            self.inject_fault()
        if self.random.randrange(FAULT_EVERY) == 0:
            self.repair()
        if number % KUBELET_EVERY == KUBELET_EVERY // 2:
            self.kubelet.stop()
        elif number % KUBELET_EVERY == 0 and number:
            self.kubelet.start()
        self.clock.advance(1.0)
        layout, frame = self.node.tick(due_only=True)
        self.rates.add(layout, frame)
        if number % SCRAPE_EVERY == 0:
            self.tree.advance(1.0)
            self.exposition.body(layout, frame, compress=True)

    def settle(self) -> None:
        """Repair everything and run the node until it has noticed."""
        while self.healing:
            self.repair()
        self.nvml.set_driver_loaded(True)
        for gpu in range(GPUS):
            self.nvml.set_gpu_code(gpu, SUCCESS)
            self.nvml.set_mig(gpu, 0)
        self.nvml.clear_processes()
        self.kubelet.stop()
        self.kubelet.start()
        self.node.acquire()
        for _ in range(60):
            self.clock.advance(1.0)
            self.node.tick(due_only=True)

    def failing(self) -> list[str]:
        """Return the collectors that fail in the newest frame."""
        newest = self.node.newest()
        assert newest is not None
        layout, frame = newest
        return [
            column.labels[0][1]
            for index, column in enumerate(layout.gauges)
            if column.metric == "gangwatch_collector_success" and frame.gauges[index] != 1.0
        ]

    def run_threads(self, seconds: float) -> int:
        """Run the node in its own threads at twenty frames a second while calls hang; return the number of abandoned
        threads."""
        node = self.make_node(interval_seconds=0.05)
        node.start()
        most = 0
        ends = time.monotonic() + seconds
        try:
            while time.monotonic() < ends:
                gpu = self.random.randrange(GPUS)
                self.nvml.hang(gpu)
                self.kubelet.pause()
                time.sleep(1.3)
                newest = node.newest()
                if newest is not None:
                    layout, frame = newest
                    for index, column in enumerate(layout.gauges):
                        if column.metric == "gangwatch_agent_threads_abandoned":
                            most = max(most, int(frame.gauges[index]))
                self.nvml.hang(gpu, False)
                self.kubelet.go_on()
                time.sleep(0.2)
        finally:
            for gpu in range(GPUS):
                self.nvml.hang(gpu, False)
            self.kubelet.go_on()
            node.stop()
        return most


def run(ticks: int, thread_seconds: float, seed: int) -> dict[str, object]:
    """Run the soak and return the document that ``--json`` prints."""
    shorten_retry_delays()
    use_one_arena()
    logging.disable(logging.CRITICAL)
    before_threads, before_descriptors = threading.active_count(), descriptors()
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder), seed)
        try:
            warm = max(min(LEAST_WARM_UP, ticks // 2), ticks // 10)
            fill_numpys_cache()
            for number in range(warm):
                site.tick(number)
            site.settle()
            warm_bytes, warm_descriptors, warm_threads = resident_bytes(), descriptors(), threading.active_count()
            began = time.process_time()
            course: list[float] = []
            for number in range(warm, ticks):
                site.tick(number)
                if (number - warm) % max(1, (ticks - warm) // COURSE_POINTS) == 0:
                    course.append(round(resident_bytes() / 2**20, 2))
            spent = time.process_time() - began
            site.settle()
            failing = site.failing()
            end_bytes, end_descriptors, end_threads = resident_bytes(), descriptors(), threading.active_count()
            site.node.stop()
            abandoned = site.run_threads(thread_seconds)
        finally:
            site.kubelet.stop()
    growth = end_bytes - warm_bytes
    left = {
        "descriptors_after_ticks": end_descriptors - warm_descriptors,
        "threads_after_ticks": end_threads - warm_threads,
        # The fake library stays loaded, but none of its descriptors may stay open.
        "descriptors_after_stop": max(0, descriptors() - before_descriptors),
        "threads_after_stop": threading.active_count() - before_threads,
    }
    within = growth < MOST_GROWTH_BYTES and not any(left.values()) and not failing and site.rates.least >= 0
    return {
        "benchmark": "soak",
        "machine": {"processors": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "ticks": ticks,
        "warm_up_ticks": warm,
        "seed": seed,
        "faults": dict(sorted(site.faults.items())),
        "cpu_microseconds_a_tick": round(spent / max(1, ticks - warm) * 1e6, 1),
        "resident_mib_after_warm_up": round(warm_bytes / 2**20, 2),
        "resident_mib_at_the_end": round(end_bytes / 2**20, 2),
        "resident_mib_on_the_way": course,
        "growth_mib": round(growth / 2**20, 3),
        "left_over": left,
        "unwell_at_the_end": failing,
        "threads": {"seconds": thread_seconds, "most_abandoned_at_once": abandoned},
        "rates": {"counted": site.rates.count, "least": site.rates.least},
        "ranges": {"growth_mib": [None, MOST_GROWTH_BYTES / 2**20], "left_over": [0, 0], "rates.least": [0, None]},
        "within_ranges": within,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="An agent through a hundred thousand ticks with random faults.")
    parser.add_argument("--ticks", type=int, default=100_000)
    parser.add_argument(
        "--thread-seconds", type=float, default=20.0, help="how long the node then runs in its own threads"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    result = run(arguments.ticks, arguments.thread_seconds, arguments.seed)
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in result.items():
            print(f"{name}: {value}")
    return 0 if result["within_ranges"] else 1


if __name__ == "__main__":
    sys.exit(main())
