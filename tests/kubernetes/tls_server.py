"""API server behind TLS, a proxy, and fake credential plug-ins (shell scripts), for tests of the client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.exporter.certificates import Authority

SERVER_NAME = "api.cluster.example"
V1, V1BETA1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"


class TlsServer:
    """TLS server that accepts listed tokens, or client certificates with listed common names.

    Its certificate names SERVER_NAME and localhost.
    """

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.ca = self.authority.certificate.read_text()
        self.valid: set[str] = set()
        """Accepted tokens and common names."""
        self.received: list[tuple[str, str, str]] = []
        """Method, path and identity of each request, in order: the token, or the common name of a certificate."""
        certificate, key = self.authority.sign("server", f"DNS:{SERVER_NAME},DNS:localhost")
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate, key)
        self.context.load_verify_locations(self.authority.certificate)
        self.context.verify_mode = ssl.CERT_OPTIONAL

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        """Serve on loopback; yield the port."""
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self.context).start()
        try:
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        identity = request.headers.get("Authorization", "").removeprefix("Bearer ")
        assert request.transport is not None
        if not identity and (peer := request.transport.get_extra_info("peercert")):
            identity = dict(pair for (pair,) in peer["subject"])["commonName"]
        self.received.append((request.method, request.path, identity))
        if identity not in self.valid:
            return web.json_response({"kind": "Status", "code": 401, "message": "Unauthorized"}, status=401)
        return web.Response(text=json.dumps({"identity": identity}) + "\n")


@contextlib.asynccontextmanager
async def proxying(target_port: int, connects: list[str]) -> AsyncIterator[int]:
    """Run an HTTP proxy that connects each CONNECT to `target_port`. Yield its port. connects: receives each request
    head."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connects.append((await reader.readuntil(b"\r\n\r\n")).decode())
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", target_port)
        with contextlib.closing(writer), contextlib.closing(upstream_writer):  # also if the test ends before the client
            await carry(reader, writer, upstream_reader, upstream_writer)

    async def carry(
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream_reader: asyncio.StreamReader,
        upstream_writer: asyncio.StreamWriter,
    ) -> None:
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(1 << 16):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(copy(reader, upstream_writer), copy(upstream_reader, writer))

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


class FakePlugin:
    """Credential plug-in: a script that records its arguments and KUBERNETES_EXEC_INFO, and prints an answer."""

    def __init__(self, folder: Path, name: str = "plugin", after: str = "") -> None:
        """Write the script. after: shell commands to run before the answer is printed."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / name
        self._answer, self._runs = folder / f"{name}.answer", folder / f"{name}.runs"
        self._runs.touch()
        self.path.write_text(
            "#!/bin/sh\n"
            f'printf "%s\\t%s\\t%s\\n" "$*" "${{AWS_PROFILE:-}}" "$KUBERNETES_EXEC_INFO" >> "{self._runs}"\n'
            f'{after}\ncat "{self._answer}"\n'
        )
        self.path.chmod(0o755)

    def answers(self, version: str = V1, **status: Any) -> None:
        self.prints(json.dumps({"kind": "ExecCredential", "apiVersion": version, "status": status}))

    def prints(self, text: str) -> None:
        self._answer.write_text(text)

    @property
    def runs(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return the arguments, AWS_PROFILE and KUBERNETES_EXEC_INFO of each run."""
        return list(self._parsed())

    def _parsed(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        for line in self._runs.read_text().splitlines():
            arguments, profile, info = line.split("\t")
            yield arguments, profile, json.loads(info)
