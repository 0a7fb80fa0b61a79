"""Watcher of driver events, mainly XIDs, in its own thread with one event set for all GPUs.

A wait for events releases the interpreter lock and therefore blocks no other thread. Only events that a GPU supports
are registered, since one unsupported bit makes the whole registration fail.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from ctypes import byref, c_uint, c_ulonglong, c_void_p, cast
from typing import Any, NamedTuple

import pynvml

from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import SourceError
from agent.sources.nvml.nvml import Device, Library
from agent.sources.nvml.nvml_codes import DEAD, code_text

log = logging.getLogger(__name__)

XID: int = pynvml.nvmlEventTypeXidCriticalError

EVENTS: dict[int, str] = {
    pynvml.nvmlEventTypeDoubleBitEccError: "double_bit_ecc_error",
    XID: "xid",
    pynvml.nvmlEventMigConfigChange: "mig_configuration_changed",
    pynvml.nvmlEventTypeSingleBitEccErrorStorm: "single_bit_ecc_storm",
    pynvml.nvmlEventTypeDramRetirementEvent: "dram_retired",
    pynvml.nvmlEventTypeDramRetirementFailure: "dram_retirement_failed",
    pynvml.nvmlEventTypeNonFatalPoisonError: "poison_contained",
    pynvml.nvmlEventTypeFatalPoisonError: "poison_fatal",
    pynvml.nvmlEventTypeGpuUnavailableError: "gpu_unavailable",
    pynvml.nvmlEventTypeGpuRecoveryAction: "recovery_action_changed",
}
"""Driver events (nvmlEventType*) that are reported. Clock and power-state changes are not reported because they are too
frequent. Single corrected errors are not reported because a metric counts them."""

WAIT_MILLISECONDS = 1000
"""Maximum duration of one wait for events, in ms. A stop takes effect after the current wait."""

BACK_OFF_SECONDS = 10.0
"""Delay in seconds after an error before a new event set is made. If a GPU is lost, every wait fails immediately."""

STOP_SECONDS = 2.0


class GpuEvent(NamedTuple):
    """One driver event. kind: a value of EVENTS; code: the XID, otherwise 0; gpu_instance: None for the whole GPU."""

    device: Device
    kind: str
    code: int
    time_ns: int
    gpu_instance: int | None


class EventWatcher:
    """Thread that waits for the events of a library's GPUs and calls `report` with each event."""

    def __init__(
        self,
        library: Library,
        devices: Sequence[Device],
        report: Callable[[GpuEvent], None],
        clock: Clock | None = None,
        back_off_seconds: float = BACK_OFF_SECONDS,
    ) -> None:
        self._library = library
        self._devices = tuple(devices)
        self._report = report
        self._clock = clock or SystemClock()
        self._back_off_seconds = back_off_seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """Stop the thread and return whether it ended. A thread that is stuck in the driver is abandoned."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._library.using():
                    code = self._watch()
            except SourceError as error:
                log.info("watching GPU events ended: %s", error)
                return
            if code in DEAD:
                self._library.dead = True
                return
            if code != pynvml.NVML_SUCCESS:
                log.info("watching GPU events failed: %s: retrying in %g s", code_text(code), self._back_off_seconds)
                self._stopping.wait(self._back_off_seconds)

    def _watch(self) -> int:
        """Make an event set and wait for events until a stop or failure.

        Return the last NVML code. Raise LibraryDeadError.
        """
        library = self._library
        wait = library.function("nvmlEventSetWait_v2")
        events = c_void_p()
        code = library.call("nvmlEventSetCreate", byref(events))
        if code != pynvml.NVML_SUCCESS:
            return code
        try:
            registered = [device for device in self._devices if self._register(device, events)]
            if wait is None or not registered:
                self._stopping.wait()
                return int(pynvml.NVML_SUCCESS)
            data = pynvml.c_nvmlEventData_t()
            while not self._stopping.is_set():
                code = wait(events, byref(data), c_uint(WAIT_MILLISECONDS))
                if code == pynvml.NVML_SUCCESS:
                    self._take(data)
                elif code != pynvml.NVML_ERROR_TIMEOUT:
                    return code
            return int(pynvml.NVML_SUCCESS)
        finally:
            if not library.closed:
                library.call("nvmlEventSetFree", events)

    def _register(self, device: Device, events: c_void_p) -> bool:
        """Add the GPU to the event set. Return whether the GPU supports an event in EVENTS."""
        supported = c_ulonglong()
        library = self._library
        if library.call("nvmlDeviceGetSupportedEventTypes", device.handle, byref(supported)) != pynvml.NVML_SUCCESS:
            return False
        wanted = supported.value & sum(EVENTS)
        return bool(wanted) and (
            library.call("nvmlDeviceRegisterEvents", device.handle, c_ulonglong(wanted), events) == pynvml.NVML_SUCCESS
        )

    def _take(self, data: Any) -> None:
        """Report the event. data: a c_nvmlEventData_t."""
        handle = cast(data.device, c_void_p).value
        device = next((one for one in self._devices if one.handle.value == handle), None)
        if device is None:
            return
        instance = None if data.gpuInstanceId == 0xFFFF_FFFF else int(data.gpuInstanceId)
        kind = EVENTS.get(data.eventType, f"event_{data.eventType:#x}")
        code = int(data.eventData) if data.eventType == XID else 0
        self._report(GpuEvent(device, kind, code, self._clock.wall_ns(), instance))
