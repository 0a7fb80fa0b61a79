"""A client of the API server, with aiohttp for transport and msgspec for decoding.

One client a process; all methods run in the event loop in which it was opened. There are two kinds of errors, because
callers handle them differently: after ``UnreachableError`` it is unknown whether the request took effect, so repeat it;
``RefusedError`` is the server's refusal, with code and message.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import tempfile
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec

from agent.schema.errors import BackendError, ConfigError
from scheduler_feedback.backends.kubernetes.api_server.exec_credentials import Credential, CredentialError, ExecPlugin

_REQUEST_SECONDS = 15.0
_AT_ONCE = 64
"""Maximum number of concurrent requests, not counting watches. Further requests wait, which costs a tenth as
much as waiting for a connection in aiohttp. All pods of a cluster may have to be deleted at once."""

_CLOSING_SECONDS = 0.25
"""Maximum seconds that TLS connections may take to close. aiohttp returns before they are closed, and a server that
does not respond never closes them: https://docs.aiohttp.org/en/stable/client_advanced.html#graceful-shutdown"""

_CLOSING_LOOK_SECONDS = 0.005
_LEAD_LOOK_SECONDS = 0.05

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
    """The server sent no response, or requested a later retry. It is unknown whether the request took effect."""


class _NotLeadingError(BackendError):
    """The request was not sent, because this process does not lead now."""


class RefusedError(BackendError):
    """Refusal by the server. code: HTTP status, or the code of the Status object. reason: one word, such as
    'Conflict'.
    """

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
    """Client certificate in PEM; '' for none."""

    key: str = ""
    """Private key of the client certificate, in PEM; '' for none."""

    namespace: str = "default"
    plugin: ExecPlugin | None = None
    """Program that returns the token or the client certificate; None if both are known."""

    proxy: str = ""
    """URL of an HTTP proxy, with user and password if it needs them; '' for none."""

    server_name: str = ""
    """Name in the server's certificate, if it is not the host of `url`; '' if it is."""

    def context(self, credential: Credential | None = None) -> ssl.SSLContext | bool:
        """Return the TLS context, with the client certificate of the plugin's credential if it has one.

        Raises ConfigError if a certificate is invalid.
        """
        if not self.url.startswith("https:"):
            return True
        certificate, key = self.certificate, self.key
        if credential is not None and credential.certificate:
            certificate, key = credential.certificate, credential.key
        try:
            context = ssl.create_default_context(cadata=self.ca or None)
            if certificate:
                with tempfile.NamedTemporaryFile() as pair:  # the ssl module reads certificates only from files
                    pair.write(f"{certificate}\n{key}".encode())
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


