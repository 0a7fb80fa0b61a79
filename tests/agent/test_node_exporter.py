"""RDMA values under node_exporter's names, compared with the real node_exporter on the same sysfs tree."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.collectors.rdma.rdma import RdmaCollector
from agent.node import Node
from agent.schema.catalog import BY_NAME
from exporter.prometheus.exposition import Settings, expose
from tests import needs
from tests.fakes.sysfs.tree import build
from tests.ports import held_port

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]

SERIES = re.compile(r"^(node_infiniband_\w+)\{(.*)\} (\S+)$", re.M)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

KNOWN_BUG = "node_infiniband_lifespan_seconds"
"""node_exporter divides by 1000 as integers, so ten milliseconds become 0 seconds."""


@contextmanager
def node_exporter(root: Path) -> Iterator[str]:
    """Run a node_exporter with only its infiniband collector, and yield the address of its /metrics."""
    program = needs.component("prometheus-node-exporter", "prometheus-node-exporter")
    port = held_port()
    arguments = [
        program,
        f"--web.listen-address=127.0.0.1:{port}",
        f"--path.sysfs={root}",
        "--collector.disable-defaults",
        "--collector.infiniband",
        "--web.disable-exporter-metrics",
    ]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}/metrics"
        finally:
            process.terminate()


def scrape(address: str) -> str:
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def theirs(root: Path) -> Series:
    with node_exporter(root) as address:
        return {
            (name, tuple(sorted(LABEL.findall(labels)))): float(value)
            for name, labels, value in SERIES.findall(scrape(address))
        }


def ours(root: Path) -> Series:
    """Return the agent's series that node_exporter also has, under node_exporter's names."""
    parent = RdmaCollector(str(root))
    blocks = [parent.collect(), *(member.collect() for member in parent.members())]
    found: Series = {}
    for block in blocks:
        columns = [(column, float(value)) for column, value in zip(block.gauge_columns, block.gauges, strict=True)]
        columns += [
            (column, int(value) * BY_NAME[column.metric].scale)
            for column, value, good in zip(block.counter_columns, block.counters, block.counters_valid, strict=True)
            if good
        ]
        for column, value in columns:
            name = BY_NAME[column.metric].compatibility
            if name.startswith("node_infiniband_") and value == value:
                wanted = ("board_id", "device", "firmware_version", "hca_type", "port")
                found[name, tuple(pair for pair in column.labels if pair[0] in wanted)] = value
    for member in parent.members():
        member.close()
    parent.close()
    return found


def exposed(root: Path) -> Series:
    """Return the series that the agent's /metrics has under node_exporter's names."""
    node = Node("here", [RdmaCollector(str(root))], version="1")
    node.tick()  # finds the devices; the next tick reads them
    text = expose(*node.tick(), Settings(compatibility=("node_exporter",))).decode()
    node.stop()
    return {(name, tuple(sorted(LABEL.findall(labels)))): float(value) for name, labels, value in SERIES.findall(text)}


def compare(root: Path) -> tuple[Series, Series]:
    them, us = theirs(root), ours(root)
    assert len(them) > 50
    different = {
        key: (value, us.get(key)) for key, value in them.items() if key[0] != KNOWN_BUG and us.get(key) != value
    }
    assert different == {}
    return them, us


def test_values_of_the_recorded_tree_equal_node_exporter() -> None:
    root = needs.data("sysfs-tree")
    _, us = compare(root)
    # node_exporter of Debian 12 does not read hardware counters; the files have them.
    files = root / "class" / "infiniband" / "mlx5_0" / "ports" / "1" / "hw_counters"
    port = (("device", "mlx5_0"), ("port", "1"))
    for name, file in (
        ("out_of_sequence_packets_received_total", "out_of_sequence"),
        ("local_ack_timeout_errors_total", "local_ack_timeout_err"),
        ("req_cqes_errors_total", "req_cqe_error"),
        ("resp_cqes_flush_errors_total", "resp_cqe_flush_error"),
        ("roce_adp_retransmits_total", "roce_adp_retrans"),
        ("roce_slow_restart_cnps_total", "roce_slow_restart_cnps"),
        ("rx_read_requests_total", "rx_read_requests"),
        ("rx_write_requests_total", "rx_write_requests"),
    ):
        assert us[f"node_infiniband_{name}", port] == int((files / file).read_text())
    assert us[KNOWN_BUG, port] == 0.01


def test_the_exposition_of_the_recorded_tree_equals_node_exporter() -> None:
    root = needs.data("sysfs-tree")
    them = theirs(root)
    us = {
        (name, tuple(pair for pair in labels if pair[0] != "node")): value
        for (name, labels), value in exposed(root).items()
    }
    assert {key: us.get(key) for key in them if key[0] != KNOWN_BUG} == {
        key: value for key, value in them.items() if key[0] != KNOWN_BUG
    }


@pytest.mark.parametrize("driver", ["mlx5_core", "bnxt_en", "efa"])
def test_values_of_a_synthesised_node_equal_node_exporter(tmp_path: Path, driver: str) -> None:
    tree = build(tmp_path, nics=4, driver=driver)
    tree.advance(1000.0, {tree.nics[1].name: 0.7})
    compare(tmp_path)
