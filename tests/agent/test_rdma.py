"""RDMA collectors on written sysfs files: one series per file, isolated faults, devices that appear or disappear."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.collectors.block import Block, Collector
from agent.collectors.rdma.rdma import RdmaCollector
from agent.collectors.rdma.rdma_counters import FIRST
from agent.node import Node
from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.rdma.ethtool import RecordedEthtool
from agent.sources.rdma.infiniband import DeviceFinder, parse_rate, parse_state
from agent.sources.rdma.netlink import RdmaNetlink
from tests.agent.catalogued import assert_catalogued, counter, gauge
from tests.fakes.netlink import FakeRdma
from tests.fakes.sysfs.names import EFA_DEVICE, HARDWARE, PORT_COUNTERS
from tests.fakes.sysfs.tree import Tree, build, write_number


def collector_of(
    tree: Tree, netlink: Callable[[], RdmaNetlink] | None = None, **more: tuple[str, ...]
) -> RdmaCollector:
    root = str(tree.root)
    return RdmaCollector(root, ethtool=lambda: RecordedEthtool(root), netlink=netlink, **more)


def close(parent: RdmaCollector) -> None:
    for member in parent.members():
        member.close()
    parent.close()


def member(parent: RdmaCollector, name: str) -> Collector:
    return next(one for one in parent.members() if one.name == name)


def series_of(*blocks: Block) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    return [
        (column.metric, column.labels) for block in blocks for column in (*block.gauge_columns, *block.counter_columns)
    ]


@pytest.mark.parametrize("driver", ["mlx5_core", "bnxt_en", "ice", "efa", "rxe"])
def test_every_file_of_every_driver_is_one_series(tmp_path: Path, driver: str) -> None:
    tree = build(tmp_path, nics=1, gpus=1, driver=driver)
    nic = tree.nics[0]
    expected = 0
    files = [nic.port / "counters" / name for name in PORT_COUNTERS]
    files += [nic.port / "hw_counters" / name for name in HARDWARE[driver]]
    if driver == "efa":
        files += [nic.port.parent.parent / "hw_counters" / name for name in EFA_DEVICE]
    for expected, path in enumerate(files, 1):
        write_number(path, 1000 + expected)
    parent = collector_of(tree)
    parent.collect()
    blocks = [one.collect() for one in parent.members() if not one.name.startswith("rdma-ethtool")]
    for block in blocks:
        assert_catalogued(block)
    every = series_of(*blocks)
    assert len(set(every)) == len(every), "no series is in two blocks"
    values = [
        int(value) for block in blocks for value, good in zip(block.counters, block.counters_valid, strict=True) if good
    ]
    values += [
        int(value)
        for block in blocks
        for column, value in zip(block.gauge_columns, block.gauges, strict=True)
        if column.metric == "gangwatch_rdma_resources"
    ]
    assert sorted(values) == [1000 + number for number in range(1, expected + 1)]
    close(parent)


def test_values_and_counter_widths_are_correct(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=2)
    nic = tree.nics[1]
    write_number(nic.port / "hw_counters" / "np_cnp_sent", 2**40 + 1)
    write_number(nic.port / "hw_counters" / "local_ack_timeout_err", 2**32 - 1)
    write_number(nic.port / "counters" / "port_xmit_data", 2**64 - 1)
    parent = collector_of(tree)
    block = parent.collect()
    assert_catalogued(block)
    assert gauge(block, "gangwatch_rdma_devices") == 2
    assert (
        gauge(
            block,
            "gangwatch_rdma_device_info",
            board_id="MT_0000000838",
            device="mlx5_1",
            driver="mlx5_core",
            firmware_version="28.39.1002",
            hca_type="MT4129",
            numa_node="0",
            pci_address=nic.address,
            physical_function="",
        )
        == 1
    )
    assert (
        gauge(block, "gangwatch_rdma_port_info", device="mlx5_1", link_layer="Ethernet", netdev="rail1", port="1") == 1
    )
    fast = member(parent, "rdma/mlx5_1").collect()
    port = {"device": "mlx5_1", "port": "1"}
    assert counter(fast, "gangwatch_rdma_cnp_sent_total", **port) == 2**40 + 1
    assert counter(fast, "gangwatch_rdma_ack_timeouts_total", **port) == 2**32 - 1
    assert counter(fast, "gangwatch_rdma_port_transmit_bytes_total", **port) == 2**64 - 1
    widths = {column.metric: column.width for column in fast.counter_columns}
    assert widths["gangwatch_rdma_cnp_sent_total"] == 64
    assert widths["gangwatch_rdma_ack_timeouts_total"] == 32
    assert widths["gangwatch_rdma_port_transmit_bytes_total"] == 64
    slow = member(parent, "rdma-slow/mlx5_1").collect()
    assert gauge(slow, "gangwatch_rdma_port_state", **port) == 4
    assert gauge(slow, "gangwatch_rdma_port_physical_state", **port) == 5
    assert gauge(slow, "gangwatch_rdma_port_rate_bytes_per_second", **port) == 50e9
    assert gauge(slow, "gangwatch_rdma_port_lanes", **port) == 4
    assert gauge(slow, "gangwatch_rdma_statistics_lifespan_seconds", **port) == 0.01
    close(parent)


def test_two_files_of_one_meaning_are_two_series(tmp_path: Path) -> None:
    """Use the names of bnxt_re in Linux 6.13 and newer, which has mlx5's names in addition to its own."""
    tree = build(tmp_path, nics=1, driver="bnxt_en")
    hardware = tree.nics[0].port / "hw_counters"
    write_number(hardware / "rx_out_of_buffer", 5)
    write_number(hardware / "out_of_buffer", 6)
    parent = collector_of(tree)
    parent.collect()
    blocks = [one.collect() for one in parent.members() if not one.name.startswith("rdma-ethtool")]
    every = series_of(*blocks)
    assert len(set(every)) == len(every)
    values = {
        (column.metric, dict(column.labels).get("counter")): int(value)
        for block in blocks
        for column, value in zip(block.counter_columns, block.counters, strict=True)
    }
    assert values["gangwatch_rdma_out_of_buffer_total", None] == 6
    assert values["gangwatch_rdma_hw_counters_total", "rx_out_of_buffer"] == 5
    close(parent)


