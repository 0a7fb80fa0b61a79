"""Requests to a controller by users with different roles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from scheduler_feedback.api.access.attempts import Attempts
from scheduler_feedback.api.access.authentication import Authentication
from scheduler_feedback.api.access.tokens import OWN_TOKENS, TokenEntry, hash_of, make_token, write_entries
from tests.cluster.memory_backend import World
from tests.controller.site import JOB, Answer, Site, serving

PEOPLE = {"vic": "viewer", "ana": "submitter", "bob": "submitter", "boss": "operator"}
"""Users by name, with the role of each."""


class People:
    """Controller, and users with tokens for it."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.folder = site, folder
        self.tokens = {name: make_token() for name in PEOPLE}
        self.entries = [TokenEntry(f"{name}-laptop", PEOPLE[name], hash_of(self.tokens[name]), name) for name in PEOPLE]
        self.write()

    def write(self, *more: TokenEntry) -> None:
        """Replace the token file by a new one with these further entries, as `gangwatch token` does."""
        path = self.folder / OWN_TOKENS
        temporary = path.with_name("tokens.new")
        temporary.write_bytes(write_entries([*self.entries, *more]))
        temporary.chmod(0o600)
        temporary.replace(path)

    def reset_wrong_tokens(self) -> None:
        """Reset the counts of wrong tokens. All tests come from one address, so the limit would soon apply to all."""
        self.site.controller.access.attempts = Attempts()

    def ask(self, who: str, method: str, path: str, body: object = None, **headers: str | None) -> Answer:
        """Send a request. who: a user's name, '' for anonymous, 'state' for the token in the state folder."""
        token = {"": None, "state": self.site.token}.get(who, self.tokens.get(who))
        given: dict[str, str | None] = {"Authorization": f"Bearer {token}" if token else None}
        return self.site.ask(method, path, {} if body is None and method == "POST" else body, **(given | headers))

    def submit(self, who: str, **more: object) -> str:
        answer = self.ask(who, "POST", "/api/jobs", JOB | more)
        assert answer.status == 201, answer.content
        return str(answer.document["job"])

    def audit(self) -> list[dict[str, Any]]:
        """Return the entries of the audit log, oldest first."""
        path = self.site.controller.audit.path
        assert path is not None
        return [json.loads(line) for line in path.read_text().splitlines()]


@contextmanager
def people(folder: Path, access: Authentication | None = None) -> Iterator[People]:
    with serving(folder, World(), access=access) as site:
        yield People(site, folder)


class Browser:
    """Browser with the cookie of one server, and the CSRF token of its pages."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.port, self.host = port, host
        self.cookies: dict[str, str] = {}
        self.csrf = ""
        self.set_cookies: list[str] = []

    @property
    def origin(self) -> str:
        return f"http://{self.host}:{self.port}"

    def ask(self, method: str, path: str, body: bytes | str | None = None, **headers: str | None) -> Answer:
        sent: dict[str, str | None] = {"Host": f"{self.host}:{self.port}"}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if method == "POST":
            sent |= {"Origin": self.origin, "Sec-Fetch-Site": "same-origin"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = self._connect()
        try:
            connection.request(method, path, body, {name: value for name, value in sent.items() if value is not None})
            response = connection.getresponse()
            answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()
        for name, value in response.getheaders():
            if name.lower() == "set-cookie":
                self.set_cookies.append(value)
                key, _, rest = value.partition("=")
                content, life = rest.partition(";")[0].strip('"'), re.search(r"Max-Age=(\d+)", value)
                if life is not None and life[1] == "0":
                    self.cookies.pop(key, None)
                else:
                    self.cookies[key] = content
        return answer

    def _connect(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=20)

    def log_in(self, token: str, following: str = "/", **headers: str | None) -> Answer:
        form = urlencode({"token": token, "next": following})
        kind: Mapping[str, str | None] = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = self.ask("POST", "/login", form, **{**kind, **headers})
        if answer.status == 303:
            self.load("/")
        return answer

    def load(self, path: str) -> str:
        """Load a page, and store its CSRF token for later posts."""
        text = self.ask("GET", path).content.decode()
        found = re.search(r'<meta name="csrf" content="([^"]+)">', text)
        self.csrf = found[1] if found is not None else ""
        return text

    def post(self, path: str, body: object = None, **headers: str | None) -> Answer:
        """Send a POST as a button of the page does."""
        given: dict[str, str | None] = {"Content-Type": "application/json", "X-Gangwatch-Csrf": self.csrf}
        return self.ask("POST", path, json.dumps({} if body is None else body), **(given | headers))
