"""A client of the API server, with aiohttp for transport and msgspec for decoding.

One client a process; all methods run in the event loop in which it was opened. There are two kinds of errors, because
callers handle them differently: after ``UnreachableError`` it is unknown whether the request took effect, so repeat it;
``RefusedError`` is the server's refusal, with code and message.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec
import yaml

from agent.schema.errors import BackendError, ConfigError

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Path of a pod's service account: https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/"""

_REQUEST_SECONDS = 15.0
_AT_ONCE = 64
"""Maximum number of concurrent requests, not counting watches. A wait at this limit costs a tenth of a wait for a
connection in aiohttp. All pods of a cluster may have to be deleted at once."""

_CLOSING_SECONDS = 0.25
"""Wait after closing the session, because aiohttp returns before its TLS connections are closed:
https://docs.aiohttp.org/en/stable/client_advanced.html#graceful-shutdown"""

_KEPT_ALIVE = {
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 25_000,
}
"""TCP options (tcp(7)) that detect a dead server within 25 s, both while reading and while sending. The values are in
seconds, except for the last, which is in milliseconds."""

_READ_BYTES = 1 << 20
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_T = TypeVar("_T")


class UnreachableError(BackendError):
    """The server sent no response, or asked to retry later. It is unknown whether the request took effect."""


class NotLeadingError(BackendError):
    """The request was not sent: this process no longer leads, and another controller may be acting."""


class RefusedError(BackendError):
    """Refusal by the server. code: of HTTP, or of the Status object; reason: one word ('Conflict', 'Gone')."""

    def __init__(self, what: str, code: int, reason: str, message: str) -> None:
        super().__init__(f"{what}: {message or reason or code}")
        self.code, self.reason, self.message = code, reason, message


class Status(msgspec.Struct, rename="camel"):
    """The server's response to a request that returns no object."""

    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0


@dataclass(frozen=True, slots=True)
class Access:
    """Address and credentials of the API server."""

    url: str
    token: str = ""
    token_file: Path | None = None
    """File of the bearer token, read at every request, because the token is rotated."""

    ca: str = ""
    """PEM of the server's certificate authority; '' for the system's authorities."""

    certificate: str = ""
    """Client certificate."""

    key: str = ""
    """Key of the client certificate."""

    namespace: str = "default"

    def context(self) -> ssl.SSLContext | bool:
        """Return the TLS context. Raises ConfigError if a certificate is invalid."""
        if not self.url.startswith("https:"):
            return True
        try:
            context = ssl.create_default_context(cadata=self.ca or None)
            if self.certificate:
                with tempfile.NamedTemporaryFile() as pair:  # the ssl module reads certificates only from files
                    pair.write(f"{self.certificate}\n{self.key}".encode())
                    pair.flush()
                    context.load_cert_chain(pair.name)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise ConfigError(f"certificates for {self.url}: {error}") from error
        return context

    def bearer(self) -> str:
        """Return the token. Raises BackendError if its file cannot be read."""
        if self.token_file is None:
            return self.token
        try:
            return self.token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BackendError(f"{self.token_file}: {error}") from error


def in_cluster() -> Access | None:
    """Return a pod's access to its own cluster's API server; None outside a cluster."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port or not (_SERVICE_ACCOUNT / "token").exists():
        return None
    host = f"[{host}]" if ":" in host else host
    return Access(
        f"https://{host}:{port}",
        token_file=_SERVICE_ACCOUNT / "token",
        ca=(_SERVICE_ACCOUNT / "ca.crt").read_text(),
        namespace=(_SERVICE_ACCOUNT / "namespace").read_text().strip(),
    )


def from_kubeconfig(path: Path) -> Access:
    """Return the access in the current context of a kubeconfig; supports tokens and certificates.

    Raises ConfigError with the file and the key.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = yaml.safe_load(text)
        context = _named(document, "contexts", document["current-context"])["context"]
        cluster = _named(document, "clusters", context["cluster"])["cluster"]
        user = _named(document, "users", context["user"])["user"]
        url = str(cluster["server"]).rstrip("/")
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from error
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a valid kubeconfig: missing or invalid: {error}") from error
    if {"exec", "auth-provider", "username"} & set(user):
        raise ConfigError(f"{path}: users: only tokens and client certificates are supported")
    return Access(
        url,
        token=str(user.get("token", "")),
        token_file=Path(user["tokenFile"]) if "tokenFile" in user else None,
        ca=_pem(path, cluster, "certificate-authority"),
        certificate=_pem(path, user, "client-certificate"),
        key=_pem(path, user, "client-key"),
        namespace=str(context.get("namespace", "default")),
    )


def _named(document: Any, section: str, name: str) -> Any:
    for item in document[section]:
        if item["name"] == name:
            return item
    raise KeyError(f"{section}: {name}")