def test_members_are_the_same_objects_until_a_device_changes(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=2)
    parent = collector_of(tree)
    parent.collect()
    first = parent.members()
    block = parent.collect()
    assert parent.members() == first and parent.collect() is block
    assert [one.name for one in first] == [
        "rdma/mlx5_0", "rdma-slow/mlx5_0", "rdma-ethtool/mlx5_0",
        "rdma/mlx5_1", "rdma-slow/mlx5_1", "rdma-ethtool/mlx5_1",
    ]  # fmt: skip
    (tree.nics[1].port / "gid_attrs" / "ndevs" / "0").write_text("renamed0\n")
    parent.collect()
    assert parent.members()[:3] == first[:3]
    assert not set(map(id, parent.members()[3:])) & set(map(id, first[3:]))
    close(parent)


def test_a_nic_that_disappears_affects_only_its_series_and_recovers(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=2)
    parent = collector_of(tree)
    parent.collect()
    gone, stays = member(parent, "rdma/mlx5_0"), member(parent, "rdma/mlx5_1")
    gone.collect()
    tree.remove_nic("mlx5_0")
    with pytest.raises(SourceError, match="rdma/mlx5_0"):
        gone.collect()
    assert stays.collect().counters_valid.all()
    tree.return_nic("mlx5_0")
    assert gone.collect().counters_valid.all(), "back before its removal was detected"
    tree.remove_nic("mlx5_0")
    block = parent.collect()
    assert gauge(block, "gangwatch_rdma_devices") == 1
    assert {one.name for one in parent.members()} == {"rdma/mlx5_1", "rdma-slow/mlx5_1", "rdma-ethtool/mlx5_1"}
    assert stays in parent.members()
    tree.return_nic("mlx5_0")
    parent.collect()
    assert member(parent, "rdma/mlx5_0").collect().counters_valid.all()
    close(parent)
    gone.close()


def test_a_removed_nic_leaves_no_open_descriptors(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=1)
    parent = collector_of(tree)
    descriptors: list[int] = []
    for _ in range(12):
        parent.collect()
        members = parent.members()
        for one in members:
            one.collect()
        tree.remove_nic("mlx5_0")
        with pytest.raises(SourceError):
            members[0].collect()
        parent.collect()
        for one in members:  # a node closes removed members
            one.close()
        descriptors.append(len(list(Path("/proc/self/fd").iterdir())))
        tree.return_nic("mlx5_0")
    assert len(set(descriptors)) == 1
    close(parent)


