"""Access to NVML, the library of NVIDIA's driver, with the structures and constants of pynvml.

A value that this GPU or driver does not support is queried once and then skipped. This includes values whose function
is missing in the library. A GPU that has fallen off the bus is rarely queried, since each call may hold the driver's
lock for a long time. For return codes see agent/sources/nvml/nvml_codes.py.

The functions of pynvml itself are not called: they use one library for the whole process, which cannot be unloaded when
the driver is reloaded (docs/adr/0048).

Calls from several threads are allowed; the library serialises them.
"""

from __future__ import annotations

import _ctypes
import ctypes
import threading
from collections.abc import Callable
from ctypes import byref, c_char, c_uint, c_void_p
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import pynvml

from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import SourceError, UnsupportedError
from agent.schema.frame import CounterArray, GaugeArray, ValidArray
from agent.sources.nvml import LIBRARY
from agent.sources.nvml.nvml_codes import ABSENT_DRIVER, DEAD, LOST, NEVER, code_text

RETRY_LOST_SECONDS = 30.0
"""Time in seconds between attempts to use a GPU that was lost."""

_TEXT_BYTES: int = pynvml.NVML_DEVICE_UUID_V2_BUFFER_SIZE
"""Size in bytes of a buffer for a text. Names and UUIDs are the longest."""


class GpuLostError(SourceError):
    """This GPU has fallen off the bus or needs a reset. Other GPUs are not affected."""


class LibraryDeadError(SourceError):
    """The driver is unloaded or does not match this library. All calls fail until the library is reloaded."""


def pci_address(bus_id: str) -> str:
    """Convert NVML's bus id to the kernel's form: '00000000:3B:00.0' -> '0000:3b:00.0'."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def kernel_address(pci: Any) -> str:
    """Return the PCI address of an nvmlPciInfo_t in the kernel's form; '' if the driver has written no address."""
    try:
        return pci_address(pci.busId)
    except ValueError:  # also if pynvml cannot decode the text
        return ""


