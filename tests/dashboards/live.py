"""Real Prometheus and Alertmanager that scrape recorded expositions, which are served as time passes."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from dashboards.provisioning import Machine, Target, provisioned_files, write
from tests import needs
from tests.dashboards import accelerated
from tests.dashboards.accelerated import SPEED
from tests.dashboards.scripted import SCRAPE_SECONDS
from tests.ports import held_ports

Bodies = Callable[[float], bytes | None]
"""Response of a target at this second of the world; None: no response."""


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@dataclass(slots=True)
class Notification:
    """Alert that the webhook received. Its time is in simulated seconds."""

    at: float
    status: str
    labels: dict[str, str]
    annotations: dict[str, str]


@dataclass(slots=True)
class Stage:
    """Running clock, scrape targets, and the alerts that the webhook has received."""

    targets: dict[str, Bodies]
    began: float = 0.0
    notified: list[Notification] = field(default_factory=list)
    prometheus: str = ""
    address: str = ""
    folder: Path = Path()

    def now(self) -> float:
        """Return the simulated seconds since the start; 0 before it."""
        return max((time.time() - self.began) * SPEED, 0.0) if self.began else 0.0

    def wait_until(self, seconds: float) -> None:
        while self.now() < seconds:
            time.sleep(min((seconds - self.now()) / SPEED + 0.01, 1.0))

    def place(self, labels: dict[str, dict[str, str]]) -> None:
        """Make Prometheus scrape these paths with these labels. The label `job` selects one of the two scrape jobs."""
        for name, job in (("agents", "agent"), ("controller", "controller")):
            groups = [
                {"targets": [self.address], "labels": {"__metrics_path__": f"/{path}"} | _without_job(own)}
                for path, own in labels.items()
                if own["job"] == job
            ]
            (self.folder / f"prometheus/targets/{name}.json").write_text(json.dumps(groups))

    def query(self, path: str, **parameters: str) -> list[dict[str, Any]]:
        """Return the result of a query. Raises AssertionError with Prometheus's message if it refuses the query."""
        url = f"{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                document = json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters.get('query')}: {error.read().decode()}") from None
        result: list[dict[str, Any]] = document["data"]["result"]
        return result

    def at(self, seconds: float) -> str:
        """Return a simulated second as Prometheus's time."""
        return f"{self.began + seconds / SPEED:.3f}"


def _without_job(labels: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name != "job"}


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors, because the client may disconnect at any time."""


@contextmanager
def _serve(handler: type[_Quiet]) -> Iterator[int]:
    server = _Server(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def _program(arguments: list[str], ready: str, log: Path) -> Iterator[None]:
    """Run a program inside the ``with``, from when it responds at the URL `ready`."""
    with log.open("wb") as output:
        process = subprocess.Popen(arguments, stdout=output, stderr=output)
    try:
        until = time.monotonic() + 60.0
        while True:
            assert process.poll() is None, log.read_text()
            try:
                with urllib.request.urlopen(ready, timeout=2):
                    break
            except OSError:
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def staged(folder: Path, targets: dict[str, Bodies]) -> Iterator[Stage]:
    """Run Prometheus and Alertmanager with the files of `gangwatch dashboards provision`, on the accelerated clock.

    targets: expositions by path; Prometheus scrapes a target after `place` has named it. Skips if a program is absent,
    or fails where all components are required.
    """
    prometheus = needs.component("prometheus", "prometheus")
    alertmanager = needs.component("prometheus-alertmanager", "prometheus-alertmanager")
    stage = Stage(targets, folder=folder)

    class Targets(_Quiet):
        def do_GET(self) -> None:
            body = targets[self.path.removeprefix("/")](stage.now())
            self.answer(503) if body is None else self.answer(200, body)

    class Webhook(_Quiet):
        def do_POST(self) -> None:
            document = json.loads(self.rfile.read(int(self.headers["content-length"])))
            for alert in document["alerts"]:
                stage.notified.append(Notification(stage.now(), alert["status"], alert["labels"], alert["annotations"]))
            self.answer(200)

    with ExitStack() as stack:
        exposed, webhook = stack.enter_context(_serve(Targets)), stack.enter_context(_serve(Webhook))
        port, other = held_ports(2)
        machine = Machine(
            "", folder, (), Target(f"127.0.0.1:{exposed}"), f"http://127.0.0.1:{port}", f"127.0.0.1:{other}",
            f"http://127.0.0.1:{webhook}/",
        )  # fmt: skip
        write(folder, provisioned_files(machine))
        _accelerate(folder)
        stage.address = f"127.0.0.1:{exposed}"
        stack.enter_context(
            _program(
                [
                    alertmanager, f"--config.file={folder}/alertmanager/alertmanager.yml",
                    f"--storage.path={folder}/alerts", f"--web.listen-address=127.0.0.1:{other}",
                    "--cluster.listen-address=", "--log.level=warn",
                ],
                f"http://127.0.0.1:{other}/-/ready",
                folder / "alertmanager.log",
            )
        )  # fmt: skip
        stage.prometheus = f"http://127.0.0.1:{port}"
        stack.enter_context(
            _program(
                [
                    prometheus, f"--config.file={folder}/prometheus/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}",
                    "--query.lookback-delta=5s", "--log.level=warn",
                ],
                f"{stage.prometheus}/-/ready",
                folder / "prometheus.log",
            )
        )  # fmt: skip
        stage.began = time.time()
        yield stage


def _accelerate(folder: Path) -> None:
    """Rewrite windows, waits and intervals in the provisioned files for the accelerated clock."""
    for name in ("recording.yml", "alerts.yml"):
        _rewrite(folder / "rules" / name, accelerated.rules)
    _rewrite(folder / "alertmanager/alertmanager.yml", accelerated.alertmanager)

    def prometheus(document: dict[str, Any]) -> dict[str, Any]:
        interval = accelerated.duration_of(SCRAPE_SECONDS / SPEED)
        document["global"] = {
            "scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval,
        }  # fmt: skip
        for job in document["scrape_configs"]:
            job["file_sd_configs"][0]["refresh_interval"] = "2s"
        return document

    _rewrite(folder / "prometheus/prometheus.yml", prometheus)


def _rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    path.write_text(yaml.safe_dump(change(yaml.safe_load(path.read_text())), sort_keys=False))
