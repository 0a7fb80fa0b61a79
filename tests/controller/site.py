"""Controller behind a real HTTP server, with a client, for tests of the API and of the pages."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from scheduler_feedback.api.access.authentication import Authentication
from scheduler_feedback.controller.controller import Controller
from scheduler_feedback.controller.controller_settings import ControllerSettings
from scheduler_feedback.core.events import NodeSeen
from scheduler_feedback.core.state import Policy
from tests.cluster.memory_backend import MemoryBackend, World

JOB = {"name": "train", "command": ["python", "train.py"], "ranks": 2}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> str:
        assert set(self.document) == {"error"}, "an error is an object with one key"
        return str(self.document["error"])


@dataclass
class Site:
    """Running controller behind a real HTTP server, with a client."""

    controller: Controller
    world: World
    port: int
    reloads: list[Policy | Exception] = field(default_factory=list)

    @property
    def token(self) -> str:
        return self.controller.token

    def ask(self, method: str, path: str, body: object = None, **headers: str | None) -> Answer:
        """Send a request as a well-behaved client does. A header whose value is None is omitted."""
        sent: dict[str, str | None] = {"Host": f"127.0.0.1:{self.port}", "Authorization": f"Bearer {self.token}"}
        if method == "POST":
            sent["Content-Type"] = "application/json"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(content or b"")))
            connection.endheaders(content or b"")
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.content
        return answer.document

    def post(self, path: str, body: object = None) -> Any:
        answer = self.ask("POST", path, {} if body is None else body)
        assert answer.status in (200, 201), answer.content
        return answer.document

    def submit(self, **more: object) -> str:
        return str(self.post("/api/jobs", JOB | more)["job"])

    def grow(self, *nodes: NodeSeen) -> None:
        """Add nodes to the backend, and wait until the controller has observed them."""
        self.world.nodes.extend(nodes)
        deadline = time.monotonic() + 20
        while sum(self.get("/api/overview")["nodes"].values()) < len(self.world.nodes):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def wait(self, job_id: str, state: str) -> dict[str, Any]:
        deadline = time.monotonic() + 20
        while (job := self.get(f"/api/jobs/{job_id}"))["state"] != state:
            assert time.monotonic() < deadline, job
            time.sleep(0.01)
        assert isinstance(job, dict)
        return job


@contextmanager
def serving(
    folder: Path, world: World, streams: tuple[int, int] = (256, 64), access: Authentication | None = None
) -> Iterator[Site]:
    """Run a controller with its server inside the ``with``. streams: maximum of event streams, in total and per
    peer."""
    reloads: list[Policy | Exception] = []

    def reload() -> Policy:
        answer = reloads.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    settings = ControllerSettings(detectors=(), streams=streams, access=access)
    with Controller(folder, MemoryBackend(world), Policy(), settings, reload=reload) as controller:
        app = Starlette(routes=[Mount("/", controller.api())], lifespan=lambda _: controller.serving(lambda: None))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            site = Site(controller, world, listener.getsockname()[1], reloads)
            try:
                deadline = time.monotonic() + 20
                while site.ask("GET", "/readyz").status != 200:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                yield site
            finally:
                server.should_exit = True
                controller.end_streams()
                thread.join()
