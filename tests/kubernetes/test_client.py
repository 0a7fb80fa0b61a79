"""Client of the API server: requests and responses, against a small HTTP server in this process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import ssl
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from agent.schema.errors import BackendError, ConfigError
from scheduler_feedback.backends.kubernetes.api_server import client as client_module
from scheduler_feedback.backends.kubernetes.api_server.client import (
    Access,
    Client,
    RefusedError,
    UnreachableError,
)
from tests.kubernetes.tls_server import TlsServer

_anything = msgspec.json.Decoder()


# --- requests --------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serving(handler: Any) -> AsyncIterator[str]:
    """Run a server that handles each request with `handler` on a free port. Yield its URL."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = runner.addresses[0]
    try:
        yield f"http://{address[0]}:{address[1]}"
    finally:
        await runner.cleanup()


def with_client(handler: Any, work: Any, **access: Any) -> Any:
    """Call `work` with a client of a server that runs `handler`. Return its result."""

    async def run() -> Any:
        async with serving(handler) as url, Client(Access(url, **access)) as client:
            return await work(client)

    return asyncio.run(run())


def test_a_request_has_token_type_and_parameters_and_a_rotated_token_is_read_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    received: list[tuple[str, str, dict[str, str], str, str, bytes]] = []

    async def handler(request: web.Request) -> web.Response:
        headers = request.headers
        received.append(
            (request.method, request.path, dict(request.query), headers.get("Authorization", ""),
             headers.get("Content-Type", ""), await request.read())
        )  # fmt: skip
        return web.json_response({"ok": True})

    async def work(client: Client) -> None:
        assert await client.get("/a", _anything, labelSelector="x=y") == {"ok": True}
        token.write_text("two\n")
        await client.create("/b", {"n": 1})
        await client.patch("/c", {"n": 2}, client_module.STRATEGIC_PATCH)
        await client.replace("/d", {})
        await client.delete("/e")

    with_client(handler, work, token_file=token)
    assert [one[:5] for one in received] == [
        ("GET", "/a", {"labelSelector": "x=y"}, "Bearer one", ""),
        ("POST", "/b", {}, "Bearer two", "application/json"),
        ("PATCH", "/c", {}, "Bearer two", "application/strategic-merge-patch+json"),
        ("PUT", "/d", {}, "Bearer two", "application/json"),
        ("DELETE", "/e", {}, "Bearer two", ""),
    ]
    assert json.loads(received[1][5]) == {"n": 1}


def test_a_token_is_read_again_only_after_a_change_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet replaces a symbolic link, so that the new file may have the old one's size and time."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (1, 1))
    link = tmp_path / "token"
    link.symlink_to("one")
    reads: list[str] = []
    bearer = Access.bearer

    def counted(access: Access) -> str:
        reads.append(bearer(access))
        return reads[-1]

    monkeypatch.setattr(Access, "bearer", counted)
    received: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        received.append(request.headers.get("Authorization", ""))
        return web.json_response({})

    async def work(client: Client) -> None:
        for target in ("one", "one", "two", "two"):
            link.unlink()
            link.symlink_to(target)
            await client.get("/a", _anything)
        link.unlink()
        with pytest.raises(BackendError, match="token"):
            await client.get("/a", _anything)

    with_client(handler, work, token_file=link)
    assert received == ["Bearer one", "Bearer one", "Bearer two", "Bearer two"]
    assert reads == ["one", "two"]


@pytest.mark.parametrize(
    ("code", "body", "error", "expected"),
    [
        (404, {"reason": "NotFound", "message": "no such pod"}, RefusedError, "no such pod"),
        (409, {"reason": "Conflict"}, RefusedError, "Conflict"),
        (300, {}, RefusedError, "300"),
        (
            429,
            {"message": "Cannot evict pod as it would violate the pod's disruption budget."},
            RefusedError,
            "violate",
        ),
        (429, {"message": "too many requests"}, UnreachableError, "too many"),
        (500, {"message": "etcd"}, UnreachableError, "500 etcd"),
        (503, "no json", UnreachableError, "no json"),
        (403, "plain words", RefusedError, "plain words"),
    ],
)
def test_refused_requests_and_requests_to_retry(code: int, body: Any, error: type[BackendError], expected: str) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=code, text=body if isinstance(body, str) else json.dumps(body))

    with pytest.raises(error, match=expected) as caught:
        with_client(handler, lambda client: client.get("/x", _anything))
    assert isinstance(caught.value, RefusedError) is (error is RefusedError)
    if isinstance(caught.value, RefusedError):
        assert caught.value.code == code


def test_an_unreachable_server_and_an_invalid_response_are_distinguished() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text="{")

    with pytest.raises(BackendError, match="cannot decode the response") as caught:
        with_client(handler, lambda client: client.get("/x", _anything))
    assert not isinstance(caught.value, UnreachableError)

    async def unreachable() -> None:
        async with Client(Access("http://127.0.0.1:9")) as client:
            await client.get("/x", _anything)

    with pytest.raises(UnreachableError):
        asyncio.run(unreachable())


def test_lines_are_complete_for_any_chunks_and_a_refused_watch_raises() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/refused":
            return web.json_response({"message": "too old", "code": 410}, status=410)
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (b'{"a"', b":1}\n\n{", b'"b":2}\n{"c":3}\nre', b"st"):
            await response.write(part)
            await asyncio.sleep(0.01)
        return response

    async def work(client: Client) -> list[bytes]:
        async with client.lines("/x", 5.0) as lines:
            return [line async for line in lines]

    assert with_client(handler, work) == [b'{"a":1}', b'{"b":2}', b'{"c":3}']

    async def refused_(client: Client) -> None:
        async with client.lines("/refused", 5.0):
            pass

    with pytest.raises(RefusedError) as caught:
        with_client(handler, refused_)
    assert caught.value.code == 410


def test_an_invalid_certificate_is_named_and_without_tls_none_is_read() -> None:
    assert Access("http://x", ca="no certificate").context() is True
    for wrong in ({"ca": "no certificate"}, {"certificate": "none", "key": "none"}):
        with pytest.raises(ConfigError, match="certificates for https://x"):
            Access("https://x", **wrong).context()
    assert Access("https://x").context() is not True


def test_a_connection_to_a_server_that_does_not_respond_is_closed_with_the_client(tmp_path: Path) -> None:
    """A server whose machine has lost its network answers neither the request nor the end of TLS."""
    server = TlsServer(tmp_path)
    with silent(server.context) as port:

        async def run() -> None:
            async with Client(Access(f"https://localhost:{port}", ca=server.ca)) as client:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.get("/x", _anything), 0.5)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            asyncio.run(run())
            gc.collect()
    assert [str(one.message) for one in caught if "unclosed" in str(one.message)] == []


@contextlib.contextmanager
def silent(context: ssl.SSLContext) -> Iterator[int]:
    """Run a TLS server that reads nothing after the handshake of its only connection. Yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def accept() -> None:
            with context.wrap_socket(listener.accept()[0], server_side=True):
                over.wait(30)

        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()[1]
        over.set()
        thread.join()
