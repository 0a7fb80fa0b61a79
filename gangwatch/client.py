"""The command line's side of the controller's API: one request a call, standard library only."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent.schema.errors import GangwatchError
from gangwatch.connection import Trust, connect
from gangwatch.daemon_ends import why_no_controller
from gangwatch.state_folder import NotRunningError, StateFolder

TIMEOUT_SECONDS = 15.0
"""Longest wait for an answer: a submission waits for its journal entry, and a busy disk takes seconds over that."""


_MOST_WORDS = 200


class RefusedError(GangwatchError):
    """The controller refused a request; the text is the controller's own. status: of HTTP."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Remote:
    """A controller elsewhere. token_file: a copy of its state folder's token; None: without, for what needs none."""

    url: str
    token_file: Path | None
    trust: Trust


class Client:
    """Asks the controller of one state folder, or `remote` instead. Finds it anew for each call, so that its restart is
    no matter. trust: for a state folder's controller whose record names no certificate."""

    def __init__(
        self,
        state: StateFolder | Path,
        timeout_seconds: float = TIMEOUT_SECONDS,
        remote: Remote | None = None,
        trust: Trust | None = None,
    ) -> None:
        self.state = state if isinstance(state, StateFolder) else StateFolder(state)
        self.timeout_seconds = timeout_seconds
        self.remote = remote
        self.trust = trust or Trust()

    def get(self, path: str) -> Any:
        """The JSON document at `path`.

        Raises NotRunningError where no controller runs, RefusedError where it says no.
        """
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send `body` and return the JSON answer. Raises as `get` does."""
        return self._ask("POST", path, json.dumps(body or {}).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        remote, who = self._find()
        headers = {"Accept": "application/json"}
        if remote.token_file is not None:
            headers["Authorization"] = f"Bearer {_token(remote.token_file)}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = connect(remote.url, self.timeout_seconds, remote.trust)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise NotRunningError(f"{who} does not answer: {error or type(error).__name__}") from None
        finally:
            connection.close()
        return _answer(response.status, content, f"{method} {path}")

    def _find(self) -> tuple[Remote, str]:
        """Where the controller is, and what to call it. Raises NotRunningError."""
        if self.remote is not None:
            return self.remote, f"the controller at {self.remote.url}"
        record = self.state.controller()
        if record is None:
            raise NotRunningError(why_no_controller(self.state))
        trust = replace(self.trust, certificate=Path(record.certificate)) if record.certificate else self.trust
        remote = Remote(record.url, self.state.token_file, trust)
        return remote, f"the controller at {record.url} (pid {record.pid})"


def _token(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise GangwatchError(f"{file}: {error.strerror}: the controller's token can't be read") from None


def _answer(status: int, content: bytes, request: str) -> Any:
    try:
        answer = json.loads(content) if content else None
    except ValueError:
        answer = None
    if 200 <= status < 300:
        return answer
    reason = answer.get("error") if isinstance(answer, dict) else None
    if answer is None:
        # The server's guard, before the API, says why in a line of text.
        reason = content[:_MOST_WORDS].decode(errors="replace").partition("\n")[0]
    raise RefusedError(status, str(reason) if reason else f"{request} was answered with {status}")
