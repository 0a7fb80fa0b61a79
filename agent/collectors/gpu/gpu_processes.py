"""Collector of the processes on one GPU: memory and, if the driver reports it, the GPU use of each process.

If several processes share a GPU, the GPU use of each is published separately. Only a limited number of processes
have series; the number of omitted processes is a metric.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.collectors.block import Block
from agent.collectors.gpu.device import WORKER, series
from agent.gpu_inventory import GpuProcess
from agent.schema.errors import UnsupportedError
from agent.schema.frame import Column
from agent.sources.nvml.nvml import Device
from agent.sources.nvml.nvml_processes import ProcessLister, ProcessUse

INTERVAL_SECONDS = 15.0

MOST_PROCESSES = 64
"""Maximum number of processes with series per GPU. If there are more, the processes with the least memory are omitted.
A training job has fewer."""

_SHARES = ("sm", "memory", "encoder", "decoder")


class GpuProcessCollector:
    """Collector of one GPU's processes. It also updates the inventory of GPU processes.

    report: updates the inventory; called after each run with the GPU's UUID and its processes.
    """

    worker = WORKER

    def __init__(
        self,
        device: Device,
        report: Callable[[str, tuple[GpuProcess, ...]], None],
        phase: float = 0.0,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self.name = f"gpu-processes/{device.pci_address}"
        self.interval_seconds = interval_seconds
        self.phase = phase
        self._device = device
        self._report = report
        self._lister: ProcessLister | None = None
        self._shown: list[tuple[int, str, bool]] | None = None
        self._block = Block()

    def collect(self) -> Block:
        device = self._device
        device.library.check_alive()
        with device.library.using():
            device.check_present()
            if self._lister is None:
                self._lister = ProcessLister(device)
            uses = self._lister.read()
        if uses is None:
            raise UnsupportedError(f"GPU {device.uuid}: the driver does not list processes")
        self._report(device.uuid, tuple(GpuProcess(use.pid, device.uuid, use.mig) for use in uses))
        shown = sorted(uses[:MOST_PROCESSES], key=lambda use: (use.mig, use.pid))
        identities = [(use.pid, use.mig, self._lister.has_shares) for use in shown]
        if identities != self._shown:
            self._shown = identities
            self._block = Block(self._columns(shown, self._lister.has_shares))
        self._fill(shown, len(uses))
        return self._block

    def _columns(self, shown: list[ProcessUse], with_shares: bool) -> list[Column]:
        """Return the series: numbers of processes and of omitted processes, and memory and GPU use of each process."""
        device = self._device
        columns = [series("gangwatch_gpu_processes", device), series("gangwatch_gpu_processes_not_shown", device)]
        for use in shown:
            labels = {"mig": use.mig, "pid": str(use.pid)}
            columns.append(series("gangwatch_gpu_process_memory_used_bytes", device, **labels))
            if with_shares:
                columns.extend(
                    series(f"gangwatch_gpu_process_{share}_utilization_ratio", device, **labels) for share in _SHARES
                )
        return columns

    def _fill(self, shown: list[ProcessUse], count: int) -> None:
        values: list[float | None] = [count, count - len(shown)]
        for use, (_, _, with_shares) in zip(shown, self._shown or (), strict=True):
            values.append(use.memory_bytes)
            if with_shares:
                values.extend((use.sm, use.memory, use.encoder, use.decoder))
        self._block.gauges[:] = [float("nan") if value is None else value for value in values]

    def release(self) -> None:
        """Do nothing: the collector holds no resources."""

    def acquire(self) -> None:
        """Do nothing: the parent collector makes new collectors."""

    def close(self) -> None:
        """Remove the GPU's processes from the inventory."""
        self._report(self._device.uuid, ())
