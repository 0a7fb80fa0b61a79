"""Return codes of NVML calls, grouped by their meaning for later calls. The numbers and names are those of pynvml."""

from __future__ import annotations

import pynvml

NEVER = frozenset(
    {
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
"""Return codes of calls that will never succeed. They are permanent for a GPU's handle. NO_PERMISSION is permanent too,
because the permissions of this process do not change."""

LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND})
"""Return codes of a lost GPU. All calls on this GPU fail until it is reset."""

DEAD = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""Return codes of a dead library. All calls fail until the library is reloaded."""

ABSENT_DRIVER = frozenset({pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND})
"""Return codes of nvmlInit on a machine without a driver."""

_NAMES = {getattr(pynvml, name): name for name in dir(pynvml) if name.startswith("NVML_ERROR_")}
"""Name of each return code. ``str(pynvml.NVMLError(code))`` is not used: for newer codes it needs a library that pynvml
itself has loaded."""


def code_text(code: int) -> str:
    """Return the name in nvml.h and the number of a return code, for error messages."""
    return f"{_NAMES.get(code, 'error')} ({code})"
