"""Other HTTP servers in the agent's place of exporter.server.ThreadedServer: without TLS, passwords and limits."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from exporter.server import AgentApp
from exporter.serving.http_messages import Answer, Request
from exporter.serving.listening import listen, url_of


def _request(method: str, target: str, headers: dict[str, str]) -> Request:
    path, _, query = target.partition("?")
    return Request(method, path, query, headers)


class _Server:
    def __init__(self, app: AgentApp, host: str, port: int, security: object = None) -> None:
        assert security is None
        self.app = app
        self.listener = listen(host, port)
        self.url = url_of(self.listener)
        self._thread = threading.Thread(target=self.serve, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Do nothing: the process ends."""

    def measures(self) -> Iterator[Any]:
        return iter(())

    def serve(self) -> None:
        raise NotImplementedError


class StandardServer(_Server):
    """http.server.ThreadingHTTPServer, which prometheus_client's start_http_server uses through wsgiref."""

    def serve(self) -> None:
        app = self.app

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                answer: Answer = app(_request("GET", self.path, headers))
                assert isinstance(answer.body, bytes)
                self.send_response(answer.status)
                for name, value in (("Content-Type", answer.content_type), *answer.headers):
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Log nothing."""

        address = self.listener.getsockname()
        server = http.server.ThreadingHTTPServer(address, Handler, bind_and_activate=False)
        server.socket.close()
        server.socket = self.listener
        server.serve_forever(poll_interval=3600)


class UvicornServer(_Server):
    """uvicorn with h11, without a framework and without an access log."""

    def serve(self) -> None:
        import uvicorn

        async def respond(
            scope: dict[str, Any], receive: object, send: Callable[[dict[str, Any]], Awaitable[None]]
        ) -> None:
            headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
            request = _request(scope["method"], scope["path"], headers)
            answer = await asyncio.to_thread(self.app, request)
            assert isinstance(answer.body, bytes)
            pairs = (("content-type", answer.content_type), *answer.headers)
            encoded = [(name.lower().encode(), value.encode()) for name, value in pairs]
            encoded.append((b"content-length", str(len(answer.body)).encode()))
            await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
            await send({"type": "http.response.body", "body": answer.body})

        config = uvicorn.Config(respond, lifespan="off", access_log=False, log_level="error", http="h11")
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        asyncio.run(server.serve([self.listener]))
