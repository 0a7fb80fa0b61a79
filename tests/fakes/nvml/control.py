"""Drives the fake of NVML: from the process that loaded it, or from another that maps the same control file."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

ALL = 0xFFFFFFFF
"""Any GPU, any scope."""

SYSTEM = 16
"""As a GPU of a call: calls that are of no GPU."""

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 0, 1, 2, 3, 4
DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 9, 10, 12, 13
GPU_IS_LOST, LIBRARY_MISMATCH, VERSION_MISMATCH, UNKNOWN = 15, 18, 25, 999

DOUBLE, UNSIGNED_INT, UNSIGNED_LONG, UNSIGNED_LONG_LONG, SIGNED_LONG_LONG, SIGNED_INT, UNSIGNED_SHORT = range(7)

BOARDS = ("h100", "a100", "b200", "h100-mig", "geforce", "a100-bridge", "gh200")


class FakeNvml:
    """The fake's controls, one method each. GPUs are numbered as the board has them, 0 first.

    control_file: a file that the process under test names in GANGWATCH_FAKE_NVML_CONTROL; None drives the library as
    this process itself has loaded it. Raises OSError where the library or the file cannot be had.
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
        """Everything as at the beginning, on this board."""
        self._c.fake_reset(board.encode())

    def is_initialized(self) -> bool:
        return bool(self._c.fake_is_initialized())

    def asked(self, symbol: str, gpu: int = SYSTEM) -> int:
        """How often this process called the symbol for the GPU."""
        return int(self._c.fake_asked(symbol.encode(), gpu))

    def gpm_samples(self) -> int:
        """Profiling samples that this process has allocated and not freed."""
        return int(self._c.fake_gpm_samples())

    def set_clock(self, seconds: float) -> None:
        """Counters stand where they are so long after their beginning; 0 lets them move with the clock."""
        self._c.fake_set_clock_us(round(seconds * 1e6))

    def set_pattern(self, on: bool = True) -> None:
        """Each field is field * 1000 + gpu * 100 + scope, so that none can stand for another."""
        self._c.fake_set_pattern(int(on))

    def set_gpus(self, present: int) -> None:
        self._c.fake_set_gpus(present)

    def set_init_code(self, code: int) -> None:
        self._c.fake_set_init_code(code)

    def set_delay(self, seconds: float) -> None:
        """Every call takes so much longer."""
        self._c.fake_set_delay_us(round(seconds * 1e6))

    def set_gpu_code(self, gpu: int, code: int) -> None:
        """Every call on the GPU gives this code."""
        self._c.fake_set_gpu_code(gpu, code)

    def set_call(self, symbol: str, code: int, gpu: int = ALL, delay: float = 0.0) -> None:
        """The call gives this code, after so many seconds; SUCCESS without delay takes that back."""
        if self._c.fake_set_call(symbol.encode(), gpu, code, round(delay * 1e6)):
            raise ValueError(f"no room for a rule on {symbol}")

    def set_reading(self, symbol: str, value: int, gpu: int = ALL) -> None:
        """The call gives this number: PCIe generations and widths, temperature, clock reasons, power state,
        utilisation; of nvmlDeviceGetGpuFabricInfoV it is the health mask."""
        if self._c.fake_set_reading(symbol.encode(), gpu, value):
            raise ValueError(f"no room for a rule on {symbol}")

    def set_field(self, field: int, value: int = 0, *, gpu: int = ALL, scope: int = ALL, code: int = SUCCESS,
                  kind: int = UNSIGNED_LONG_LONG) -> None:  # fmt: skip
        """The field gives the value (its 64 bits; kind is NVML's value type) or the code."""
        if self._c.fake_set_field(gpu, field, scope, code, kind, value & 0xFFFFFFFFFFFFFFFF):
            raise ValueError(f"no room for a rule on field {field}")

    def clear_fields(self) -> None:
        self._c.fake_clear_fields()

    def hang(self, gpu: int, hanging: bool = True) -> None:
        """Calls on the GPU do not return until this is taken back."""
        self._c.fake_set_hang(gpu, int(hanging))

    def push_xid(self, gpu: int, code: int) -> None:
        self._c.fake_push_xid(gpu, code)

    def push_event(self, gpu: int, kind: int, data: int = 0, instance: int = ALL) -> None:
        self._c.fake_push_event(gpu, kind, data, instance)

    def set_event_code(self, code: int) -> None:
        """A wait for events gives this code at once instead of waiting."""
        self._c.fake_set_event_code(code)

    def set_mig(self, gpu: int, layout: int) -> None:
        """Reconfigure MIG: 0 off, 1 of mixed sizes, 2 seven small ones. Handles of before are dead."""
        self._c.fake_set_mig(gpu, layout)

    def set_driver_loaded(self, loaded: bool) -> None:
        """Unload the driver, or load it again; handles and initialisations of before are dead."""
        self._c.fake_set_driver_loaded(int(loaded))

    def set_default_pid(self, pid: int) -> None:
        """The process that each GPU has while no other is added; 0 for none."""
        self._c.fake_set_default_pid(pid)

    def add_process(self, gpu: int, pid: int, memory_bytes: int, sm_percent: int = 0, memory_percent: int = 0,
                    gpu_instance: int = ALL, graphics: bool = False) -> None:  # fmt: skip
        if self._c.fake_add_process(gpu, pid, memory_bytes, sm_percent, memory_percent, gpu_instance, int(graphics)):
            raise ValueError("no room for another process")

    def clear_processes(self) -> None:
        self._c.fake_clear_processes()