class Client:
    """Requests to one API server. Open with ``async with``.

    may_write: returns whether this controller is the leader. Every request that changes something, and every retry,
    checks it first and waits while it is false. A slow API server may delay the renewal of the lease until after the
    time for which the leader may act; the work in progress then continues after the renewal. A process that has lost
    its lease ends, and its work with it.
    """

    def __init__(
        self, access: Access, *, agent: str = "gangwatch", may_write: Callable[[], bool] = lambda: True
    ) -> None:
        self.access = access
        self._context = access.context()
        self._plugin_context: tuple[Credential, ssl.SSLContext | bool] | None = None
        self._token: tuple[tuple[int, int, int], str] | None = None  # identity of the token's file, and its token
        self._obtaining = asyncio.Lock()
        self._agent = agent
        self._may_write = may_write
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._session: aiohttp.ClientSession | None = None
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    async def __aenter__(self) -> Client:
        connector = aiohttp.TCPConnector(limit=0, ssl=self._context, force_close=False, socket_factory=self._socket)
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
            if await self._open_sockets():
                for one in list(self._sockets):
                    with contextlib.suppress(OSError):  # it is closed
                        one.shutdown(socket.SHUT_RDWR)
                await self._open_sockets()

    async def _open_sockets(self) -> bool:
        """Wait until all sockets are closed. Return whether one is still open after _CLOSING_SECONDS."""
        until = time.monotonic() + _CLOSING_SECONDS
        while any(one.fileno() >= 0 for one in list(self._sockets)):
            if time.monotonic() > until:
                return True
            await asyncio.sleep(_CLOSING_LOOK_SECONDS)
        return False

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        """Make a socket, for an address of getaddrinfo, that detects a dead connection."""
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEPT_ALIVE.items():
            made.setsockopt(socket.IPPROTO_TCP, option, value)
        return made

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
        what = f"{method} {path}"
        while True:
            while method != "GET" and not self._may_write():  # outside of `_at_once`: reads continue
                await asyncio.sleep(_LEAD_LOOK_SECONDS)
            try:
                async with (
                    self._at_once,
                    self._response(method, path, kind, data=data, params=parameters or None) as response,
                ):
                    answer = await response.read()
                    if response.status >= 300:
                        raise _refused(what, response.status, answer)
                    return answer
            except _NotLeadingError:
                continue
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                raise UnreachableError(f"{what}: {error or type(error).__name__}") from error

    @contextlib.asynccontextmanager
    async def lines(self, path: str, silence_seconds: float, **parameters: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the lines of a watch's response, which has no end. silence_seconds: maximum time between two reads.

        Raises UnreachableError if the response breaks off, RefusedError if the server refuses the request.
        """
        assert self._session is not None, "the client is open"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST_SECONDS, sock_read=silence_seconds)
        what = f"watch {path}"
        try:
            async with self._response("GET", path, params=parameters, timeout=timeout) as response:
                if response.status >= 300:
                    raise _refused(what, response.status, await response.read())
                yield _split(response.content)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"{what}: {error or type(error).__name__}") from error

    @contextlib.asynccontextmanager
    async def _response(
        self, method: str, path: str, kind: str = "", **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield its response. kind: media type of the body; options: arguments of aiohttp's request.

        If the server refuses a plugin's credential (401), renew the credential and repeat the request once: the server
        has not executed it.
        """
        assert self._session is not None, "the client is open"
        access, credential = self.access, await self._credential()
        for repeats in (True, False):
            if method != "GET" and not self._may_write():
                raise _NotLeadingError(f"{method} {path}")
            async with self._session.request(
                method,
                access.url + path,
                headers=self._headers(kind, credential),
                ssl=self._tls(credential),
                proxy=access.proxy or None,
                server_hostname=access.server_name or None,
                **options,
            ) as response:
                renewed = credential
                if repeats and response.status == 401 and credential is not None:
                    renewed = await self._credential(credential)
                if renewed is credential:
                    yield response
                    return
            credential = renewed

    async def _credential(self, refused: Credential | None = None) -> Credential | None:
        """Return the plugin's credential; None without a plugin. refused: the credential that the server has refused.

        Raises UnreachableError if the plugin fails.
        """
        plugin = self.access.plugin
        if plugin is None:
            return None
        if refused is None and (cached := plugin.cached()) is not None:
            return cached
        async with self._obtaining:
            try:
                return await asyncio.to_thread(plugin.obtain, refused)
            except CredentialError as error:
                raise UnreachableError(str(error)) from error

    def _tls(self, credential: Credential | None) -> ssl.SSLContext | bool:
        """Return the TLS context of a request. aiohttp opens new connections for a new context."""
        if credential is None or not credential.certificate:
            return self._context
        if self._plugin_context is None or self._plugin_context[0] is not credential:
            try:
                self._plugin_context = credential, self.access.context(credential)
            except ConfigError as error:
                raise UnreachableError(f"certificate of the credential plugin: {error}") from error
        return self._plugin_context[1]

    def _bearer(self) -> str:
        """Return the token. Its file is read again only if it has changed: the check costs a fifth of a read.

        Raises UnreachableError if the file cannot be read: the request was not sent, and can be repeated.
        """
        file = self.access.token_file
        if file is None:
            return self.access.token
        try:
            status = file.stat()
        except OSError as error:
            raise UnreachableError(f"{file}: {error}") from error
        identity = (status.st_ino, status.st_mtime_ns, status.st_size)
        if self._token is None or self._token[0] != identity:
            try:
                self._token = identity, self.access.bearer()
            except BackendError as error:
                raise UnreachableError(str(error)) from error
        return self._token[1]

    def _headers(self, kind: str, credential: Credential | None) -> dict[str, str]:
        """Return the headers of a request. kind: media type of the body; '' if there is no body."""
        token = credential.token if credential is not None else self._bearer()
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
