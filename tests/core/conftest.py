"""Fixtures for tests of core and agent together: a fake NVML library."""

from tests.agent.conftest import nvml, nvml_library

__all__ = ["nvml", "nvml_library"]
