"""Node of the soak test: an agent with fake devices and a fake kubelet, on which faults begin and end."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agent.collectors import Machine, make_collectors
from agent.node import Node
from agent.rank_attribution import Attribution
from agent.schema.clock import ManualClock
from exporter.prometheus.exposition import Exposition, Settings
from tests.agent.rates_of_frames import Rates
from tests.fakes.nvml.build import build as build_nvml
from tests.fakes.nvml.control import GPU_IS_LOST, SUCCESS, FakeNvml
from tests.fakes.processes import ProcTree
from tests.fakes.sysfs.tree import Tree, write_number
from tests.fakes.sysfs.tree import build as build_tree

GPUS = 2
NICS = 2

FAULT_EVERY = 6
"""Mean number of ticks between faults, and between repairs."""

SCRAPE_EVERY = 50
"""Number of ticks between two exports. In each, the exporter renders and compresses the newest frame."""

KUBELET_EVERY = 2_000
"""Number of ticks between restarts of the fake kubelet. Each starts a process, so restarts are rarer than other
faults."""


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
    """The node under test, with all faults that can be injected."""

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
        """Inject one random fault, and record how to repair it."""
        name = self.random.choice(
            ["lost", "reload", "mig", "nic", "file", "reset", "processes", "pods", "xid", "release", "log"]
        )
        self.faults[name] = self.faults.get(name, 0) + 1
        heal: Callable[[], None] | None = getattr(self, f"_{name}")()
        if heal is not None:
            self.healing.append(heal)

    def repair(self) -> None:
        """Repair the oldest active fault."""
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
        """Replace the processes on a GPU by one process of another pod or job."""
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
        """Repair all faults, and run the node until no collector reports a fault."""
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
        """Return the names of the collectors that fail in the newest frame."""
        newest = self.node.newest()
        assert newest is not None
        layout, frame = newest
        return [
            column.labels[0][1]
            for index, column in enumerate(layout.gauges)
            if column.metric == "gangwatch_collector_success" and frame.gauges[index] != 1.0
        ]

    def run_threads(self, seconds: float) -> int:
        """Run the node in its own threads at twenty frames per second, while some calls hang. Return the number of
        abandoned threads."""
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
