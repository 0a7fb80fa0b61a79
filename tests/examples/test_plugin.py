"""Example plug-in, installed in a running agent and a running controller, and scraped by a real Prometheus."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from tests import needs
from tests.exporter.plugins.test_plugins import samples_of
from tests.ports import held_port, held_ports

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plugin"

BROKEN = """
[project]
name = "gangwatch-broken-plugin"
version = "0.1.0"
[project.entry-points."gangwatch.collectors"]
blocked = "gangwatch_broken_plugin:Blocked"
raises = "gangwatch_broken_plugin:Raises"
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.hatch.build.targets.wheel]
only-include = ["gangwatch_broken_plugin.py"]
"""

BROKEN_CODE = """
import threading
class Blocked:
    def collect(self):
        threading.Event().wait()
class Raises:
    def collect(self):
        raise ZeroDivisionError("no rack")
"""

SCRAPES = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: agent
    static_configs: [{{targets: ["127.0.0.1:{agent}"]}}]
  - job_name: controller
    static_configs: [{{targets: ["127.0.0.1:{controller}"]}}]
"""


def install(source: Path, folder: Path) -> None:
    """Install a package with pip, without a network, into a folder for PYTHONPATH."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"),
            *("--disable-pip-version-check", "--target", str(folder), str(source)),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def wait_until(condition: Callable[[], object], what: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"not within 60 s: {what()}"
        time.sleep(0.1)


@contextmanager
def running(log: Path, environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(arguments, stdout=output, stderr=output, env=environment)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def fetch(url: str, accept: str = "") -> bytes:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=20) as answer:
            body: bytes = answer.read()
            return body
    except OSError:
        return b""


@pytest.mark.slow
def test_collector_and_text_file_reach_a_real_prometheus(tmp_path: Path) -> None:
    prometheus = needs.component("prometheus", "prometheus")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "pyproject.toml").write_text(BROKEN)
    (broken / "gangwatch_broken_plugin.py").write_text(BROKEN_CODE)
    site = tmp_path / "site"
    install(EXAMPLE, site)
    install(broken, site)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GANGWATCH_")} | {
        "PYTHONPATH": str(site),
        "SITE_CHECKPOINT_FOLDERS": f"{tmp_path}:/absent",
        "HOME": str(tmp_path),
    }
    ours = (sys.executable, "-m", "gangwatch")
    textfiles = ("--textfile-folder", str(EXAMPLE / "textfiles"))
    agent_port, controller_port = held_port(), held_port()
    (port,) = held_ports(1)
    (tmp_path / "prometheus.yml").write_text(SCRAPES.format(agent=agent_port, controller=controller_port))
    urls = [f"http://127.0.0.1:{one}/metrics" for one in (agent_port, controller_port)]
    logs = {name: tmp_path / f"{name}.log" for name in ("agent", "controller", "prometheus")}
    with (
        running(
            logs["agent"], environment, *ours, "agent", "--node", "n0", "--listen", f"127.0.0.1:{agent_port}",
            "--state", str(tmp_path / "a"), "--nvml-library", "/absent", "--kubelet-socket", "", *textfiles,
        ),
        running(
            logs["controller"], environment, *ours, "controller", "--port", str(controller_port), "--no-gpus",
            "--state", str(tmp_path / "c"), *textfiles,
        ),
        running(
            logs["prometheus"], environment, prometheus, f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ),
    ):  # fmt: skip

        def values(query: str) -> dict[str, float]:
            answer = fetch(f"http://127.0.0.1:{port}/api/v1/query?query={quote(query)}")
            found = json.loads(answer)["data"]["result"] if answer else []
            return {one["metric"].get("job", ""): float(one["value"][1]) for one in found}

        both = {"agent", "controller"}
        free = f'site_checkpoint_free_bytes{{folder="{tmp_path}"}}'
        failing = 'min by (job) (gangwatch_plugin_failures_total{plugin=~"blocked|raises"}) >= 3'
        for query in (free, 'site_rack_info{rack="r12"}', "process_resident_memory_bytes", failing):
            wait_until(
                lambda query=query: set(values(query)) == both,  # type: ignore[misc]
                lambda query=query: (query, values(query), *(log.read_text() for log in logs.values())),  # type: ignore[misc]
            )
        facts = os.statvfs(tmp_path)
        for value in values(free).values():
            assert 0.5 < value / (facts.f_bavail * facts.f_frsize) < 2
        assert values('gangwatch_plugin_success{plugin="checkpoint_space"}') == dict.fromkeys(both, 1.0)
        assert values('max by (job) (gangwatch_plugin_success{plugin=~"blocked|raises"})') == dict.fromkeys(both, 0.0)
        assert set(values("up == 1")) == both
        for url in urls:
            text, open_metrics = fetch(url), fetch(url, "application/openmetrics-text;version=1.0.0")
            assert open_metrics.endswith(b"# EOF\n")
            # Parsed by prometheus_client's parsers, which reject a family that is there twice.
            same = samples_of(text).keys() ^ samples_of(open_metrics.removesuffix(b"# EOF\n"), True).keys()
            assert not {key for key in same if key.startswith(("site_", "process_", "gangwatch_plugin"))}
    for state in ("a", "c"):
        logged = "".join(log.read_text() for log in (tmp_path / state).rglob("*.log"))
        assert logged.count("plugin=raises reason=collect() raised ZeroDivisionError: no rack") == 1
        assert "plugin=blocked reason=no result for" in logged
