"""Cost of reading eight NICs: CPU microseconds a second by collector, compared with node_exporter.

python -m benchmarks.sysfs --json

Every file-reading collector reads a synthetic node (tests/fakes/sysfs) with eight mlx5 NICs and eight GPUs at the
agent's intervals. Debian's node_exporter reads the same tree in the same run, with its infiniband collector alone;
its figure includes the HTTP response, ours are the collectors'. Files in memory are much faster than those of a real
kernel and NIC, so the figures are the readers' own cost. Exits non-zero if our cost is out of its range.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from agent.collectors.block import Block, Collector
from agent.collectors.host.gpu_nic_topology import TopologyCollector
from agent.collectors.host.host import HostCollector
from agent.collectors.host.host_devices import HostDeviceCollector
from agent.collectors.host.kernel_events import KernelLogCollector
from agent.collectors.host.network import NetworkCollector
from agent.collectors.host.nfs import NfsCollector
from agent.collectors.host.pcie import PcieCollector
from agent.collectors.rdma.rdma import RdmaCollector
from agent.sources.proc.proc import CLOCK_TICKS_PER_SECOND, parse_process_stat
from agent.sources.rdma.netlink import Shape
from tests.fakes.netlink import FakeRdma, message, statistics
from tests.fakes.sysfs.names import HARDWARE
from tests.fakes.sysfs.tree import Tree, build
from tests.ports import held_port

MOST_CORE_SHARE = 0.003
"""Maximum share of one core for all measured collectors together, at one run per second. The whole agent may use
0.005."""


def _cpu_microseconds(run: Callable[[], object], seconds: float) -> float:
    """Return the CPU microseconds of one call, as the mean over as many calls as fit into `seconds`."""
    run()
    began = time.process_time()
    runs = 0
    while (spent := time.process_time() - began) < seconds:
        run()
        runs += 1
    return spent / runs * 1e6


def _collect(group: Sequence[Collector]) -> None:
    for one in group:
        one.collect()


def _series(block: Block) -> int:
    """Return the number of distinct series with a value. Info series do not count."""
    gauges = sum(
        not column.metric.endswith("_info") and value == value
        for column, value in zip(block.gauge_columns, block.gauges, strict=True)
    )
    return int(gauges) + int(block.counters_valid.sum())


def _ours(tree: Tree, seconds: float) -> dict[str, object]:
    root = str(tree.root)
    rdma = RdmaCollector.of(root, 1.0)
    rdma.collect()
    groups: dict[str, list[Collector]] = {
        "rdma discovery": [rdma],
        "rdma counters": [one for one in rdma.members() if one.name.startswith("rdma/")],
        "rdma slow counters": [one for one in rdma.members() if one.name.startswith("rdma-slow/")],
        "rdma ethtool": [one for one in rdma.members() if one.name.startswith("rdma-ethtool/")],
        "network": [NetworkCollector(root)],
        "pcie": [PcieCollector(root)],
        "topology": [TopologyCollector(root)],
        "nfs": [NfsCollector(root)],
        "kernel log": [KernelLogCollector(str(tree.kernel_log))],
        "host": [HostCollector(root)],
        "disks and interfaces": [HostDeviceCollector(root, root)],
    }
    collectors: dict[str, dict[str, float]] = {}
    for name, group in groups.items():
        run = _cpu_microseconds(partial(_collect, group), seconds)
        interval = group[0].interval_seconds
        collectors[name] = {
            "interval_seconds": interval,
            "cpu_us_per_run": round(run, 1),
            "cpu_us_per_second": round(run / interval, 1),
            "series": sum(_series(one.collect()) for one in group),
        }
    for group in groups.values():
        for one in group:
            one.close()
    total = sum(one["cpu_us_per_second"] for one in collectors.values())
    return {
        "collectors": collectors,
        "cpu_us_per_second": round(total, 1),
        "cpu_percent_of_core": round(total / 1e4, 4),
        "series": sum(int(one["series"]) for one in collectors.values()),
    }


def _decoding(seconds: float) -> dict[str, float]:
    """Return the CPU microseconds to decode one port's 31 netlink counters, with and without a known layout of the
    response."""
    counters = [(name, 2**40 + number) for number, name in enumerate(HARDWARE["mlx5_core"])]
    fake = FakeRdma({"mlx5_0": counters})
    answer = message(5137, 0, 1, statistics(counters, fake.index_of("mlx5_0")))
    shape = Shape(answer, len(answer))
    return {
        "counters": len(counters),
        "generic_us": round(_cpu_microseconds(lambda: Shape(answer, len(answer)), seconds), 2),
        "known_shape_us": round(_cpu_microseconds(lambda: shape.values(answer, len(answer)), seconds), 2),
    }


def _node_exporter(tree: Tree, scrapes: int) -> dict[str, object] | None:
    """Return the CPU time of the whole node_exporter process per scrape; None if it is not installed."""
    program = shutil.which("prometheus-node-exporter")
    if program is None:
        return None
    port = held_port()
    arguments = [
        program,
        f"--web.listen-address=127.0.0.1:{port}",
        f"--path.sysfs={tree.root}",
        "--collector.disable-defaults",
        "--collector.infiniband",
        "--web.disable-exporter-metrics",
    ]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            address = f"http://127.0.0.1:{port}/metrics"
            text = _fetch(address, 30)
            before = _ticks(process.pid)
            for _ in range(scrapes):
                text = _fetch(address, 10)
            spent = (_ticks(process.pid) - before) / CLOCK_TICKS_PER_SECOND
        finally:
            process.terminate()
    series = sum(line.startswith("node_infiniband") and "_info" not in line for line in text.splitlines())
    return {"cpu_us_per_scrape": round(spent / scrapes * 1e6, 1), "series": series}


def _fetch(address: str, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(address, timeout=seconds) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _ticks(pid: int) -> int:
    data = Path(f"/proc/{pid}/stat").read_bytes()
    assert parse_process_stat(data).pid == pid
    words = data[data.rfind(b")") + 2 :].split()
    return int(words[11]) + int(words[12])  # utime and stime, proc(5)


def measure(seconds: float, scrapes: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        tree = build(Path(folder))
        tree.advance(100.0, {"mlx5_3": 0.5})
        return {
            "nics": len(tree.nics),
            "gpus": len(tree.gpus),
            "ours": _ours(tree, seconds),
            "netlink": _decoding(seconds),
            "node_exporter": _node_exporter(tree, scrapes),
        }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--seconds", type=float, default=1.0, help="of processor time for each collector")
    parser.add_argument("--scrapes", type=int, default=200, help="of node_exporter")
    options = parser.parse_args(arguments)
    measured = measure(options.seconds, options.scrapes)
    ours = measured["ours"]
    assert isinstance(ours, dict)
    if options.json:
        print(json.dumps(measured, indent=2))
    else:
        for name, one in ours["collectors"].items():
            print(f"{name:20} {one['cpu_us_per_second']:8.1f} us/s {one['series']:5} series")
        print(f"{'all':20} {ours['cpu_us_per_second']:8.1f} us/s {ours['series']:5} series")
        print(f"node_exporter        {measured['node_exporter']}")
        print(f"netlink              {measured['netlink']}")
    return int(float(ours["cpu_percent_of_core"]) / 100 > MOST_CORE_SHARE)


if __name__ == "__main__":
    sys.exit(main())
