"""Fixtures that tests of the core share with the agent's: the fake of NVML."""

from tests.agent.conftest import nvml, nvml_library

__all__ = ["nvml", "nvml_library"]