def test_files_without_a_number_are_not_read_again_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = build(tmp_path, nics=1)
    hardware, counters = tree.nics[0].port / "hw_counters", tree.nics[0].port / "counters"
    (counters / "port_xmit_wait").write_text("N/A (no PMA)\n")
    (hardware / "out_of_sequence").unlink()
    # A real error of the running kernel: the loopback interface has no speed, and reading its file fails with EINVAL.
    (hardware / "out_of_sequence").symlink_to("/sys/class/net/lo/speed")
    (hardware / "packet_seq_err").write_text("12_3\n")
    (hardware / "rnr_nak_retry_err").write_text(str(2**64))
    parent = collector_of(tree)
    parent.collect()
    fast = member(parent, "rdma/mlx5_0")
    block = fast.collect()
    member(parent, "rdma-slow/mlx5_0").collect()
    absent = [
        column.metric for column, good in zip(block.counter_columns, block.counters_valid, strict=True) if not good
    ]
    assert sorted(absent) == [
        "gangwatch_rdma_out_of_sequence_total",
        "gangwatch_rdma_port_transmit_wait_total",
        "gangwatch_rdma_rnr_naks_received_total",
        "gangwatch_rdma_sequence_naks_received_total",
    ]
    opened: list[str] = []
    really = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: opened.append(str(path)) or really(path, *rest, **more))
    fast.collect()
    assert opened == [], "each further read would cost a firmware command and a kernel log line"
    assert gauge(parent.collect(), "gangwatch_rdma_files_unreadable", device="mlx5_0") == 4
    write_number(counters / "port_xmit_wait", 7)
    for _ in range(600):
        fast.collect()
    port = {"device": "mlx5_0", "port": "1"}
    assert counter(fast.collect(), "gangwatch_rdma_port_transmit_wait_total", **port) == 7, "ten minutes later"
    close(parent)


def test_every_file_without_a_number_is_counted_after_the_first_read(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=1)
    hardware, counters = tree.nics[0].port / "hw_counters", tree.nics[0].port / "counters"
    (counters / "symbol_error").write_text("")  # empty, read every 15 s
    (counters / "port_xmit_wait").write_text("\n")  # without digits, read every second
    (hardware / "np_cnp_sent").write_text("")  # empty, read every second
    (hardware / "lifespan").write_text("soon\n")  # a gauge
    (hardware / "out_of_sequence").unlink()
    (hardware / "out_of_sequence").mkdir()  # reading a folder fails with EISDIR
    parent = collector_of(tree)

    def count() -> float:
        return gauge(parent.collect(), "gangwatch_rdma_files_unreadable", device="mlx5_0")

    assert math.isnan(count()), "absent before the first read"
    member(parent, "rdma/mlx5_0").collect()
    assert math.isnan(count()), "absent until all files are read"
    member(parent, "rdma-slow/mlx5_0").collect()
    assert count() == 5
    for name, folder in (("symbol_error", counters), ("np_cnp_sent", hardware), ("lifespan", hardware)):
        write_number(folder / name, 10)
    for name in ("rdma/mlx5_0", "rdma-slow/mlx5_0"):
        member(parent, name).collect()
    assert count() == 2, "empty files and gauges are read again at the next run; the others after 10 minutes"
    close(parent)


def test_management_nics_and_excluded_ones_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = build(tmp_path, nics=3, management_nics=4)
    opened: list[str] = []
    really = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: opened.append(str(path)) or really(path, *rest, **more))
    parent = collector_of(tree, excluded=("mlx5_2",))
    block = parent.collect()
    assert gauge(block, "gangwatch_rdma_devices") == 2
    assert gauge(block, "gangwatch_rdma_devices_excluded") == 5
    for one in parent.members():
        one.collect()
    left_out = ("mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6")
    assert not [path for path in opened if any(f"/{name}/" in path for name in left_out)]
    assert sum(path.endswith("/vpd") for path in opened) == 4
    opened.clear()
    parent.collect()
    assert not [path for path in opened if path.endswith("/vpd")], "vital product data are read once"
    by_address = collector_of(tree, excluded=(tree.nics[0].address,))
    by_address.collect()
    assert "rdma/mlx5_0" not in {one.name for one in by_address.members()}
    close(parent)
    close(by_address)


