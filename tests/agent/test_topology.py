"""PCI distances and rails: hand-computed, on written sysfs files, and as properties of arbitrary paths."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.collectors.host.gpu_nic_topology import TopologyCollector
from agent.schema.gpu_nic_distance import Distance, PciDevice, distance, path_of, rails, switch_of
from tests.agent.catalogued import assert_catalogued, gauge
from tests.fakes.sysfs.tree import build

GPU = PciDevice("0000:1b:00.0", ("pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:02.0", "0000:1b:00.0"), 0)


def nic(address: str, *path: str, numa_node: int | None = 0) -> PciDevice:
    return PciDevice(address, path, numa_node)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (nic("a", "pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "a"), Distance.PIX),
        (
            nic("a", "pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:04.0", "0000:20:00.0", "x", "a"),
            Distance.PXB,
        ),
        (nic("a", "pci0000:15", "0000:15:02.0", "a"), Distance.PHB),
        (nic("a", "pci0000:37", "0000:37:01.0", "a"), Distance.NODE),
        (nic("a", "pci0000:b7", "0000:b7:01.0", "a", numa_node=1), Distance.SYS),
        (nic("a", "pci0000:b7", "0000:b7:01.0", "a", numa_node=None), Distance.SYS),
        (nic("a"), Distance.NODE),
        (nic("a", numa_node=None), Distance.SYS),
    ],
)
def test_distances_between_devices(other: PciDevice, expected: Distance) -> None:
    assert distance(GPU, other) is expected
    assert distance(other, GPU) is expected


def test_the_switch_of_a_device_is_the_nearest_one() -> None:
    assert switch_of(GPU) == "0000:16:00.0"
    assert switch_of(nic("a", "pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "a")) == "0000:16:00.0"
    nested = nic("a", "pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:04.0", "0000:20:00.0", "0000:21:00.0", "a")
    assert switch_of(nested) == "0000:20:00.0", "the nearest switch"
    for bare in (("pci0000:15", "0000:15:01.0", "a"), ("pci0000:00", "a"), ()):
        assert switch_of(nic("a", *bare)) == "", "there is no switch at a root port or on the root bus"


def test_two_functions_of_one_card_have_distance_pix() -> None:
    one = nic("0000:1b:00.0", "pci0000:15", "0000:15:01.0", "0000:1b:00.0")
    two = nic("0000:1b:00.1", "pci0000:15", "0000:15:01.0", "0000:1b:00.1")
    assert distance(one, two) is Distance.PIX


def test_pci_paths_are_parsed() -> None:
    real = "/sys/devices/pci0000:15/0000:15:01.0/0000:1b:00.0"
    assert path_of(real) == ("pci0000:15", "0000:15:01.0", "0000:1b:00.0")
    assert path_of("/sys/devices/virtual/net/lo") == ()


def test_two_gpus_of_a_switch_get_two_nics() -> None:
    switch = ("pci0000:15", "0000:15:01.0", "0000:16:00.0")
    gpus = [nic(f"0000:2{index}:00.0", *switch, f"0000:17:0{index}.0", f"0000:2{index}:00.0") for index in (1, 2)]
    nics = [nic(f"0000:1{index}:00.0", *switch, f"0000:17:0{index}.0", f"0000:1{index}:00.0") for index in (8, 9)]
    storage = nic("0000:01:00.0", "pci0000:00", "0000:00:01.0", "0000:01:00.0")
    found = rails(gpus, [storage, *nics])
    assert [(one.gpu.address, one.nic.address, one.number) for one in found] == [
        ("0000:21:00.0", "0000:18:00.0", 0),
        ("0000:22:00.0", "0000:19:00.0", 1),
    ]


def test_two_gpus_share_a_near_nic_instead_of_a_far_one() -> None:
    switch = ("pci0000:15", "0000:15:01.0", "0000:16:00.0")
    gpus = [nic(f"0000:2{index}:00.0", *switch, f"0000:17:0{index}.0", f"0000:2{index}:00.0") for index in (1, 2)]
    near = nic("0000:18:00.0", *switch, "0000:17:00.0", "0000:18:00.0")
    far = nic("0000:c8:00.0", "pci0000:c5", "0000:c5:01.0", "0000:c8:00.0", numa_node=1)
    assert {one.nic.address for one in rails(gpus, [far, near])} == {"0000:18:00.0"}
    assert rails(gpus, []) == () and rails([], [near]) == ()


components = st.sampled_from(["a", "b", "c", "d"])
devices = st.builds(
    PciDevice,
    st.uuids().map(str),
    st.lists(components, max_size=6).map(lambda path: ("pci0000:00", *path)),
    st.sampled_from([0, 1, None]),
)


@given(st.lists(devices, max_size=9), st.lists(devices, max_size=9))
def test_rails_of_arbitrary_devices_use_the_nearest_nics(gpus: list[PciDevice], nics: list[PciDevice]) -> None:
    found = rails(gpus, nics)
    assert len(found) == (len(gpus) if nics else 0)
    for one in found:
        assert one.distance == min(distance(one.gpu, nic) for nic in nics), "never farther than necessary"
        assert distance(one.nic, one.gpu) == one.distance
    assert {one.number for one in found} == set(range(len({one.nic.address for one in found})))


def test_rails_of_a_synthesised_node(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=8, gpus=8, management_nics=2)
    collector = TopologyCollector(str(tmp_path))
    block = collector.collect()
    assert_catalogued(block)
    metric = "gangwatch_topology_gpu_nic_distance"
    assert gauge(block, metric, nic="mlx5_0", pci_address=tree.gpus[0]) == Distance.PIX
    assert gauge(block, metric, nic="mlx5_1", pci_address=tree.gpus[0]) == Distance.NODE
    assert gauge(block, metric, nic="mlx5_7", pci_address=tree.gpus[0]) == Distance.SYS
    assert sum(column.metric == metric for column in block.gauge_columns) == 64, (
        "management NICs are not part of the rails"
    )
    for index, gpu in enumerate(tree.gpus):
        assert gauge(
            block,
            "gangwatch_topology_rail_info",
            distance="PIX",
            nic=f"mlx5_{index}",
            nic_pci_address=tree.nics[index].address,
            numa_node=str(index // 4),
            pci_address=gpu,
            rail=str(index),
            switch=f"0000:{int(gpu[5:7], 16) - 5:02x}:00.0",  # as the tree numbers its buses
        )
    assert collector.collect() is block
    tree.remove_nic("mlx5_3")
    assert sum(column.metric == metric for column in collector.collect().gauge_columns) == 56
    collector.close()


def test_a_machine_without_gpus_has_no_topology(tmp_path: Path) -> None:
    block = TopologyCollector(str(tmp_path)).collect()
    assert block.gauge_columns == () and block.counter_columns == ()
