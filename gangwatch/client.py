"""The command line's side of the controller's API: one request a call, standard library only."""

from __future__ import annotations

import http.client
import json
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent.schema.errors import GangwatchError
from gangwatch.connection import Trust, connect
from gangwatch.state_folder import NotRunningError, StateFolder
from gangwatch.supervisor.daemon_ends import why_no_controller

TIMEOUT_SECONDS = 15.0
"""Longest wait for an answer: a submission waits for its journal entry, and a busy disk takes seconds over that."""


PAGE = 500
"""Items of a list that are asked for at once."""

MOST_BUSY_SECONDS = 30.0
"""A controller that says it is busy (429) is asked again for so long, as often as it allows."""

_MOST_WORDS = 200

_NEXT = re.compile(r'<([^<>]+)>; rel="next"')
"""A header Link that leads to a list's next page (RFC 8288), as the controller writes it."""


class RefusedError(GangwatchError):
    """The controller refused a request; the text is the controller's own. status: of HTTP. retry_seconds: after which
    it may be asked again, where it is only busy (429)."""

    def __init__(self, status: int, reason: str, retry_seconds: float = 1.0) -> None:
        super().__init__(reason)
        self.status = status
        self.retry_seconds = retry_seconds


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
        return self._ask("GET", path, None)[0]

    def get_all(self, path: str, field: str = "") -> Any:
        """The list at `path`, or the document whose `field` is the list, read in pages. Raises as `get` does."""
        document, following = self._ask("GET", f"{path}{'&' if '?' in path else '?'}limit={PAGE}", None)
        items = document[field] if field else document
        while following:
            more, following = self._ask("GET", following, None)
            items += more[field] if field else more
        return document

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send `body` and return the JSON answer. Raises as `get` does."""
        return self._ask("POST", path, json.dumps(body or {}).encode())[0]

    def _ask(self, method: str, path: str, body: bytes | None) -> tuple[Any, str]:
        """The answer, and the path of the list's next page ('' where there is none)."""
        give_up_s = time.monotonic() + MOST_BUSY_SECONDS
        while True:
            try:
                return self._ask_once(method, path, body)
            except RefusedError as error:
                if error.status != 429 or time.monotonic() + error.retry_seconds > give_up_s:
                    raise
                time.sleep(error.retry_seconds)

    def text(self, path: str) -> str:
        """The text at `path`, such as /metrics. Raises as `get` does."""
        response, content = self._exchange("GET", path, None, "text/plain")
        if response.status != 200:
            _answer(response.status, content, f"GET {path}", "")
        return content.decode("utf-8", "replace")

    def _ask_once(self, method: str, path: str, body: bytes | None) -> tuple[Any, str]:
        response, content = self._exchange(method, path, body, "application/json")
        answer = _answer(response.status, content, f"{method} {path}", response.headers.get("retry-after", ""))
        following = _NEXT.search(response.headers.get("link", ""))
        return answer, following[1] if following is not None else ""

    def _exchange(
        self, method: str, path: str, body: bytes | None, accept: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        remote, who = self._find()
        headers = {"Accept": accept}
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
        return response, content

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


def _answer(status: int, content: bytes, request: str, retry_after: str) -> Any:
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
    retry_seconds = float(retry_after) if retry_after.isdecimal() else 1.0
    raise RefusedError(status, str(reason) if reason else f"{request} was answered with {status}", retry_seconds)