def test_files_that_make_mlx5_query_its_device_are_read_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = build(tmp_path, nics=1)
    parent = collector_of(tree)
    parent.collect()
    opened: list[str] = []
    really = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **more: opened.append(str(path)) or really(path, *rest, **more))
    for name in ("rdma/mlx5_0", "rdma-slow/mlx5_0"):
        opened.clear()
        member(parent, name).collect()
        hardware = [path for path in opened if "/hw_counters/" in path]
        assert len(hardware) > 5 and hardware[0].endswith(f"/hw_counters/{FIRST}"), name
    close(parent)


def test_descriptors_stay_open_and_are_closed_at_the_end(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=8)

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    parent = collector_of(tree)
    parent.collect()
    for _ in range(2):
        for one in parent.members():
            one.collect()
    kept = descriptors() - before
    assert 8 * 10 < kept < 8 * 20, "only descriptors of the fast tier"
    close(parent)
    assert descriptors() == before


def test_a_port_without_counters_has_no_series(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=1)
    port = tree.nics[0].port
    for folder in ("counters", "hw_counters"):
        shutil.rmtree(port / folder)
    for name in ("state", "phys_state", "rate"):
        (port / name).unlink()
    parent = collector_of(tree)
    parent.collect()
    assert "rdma/mlx5_0" not in {one.name for one in parent.members()}
    with pytest.raises(SourceError):
        member(parent, "rdma-slow/mlx5_0").collect()
    (port / "state").write_text("1: DOWN\n")
    block = member(parent, "rdma-slow/mlx5_0").collect()
    assert gauge(block, "gangwatch_rdma_port_state", device="mlx5_0", port="1") == 1
    assert math.isnan(gauge(block, "gangwatch_rdma_port_rate_bytes_per_second", device="mlx5_0", port="1"))
    close(parent)


def test_a_machine_without_rdma_has_no_members_until_a_driver_is_loaded(tmp_path: Path) -> None:
    parent = RdmaCollector(str(tmp_path))
    assert gauge(parent.collect(), "gangwatch_rdma_devices") == 0
    assert parent.members() == ()
    build(tmp_path, nics=1)
    parent.collect()
    assert parent.members(), "the driver was loaded after the agent started"
    close(parent)


def test_virtual_functions_have_the_name_of_their_physical_function(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=2)
    (tree.nics[1].device / "physfn").symlink_to(tree.nics[0].device)
    devices, _ = DeviceFinder(str(tmp_path)).find()
    assert [one.physical_function for one in devices] == ["", tree.nics[0].address]


def test_representors_are_not_the_netdev_of_a_port(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=1)
    nic = tree.nics[0]
    (nic.port / "gid_attrs" / "ndevs" / "0").unlink()
    representor = nic.device / "net" / "aa_representor"
    representor.mkdir()
    (representor / "phys_port_name").write_text("pf0vf3\n")
    (devices, _) = DeviceFinder(str(tmp_path)).find()
    assert devices[0].ports[0].netdev == "rail0"


def test_frames_of_a_node_follow_the_devices(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=2)
    node = Node("here", [collector_of(tree)], proc_root=str(tmp_path), version="1")

    def devices() -> dict[str, int]:
        """Return {device: number of present counters} of the newest frame."""
        node.tick()  # first the parent, then the members that it found
        layout, frame = node.tick()
        found: dict[str, int] = {}
        for column, good in zip(layout.counters, frame.counters_valid, strict=True):
            name = dict(column.labels).get("device")
            if name is not None and good:
                found[name] = found.get(name, 0) + 1
        return found

    both = devices()
    assert set(both) == {"mlx5_0", "mlx5_1"} and both["mlx5_0"] == both["mlx5_1"] > 100
    tree.remove_nic("mlx5_0")
    assert devices() == {"mlx5_1": both["mlx5_1"]}
    tree.return_nic("mlx5_0")
    assert devices() == both
    node.stop()


# --- by netlink ------------------------------------------------------------------------------------------------------


def by_netlink(tree: Tree, fake: FakeRdma) -> RdmaCollector:
    return collector_of(tree, lambda: RdmaNetlink(fake.connect))


