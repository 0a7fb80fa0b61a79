"""Fixtures shared by tests of the core and of the agent: a fake NVML."""

from tests.agent.conftest import nvml, nvml_library

__all__ = ["nvml", "nvml_library"]
