"""The driver's list of processes on a GPU, and the share of the GPU that each process uses.

Both calls hold the driver's lock for a long time on busy machines, so make each at most every 15 s. Pids are those
of the agent's pid namespace. They are 0 or missing if the agent does not use the host's pid namespace.
"""

from __future__ import annotations

from ctypes import c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any

import pynvml

from agent.sources.nvml.nvml import Device, growing_list

NOT_AVAILABLE: int = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value

LISTS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
)


@dataclass(slots=True)
class ProcessUse:
    """One process on one GPU or MIG instance, and its use of the GPU.

    Shares of the GPU's time are 0 to 1, for this process only; None if not reported. mig: UUID of the MIG instance, ''
    for the whole GPU.
    """

    pid: int
    mig: str = ""
    memory_bytes: int | None = None
    sm: float | None = None
    memory: float | None = None
    encoder: float | None = None
    decoder: float | None = None


class ProcessLister:
    """Repeated listing of the processes on one GPU, or on its MIG instances if MIG is on."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lists = {symbol: device.library.function(symbol) for symbol in LISTS}
        self._shares = device.library.function("nvmlDeviceGetProcessUtilization")
        self._seen_us = 0

    @property
    def has_shares(self) -> bool:
        """Whether the driver reports the GPU use of each process; never for MIG instances."""
        return self._shares is not None and not self._device.instances

    def read(self) -> list[ProcessUse] | None:
        """Return all processes, sorted by memory, largest first; None if the driver cannot list processes.

        Raise GpuLostError or LibraryDeadError.
        """
        found: dict[tuple[int, str], ProcessUse] = {}
        if self._device.instances:
            for instance in self._device.instances:
                self._list(instance.handle, instance.uuid, found)
        else:
            self._list(self._device.handle, "", found)
            self._add_shares(found)
        if not any(self._lists.values()):
            return None
        return sorted(found.values(), key=lambda use: (-(use.memory_bytes or 0), use.pid))

    def _list(self, handle: c_void_p, mig: str, found: dict[tuple[int, str], ProcessUse]) -> None:
        for symbol, function in self._lists.items():
            if function is None:
                continue
            code, entries = growing_list(function, pynvml.c_nvmlProcessInfo_v3_t, handle)
            if code != pynvml.NVML_SUCCESS:
                if self._device.judge(code, symbol) and not mig:
                    self._lists[symbol] = None
                continue
            for entry in entries:
                use = found.setdefault((entry.pid, mig), ProcessUse(entry.pid, mig))
                used_bytes = entry.usedGpuMemory
                if used_bytes != NOT_AVAILABLE:
                    # A process with compute and graphics work is in two lists with the same memory.
                    use.memory_bytes = max(use.memory_bytes or 0, used_bytes)

    def _add_shares(self, found: dict[tuple[int, str], ProcessUse]) -> None:
        if self._shares is None:
            return
        structure = pynvml.c_nvmlProcessUtilizationSample_t
        code, samples = growing_list(
            self._shares_first, structure, self._device.handle, after=(c_ulonglong(self._seen_us),)
        )
        if code == pynvml.NVML_ERROR_NOT_FOUND:
            # No process has used the GPU since the last call: the shares are zero, not unknown.
            samples = []
        elif code != pynvml.NVML_SUCCESS:
            if self._device.judge(code, "nvmlDeviceGetProcessUtilization"):
                self._shares = None
            return
        newest: dict[int, Any] = {}
        for sample in samples:
            if sample.timeStamp > self._seen_us and (
                sample.pid not in newest or sample.timeStamp > newest[sample.pid].timeStamp
            ):
                newest[sample.pid] = sample
        for (pid, _), use in found.items():
            known = newest.get(pid)
            use.sm = _share(known.smUtil if known else 0)
            use.memory = _share(known.memUtil if known else 0)
            use.encoder = _share(known.encUtil if known else 0)
            use.decoder = _share(known.decUtil if known else 0)
        self._seen_us = max((sample.timeStamp for sample in newest.values()), default=self._seen_us)

    def _shares_first(self, handle: c_void_p, count: object, entries: object, seen: c_ulonglong) -> int:
        """Call nvmlDeviceGetProcessUtilization with its arguments in NVML's order: the array before its length."""
        assert self._shares is not None
        return self._shares(handle, entries, count, seen)


def _share(percent: int) -> float | None:
    """Convert percent to a share, 0 to 1; None for impossible values, which drivers return while a process starts."""
    return percent / 100 if percent <= 100 else None
