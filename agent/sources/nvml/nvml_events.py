"""Watcher of driver events, mainly XIDs, in its own thread with one event set for all GPUs.

The wait releases the interpreter lock, so it blocks no other thread. Only events that a GPU supports are registered,
since one unsupported bit makes the whole registration fail.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from ctypes import byref, c_uint, c_ulonglong, c_void_p
from typing import NamedTuple

from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import SourceError
from agent.sources.nvml.nvml import Device, Library
from agent.sources.nvml.nvml_interface import DEAD, SUCCESS, TIMEOUT, EventData, code_text

log = logging.getLogger(__name__)

XID = 0x8

EVENTS = {
    0x2: "double_bit_ecc_error",
    XID: "xid",
    0x100: "mig_configuration_changed",
    0x200: "single_bit_ecc_storm",
    0x400: "dram_retired",
    0x800: "dram_retirement_failed",
    0x1000: "poison_contained",
    0x2000: "poison_fatal",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action_changed",
}
"""Driver events (nvmlEventType*) that are reported. Clock and power-state changes are not reported because they are too
frequent. Single corrected errors are not reported because a metric counts them."""

WAIT_MILLISECONDS = 1000
"""Maximum duration of one wait. A stop takes effect after the current wait."""

BACK_OFF_SECONDS = 10.0
"""Delay after an error before a new event set is made. If a GPU is lost, every wait fails immediately."""

STOP_SECONDS = 2.0


class GpuEvent(NamedTuple):
    """One event. kind: a value of EVENTS; code: the XID, otherwise 0; gpu_instance: None for the whole GPU."""

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
            if code != SUCCESS:
                log.info("watching GPU events failed: %s: retrying in %g s", code_text(code), self._back_off_seconds)
                self._stopping.wait(self._back_off_seconds)

    def _watch(self) -> int:
        """Make an event set and wait for events until a stop or failure. Return NVML's code. Raise LibraryDeadError."""
        library = self._library
        wait = library.function("nvmlEventSetWait_v2")
        events = c_void_p()
        code = library.call("nvmlEventSetCreate", byref(events))
        if code != SUCCESS:
            return code
        try:
            registered = [device for device in self._devices if self._register(device, events)]
            if wait is None or not registered:
                self._stopping.wait()
                return SUCCESS
            data = EventData()
            while not self._stopping.is_set():
                code = wait(events, byref(data), c_uint(WAIT_MILLISECONDS))
                if code == SUCCESS:
                    self._take(data)
                elif code != TIMEOUT:
                    return code
            return SUCCESS
        finally:
            if not library.closed:
                library.call("nvmlEventSetFree", events)

    def _register(self, device: Device, events: c_void_p) -> bool:
        """Add the GPU to the event set. Return whether the GPU supports any events."""
        supported = c_ulonglong()
        library = self._library
        if library.call("nvmlDeviceGetSupportedEventTypes", device.handle, byref(supported)) != SUCCESS:
            return False
        wanted = supported.value & sum(EVENTS)
        return bool(wanted) and (
            library.call("nvmlDeviceRegisterEvents", device.handle, c_ulonglong(wanted), events) == SUCCESS
        )

    def _take(self, data: EventData) -> None:
        device = next((one for one in self._devices if one.handle.value == data.device), None)
        if device is None:
            return
        instance = None if data.gpu_instance == 0xFFFF_FFFF else int(data.gpu_instance)
        kind = EVENTS.get(data.event_type, f"event_{data.event_type:#x}")
        code = int(data.event_data) if data.event_type == XID else 0
        self._report(GpuEvent(device, kind, code, self._clock.wall_ns(), instance))
