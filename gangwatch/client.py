"""The command line's side of the controller's API: one request a call, standard library only."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent.schema.errors import GangwatchError
from gangwatch.state_folder import NotRunningError, StateFolder

TIMEOUT_SECONDS = 15.0
"""Longest wait for an answer: a submission waits for its journal entry, and a busy disk takes seconds over that."""


class RefusedError(GangwatchError):
    """The controller refused a request; the text is the controller's own. status: of HTTP."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Client:
    """Asks the controller of one state folder. Finds it anew for each call, so that its restart is no matter."""

    def __init__(self, state: StateFolder | Path, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.state = state if isinstance(state, StateFolder) else StateFolder(state)
        self.timeout_seconds = timeout_seconds

    def get(self, path: str) -> Any:
        """The JSON document at `path`.

        Raises NotRunningError where no controller runs, RefusedError where it says no.
        """
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send `body` and return the JSON answer. Raises as `get` does."""
        return self._ask("POST", path, json.dumps(body or {}).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        record = self.state.controller()
        if record is None:
            raise NotRunningError(f"no controller is running for {self.state}: start one with `gangwatch up`")
        address = urlsplit(record.url)
        headers = {"Authorization": f"Bearer {self.state.token()}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=self.timeout_seconds)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise NotRunningError(
                f"the controller at {record.url} (pid {record.pid}) does not answer: {error or type(error).__name__}"
            ) from None
        finally:
            connection.close()
        return _answer(response.status, content, f"{method} {path}")


def _answer(status: int, content: bytes, request: str) -> Any:
    try:
        answer = json.loads(content) if content else None
    except ValueError:
        answer = None
    if 200 <= status < 300:
        return answer
    reason = answer.get("error") if isinstance(answer, dict) else None
    raise RefusedError(status, str(reason) if reason else f"{request} was answered with {status}")
