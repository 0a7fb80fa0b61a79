"""Network interfaces of a node with written sysfs files, and of this machine."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from agent.collectors.host.network import NetworkCollector
from agent.schema.errors import UnsupportedError
from tests.agent.catalogued import assert_catalogued, counter, gauge
from tests.fakes.sysfs.tree import build


def test_every_value_of_the_files_is_collected(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=2)
    interface = tmp_path / "class" / "net" / "rail1"
    (interface / "operstate").write_text("down\n")
    (interface / "carrier_changes").write_text("17\n")
    (interface / "statistics" / "rx_dropped").write_text("5\n")
    collector = NetworkCollector(str(tmp_path))
    block = collector.collect()
    assert_catalogued(block)
    assert (
        gauge(
            block,
            "gangwatch_network_info",
            address="00:00:5e:00:53:01",
            device="rail1",
            driver="mlx5_core",
            pci_address=tree.nics[1].address,
        )
        == 1
    )
    assert gauge(block, "gangwatch_network_up", device="rail0") == 1
    assert gauge(block, "gangwatch_network_up", device="rail1") == 0
    assert gauge(block, "gangwatch_network_carrier", device="rail1") == 1
    assert gauge(block, "gangwatch_network_speed_bytes_per_second", device="rail1") == 50e9
    assert gauge(block, "gangwatch_network_mtu_bytes", device="rail1") == 4200
    assert counter(block, "gangwatch_network_carrier_changes_total", device="rail1") == 17
    assert counter(block, "gangwatch_network_carrier_down_total", device="rail1") == 1
    assert counter(block, "gangwatch_network_receive_drops_total", device="rail1") == 5
    collector.close()


def test_values_that_an_interface_lacks_while_down_are_absent(tmp_path: Path) -> None:
    build(tmp_path, nics=1)
    interface = tmp_path / "class" / "net" / "rail0"
    (interface / "speed").write_text("-1\n")
    (interface / "carrier").unlink()
    (interface / "carrier").symlink_to(
        "/sys/class/net/lo/speed"
    )  # reading it fails with EINVAL from the running kernel
    collector = NetworkCollector(str(tmp_path))
    block = collector.collect()
    assert math.isnan(gauge(block, "gangwatch_network_speed_bytes_per_second", device="rail0"))
    assert math.isnan(gauge(block, "gangwatch_network_carrier", device="rail0"))
    assert gauge(block, "gangwatch_network_up", device="rail0") == 1
    collector.close()


def test_only_hardware_interfaces_and_bonds_are_read(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=2)
    (tree.nics[1].device / "physfn").symlink_to(tree.nics[0].device)
    for name in ("lo", "veth1", "bond0/bonding"):
        (tmp_path / "class" / "net" / name).mkdir(parents=True)
    (tmp_path / "class" / "net" / "bonding_masters").write_text("bond0\n")
    collector = NetworkCollector(str(tmp_path))
    block = collector.collect()
    assert {dict(column.labels)["device"] for column in block.gauge_columns} == {"bond0", "rail0"}
    assert collector.collect() is block
    tree.remove_nic("mlx5_0")
    assert {dict(column.labels)["device"] for column in collector.collect().gauge_columns} == {"bond0"}
    tree.return_nic("mlx5_0")
    assert counter(collector.collect(), "gangwatch_network_carrier_changes_total", device="rail0") == 2
    collector.close()


def test_the_interfaces_of_this_machine_are_read() -> None:
    collector = NetworkCollector()
    block = collector.collect()
    assert_catalogued(block)
    collector.close()


def test_a_machine_without_interfaces_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="class/net"):
        NetworkCollector(str(tmp_path))
