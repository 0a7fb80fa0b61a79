"""`gangwatch down` cancels pending jobs before running ones, so that none starts in a slot that becomes free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangwatch.state_folder import StateFolder
from gangwatch.supervisor import teardown


class FakeClient:
    """Cluster of one slot. A cancelled job ends at once, and the next pending job starts in its slot."""

    jobs: dict[str, str]
    started: list[str]

    def __init__(self, _state: StateFolder) -> None:
        pass

    def get(self, path: str) -> Any:
        if path.startswith("/api/queue"):
            return {"frozen": False}
        return [{"job": job, "state": state} for job, state in self.jobs.items()]

    def get_all(self, path: str) -> Any:
        return self.get(path)

    def post(self, path: str, _body: dict[str, Any]) -> None:
        del self.jobs[path.split("/")[3]]
        if "running" not in self.jobs.values() and self.jobs:
            first = next(iter(self.jobs))
            self.jobs[first] = "running"
            self.started.append(first)


def test_down_starts_no_pending_job_while_it_cancels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = {"j-000001": "running", "j-000002": "pending", "j-000003": "pending"}
    monkeypatch.setattr(FakeClient, "jobs", jobs, raising=False)
    monkeypatch.setattr(FakeClient, "started", [], raising=False)
    monkeypatch.setattr(teardown, "Client", FakeClient)
    state = StateFolder(tmp_path)
    state.prepare()
    assert teardown._cancel_jobs(state, lambda _text: None) == 3
    assert FakeClient.started == []
