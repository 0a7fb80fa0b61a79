"""The driver's events: XIDs above all, waited for in a thread of its own, with one event set for all GPUs.

A wait gives the interpreter's lock away, so that nothing else is held up. Only what each GPU supports is registered:
one unsupported bit would refuse them all.
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
"""nvmlEventType* that are told of. Clock and power-state changes come by the thousand, single corrected errors are
counted elsewhere."""

WAIT_MILLISECONDS = 1000
"""How long one wait lasts at most: the thread notices so late that it is to end."""

BACK_OFF_SECONDS = 10.0
"""After an error the set is made anew, so much later: a lost GPU makes every wait fail at once."""

STOP_SECONDS = 2.0


class GpuEvent(NamedTuple):
    """One event. kind: a word of EVENTS; code: the XID, 0 otherwise; gpu_instance: None where it is not of one."""

    device: Device
    kind: str
    code: int
    time_ns: int
    gpu_instance: int | None


class EventWatcher:
    """Waits for the events of a library's GPUs, and calls `tell` with each, in its own thread."""

    def __init__(
        self,
        library: Library,
        devices: Sequence[Device],
        tell: Callable[[GpuEvent], None],
        clock: Clock | None = None,
        back_off_seconds: float = BACK_OFF_SECONDS,
    ) -> None:
        self._library = library
        self._devices = tuple(devices)
        self._tell = tell
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
        """Let the thread end; whether it did. One that is stuck in the driver is left behind."""
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
                log.info("events of the GPUs: %s", error)
                return
            if code in DEAD:
                self._library.dead = True
                return
            if code != SUCCESS:
                log.info("events of the GPUs: %s: watching anew in %g s", code_text(code), self._back_off_seconds)
                self._stopping.wait(self._back_off_seconds)

    def _watch(self) -> int:
        """Make a set, wait on it until told to stop or until it fails: NVML's code. Raises LibraryDeadError."""
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
        """Add the GPU to the set; whether it has any events to tell of."""
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
        self._tell(GpuEvent(device, kind, code, self._clock.wall_ns(), instance))
