"""Cost of the dashboards for Prometheus: queries of every panel and rule over an hour of a cluster's series.

python -m benchmarks.dashboards --nodes 1000 --json

Fills a real Prometheus with an hour, at intervals of 15 s, of every series that dashboards and rules read (`promtool
tsdb create-blocks-from openmetrics`). Queries each panel over this hour as Grafana does, and evaluates each rule
once. Prints the slowest query and the largest number of series in a panel. The cluster has eight GPUs and NICs per
node and sixteen nodes per job; the agents' profile is `default`. Values are synthetic, since the cost does not
depend on them.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, TextIO

from agent.schema.catalog import BY_NAME
from dashboards.board import expressions_of
from dashboards.expressions import names_of
from dashboards.loading import load_all
from dashboards.rules import GROUPS, Recording
from exporter.prometheus.profiles import left_out_by

STEP_SECONDS, SECONDS = 15, 3600
GPUS, NODES_A_GANG, RACK = 8, 16, 32
MOST_SECONDS = 2.0
"""Maximum seconds that a panel's query may take."""

OF_A_GPU, OF_A_NIC = "gpu", "device"

RECORDED_LABELS = {
    "gpu": ("node", "gpu"), "nic": ("node", "device"), "node": ("node",), "rank": ("gang", "rank"), "gang": ("gang",),
    "port": ("node", "device", "port", "board_id"), "rail": ("rail",), "rack": ("rack",),
    "verdict": ("gang", "verdict"),
}  # fmt: skip
"""Labels that identify a recorded series, by the first part of its name. MORE contains further labels by full name."""

MORE = {
    "gpu:gangwatch_gpu_owner:topk1": ("gang", "rank"),
    "nic:gangwatch_gpu_owner:topk1": ("gang", "rank"),
    "nic:gangwatch_topology_rail:info": ("rail",),
    "gang:gangwatch_gang_info:name": ("name", "queue", "state"),
    "rack:gangwatch_gpu_owner:count": ("gang",),
    "rail:gangwatch_rdma_pause_frames:rate2m": ("direction",),
    "verdict:gangwatch_verdict_lost_slots:join": (
        "name", "node", "device", "aggressor", "resource", "kind", "cause", "rank",
    ),
}  # fmt: skip

CHOICES: dict[str, tuple[str, ...]] = {
    "severity": ("corrected", "uncorrected"),
    "reason": ("hw_thermal", "sw_thermal", "hw_power_brake", "hw_slowdown", "power_cap", "gpu_idle"),
    "direction": ("receive", "transmit"),
    "resource": ("cpu", "io", "memory"),
    "mode": ("idle", "iowait", "irq", "nice", "softirq", "steal", "system", "user"),
    "kind": ("replay", "recovery", "crc"),
    "action": ("none", "gpu_reset"),
    "cause": ("correctable", "uncorrectable"),
    "collector": tuple(f"c{number}" for number in range(20)),
    "state": ("running",),
    "use": ("free", "unavailable", "used"),
    "outcome": ("applied", "observed"),
    "queue": ("research", "production"),
}
"""Label values by label name. Every device or node has series with all of these values."""


def read_names() -> list[str]:
    """Return the names of the series that a panel, annotation or rule reads and agents publish in the profile
    `default`."""
    expressions = [expression for _, _, board in load_all() for _, expression in expressions_of(board.to_json_data())]
    expressions += [rule.expression for group in GROUPS for rule in group.rules]
    names = {name for expression in expressions for name in names_of(expression)}
    return sorted(name for name in names if ":" in name or left_out_by(name, "default", (), ()) is None)


def series_of(name: str, nodes: int) -> Iterator[dict[str, str]]:
    """Yield the labels of all series of this name."""
    if ":" in name:
        labels = {*RECORDED_LABELS[name.split(":")[0]], *MORE.get(name, ())}
        of_a_node = "node" in labels and "verdict" not in labels
    else:
        metric = BY_NAME[name]
        labels = set(metric.labels)
        of_a_node = metric.source not in ("the cycle", "the controller", "the detectors") or name.endswith(
            ("node_state", "node_place_info")
        )
    if "verdict" not in labels and ("rank" in labels or of_a_node):
        per_node = "gpu" in labels or "rank" in labels or "device" in labels or {"nic", "pci_address"} & labels
        for node in range(nodes):
            for unit in range(GPUS if per_node else 1):
                yield from _expanded(labels | ({"node"} if of_a_node else set()), node, unit)
    elif "gang" in labels:
        for node in range(0, nodes, NODES_A_GANG):
            yield from _expanded(labels, node, 0)
    elif "rail" in labels:
        for rail in range(GPUS):
            yield from _expanded(labels, 0, rail)
    elif "rack" in labels:
        for node in range(0, nodes, RACK):
            yield from _expanded(labels, node, 0)
    else:
        yield from _expanded(labels, 0, 0)


def _expanded(labels: set[str], node: int, unit: int) -> Iterator[dict[str, str]]:
    """Yield the labels of each series of one device or node: one for each combination of label values in CHOICES."""
    gang = node // NODES_A_GANG
    identity = {
        "node": f"node-{node:05d}", "gpu": f"GPU-{node:08x}-{unit}", "gang": f"j-{gang:06d}", "attempt": "1",
        "rank": str((node % NODES_A_GANG) * GPUS + unit), "device": f"mlx5_{unit}", "nic": f"mlx5_{unit}", "port": "1",
        "rail": str(unit), "rack": f"rack-{node // RACK}", "pci_address": f"0000:{unit:02x}:00.0", "priority": "3",
        "verdict": f"v-{gang}", "name": f"train-{gang}",
    }  # fmt: skip
    own = {name: identity[name] for name in labels if name in identity}
    # A job or a verdict has one series of each name; a device has one for each label value.
    if "verdict" in labels or ("gang" in labels and "rank" not in labels):
        own |= {name: CHOICES[name][0] for name in labels if name in CHOICES}
    many = [name for name in sorted(labels) if name not in own and name in CHOICES]
    for values in product(*(CHOICES[name] for name in many)):
        rest = {name: "" for name in labels if name not in own and name not in many}
        yield {"cluster": "c"} | own | rest | dict(zip(many, values, strict=True))


