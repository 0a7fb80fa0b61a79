"""Scrape of an agent on each server model, compared with golden files: families, kinds, labels, numbers of series.

GANGWATCH_UPDATE_GOLDEN=1 rewrites the files.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics

from agent.schema.frame import Frame, Layout
from exporter.prometheus.exposition import Settings, expose
from tests import needs
from tests.exporter.fake_nodes import NICS, Workshop
from tests.exporter.test_exposition import series_of

GOLDEN = Path(__file__).parent / "golden"
BOARDS = tuple(NICS)
EVERYTHING = Settings(compatibility=("dcgm", "node_exporter", "rdma_exporter"))

MOST_VALUES = 12
"""Golden files have only the number of values for labels with more values than this, and for labels of devices."""

IDENTITIES = frozenset(
    {
        *("UUID", "board_id", "boot_id", "collector", "device", "gpu", "mig", "netdev", "nic", "pci_address"),
        *("pci_bus_id", "peer", "serial"),
    }
)


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Layout, Frame]]:
    made: dict[str, tuple[Layout, Frame]] = {}
    workshop = Workshop(tmp_path_factory.mktemp("nodes"))
    for board in BOARDS:
        with workshop.node(board) as node:
            made[board] = node.frame()
    return made


def shape(layout: Layout, frame: Frame) -> str:
    """Return one line for each family: name, kind, number of series, and the values of each label, or how many they
    are."""
    kinds: dict[str, str] = {}
    labels: dict[str, dict[str, set[str]]] = {}
    counts: dict[str, int] = {}
    for line in expose(layout, frame, EVERYTHING).decode().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kinds[name] = line.split(" ")
        elif not line.startswith("#"):
            name, _, rest = line.rpartition(" ")[0].partition("{")
            counts[name] = counts.get(name, 0) + 1
            for label, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', rest):
                labels.setdefault(name, {}).setdefault(label, set()).add(value)
    lines = []
    for name, kind in sorted(kinds.items()):
        shown = [
            f"{label}*{len(values)}"
            if label in IDENTITIES or len(values) > MOST_VALUES
            else f"{label}={'|'.join(sorted(values))}"
            for label, values in sorted(labels.get(name, {}).items())
            if label != "node"
        ]
        lines.append(" ".join([name, kind, str(counts[name]), *shown]))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("board", BOARDS)
def test_series_of_the_board_equal_the_golden_file(board: str, frames: dict[str, tuple[Layout, Frame]]) -> None:
    golden = GOLDEN / f"{board}.txt"
    found = shape(*frames[board])
    if os.environ.get("GANGWATCH_UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        golden.write_text(found)
    assert found == golden.read_text()


@pytest.mark.parametrize("board", BOARDS)
def test_promtool_accepts_the_clean_names(board: str, frames: dict[str, tuple[Layout, Frame]]) -> None:
    promtool = needs.component("promtool", "prometheus")
    checked = subprocess.run([promtool, "check", "metrics"], input=expose(*frames[board]), capture_output=True)
    assert (checked.returncode, checked.stdout.decode(), checked.stderr.decode()) == (0, "", "")


@pytest.mark.parametrize("board", BOARDS)
def test_open_metrics_is_parsed_and_has_the_same_values(board: str, frames: dict[str, tuple[Layout, Frame]]) -> None:
    layout, frame = frames[board]
    body = expose(layout, frame, EVERYTHING, open_metrics=True)
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
        for family in parse_open_metrics(body.decode())
        for sample in family.samples
    }
    # The parser of the text format appends _total to every counter, also to DCGM's.
    text = series_of(expose(layout, frame, EVERYTHING))
    assert {(name.removesuffix("_total"), labels): value for (name, labels), value in found.items()} == {
        (name.removesuffix("_total"), labels): value for (name, labels), value in text.items()
    }


def test_the_default_profile_of_a_node_leaves_room_for_its_jobs(frames: dict[str, tuple[Layout, Frame]]) -> None:
    full = len(series_of(expose(*frames["h100"])))
    default = len(series_of(expose(*frames["h100"], Settings(profile="default"))))
    assert full >= 3000
    assert default <= 1050, "the limit is 1,200 with eight ranks and their owners"


def test_the_default_profile_has_the_metrics_of_the_dashboards(frames: dict[str, tuple[Layout, Frame]]) -> None:
    names = {name for name, _ in series_of(expose(*frames["h100"], Settings(profile="default")))}
    assert names >= {
        *(f"gangwatch_gpu_{name}" for name in ("info", "up", "utilization_ratio", "memory_used_bytes", "power_watts")),
        *(f"gangwatch_gpu_{name}" for name in ("energy_joules_total", "temperature_celsius", "sm_clock_hertz")),
        *(f"gangwatch_gpu_{name}" for name in ("tensor_active_ratio", "dram_active_ratio", "sm_occupancy_ratio")),
        *(f"gangwatch_gpu_{name}" for name in ("throttle_state", "xid_events_total", "ecc_errors_total")),
        *(f"gangwatch_gpu_{name}" for name in ("row_remap_pending", "recovery_action", "pcie_replays_total")),
        "gangwatch_gpu_nvlink_transmit_bytes_per_second",
        *(f"gangwatch_rdma_{name}" for name in ("port_state", "port_receive_bytes_total", "cnp_handled_total")),
        *(f"gangwatch_rdma_{name}" for name in ("out_of_sequence_total", "pause_seconds_total", "device_info")),
        "gangwatch_collector_success",
        "gangwatch_host_pressure_waiting_seconds_total",
        "gangwatch_topology_rail_info",
    }
