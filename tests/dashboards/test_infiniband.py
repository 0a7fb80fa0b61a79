"""Network dashboard on InfiniBand: every panel that is not about RoCE, jobs or switches has data.

Two sysfs trees are read: a recorded one of several drivers, and a written H100 node with the files of a real one. A
real agent reads each tree three times while its counters rise. Prometheus's own engine (promtool) evaluates the rules
and every query on three such nodes; one of them has a link at half of its rate.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from agent.collectors.rdma.rdma import RdmaCollector
from agent.node import Node
from dashboards.board import expressions_of
from dashboards.loading import load_all
from dashboards.rules import GROUPS
from dashboards.rules.files import rules_file
from exporter.prometheus.exposition import Settings, expose
from tests import needs
from tests.fakes.sysfs.tree import build, write_number

STEP_SECONDS, MINUTES = 15, 20
SLOW = "n2"

NEEDS_MORE = {
    # Panels and annotations without data on InfiniBand nodes without a controller, and why.
    "Congestion": "verdicts of the controller",
    "Traffic by switch": "racks, which the controller knows",
    "Jobs below each switch": "jobs",
    "Interference": "verdicts of the controller",
    "Congestion notifications by rail": "RoCE",
    "Congestion notifications by switch": "RoCE",
    "Pause frames by rail": "RoCE",
    "Congestion notifications handled": "RoCE",
    "Received packets with a congestion mark": "RoCE",
    "Pause received": "RoCE",
    "Pause sent": "RoCE",
    "Time paused": "RoCE",
}
OF_OTHER_DRIVERS = ("gangwatch_rdma_retransmitted_packets_total", "gangwatch_rdma_physical_symbol_errors_total")
"""Second counters of panels: mlx5 does not count retransmitted packets, and InfiniBand has no Ethernet interface."""


def recorded(root: Path) -> Path:
    """Copy the recorded sysfs tree (prometheus/procfs): hfi1, mlx4 and mlx5, all InfiniBand, without PCI devices."""
    source = needs.data("sysfs-tree", "class", "infiniband")
    shutil.copytree(source, root / "class" / "infiniband")
    return root


def synthesised(root: Path) -> Path:
    """Write an H100 node with eight InfiniBand ports and the files of a node recorded by leptonai/gpud."""
    tree = build(root, nics=8, gpus=0, link_layer="InfiniBand")
    for nic in tree.nics:
        for name in ("rp_cnp_ignored", "rp_cnp_handled", "np_ecn_marked_roce_packets", "np_cnp_sent"):
            (nic.port / "hw_counters" / name).unlink()
    shutil.rmtree(root / "class" / "net")
    return root


def samples_of(root: Path) -> dict[tuple[str, str], float]:
    """Return {(name, labels): value} that a newly started agent exports in the profile `default`."""
    node = Node("n", [RdmaCollector.of(str(root), 1.0)], version="0")
    try:
        node.tick()  # finds the devices
        body = expose(*node.tick(), Settings(profile="default")).decode()
    finally:
        node.stop()
    found = {}
    for family in text_string_to_metric_families(body):
        for sample in family.samples:
            labels = sorted((name, value) for name, value in sample.labels.items() if name != "node")
            found[sample.name, ", ".join(f'{name}="{value}"' for name, value in labels)] = float(sample.value)
    return found


def advance(root: Path) -> None:
    for port in (root / "class" / "infiniband").glob("*/ports/*"):
        for file in (*port.glob("counters/*"), *port.glob("hw_counters/*")):
            text = file.read_text().strip()
            if text.isdigit() and file.name != "lifespan":
                write_number(file, int(text) + 300)


def halve(text: str) -> str:
    """Return half of the link rate, in the kernel's format for a link that has lost lanes."""
    return f"{float(text.split()[0]) / 2:g} Gb/sec (2X)\n"


def input_series(root: Path) -> dict[str, str]:
    """Return series of three nodes in promtool's notation. On node SLOW the first port has half the rate, the last
    is down."""
    first = samples_of(root)
    advance(root)
    second = samples_of(root)
    ports = sorted((root / "class" / "infiniband").glob("*/ports/*"))
    (ports[0] / "rate").write_text(halve((ports[0] / "rate").read_text()))
    (ports[-1] / "state").write_text("1: DOWN\n")
    slow = samples_of(root)
    times = MINUTES * 60 // STEP_SECONDS
    found = {}
    for node in ("n0", "n1", SLOW):
        for (name, labels), before in first.items():
            of = f"{name}{{" + ", ".join(filter(None, ('cluster="c"', f'node="{node}"', labels))) + "}"
            if name.endswith("_total"):
                found[of] = f"{before:.0f}+{second[name, labels] - before:.0f}x{times}"
            else:
                found[of] = f"{(slow if node == SLOW else first)[name, labels]!r}x{times}"
    return found


def plain(expression: str) -> str:
    """Return the expression with Grafana's variables set for the last 15 minutes of the run."""
    for name, value in (
        ("$__rate_interval", "1m"), ("$__range", "15m"), ("$__interval", "15s"), ("$cluster", "c"), ("$node", ".*"),
        ("$rail", ".*"),
    ):  # fmt: skip
        expression = expression.replace(name, value)
    return expression


@pytest.mark.parametrize("tree", [recorded, synthesised])
def test_panels_of_the_fabric_have_data_on_infiniband(tmp_path: Path, tree: Callable[[Path], Path]) -> None:
    promtool = needs.component("promtool", "prometheus")
    board = next(board for _, name, board in load_all() if name == "fabric")
    at = f"{MINUTES - 1}m"
    tests = []
    for where, expression in expressions_of(board.to_json_data()):
        title = where.partition(": ")[2]
        if title == "Alerts":
            continue
        absent = title in NEEDS_MORE or any(name in expression for name in OF_OTHER_DRIVERS)
        value = [] if absent else [{"labels": "{}", "value": 1}]
        tests.append({"expr": f"count({plain(expression)}) > bool 0", "eval_time": at, "exp_samples": value})
    slow = f'count by (node) (ALERTS{{alertname="GangwatchNicSlowLink", alertstate="firing", node="{SLOW}"}})'
    every = 'count(ALERTS{alertname="GangwatchNicSlowLink", alertstate="firing"})'
    tests += [
        {"expr": slow, "eval_time": at, "exp_samples": [{"labels": f'{{node="{SLOW}"}}', "value": 1}]},
        {"expr": every, "eval_time": at, "exp_samples": [{"labels": "{}", "value": 1}]},
    ]
    (tmp_path / "rules.yml").write_text(rules_file(GROUPS))
    series = [{"series": name, "values": values} for name, values in input_series(tree(tmp_path / "sys")).items()]
    document = {
        "rule_files": [str(tmp_path / "rules.yml")],
        "evaluation_interval": f"{STEP_SECONDS}s",
        "tests": [{"interval": f"{STEP_SECONDS}s", "input_series": series, "promql_expr_test": tests}],
    }
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(document, sort_keys=False))
    done = subprocess.run(
        [promtool, "test", "rules", str(tmp_path / "tests.yml")], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
