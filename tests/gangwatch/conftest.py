"""Fixtures of several files of this folder."""

from __future__ import annotations

from typing import Any

import pytest

from gangwatch.commands.jobs import jobs


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the requests of `submit` instead of sending them."""
    found: list[dict[str, Any]] = []

    class RecordingClient:
        def post(self, _path: str, body: dict[str, Any]) -> dict[str, Any]:
            found.append(body)
            return {"job": "j-1"}

    monkeypatch.setattr(jobs, "client_of", lambda _state: RecordingClient())
    return found
