"""Metrics of a real node, checked by promtool and scraped by a real Prometheus."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from agent.collectors.host.host import HostCollector
from agent.collectors.host.rank_processes import ProcessCollector
from agent.node import Node
from agent.rank_attribution import RankFile
from agent.sources.proc.proc import read_process_stat
from exporter.server import ThreadedServer, agent_app
from tests import needs
from tests.ports import held_port

MATCH = quote('{job="gangwatch"}', safe="")

CONFIGURATION = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: gangwatch
    static_configs: [{{targets: ["{target}"]}}]
"""


class ThisProcess:
    """Source of one rank: this process."""

    def ranks(self) -> list[RankFile]:
        stat = read_process_stat("/proc", os.getpid())
        assert stat is not None
        return [RankFile("j-000001", 1, 0, stat.pid, stat.start_time)]


@pytest.fixture
def served() -> Iterator[ThreadedServer]:
    node = Node("n0", [HostCollector(interval_seconds=0.2), ProcessCollector(ThisProcess())], interval_seconds=0.2)
    node.start()
    with ThreadedServer(agent_app(node.newest, node.add_listener)) as server:
        end = time.monotonic() + 30
        while get(server.url, "/readyz")[0] != 200:
            assert time.monotonic() < end, "no frame within 30 s"
            time.sleep(0.02)
        yield server
    node.stop()


def get(url: str, path: str) -> tuple[int, bytes]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_promtool_accepts_the_metrics_of_a_real_node(served: ThreadedServer) -> None:
    promtool = needs.component("promtool", "prometheus")
    text = get(served.url, "/metrics")[1]
    assert b"gangwatch_rank_cpu_seconds_total{" in text
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    assert (checked.returncode, checked.stdout.decode(), checked.stderr.decode()) == (0, "", "")


def test_a_real_scrape_renames_no_label(served: ThreadedServer, tmp_path: Path) -> None:
    prometheus = needs.component("prometheus", "prometheus")
    configuration = tmp_path / "prometheus.yml"
    configuration.write_text(CONFIGURATION.format(target=urlsplit(served.url).netloc))
    url = f"http://127.0.0.1:{held_port()}"
    process = subprocess.Popen(
        [
            prometheus,
            f"--config.file={configuration}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={urlsplit(url).netloc}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        series: list[dict[str, str]] = []
        end = time.monotonic() + 60
        while not series:
            assert time.monotonic() < end, "nothing was scraped within 60 s"
            assert process.poll() is None, f"prometheus ended with {process.returncode}"
            time.sleep(0.2)
            try:
                status, body = get(url, f"/api/v1/series?match[]={MATCH}")
            except OSError:
                continue
            if status == 200:
                series = [one for one in json.loads(body)["data"] if one["__name__"].startswith("gangwatch_")]
    finally:
        process.terminate()
        process.wait(30)
    assert {one["__name__"] for one in series} >= {"gangwatch_host_cpu_seconds_total", "gangwatch_rank_threads"}
    for one in series:
        assert not [label for label in one if label.startswith("exported_")], one
        assert (one["job"], one["node"]) == ("gangwatch", "n0")