def write_series(file: TextIO, nodes: int, end: int) -> int:
    """Write all series in OpenMetrics format with timestamps, and return their number."""
    times = range(end - SECONDS, end + 1, STEP_SECONDS)
    count = 0
    for name in read_names():
        for labels in series_of(name, nodes):
            count += 1
            text = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
            head, step = f"{name}{{{text}}} ", count % 97
            file.write("".join([f"{head}{step + index * (step % 5)} {at}\n" for index, at in enumerate(times)]))
    file.write("# EOF\n")
    return count


def asked(expression: str) -> str:
    """Return a panel's query as Grafana sends it, with its variables replaced: one hour, one job and one node."""
    values = {
        "$__rate_interval": "1m", "$__range_s": "3600", "$__range": "1h", "$__interval": "15s", "$cluster": "c",
        "$gang": "j-000000", "$node": "node-00001", "$queue": ".*", "$rail": ".*", "$verdict": ".*", "$rank": "9",
    }  # fmt: skip
    for name, value in values.items():
        expression = expression.replace(name, value)
    return expression


class Server:
    """A Prometheus server with a folder of prepared blocks."""

    def __init__(self, folder: Path, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [
                "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=10y", "--log.level=error",
            ],
        )  # fmt: skip
        while True:
            try:
                with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
                    return
            except OSError:
                if self._process.poll() is not None:
                    raise SystemExit("prometheus did not start") from None
                time.sleep(0.2)

    def ask(self, path: str, **parameters: str) -> tuple[float, int]:
        """Send a query; return its duration in seconds and its number of series."""
        body = urllib.parse.urlencode(parameters).encode()
        began = time.perf_counter()
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{path}", data=body, timeout=120) as response:
                answer: dict[str, Any] = json.load(response)
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{parameters['query']}: {error.read().decode()}") from None
        return time.perf_counter() - began, len(answer["data"]["result"])

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(found[1]) / 1024 if found else float("nan")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def measure(folder: Path, nodes: int, port: int) -> dict[str, Any]:
    """Fill Prometheus, run all queries and return what they cost."""
    # Blocks span two hours. The hour ends at the end of the newest complete block, so that one block contains it.
    end = int(time.time()) // 7200 * 7200 - STEP_SECONDS
    text = folder / "series.txt"
    with text.open("w") as file:
        count = write_series(file, nodes, end)
    began = time.perf_counter()
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text), str(folder / "data")],
        check=True,
    )
    filled_seconds = time.perf_counter() - began
    text.unlink()
    (folder / "prometheus.yml").write_text("global: {}\n")
    server = Server(folder, port)
    try:
        panels = _ask_panels(server, end)
        rules = _ask_rules(server, end)
        resident = server.resident_mib()
    finally:
        server.stop()
    slowest = sorted(panels, key=lambda one: -one["seconds"])
    return {
        "nodes": nodes,
        "gpus": nodes * GPUS,
        "series": count,
        "samples": count * (SECONDS // STEP_SECONDS + 1),
        "filled_seconds": round(filled_seconds, 1),
        "panel_queries": len(panels),
        "panels_over_2_s": [one["panel"] for one in panels if one["seconds"] > MOST_SECONDS],
        "slowest_panels": slowest[:8],
        "most_series_a_query": max(one["series"] for one in panels),
        "most_series_query": max(panels, key=lambda one: one["series"])["panel"],
        "rule_seconds_together": round(sum(one["seconds"] for one in rules), 3),
        "slowest_rules": sorted(rules, key=lambda one: -one["seconds"])[:5],
        "prometheus_resident_mib": round(resident, 1),
        "children_cpu_seconds": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, 1),
    }


def _ask_panels(server: Server, end: int) -> list[dict[str, Any]]:
    found = []
    for _, _, board in load_all():
        document = board.to_json_data()
        instants = {
            target["expr"]
            for panel in document["panels"]
            for target in panel.get("targets", ())
            if target.get("instant")
        }
        for where, expression in expressions_of(document):
            query = asked(expression)
            if expression in instants:
                seconds, series = server.ask("query", query=query, time=str(end))
            else:
                span = {"start": str(end - SECONDS), "end": str(end), "step": str(STEP_SECONDS)}
                seconds, series = server.ask("query_range", query=query, **span)
            found.append({"panel": where, "seconds": round(seconds, 4), "series": series})
    return found


def _ask_rules(server: Server, end: int) -> list[dict[str, Any]]:
    found = []
    for group in GROUPS:
        for rule in group.rules:
            seconds, series = server.ask("query", query=" ".join(rule.expression.split()), time=str(end))
            kind = "recording" if isinstance(rule, Recording) else "alert"
            found.append({"rule": rule.name, "kind": kind, "seconds": round(seconds, 4), "series": series})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--port", type=int, default=19094)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is absent: apt-get install prometheus")
    with tempfile.TemporaryDirectory(prefix="gangwatch-dashboards-") as folder:
        result = measure(Path(folder), arguments.nodes, arguments.port)
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        for key, value in result.items():
            print(f"{key}: {value}")
    return 1 if result["panels_over_2_s"] else 0


if __name__ == "__main__":
    sys.exit(main())
