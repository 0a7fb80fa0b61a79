"""ASGI application behind the same TLS and passwords as an agent's server; the controller's is one."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bcrypt
import pytest

from exporter.prometheus.text_format import expose_samples
from exporter.security import security
from exporter.security.security import Security
from exporter.serving.asgi import Receive, Scope, Send, create_server, local_socket
from tests.exporter.certificates import Authority


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


@contextmanager
def served(guard: Security | None) -> Iterator[int]:
    """Serve the application. Yield the port."""
    server, listener = create_server(hello, "127.0.0.1", 0, security=guard)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def get(connection: http.client.HTTPConnection, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection.request("GET", "/", headers=headers)
    answer = connection.getresponse()
    response = answer.status, answer.headers, answer.read()
    connection.close()
    return response


def test_without_a_configuration_only_loopback_hosts_are_accepted() -> None:
    with served(None) as port:
        assert get(http.client.HTTPConnection("127.0.0.1", port, timeout=30))[0] == 200
        assert get(http.client.HTTPConnection("127.0.0.1", port, timeout=30), Host="evil.example")[0] == 403


def test_a_port_and_a_socket_in_a_folder_share_one_series(tmp_path: Path) -> None:
    server, listener = create_server(hello, "127.0.0.1", 0)
    with local_socket(tmp_path / "api.sock") as unix:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener, *unix]})
        thread.start()
        try:
            assert get(http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=30))[0] == 200
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(str(tmp_path / "api.sock"))
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert connection.recv(12) == b"HTTP/1.1 200"
            text = expose_samples(server.measures())
        finally:
            server.should_exit = True
            thread.join()
            listener.close()
    assert "gangwatch_http_accepted_total 2" in text


def test_tls_and_a_password_work_and_a_new_certificate_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "CHECK_SECONDS", 0.0)
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    file = tmp_path / "web.yml"
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()

    def write(authority: Authority) -> None:
        certificate, key = authority.sign("server")
        file.write_text(
            f"tls_server_config: {{cert_file: {certificate}, key_file: {key}}}\nbasic_auth_users: {{a: {hashed}}}\n"
            "http_server_config: {headers: {X-Frame-Options: deny}}\n"
        )

    def ask(port: int, authority: Authority, password: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
        return get(connection, Authorization="Basic " + base64.b64encode(f"a:{password}".encode()).decode())

    write(first)
    with served(Security(file)) as port:
        status, headers, body = ask(port, first, "secret")
        assert (status, body, headers["x-frame-options"]) == (200, b"hello", "deny")
        status, headers, body = ask(port, first, "wrong")
        assert (status, headers["www-authenticate"]) == (401, "Basic") and b"hello" not in body
        write(second)
        assert ask(port, second, "secret")[0] == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(port, first, "secret")
