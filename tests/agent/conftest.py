"""Fixtures of the agent's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.sources.nvml import nvml_events
from tests import needs
from tests.fakes.nvml.build import build
from tests.fakes.nvml.control import FakeNvml


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"), compiler=needs.component("gcc", "gcc"))


@pytest.fixture
def nvml(nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """Yield the controls of a fake NVML library with eight H100. At the end, check that no user has it open."""
    # Each test stops the thread that waits for events; the default timeout of a second would dominate the run time.
    monkeypatch.setattr(nvml_events, "WAIT_MILLISECONDS", 20)
    fake = FakeNvml(nvml_library)
    fake.reset()
    yield fake
    fake.reset()
    assert not fake.is_initialized(), "the driver is released"