def _pem(kubeconfig: Path, section: Mapping[str, Any], key: str) -> str:
    """Return the PEM in the kubeconfig or in the file that it names; '' if there is neither."""
    try:
        if data := section.get(f"{key}-data"):
            return base64.b64decode(data, validate=True).decode()
        if file := section.get(key):
            return (kubeconfig.parent / str(file)).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{kubeconfig}: {key}: {error}") from error
    return ""


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Make a socket, for an address of getaddrinfo, that detects a dead connection."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEPT_ALIVE.items():
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


class Client:
    """Requests to one API server. Open with ``async with``.

    may_write: returns whether we lead. Checked directly before every request that changes something and before each
    retry, because work that began while we led may send its next request a minute later. If we no longer lead, the
    method raises NotLeadingError.
    """

    def __init__(
        self, access: Access, *, agent: str = "gangwatch", may_write: Callable[[], bool] = lambda: True
    ) -> None:
        self.access = access
        self._context = access.context()
        self._agent = agent
        self._may_write = may_write
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        connector = aiohttp.TCPConnector(limit=0, ssl=self._context, force_close=False, socket_factory=_socket)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers={"User-Agent": self._agent, "Accept": "application/json"},
            timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS),
            read_bufsize=_READ_BYTES,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
            await asyncio.sleep(_CLOSING_SECONDS)

    async def get(self, path: str, decoder: msgspec.json.Decoder[_T], **parameters: str) -> _T:
        body = await self._ask("GET", path, parameters=parameters)
        try:
            return decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BackendError(f"GET {path}: cannot decode the response: {error}") from error

    async def create(self, path: str, body: Any, **parameters: str) -> bytes:
        """Send a POST request. The response to a binding is a Status of 'Success' with code 201, not an error."""
        return await self._ask("POST", path, body, "application/json", parameters)

    async def replace(self, path: str, body: Any) -> bytes:
        """Send a PUT request. If the body has a resourceVersion, the request fails if the object has changed since
        then.
        """
        return await self._ask("PUT", path, body, "application/json")

    async def patch(self, path: str, body: Any, kind: str = MERGE_PATCH) -> bytes:
        return await self._ask("PATCH", path, body, kind)

    async def delete(self, path: str, body: Any = None) -> bytes:
        return await self._ask("DELETE", path, body, "" if body is None else "application/json")

    async def _ask(
        self, method: str, path: str, body: Any = None, kind: str = "", parameters: Mapping[str, str] | None = None
    ) -> bytes:
        assert self._session is not None, "the client is open"
        data = None if body is None else msgspec.json.encode(body)
        what, url = f"{method} {path}", self.access.url + path
        try:
            async with self._at_once:
                if method != "GET" and not self._may_write():
                    raise NotLeadingError(f"{what}: not sent, because this controller no longer leads")
                async with self._session.request(
                    method, url, data=data, headers=self._headers(kind), params=parameters or None
                ) as response:
                    answer = await response.read()
                    if response.status >= 300:
                        raise _refused(what, response.status, answer)
                    return answer
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"{what}: {error or type(error).__name__}") from error

    @contextlib.asynccontextmanager
    async def lines(self, path: str, silence_seconds: float, **parameters: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the lines of an endless response: a watch. silence_seconds: longest time between two reads.

        Raises UnreachableError if the response breaks off, RefusedError if the server refuses the request.
        """
        assert self._session is not None, "the client is open"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_SECONDS, sock_read=silence_seconds)
        what = f"watch {path}"
        try:
            async with self._session.get(
                self.access.url + path, headers=self._headers(), params=parameters, timeout=timeout
            ) as response:
                if response.status >= 300:
                    raise _refused(what, response.status, await response.read())
                yield _split(response.content)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"{what}: {error or type(error).__name__}") from error

    def _headers(self, kind: str = "") -> dict[str, str]:
        """Return the headers of a request. kind: media type of the body; '' if there is no body."""
        token = self.access.bearer()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return {**headers, "Content-Type": kind} if kind else headers


async def _split(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield whole lines of any length: aiohttp's line reader fails on lines longer than its buffer."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


_status = msgspec.json.Decoder(Status)
_AGAIN = frozenset({429, 500, 502, 503, 504})


def _refused(what: str, code: int, body: bytes) -> BackendError:
    try:
        status = _status.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        status = Status(message=body[:200].decode(errors="replace"))
    # 429 for an eviction is a refusal by a disruption budget, and names it; otherwise the server is overloaded.
    if code in _AGAIN and not (code == 429 and "disruption budget" in status.message.lower()):
        return UnreachableError(f"{what}: {code} {status.message}")
    return RefusedError(what, code, status.reason, status.message)
