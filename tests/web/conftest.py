"""Fixtures for the tests of the pages: a shared browser, and controllers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from scheduler_feedback.controller import cycle_thread as loop_module
from tests.cluster.memory_backend import World
from tests.controller.site import Site, serving
from tests.web.browser import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Run a real controller behind a real server, with a backend in memory."""
    monkeypatch.setattr(loop_module, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(loop_module, "TICK_SECONDS", 0.1)
    with serving(tmp_path, World()) as running:
        yield running
