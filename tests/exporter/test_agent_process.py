"""Process `gangwatch agent` on a complete fake node: a real Prometheus scrapes it; it gets signals and reloads."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from exporter.otlp.resource import resource_of_node
from tests import needs
from tests.exporter import dashboards
from tests.exporter.test_exposition import series_of
from tests.exporter.test_push import Receiver
from tests.fakes.nvml.build import build as build_nvml
from tests.fakes.sysfs.tree import build as build_tree
from tests.ports import held_port

NAMES = ("dcgm", "node_exporter", "rdma_exporter")


def get(url: str, path: str) -> tuple[int, bytes]:
    """Return (status, body); status 0 if there is no response."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


def wait_until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"not within 60 s: {what}"
        time.sleep(0.05)


class Agent:
    """Running agent with its fake sysfs and proc files."""

    def __init__(self, folder: Path, configuration: str = "", *options: str) -> None:
        self.tree = build_tree(folder / "sys")
        library = build_nvml(folder)
        self.state, self.file = folder / "state", folder / "gangwatch.toml"
        self.file.write_text(configuration)
        self.url = f"http://127.0.0.1:{held_port()}"
        self.notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notified.settimeout(60)
        self.notified.bind(str(folder / "notify"))
        root = str(self.tree.root)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gangwatch", "agent", "--state", str(self.state), "--config", str(self.file)),
                *("--node", "n0", "--listen", urlsplit(self.url).netloc, "--nvml-library", str(library)),
                *("--sysfs-root", root, "--proc-root", root, "--kernel-log", str(self.tree.kernel_log)),
                *("--kubelet-socket", "", *options),
            ],
            env={**os.environ, "GANGWATCH_FAKE_NVML_BOARD": "h100", "NOTIFY_SOCKET": str(folder / "notify")},
        )

    def next_notification(self) -> str:
        """Return the next message that the agent sends to the service manager (sd_notify)."""
        return self.notified.recv(4096).decode()

    def names(self) -> set[str]:
        status, body = get(self.url, "/metrics")
        return {name for name, _ in series_of(body)} if status == 200 else set()

    def log(self) -> str:
        return (self.state / "log" / "agent-n0.log").read_text()

    def close(self) -> None:
        self.notified.close()
        if self.process.poll() is None:
            self.process.terminate()
        assert self.process.wait(30) == 0


@contextlib.contextmanager
def agent(folder: Path, configuration: str = "", *options: str) -> Iterator[Agent]:
    needs.component("gcc", "gcc")
    one = Agent(folder, configuration, *options)
    try:
        yield one
    finally:
        one.close()