class Library:
    """The loaded and initialised NVML library.

    ``close`` releases the driver, and unloads the library if no call is running.

    dead: True after ``close``, and after a call that reports that the driver was unloaded. The library must then be
    loaded again.
    """

    def __init__(self, path: str | None = None) -> None:
        """Load and initialise the library. path: library to load instead of the system's libnvidia-ml.so.1.

        Raise UnsupportedError if there is no library or driver, SourceError for other failures.
        """
        try:
            self._library: ctypes.CDLL | None = ctypes.CDLL(path or LIBRARY)
        except OSError as error:
            raise UnsupportedError(f"NVML: {error}") from None
        self.dead = False
        self._lock = threading.Lock()
        self._inside = 0
        self._missing: set[str] = set()
        start = self.function("nvmlInit_v2")
        if start is None:
            self._unload()
            raise UnsupportedError(f"NVML: {path or LIBRARY} has no nvmlInit_v2 and is not an NVML library")
        code = start()
        if code != pynvml.NVML_SUCCESS:
            self._unload()
            kind = UnsupportedError if code in ABSENT_DRIVER else SourceError
            raise kind(f"NVML: nvmlInit: {code_text(code)}")

    def function(self, symbol: str) -> Callable[..., int] | None:
        """Return the library's function of this name; None if the driver does not have the function.

        The function returns an NVML code.
        """
        if self._library is None:
            raise LibraryDeadError("NVML: the library is closed")
        try:
            found: Callable[..., int] = getattr(self._library, symbol)
        except AttributeError:
            self._missing.add(symbol)
            return None
        return found

    def call(self, symbol: str, *arguments: Any) -> int:
        """Call a rarely used function by its name, and return its NVML code.

        Return NVML_ERROR_FUNCTION_NOT_FOUND if the library does not have the function.
        """
        function = self.function(symbol)
        return int(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND) if function is None else function(*arguments)

    def text(self, symbol: str, *before: Any) -> str:
        """Return the text that the function `symbol` writes into a buffer; '' if the call is not supported."""
        buffer = (c_char * _TEXT_BYTES)()
        code = self.call(symbol, *before, buffer, c_uint(_TEXT_BYTES))
        self.check(code, symbol)
        return buffer.value.decode("utf-8", "replace") if code == pynvml.NVML_SUCCESS else ""

    def check(self, code: int, what: str) -> None:
        """Raise LibraryDeadError if the code means that the library is dead."""
        if code in DEAD:
            self.dead = True
            raise LibraryDeadError(f"NVML: {what}: {code_text(code)}")

    def check_alive(self) -> None:
        """Raise SourceError if the library is dead already."""
        if self.dead:
            raise SourceError("NVML: the library is dead; collector nvml reopens it at its next run")

    @property
    def missing(self) -> frozenset[str]:
        """Names of the functions that were requested and are missing in this driver's library."""
        return frozenset(self._missing)

    def using(self) -> Library:
        """Return a context manager for calls. The library is not unloaded inside the ``with`` block."""
        return self

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1

    @property
    def busy(self) -> bool:
        """Whether a call into the library is running."""
        with self._lock:
            return self._inside > 0

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called. Until then, buffers can be freed even in a dead library."""
        return self._library is None

    def close(self) -> None:
        """Release the driver. An open library blocks resets of GPUs and unloading of the driver.

        The library stays in memory while a call is running in it.
        """
        if self._library is None:
            return
        self.dead = True
        shutdown = self.function("nvmlShutdown")
        if shutdown is not None:
            shutdown()
        if self.busy:
            self._library = None
        else:
            self._unload()

    def _unload(self) -> None:
        """Remove the library from memory.

        The next load then reads the library's file again, which a driver update may have replaced.
        """
        if self._library is not None:
            _ctypes.dlclose(self._library._handle)
            self._library = None


@dataclass(frozen=True, slots=True)
class Instance:
    """One MIG compute instance of a GPU."""

    uuid: str
    profile: str
    """MIG profile, for example '1g.10gb'."""
    gpu_instance: int
    compute_instance: int
    handle: c_void_p
    profile_id: int | None = None
    """nvidia-smi's number of the GPU instance's profile, for the names of resource claims; None if the agent is not
    root."""
    placement: int | None = None
    """First memory slice of the GPU instance, for the names of resource claims; None if the agent is not root."""


@dataclass(slots=True)
class Device:
    """One GPU and its state. The UUID identifies the GPU, since its index changes when another GPU fails.

    minor: the N of /dev/nvidiaN, None if not known. mig: whether MIG is on, None if the GPU does not support MIG.
    """

    library: Library
    handle: c_void_p
    uuid: str
    pci_address: str
    index: int
    model: str = ""
    minor: int | None = None
    serial: str = ""
    vbios: str = ""
    mig: bool | None = None
    instances: tuple[Instance, ...] = ()
    clock: Clock = field(default_factory=SystemClock)
    lost_until_ns: int | None = None

    def check_present(self) -> None:
        """Raise GpuLostError if the GPU is lost and it is too early to try again (RETRY_LOST_SECONDS)."""
        if self.lost_until_ns is not None:
            if self.clock.monotonic_ns() < self.lost_until_ns:
                raise GpuLostError(f"GPU {self.uuid} at {self.pci_address} is lost")
            self.lost_until_ns = None

    def judge(self, code: int, what: str) -> bool:
        """Return whether an NVML return code means that the GPU does not support the value.

        what: name of the value, for the error. Raise GpuLostError if the code means that the GPU is lost,
        LibraryDeadError if the library is dead.
        """
        if code in LOST:
            self.lost_until_ns = self.clock.monotonic_ns() + round(RETRY_LOST_SECONDS * 1e9)
            raise GpuLostError(f"GPU {self.uuid} at {self.pci_address}: {what}: {code_text(code)}")
        self.library.check(code, f"{what} of {self.uuid}")
        return code in NEVER


class Values(NamedTuple):
    """Arrays into which a part of a collector writes the values of its gauges and counters.

    They are parts of the arrays of the collector's block. All values are absent before a read.
    """

    gauges: GaugeArray
    counters: CounterArray
    counters_valid: ValidArray


_copies: WeakValueDictionary[tuple[str, bytes], Any] = WeakValueDictionary()

_Array = TypeVar("_Array", bound="np.ndarray[Any, Any]")


def one_copy(array: _Array) -> _Array:
    """Return a read-only array with the same values, which all callers with equal arrays share.

    GPUs of one model use equal arrays. A shared array stays in the CPU's cache from one GPU to the next.
    """
    array.flags.writeable = False
    found: _Array = _copies.setdefault((array.dtype.str, array.tobytes()), array)
    return found


class Query:
    """One prepared NVML call on a GPU. A call that the GPU does not support is made only once."""

    __slots__ = ("_arguments", "_device", "_function", "symbol")

    def __init__(self, device: Device, symbol: str, *arguments: Any, handle: c_void_p | None = None) -> None:
        """Prepare the call. handle: handle of a MIG instance, if the call is for an instance of the GPU."""
        self.symbol = symbol
        self._device = device
        self._function = device.library.function(symbol)
        self._arguments = (device.handle if handle is None else handle, *arguments)

    @property
    def gone(self) -> bool:
        return self._function is None

    def ask(self) -> bool:
        """Make the call. Return whether it succeeded. Raise GpuLostError or LibraryDeadError."""
        function = self._function
        if function is None:
            return False
        code = function(*self._arguments)
        if code == pynvml.NVML_SUCCESS:
            return True
        if self._device.judge(code, self.symbol):
            self._function = None
        return False


def growing_list(
    function: Callable[..., int], entry: Any, *before: Any, after: tuple[Any, ...] = ()
) -> tuple[int, Any]:
    """Call a function that writes a list of unknown length. Return (NVML code, entries as a sliceable array).

    The arguments of the call are `before`, a pointer to the length, the array, `after`. If the array is too short, the
    call is repeated with twice the required length, three times at most.
    """
    room = 32
    for _ in range(3):
        count = c_uint(room)
        entries = (entry * room)()
        code = function(*before, byref(count), entries, *after)
        if code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
            return code, entries[: count.value] if code == pynvml.NVML_SUCCESS else []
        room = max(2 * count.value, 2 * room)
    return code, []
