"""Controls of the fake NVML library, for the process that loaded it or one that maps the same control file."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

ALL = 0xFFFFFFFF
"""Any GPU, any scope."""

SYSTEM = 16
"""Instead of a GPU: calls without a GPU."""

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 0, 1, 2, 3, 4
DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 9, 10, 12, 13
GPU_IS_LOST, LIBRARY_MISMATCH, VERSION_MISMATCH, UNKNOWN = 15, 18, 25, 999

DOUBLE, UNSIGNED_INT, UNSIGNED_LONG, UNSIGNED_LONG_LONG, SIGNED_LONG_LONG, SIGNED_INT, UNSIGNED_SHORT = range(7)

BOARDS = ("h100", "a100", "b200", "h100-mig", "geforce", "a100-bridge", "gh200")


class FakeNvml:
    """Controls of the fake NVML library. GPUs are numbered from 0, in the order of the server model (board).

    control_file: the file in GANGWATCH_FAKE_NVML_CONTROL of the process under test; None controls the library that this
    process has loaded. Raises OSError if the library or the file cannot be opened.
    """

    def __init__(self, library: Path, control_file: Path | None = None) -> None:
        self.library = library
        self._c = ctypes.CDLL(str(library))
        self._c.fake_asked.restype = ctypes.c_uint64
        self._c.fake_add_process.argtypes = [ctypes.c_uint, ctypes.c_uint, ctypes.c_uint64, *[ctypes.c_uint] * 4]
        self._c.fake_push_event.argtypes = [ctypes.c_uint, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint]
        self._c.fake_set_field.argtypes = [*[ctypes.c_uint] * 5, ctypes.c_uint64]
        self._c.fake_set_reading.argtypes = [ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint64]
        self._c.fake_set_clock_us.argtypes = [ctypes.c_uint64]
        if control_file is not None and self._c.fake_attach(os.fsencode(control_file)):
            raise OSError(f"{control_file}: cannot be mapped")

    def reset(self, board: str = "h100") -> None:
        """Restore the initial state, with this server model."""
        self._c.fake_reset(board.encode())

    def is_initialized(self) -> bool:
        return bool(self._c.fake_is_initialized())

    def call_count(self, symbol: str, gpu: int = SYSTEM) -> int:
        """Return how often this process has called the function for the GPU."""
        return int(self._c.fake_asked(symbol.encode(), gpu))

    def gpm_samples(self) -> int:
        """Return the number of profiling samples that this process has allocated and not freed."""
        return int(self._c.fake_gpm_samples())

    def set_clock(self, seconds: float) -> None:
        """Freeze all counters at their values this long after the start; 0 lets them advance with the real clock."""
        self._c.fake_set_clock_us(round(seconds * 1e6))

    def set_pattern(self, on: bool = True) -> None:
        """Give each field the distinct value field * 1000 + gpu * 100 + scope, so that swapped values are detected."""
        self._c.fake_set_pattern(int(on))

    def set_gpus(self, present: int) -> None:
        self._c.fake_set_gpus(present)

    def set_init_code(self, code: int) -> None:
        self._c.fake_set_init_code(code)

    def set_delay(self, seconds: float) -> None:
        self._c.fake_set_delay_us(round(seconds * 1e6))

    def set_gpu_code(self, gpu: int, code: int) -> None:
        """Make every call on the GPU return this NVML code."""
        self._c.fake_set_gpu_code(gpu, code)

    def set_call(self, symbol: str, code: int, gpu: int = ALL, delay: float = 0.0) -> None:
        """Make the call return this NVML code after `delay` seconds; SUCCESS without delay resets it."""
        if self._c.fake_set_call(symbol.encode(), gpu, code, round(delay * 1e6)):
            raise ValueError(f"no room for a rule on {symbol}")

    def set_reading(self, symbol: str, value: int, gpu: int = ALL) -> None:
        """Make the call return this number.

        Possible: PCIe generation or width, temperature, clock reasons, power state, utilisation; for
        nvmlDeviceGetGpuFabricInfoV it is the health mask.
        """
        if self._c.fake_set_reading(symbol.encode(), gpu, value):
            raise ValueError(f"no room for a rule on {symbol}")

    def set_field(self, field: int, value: int = 0, *, gpu: int = ALL, scope: int = ALL, code: int = SUCCESS,
                  kind: int = UNSIGNED_LONG_LONG) -> None:  # fmt: skip
        """Set the field's value (64 bits) or its NVML code. kind: NVML's value type."""
        if self._c.fake_set_field(gpu, field, scope, code, kind, value & 0xFFFFFFFFFFFFFFFF):
            raise ValueError(f"no room for a rule on field {field}")

    def clear_fields(self) -> None:
        self._c.fake_clear_fields()

    def hang(self, gpu: int, hanging: bool = True) -> None:
        """Block all calls on the GPU until ``hanging`` is reset."""
        self._c.fake_set_hang(gpu, int(hanging))

    def push_xid(self, gpu: int, code: int) -> None:
        self._c.fake_push_xid(gpu, code)

    def push_event(self, gpu: int, kind: int, data: int = 0, instance: int = ALL) -> None:
        self._c.fake_push_event(gpu, kind, data, instance)

    def set_event_code(self, code: int) -> None:
        """Make waits for events return this NVML code at once."""
        self._c.fake_set_event_code(code)

    def set_mig(self, gpu: int, layout: int) -> None:
        """Reconfigure MIG: 0 off, 1 mixed sizes, 2 seven small instances, 3 on, and instances are created by calls.

        Older handles become invalid.
        """
        self._c.fake_set_mig(gpu, layout)

    def set_driver_loaded(self, loaded: bool) -> None:
        """Unload or load the driver. Older handles and initialisations become invalid."""
        self._c.fake_set_driver_loaded(int(loaded))

    def set_default_pid(self, pid: int) -> None:
        """Set the pid on each GPU until a test adds another process; 0 for none."""
        self._c.fake_set_default_pid(pid)

    def add_process(self, gpu: int, pid: int, memory_bytes: int, sm_percent: int = 0, memory_percent: int = 0,
                    gpu_instance: int = ALL, graphics: bool = False) -> None:  # fmt: skip
        if self._c.fake_add_process(gpu, pid, memory_bytes, sm_percent, memory_percent, gpu_instance, int(graphics)):
            raise ValueError("no room for another process")

    def clear_processes(self) -> None:
        self._c.fake_clear_processes()