@pytest.mark.slow
def test_existing_dashboards_get_data_from_a_prometheus_that_scrapes_the_agent(tmp_path: Path) -> None:
    program = needs.component("prometheus", "prometheus")
    options = [word for name in NAMES for word in ("--compatibility", name)]
    with agent(tmp_path, "", "--profile", "full", *options) as one:
        wait_until(lambda: "DCGM_FI_PROF_GR_ENGINE_ACTIVE" in one.names(), "profiling")
        address = f"127.0.0.1:{held_port()}"
        (tmp_path / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n  - job_name: gangwatch\n"
            f"    static_configs: [{{targets: ['{urlsplit(one.url).netloc}']}}]\n"
        )
        prometheus = subprocess.Popen(
            [program, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
             f"--web.listen-address={address}", "--log.level=error"],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        unanswered = set(dashboards.QUERIES)

        def ask() -> bool:
            one.tree.advance(1.0)
            for expression in sorted(unanswered):
                status, body = get(f"http://{address}", f"/api/v1/query?query={quote(expression)}")
                if status == 400:
                    raise AssertionError(f"{expression}: {body.decode()}")
                if status == 200 and json.loads(body)["data"]["result"]:
                    unanswered.discard(expression)
            time.sleep(0.5)
            return not unanswered

        try:
            wait_until(ask, f"responses to {sorted(unanswered)}")
            _, body = get(f"http://{address}", "/api/v1/targets")
            (target,) = json.loads(body)["data"]["activeTargets"]
            assert target["health"] == "up" and target["lastError"] == ""
        finally:
            prometheus.terminate()
            prometheus.wait(30)


@pytest.mark.slow
def test_signals_reload_and_stop_the_agent(tmp_path: Path) -> None:
    with agent(tmp_path, "[exporter]\nprofile = 'default'\n") as one:
        assert one.next_notification().startswith("READY=1")
        wait_until(lambda: "gangwatch_gpu_power_watts" in one.names(), "GPUs")
        assert "gangwatch_gpu_max_clock_hertz" not in one.names()

        one.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "gangwatch_gpu_power_watts" not in one.names(), "the release of the GPUs")
        assert "gangwatch_rdma_port_state" in one.names(), "everything else continues"
        one.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: "gangwatch_gpu_power_watts" in one.names(), "the return of the GPUs")

        one.file.write_text("[exporter]\nprofile = 'full'\ncompatibility = ['dcgm']\n")
        one.process.send_signal(signal.SIGHUP)
        assert (
            one.next_notification().startswith("RELOADING=1\nMONOTONIC_USEC=") and one.next_notification() == "READY=1"
        )
        assert {"gangwatch_gpu_max_clock_hertz", "DCGM_FI_DEV_GPU_TEMP"} <= one.names()

        one.file.write_text("[exporter]\nprofile = 'tiny'\n")
        one.process.send_signal(signal.SIGHUP)
        assert one.next_notification().startswith("RELOADING=1") and one.next_notification() == "READY=1"
        assert "DCGM_FI_DEV_GPU_TEMP" in one.names(), "an invalid configuration is not applied"
        assert "exporter.profile: expected 'default' or 'full', not 'tiny'" in one.log()

        one.process.terminate()
        assert one.next_notification() == "STOPPING=1"
        assert one.process.wait(30) == 0
        assert not (one.state / "agents" / "n0.json").exists()


@pytest.mark.parametrize(
    ("configuration", "complaint"),
    [
        ("[agent]\nlisten = '0.0.0.0:0'\n", "not a loopback address, and there is no web configuration"),
        ("[agent]\nweb_config = '/absent'\n", "/absent: No such file"),
        ("[otlp]\nendpoint = 'collector'\n", "otlp.endpoint: 'collector' is not an http or https URL"),
    ],
)
def test_an_invalid_configuration_is_rejected_at_the_start(tmp_path: Path, configuration: str, complaint: str) -> None:
    (tmp_path / "gangwatch.toml").write_text(configuration)
    refused = subprocess.run(
        [
            *(sys.executable, "-m", "gangwatch", "agent", "--state", str(tmp_path / "state"), "--node", "n0"),
            *("--config", str(tmp_path / "gangwatch.toml"), "--nvml-library", "/absent", "--kubelet-socket", ""),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 1
    assert complaint in refused.stderr


def test_variables_alone_make_an_agent_push(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url.removesuffix("/v1/metrics"))
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=c1")
    agent = Agent(tmp_path)
    try:
        wait_until(lambda: receiver.bodies, "the agent pushes")
        (resource,) = receiver.requests()[0].resource_metrics
        found = {one.key: one.value.string_value for one in resource.resource.attributes}
        assert found == {**resource_of_node("n0"), "k8s.cluster.name": "c1"}
        assert receiver.paths[0] == "/v1/metrics"
    finally:
        agent.close()
        receiver.close()


def test_an_agent_runs_without_the_push_if_its_variables_are_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    agent = Agent(tmp_path)
    try:
        wait_until(agent.names, "the agent serves metrics")
        assert "OTEL_EXPORTER_OTLP_PROTOCOL: gangwatch can't push metrics with the protocol 'http/json'" in agent.log()
    finally:
        agent.close()


def test_an_agent_without_push_does_not_import_its_modules() -> None:
    # http.client and ssl are not in this list: prometheus_client imports them (docs/adr/0050).
    heavy = ("asyncio", "bcrypt", "cramjam", "google", "uvicorn", "yaml", "aiohttp", "starlette")
    program = (
        "import sys; import gangwatch.daemons.agent_daemon, exporter.publisher, agent.node, agent.collectors; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
