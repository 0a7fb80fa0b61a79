"""PCI Express links and AER error counts of a node with written sysfs files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from agent.collectors.host.pcie import PcieCollector
from agent.schema.errors import SourceError
from agent.sources.sysfs.pci import parse_aer, parse_generation, parse_width
from tests.agent.catalogued import assert_catalogued, counter, gauge
from tests.fakes.sysfs.tree import AER_CORRECTABLE, AER_UNCORRECTABLE, build


def test_links_and_errors_are_read(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=2, gpus=2)
    gpu = tmp_path / "bus" / "pci" / "devices" / tree.gpus[0]
    (gpu / "current_link_speed").write_text("8.0 GT/s PCIe\n")
    (gpu / "current_link_width").write_text("8\n")
    collector = PcieCollector(str(tmp_path))
    block = collector.collect()
    assert_catalogued(block)
    assert len(block.counter_columns) == 4 * (len(AER_CORRECTABLE) + 2 * len(AER_UNCORRECTABLE))
    address = {"pci_address": tree.gpus[0]}
    assert gauge(block, "gangwatch_pcie_link_generation", **address) == 3
    assert gauge(block, "gangwatch_pcie_link_generation_maximum", **address) == 5
    assert gauge(block, "gangwatch_pcie_link_lanes", **address) == 8
    assert gauge(block, "gangwatch_pcie_link_lanes_maximum", **address) == 16
    assert gauge(block, "gangwatch_pcie_device_info", driver="nvidia", kind="gpu", numa_node="0", **address) == 1
    nic = tree.nics[1].address
    assert gauge(block, "gangwatch_pcie_device_info", driver="mlx5_core", kind="nic", numa_node="1", pci_address=nic)
    errors = "gangwatch_pcie_errors_total"
    assert counter(block, errors, error="BadTLP", severity="correctable", **address) == 0
    correctable = gpu / "aer_dev_correctable"
    correctable.write_text(correctable.read_text().replace("BadTLP 0", "BadTLP 12"))
    assert collector.collect() is block
    assert counter(block, errors, error="BadTLP", severity="correctable", **address) == 12
    assert counter(block, errors, error="BadTLP", severity="correctable", pci_address=nic) == 0
    collector.close()


def test_a_gpu_off_the_bus_affects_only_its_own_values(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=1, gpus=2)
    gpu = tmp_path / "bus" / "pci" / "devices" / tree.gpus[0]
    collector = PcieCollector(str(tmp_path))
    collector.collect()
    (gpu / "current_link_speed").write_text("Unknown\n")
    (gpu / "current_link_width").write_text("63\n")
    (gpu / "aer_dev_fatal").write_text("nonsense\n")
    block = collector.collect()
    address = {"pci_address": tree.gpus[0]}
    assert math.isnan(gauge(block, "gangwatch_pcie_link_generation", **address))
    assert math.isnan(gauge(block, "gangwatch_pcie_link_lanes", **address))
    errors = "gangwatch_pcie_errors_total"
    assert counter(block, errors, error="TLP", severity="fatal", **address) is None
    assert counter(block, errors, error="TLP", severity="nonfatal", **address) == 0
    assert counter(block, errors, error="TLP", severity="fatal", pci_address=tree.gpus[1]) == 0
    (gpu / "aer_dev_fatal").write_text("\n".join(f"{name} 1" for name in (*AER_UNCORRECTABLE, "TOTAL_ERR_FATAL")))
    assert counter(collector.collect(), errors, error="TLP", severity="fatal", **address) == 1, "the series recovers"
    collector.close()


def test_series_follow_added_and_removed_devices(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=2, gpus=0)
    collector = PcieCollector(str(tmp_path))
    both = collector.collect()
    tree.remove_nic("mlx5_0")
    one = collector.collect()
    assert len(one.counter_columns) * 2 == len(both.counter_columns)
    tree.return_nic("mlx5_0")
    assert len(collector.collect().counter_columns) == len(both.counter_columns)
    collector.close()


def test_virtual_functions_are_left_out(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=2, gpus=0)
    (tree.nics[1].device / "physfn").symlink_to(tree.nics[0].device)
    collector = PcieCollector(str(tmp_path))
    assert {dict(column.labels)["pci_address"] for column in collector.collect().gauge_columns} == {
        tree.nics[0].address
    }
    collector.close()


@pytest.mark.parametrize(
    ("text", "generation"),
    [("2.5 GT/s PCIe", 1), ("32.0 GT/s PCIe", 5), ("64.0 GT/s PCIe", 6), ("8 GT/s", 3), ("Unknown", None)],
)
def test_link_speeds_give_the_generation(text: str, generation: int | None) -> None:
    assert parse_generation(text) == generation


def test_malformed_files_are_rejected() -> None:
    for text in ("", "7.0 GT/s PCIe", "fast", "-8.0 GT/s"):
        with pytest.raises(ValueError, match="is not a link speed"):
            parse_generation(text)
    for text in ("", "x16", "-1"):
        with pytest.raises(ValueError, match="is not a link width"):
            parse_width(text)
    assert parse_width("255") is None and parse_width("0") is None
    with pytest.raises(SourceError):
        parse_aer(b"RxErr none\n")


def test_the_links_of_this_machine_are_read() -> None:
    collector = PcieCollector()
    assert_catalogued(collector.collect())
    collector.close()
