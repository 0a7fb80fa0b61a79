"""Access to the NVIDIA driver through NVML.

Start at ``nvml.py``, which loads the library and prepares the calls; ``nvml_enumeration.py`` lists the GPUs. The
structures, constants and error names are those of pynvml, NVIDIA's binding (distribution nvidia-ml-py).

Importing this package raises UnsupportedError if pynvml is missing or too old.
"""

from agent.schema.errors import UnsupportedError

PYNVML_FLOOR = "13.580.82"
"""Oldest nvidia-ml-py that gangwatch supports, as in pyproject.toml. Older ones lack structures. 12.575 to 13.580.65
have other numbers for the fields with the throttle times; newer drivers return other values for these numbers."""

LIBRARY = "libnvidia-ml.so.1"
"""Name of the driver's library, which the dynamic loader finds."""

_REMEDY = f"install nvidia-ml-py>={PYNVML_FLOOR}"

try:
    import pynvml
except ImportError as error:
    raise UnsupportedError(f"NVML: {error}; {_REMEDY}") from None

if getattr(pynvml, "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN", None) != 269:
    # The old distribution "pynvml" contains a package of the same name, which Python imports instead of nvidia-ml-py.
    raise UnsupportedError(f"NVML: {pynvml.__file__} is too old; {_REMEDY} and uninstall an old distribution 'pynvml'")
