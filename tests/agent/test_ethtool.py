"""Driver statistics by ethtool: buffers of the call, meaning of the names, and names that change at run time."""

from __future__ import annotations

import errno
import re
import subprocess
from pathlib import Path

import pytest

from agent.collectors.rdma.ethtool_counters import ethtool_counter
from agent.collectors.rdma.rdma_ethtool import EthtoolCounters
from agent.schema.catalog import BY_NAME
from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.rdma.ethtool import Ethtool, RecordedEthtool, parse_names, parse_recorded
from agent.sources.rdma.infiniband import DeviceFinder, RdmaDevice
from tests import needs
from tests.agent.catalogued import assert_catalogued, counter, gauge
from tests.fakes.ethtool import FakeDriver
from tests.fakes.sysfs.names import mlx5_statistics
from tests.fakes.sysfs.tree import build

PORT = {"device": "mlx5_0", "port": "1"}


@pytest.fixture
def device(tmp_path: Path) -> RdmaDevice:
    build(tmp_path, nics=1, gpus=0)
    (found,), _ = DeviceFinder(str(tmp_path)).find()
    return found


def numbered(*names: str) -> dict[str, int]:
    return {name: 100 + position for position, name in enumerate(names)}


def test_names_and_values_are_read_from_the_buffers_of_the_calls() -> None:
    driver = FakeDriver({"eth0": {"rx_packets": 1, "tx_bytes": 2**64 - 1, "x" * 31: 3}})
    ethtool = Ethtool(driver)
    first = ethtool.read("eth0")
    assert first.names == ("rx_packets", "tx_bytes", "x" * 31)
    assert [int(value) for value in first.values] == [1, 2**64 - 1, 3]
    assert ethtool.read("eth0").names is first.names, "the same object shows that the names have not changed"
    driver.statistics["eth0"] = {"rx_packets": 1, "tx_packets": 2, "x" * 31: 3}
    assert ethtool.read("eth0").names == ("rx_packets", "tx_packets", "x" * 31), "the same number of names, but others"
    ethtool.close()


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENODEV, SourceError), (errno.EOPNOTSUPP, UnsupportedError), (errno.EBUSY, SourceError)]
)
def test_error_numbers_become_exceptions(number: int, error: type[Exception]) -> None:
    with pytest.raises(error, match="eth0"):
        Ethtool(FakeDriver({"eth0": {}}, fails=number)).read("eth0")


def test_a_driver_without_statistics_is_unsupported() -> None:
    with pytest.raises(UnsupportedError):
        Ethtool(FakeDriver({"eth0": {}})).read("eth0")


def test_a_changed_number_of_statistics_between_two_calls_is_an_error() -> None:
    class Changing(FakeDriver):
        def __call__(self, interface: str, buffer: memoryview) -> None:
            super().__call__(interface, buffer)
            self.statistics[interface] = {**self.statistics[interface], f"new{len(self.statistics[interface])}": 1}

    with pytest.raises(SourceError, match="names"):
        Ethtool(Changing({"eth0": {"a": 1}})).read("eth0")


def test_every_published_statistic_of_mlx5_is_collected(device: RdmaDevice) -> None:
    names = mlx5_statistics()
    collector = EthtoolCounters(device, Ethtool(FakeDriver({"rail0": numbered(*names)})))
    block = collector.collect()
    assert_catalogued(block)
    expected = numbered(*names)
    assert (
        counter(block, "gangwatch_rdma_pause_frames_total", direction="receive", priority="3", **PORT)
        == expected["rx_prio3_pause"]
    )
    assert (
        counter(block, "gangwatch_rdma_pause_seconds_total", direction="transmit", priority="3", **PORT)
        == expected["tx_prio3_pause_duration"]
    )
    assert (
        counter(block, "gangwatch_rdma_pause_transitions_total", direction="receive", priority="3", **PORT)
        == expected["rx_prio3_pause_transition"]
    )
    assert (
        counter(block, "gangwatch_rdma_priority_discards_total", priority="3", reason="congestion", **PORT)
        == expected["rx_prio3_cong_discard"]
    )
    assert (
        counter(block, "gangwatch_rdma_physical_corrected_bit_errors_total", **PORT)
        == expected["rx_corrected_bits_phy"]
    )
    assert (
        counter(block, "gangwatch_rdma_physical_lane_errors_total", lane="2", **PORT) == expected["rx_err_lane_2_phy"]
    )
    assert (
        counter(block, "gangwatch_rdma_module_events_total", event="high_temp", **PORT) == expected["module_high_temp"]
    )
    assert gauge(block, "gangwatch_rdma_pcie_stalled_ratio", operation="write", **PORT) == pytest.approx(
        expected["outbound_pci_stalled_wr"] / 100
    )
    widths = {column.metric: column.width for column in block.counter_columns}
    assert widths["gangwatch_rdma_pcie_stall_events_total"] == 32
    assert widths["gangwatch_rdma_pcie_buffer_overflow_total"] == 64
    published = len(block.counter_columns) + len(block.gauge_columns)
    assert published == sum(ethtool_counter(name) is not None for name in names)
    collector.close()


