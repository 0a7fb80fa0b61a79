"""Server like the controller's in this process, with short time limits, and misbehaving clients."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from exporter.security.security import Security
from exporter.serving import gate, limits
from exporter.serving.admission import App, Message, Receive, Scope, Send
from exporter.serving.asgi import Server, create_server
from exporter.serving.limits import Limits

TOKEN = "the token"


@dataclass
class Served:
    """Running server with its port."""

    server: Server
    port: int

    def connect(self, sent: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        """Connect from this address, and send these bytes."""
        client = socket.socket()
        client.settimeout(20)
        client.bind((source, 0))
        client.connect(("127.0.0.1", self.port))
        client.sendall(sent)
        return client

    def ask(self, path: str = "/", token: bool = False, method: str = "GET", body: bytes | None = None) -> int:
        """Send one well-formed request. Return the status."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {TOKEN}"} if token else {})
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()

    @property
    def refused(self) -> dict[str, float]:
        """Return {reason: number of refusals}."""
        return {
            labels[0][1]: value
            for name, labels, value in self.server.measures()
            if name == "gangwatch_http_refused_total"
        }

    def open(self) -> int:
        return int(next(value for name, _, value in self.server.measures() if name == "gangwatch_http_connections"))


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """ASGI application: / answers at once, /big with 8 MB, /wait never, and a POST once its body has arrived."""
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
    message: Message = {"more_body": scope["method"] == "POST" and scope["path"] != "/unread"}
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            return
    if scope["path"] == "/wait":
        await receive()  # until the client disconnects
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    body = b"x" * 8_000_000 if scope["path"] == "/big" else b"hello"
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def served(bounds: Limits | None = None, security: Security | None = None, of: App = app) -> Iterator[Served]:
    """Run the application `of` in a server inside the ``with``."""
    server, listener = create_server(
        of, "127.0.0.1", 0, security=security, limits=bounds, holds_token=lambda header: header == f"Bearer {TOKEN}"
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started)
        yield Served(server, listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set all time limits of the server to half a second or less."""
    for name, seconds in (("HEAD_SECONDS", 0.5), ("BODY_SECONDS", 0.5), ("SEND_SECONDS", 0.5), ("LINGER_SECONDS", 0.3)):
        monkeypatch.setattr(limits, name, seconds)
    monkeypatch.setattr(gate, "LOOK_SECONDS", 0.1)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)


def read_response(client: socket.socket) -> bytes:
    """Read one complete response."""
    received = b""
    while not received.endswith(b"hello"):
        data = client.recv(65536)
        assert data, f"the connection ended after {received!r}"
        received += data
    return received


def read_until_closed(client: socket.socket) -> bytes:
    """Return all data until the server closes the connection."""
    received = b""
    try:
        while data := client.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    client.close()
    return received