def test_netlink_gives_the_values_of_the_files(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=2)
    tree.advance(3.0, {"mlx5_1": 0.5})
    names = HARDWARE["mlx5_core"]
    fake = FakeRdma(
        {nic.name: [(name, int((nic.port / "hw_counters" / name).read_text())) for name in names] for nic in tree.nics}
    )
    fake.index_of("another")
    files, messages = collector_of(tree), by_netlink(tree, fake)
    values = []
    for parent in (files, messages):
        parent.collect()
        blocks = [one.collect() for one in parent.members()]
        every = series_of(*blocks)
        assert len(set(every)) == len(every)
        values.append(
            {
                (column.metric, column.labels, column.width): int(value)
                for block in blocks
                for column, value, good in zip(block.counter_columns, block.counters, block.counters_valid, strict=True)
                if good
            }
        )
    assert values[0] == values[1]
    assert gauge(messages.collect(), "gangwatch_rdma_statistics_source_info", device="mlx5_1", source="netlink") == 1
    assert gauge(files.collect(), "gangwatch_rdma_statistics_source_info", device="mlx5_1", source="files") == 1
    assert len(member(messages, "rdma/mlx5_0").collect().counter_columns) == 4 + len(names)
    close(files)
    close(messages)


def test_a_counter_that_appears_in_the_message_is_a_new_series(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=1)
    fake = FakeRdma({"mlx5_0": [("np_cnp_sent", 1), ("out_of_buffer", 2), ("active_qps", 3)]})
    parent = by_netlink(tree, fake)
    parent.collect()
    fast = member(parent, "rdma/mlx5_0")
    first = fast.collect()
    assert_catalogued(first)
    assert gauge(first, "gangwatch_rdma_resources", device="mlx5_0", port="1", resource="qps") == 3
    fake.counters["mlx5_0"] = [("np_cnp_sent", 5), ("active_qps", 6), ("cc_rx_ce_pkts", 7)]
    second = fast.collect()
    assert second is not first
    assert_catalogued(second)
    port = {"device": "mlx5_0", "port": "1"}
    assert counter(second, "gangwatch_rdma_cnp_sent_total", **port) == 5
    assert counter(second, "gangwatch_rdma_hw_counters_total", counter="cc_rx_ce_pkts", **port) == 7
    assert fast.collect() is second
    close(parent)


def test_the_files_are_read_if_netlink_fails(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=1)
    for fake in (FakeRdma(refuses=22), FakeRdma({"another": [("np_cnp_sent", 1)]})):
        parent = by_netlink(tree, fake)
        block = parent.collect()
        assert gauge(block, "gangwatch_rdma_statistics_source_info", device="mlx5_0", source="files") == 1
        assert member(parent, "rdma/mlx5_0").collect().counters_valid.all()
        close(parent)


def test_a_device_with_a_new_index_is_found_again(tmp_path: Path) -> None:
    tree = build(tmp_path, nics=1)
    fake = FakeRdma({"mlx5_0": [("np_cnp_sent", 1)]})
    parent = by_netlink(tree, fake)
    parent.collect()
    fast = member(parent, "rdma/mlx5_0")
    fast.collect()
    fake.indexes["mlx5_0"] = 7  # the driver was reloaded
    with pytest.raises(SourceError) as raised:
        fast.collect()
    assert not isinstance(raised.value, UnsupportedError), "a device that responded before is queried again"
    parent.collect()
    assert (
        counter(member(parent, "rdma/mlx5_0").collect(), "gangwatch_rdma_cnp_sent_total", device="mlx5_0", port="1")
        == 1
    )
    fast.close()
    close(parent)


# --- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)", (50e9, 4)),
        ("2.5 Gb/sec (1X SDR)", (312.5e6, 1)),
        ("100 Gb/sec (4X EDR)\n", (12.5e9, 4)),
        ("100 Gb/sec", (12.5e9, None)),
    ],
)
def test_port_rates_are_parsed(text: str, rate: tuple[float, int | None]) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "400", "-4 Gb/sec (4X)", "4e5 Gb/sec", "400 Gb/sec (x NDR)", "٤ Gb/sec"])
def test_invalid_rates_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a port rate"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["", "ACTIVE", "4 ACTIVE", ": ACTIVE", "-1: DOWN", "٤: ACTIVE"])
def test_invalid_states_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a port state"):
        parse_state(text)