def test_statistics_that_change_priority_at_run_time_are_not_mixed_up(device: RdmaDevice) -> None:
    driver = FakeDriver({"rail0": {"rx_prio3_pause": 5, "rx_prio3_pause_duration": 6}})
    collector = EthtoolCounters(device, Ethtool(driver))
    first = collector.collect()
    # The same number of names, but of another priority: by position alone this would be priority 3's value.
    driver.statistics["rail0"] = {"rx_prio4_pause": 7, "rx_prio4_pause_duration": 8}
    second = collector.collect()
    assert second is not first
    assert counter(second, "gangwatch_rdma_pause_frames_total", direction="receive", priority="4", **PORT) == 7
    with pytest.raises(KeyError):
        counter(second, "gangwatch_rdma_pause_frames_total", direction="receive", priority="3", **PORT)
    assert collector.collect() is second
    collector.close()


def test_a_netdev_that_fails_temporarily_recovers(device: RdmaDevice) -> None:
    driver = FakeDriver({"rail0": {"link_down_events_phy": 5}})
    collector = EthtoolCounters(device, Ethtool(driver))
    collector.collect()
    for number in (errno.ENODEV, errno.EOPNOTSUPP):
        driver.fails = number
        with pytest.raises(SourceError) as raised:
            collector.collect()
        assert not isinstance(raised.value, UnsupportedError), "a netdev that worked before is tried again"
    driver.fails = 0
    assert counter(collector.collect(), "gangwatch_rdma_physical_link_down_events_total", **PORT) == 5
    collector.close()


@pytest.mark.parametrize(
    ("name", "metric", "labels"),
    [
        ("rx_pfc_ena_frames_pri5", "pause_frames", {"direction": "receive", "priority": "5"}),
        ("pfc_pri3_tx_duration_us", "pause_seconds", {"direction": "transmit", "priority": "3"}),
        ("pfc_pri3_rx_transitions", "pause_transitions", {"direction": "receive", "priority": "3"}),
        ("tx_priority_3_xoff.nic", "pause_frames", {"direction": "transmit", "priority": "3"}),
        ("rx_bytes_pri3", "priority_bytes", {"direction": "receive", "priority": "3"}),
        ("rx_global_pause", "pause_frames", {"direction": "receive", "priority": "global"}),
        ("rx_prio0_buf_discard", "priority_discards", {"priority": "0", "reason": "buffer"}),
        ("tx_pause_storm_error_events", "pause_storm_events", {"severity": "error"}),
    ],
)
def test_names_of_several_drivers_map_to_metrics(name: str, metric: str, labels: dict[str, str]) -> None:
    meaning = ethtool_counter(name)
    assert meaning is not None
    assert (meaning.metric, dict(meaning.labels)) == (f"gangwatch_rdma_{metric}_total", labels)
    assert {*labels, "device", "port"} == set(BY_NAME[meaning.metric].labels)


@pytest.mark.parametrize("name", ["rx3_packets", "rx_prio8_pause", "rx_prio3_pause_", "ch0_poll", "", "rx_prio٣_pause"])
def test_per_queue_and_unknown_statistics_have_no_metric(name: str) -> None:
    assert ethtool_counter(name) is None


def test_recorded_statistics_are_read(tmp_path: Path) -> None:
    assert parse_recorded(b"NIC statistics:\n     rx_packets: 5\n     odd: name: 18446744073709551615\n") == {
        "rx_packets": 5,
        "odd: name": 2**64 - 1,
    }
    for line in (b"rx: -1\n", b"rx: 1_0\n", b"rx: 18446744073709551616\n", b"rx: x\n"):
        with pytest.raises(SourceError):
            parse_recorded(line)
    recorded = RecordedEthtool(str(tmp_path))
    with pytest.raises(UnsupportedError):
        recorded.read("rail0")


def test_names_end_at_their_terminator() -> None:
    assert parse_names(b"a".ljust(32, b"\0") + b"b" * 32 + b"c\0d".ljust(32, b"\0"), 3) == ("a", "b" * 32, "c")
    with pytest.raises(SourceError):
        parse_names(b"a" * 40, 2)


def test_statistics_of_this_kernel_equal_those_that_ethtool_prints() -> None:
    """Require equal names. Each value lies between ethtool's values before and after."""
    program = needs.component("ethtool", "ethtool")
    for interface in sorted(path.name for path in Path("/sys/class/net").iterdir() if (path / "device").exists()):
        ethtool = Ethtool()

        def printed(interface: str = interface) -> dict[str, int]:
            text = subprocess.run([program, "-S", interface], capture_output=True, text=True).stdout
            return {name: int(value) for name, value in re.findall(r"^ +(\S+): (\d+)$", text, re.M)}

        before = printed()
        if not before:
            continue
        ours = ethtool.read(interface)
        after = printed()
        ethtool.close()
        assert list(before) == list(ours.names)
        for name, value in zip(ours.names, ours.values, strict=True):
            assert before[name] <= value <= after[name], name
        return
    needs.absent("no network interface here has statistics")
