"""Client of the controller's API for the command line: one request per call, standard library only."""

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
"""Maximum time in seconds to wait for a response. A submitted job's journal entry takes seconds on a busy disk."""


PAGE = 500
"""Maximum number of items that one request returns from a list."""

MOST_BUSY_SECONDS = 30.0
"""Maximum time in seconds to retry after status 429 (too many requests). The controller sets the retry interval."""

_MOST_WORDS = 200

_NEXT = re.compile(r'<([^<>]+)>; rel="next"')
"""Pattern of the Link header (RFC 8288) in which the controller sends the address of the next page of a list."""


class RefusedError(GangwatchError):
    """The controller refused a request. The error text is the controller's message.

    status: HTTP status. retry_seconds: time to wait before a retry after status 429.
    """

    def __init__(self, status: int, reason: str, retry_seconds: float = 1.0) -> None:
        super().__init__(reason)
        self.status = status
        self.retry_seconds = retry_seconds


@dataclass(frozen=True, slots=True)
class Remote:
    """URL and credentials of a controller that the user has selected by URL, not by state folder."""

    url: str
    token_file: Path | None
    """File with a copy of the token in the controller's state folder; None sends no token."""
    trust: Trust


class Client:
    """Client of the controller of one state folder, or of `remote`.

    Each call reads controller.json again, so the controller may restart between calls. trust: TLS settings, used if
    controller.json names no certificate.
    """

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
        """Return the JSON document at `path`.

        Raises NotRunningError if no controller is running, RefusedError if the controller refuses the request.
        """
        return self._ask("GET", path, None)[0]

    def get_all(self, path: str, field: str = "") -> Any:
        """Return the complete list at `path`, read page by page. Raises the same errors as ``get``.

        field: if it is given, the response is a document with the list in this field. The document is returned.
        """
        document, following = self._ask("GET", f"{path}{'&' if '?' in path else '?'}limit={PAGE}", None)
        items = document[field] if field else document
        while following:
            more, following = self._ask("GET", following, None)
            items += more[field] if field else more
        return document

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send `body` as JSON to `path` and return the JSON response. Raises the same errors as ``get``."""
        return self._ask("POST", path, json.dumps(body or {}).encode())[0]

    def _ask(self, method: str, path: str, body: bytes | None) -> tuple[Any, str]:
        """Send a request. Return the parsed response, and the path of a list's next page ('' if there is none)."""
        give_up_s = time.monotonic() + MOST_BUSY_SECONDS
        while True:
            try:
                return self._ask_once(method, path, body)
            except RefusedError as error:
                if error.status != 429 or time.monotonic() + error.retry_seconds > give_up_s:
                    raise
                time.sleep(error.retry_seconds)

    def text(self, path: str) -> str:
        """Return the text at `path`, such as /metrics. Raises the same errors as ``get``."""
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
            raise NotRunningError(f"{who} does not respond: {error or type(error).__name__}") from None
        finally:
            connection.close()
        return response, content

    def _find(self) -> tuple[Remote, str]:
        """Return the URL and credentials of the controller, and a description of it for messages. Raises
        NotRunningError."""
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
        raise GangwatchError(f"can't read the controller's token: {file}: {error.strerror}") from None


def _answer(status: int, content: bytes, request: str, retry_after: str) -> Any:
    try:
        answer = json.loads(content) if content else None
    except ValueError:
        answer = None
    if 200 <= status < 300:
        return answer
    reason = answer.get("error") if isinstance(answer, dict) else None
    if answer is None:
        # The server's access check, in front of the API, responds with a line of text.
        reason = content[:_MOST_WORDS].decode(errors="replace").partition("\n")[0]
    retry_seconds = float(retry_after) if retry_after.isdecimal() else 1.0
    raise RefusedError(status, str(reason) if reason else f"{request} failed with status {status}", retry_seconds)
