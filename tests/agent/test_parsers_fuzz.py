"""Parsers with arbitrary bytes: each parses or rejects them. None crashes, hangs or invents a number."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.collectors.host.network import parse_bytes, parse_flag, parse_speed, parse_up
from agent.collectors.rdma.ethtool_counters import ethtool_counter
from agent.collectors.rdma.rdma_counters import hardware_counter, port_counter
from agent.schema.catalog import BY_NAME
from agent.schema.errors import ReporterError, SourceError
from agent.sources.counter_files import parse_number
from agent.sources.kernel.kernel_log import parse_record
from agent.sources.kernel.kernel_messages import KINDS, MOST_TEXT, parse_message
from agent.sources.kubelet.pod_resources import parse_allocatable, parse_list
from agent.sources.proc.cgroup import parse_cgroup
from agent.sources.proc.mountstats import parse_mountstats
from agent.sources.proc.proc import (
    parse_cpu_count,
    parse_in_flight,
    parse_loadavg,
    parse_pressure,
    parse_process_io,
    parse_process_stat,
    parse_schedstat,
    parse_scheduler,
    parse_statm,
    parse_vmstat,
)
from agent.sources.proc.slurm_node import parse_environment
from agent.sources.rdma import netlink
from agent.sources.rdma.ethtool import parse_names, parse_recorded
from agent.sources.rdma.infiniband import parse_rate, parse_state
from agent.sources.steps.step_messages import parse_claim, parse_later
from agent.sources.sysfs.pci import parse_aer, parse_generation, parse_width
from tests.agent.test_kernel_log import MESSAGES
from tests.fakes.netlink import message, statistics

GARBAGE = st.one_of(
    st.binary(max_size=400),
    st.text(alphabet="0123456789 -+_.,:;()\n\tabX/=#", max_size=400).map(str.encode),
    st.lists(st.sampled_from([b"cpu ", b"ctxt 5\n", b"some total=", b"8 0 sda ", b"eth0: ", b"READ: ", b"1 " * 20,
                              b"device a mounted on b with fstype nfs statvers=1.1\n", b"\tper-op statistics\n",
                              b"\tbytes: ", b"\n", b"MemTotal: ", b" kB"])).map(b"".join),
)  # fmt: skip

BYTES: tuple[Callable[[bytes], object], ...] = (
    parse_number, parse_recorded, parse_record, parse_mountstats, parse_aer, parse_cpu_count, parse_scheduler,
    parse_vmstat, parse_loadavg, parse_pressure, parse_in_flight, parse_process_stat, parse_statm,
    parse_schedstat, parse_process_io, parse_environment, parse_list, parse_allocatable, parse_claim, parse_later,
    lambda data: parse_cgroup(data.decode("utf-8", "replace")),
)  # fmt: skip
TEXTS: tuple[Callable[[str], object], ...] = (
    parse_state, parse_rate, parse_generation, parse_width, parse_up, parse_flag, parse_speed, parse_bytes,
)  # fmt: skip


@pytest.mark.parametrize("parse", BYTES, ids=lambda parse: parse.__name__)
@given(data=GARBAGE)
@example(data=b"")
@example(data=b"\n\n\n")
@example(data="٣".encode())
def test_arbitrary_file_content_is_parsed_or_rejected(parse: Callable[[bytes], object], data: bytes) -> None:
    try:
        parse(data)
    except (SourceError, ReporterError, ValueError):
        pass


@pytest.mark.parametrize("parse", TEXTS, ids=lambda parse: parse.__name__)
@given(text=st.one_of(st.text(max_size=60), GARBAGE.map(lambda data: data.decode("utf-8", "replace"))))
@example(text="")
@example(text="٣")
def test_arbitrary_text_is_parsed_or_rejected(parse: Callable[[str], object], text: str) -> None:
    try:
        value = parse(text)
    except ValueError:
        return
    numbers = value if isinstance(value, tuple) else (value,)
    assert all(number is None or (isinstance(number, (int, float)) and number >= 0) for number in numbers)


@given(st.integers(0, 2**64 - 1), st.sampled_from([b"", b"\n", b" \n", b"   "]))
def test_a_number_is_read_exactly(value: int, end: bytes) -> None:
    assert parse_number(str(value).encode() + end) == value


@given(st.one_of(st.text(alphabet="0123456789_-+.eNA \n", max_size=25).map(str.encode), st.binary(max_size=25)))
def test_other_bytes_are_not_a_number(data: bytes) -> None:
    try:
        value = parse_number(data)
    except ValueError:
        return
    assert value == int(data.decode("ascii").strip()) and set(data.strip()) <= set(b"0123456789")


# --- names -----------------------------------------------------------------------------------------------------------


@given(st.sampled_from(["mlx5_core", "bnxt_en", "irdma", "efa", "rxe", "", "x"]), st.text(min_size=1, max_size=40))
def test_every_file_name_maps_to_a_series(driver: str, name: str) -> None:
    for meaning in (hardware_counter(driver, name), port_counter(name)):
        metric = BY_NAME[meaning.metric]
        assert {name for name, _ in meaning.labels} | {"device", "port"} == set(metric.labels)
        assert (metric.kind == "gauge") is meaning.gauge


@given(st.text(max_size=40))
def test_every_statistic_name_maps_to_a_series_or_none(name: str) -> None:
    meaning = ethtool_counter(name)
    if meaning is not None:
        assert {name for name, _ in meaning.labels} | {"device", "port"} == set(BY_NAME[meaning.metric].labels)


# --- ethtool ---------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=300), st.integers(0, 12))
def test_arbitrary_ethtool_names_are_read(data: bytes, count: int) -> None:
    try:
        names = parse_names(data, count)
    except SourceError:
        assert len(data) < 32 * count
        return
    assert len(names) == count


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9_ .\[\]]{0,20}[a-z0-9]", fullmatch=True), st.integers(0, 2**64 - 1)))
def test_recorded_statistics_are_read_back(statistics: dict[str, int]) -> None:
    text = "NIC statistics:\n" + "".join(f"     {name}: {value}\n" for name, value in statistics.items())
    assert parse_recorded(text.encode()) == statistics


# --- netlink ---------------------------------------------------------------------------------------------------------


def read_all(data: bytes) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for one in netlink.messages(data, len(data)):
        netlink.parse_device(data, one)
        netlink.parse_namespace_mode(data, one)
        found += [(name, struct.unpack_from("=Q", data, at)[0]) for name, at in netlink.parse_statistics(data, one)]
    return found


@given(st.binary(max_size=300))
def test_arbitrary_netlink_bytes_are_parsed_or_rejected(data: bytes) -> None:
    try:
        read_all(data)
        netlink.Shape(data, len(data))
    except SourceError:
        pass


counters = st.lists(
    st.tuples(st.from_regex(r"[a-z_]{1,30}", fullmatch=True), st.integers(0, 2**64 - 1)), min_size=1, max_size=40
)


@given(counters, st.booleans(), st.data())
def test_netlink_messages_with_changed_bytes_mix_up_no_counters(
    counters: list[tuple[str, int]], padded: bool, data: st.DataObject
) -> None:
    whole = message(netlink.STATISTICS_GET, 0, 1, statistics(counters, padded=padded))
    assert read_all(whole) == counters
    shape = netlink.Shape(whole, len(whole))
    assert shape.values(whole, len(whole)) == tuple(value for _, value in counters)
    at = data.draw(st.integers(0, len(whole) - 1))
    broken = bytearray(whole)
    broken[at] ^= data.draw(st.integers(1, 255))
    try:
        read_all(bytes(broken))
    except SourceError:
        pass
    # A changed byte changes one value or makes the shape reject the message; values never move to other counters.
    values = shape.values(broken, len(broken))
    if values is not None and at >= netlink.HEADER.size:
        assert sum(ours != theirs for ours, (_, theirs) in zip(values, counters, strict=True)) == 1
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert shape.values(whole[:cut] + bytes(64), cut) is None


# --- the kernel's log ------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    [word for text, _, _, _ in MESSAGES for word in text.split(" ")] + ["0000:3b:00.0", "(", ")", "severity="]
)


@given(st.one_of(st.text(max_size=200), st.lists(WORDS, max_size=30).map(" ".join)))
def test_arbitrary_kernel_messages_cause_no_crash(text: str) -> None:
    event = parse_message(text)
    if event is not None:
        assert event.kind in KINDS and event.entity
        assert all(len(value) <= MOST_TEXT for value in event.detail.values())
        if event.kind == "xid":
            assert int(event.detail["code"]) >= 0


@pytest.mark.parametrize("text", [text for text, _, _, _ in MESSAGES])
@given(st.data())
def test_truncated_and_changed_kernel_messages_cause_no_crash(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    parse_message(text[:at])
    parse_message(text[:at] + data.draw(st.text(max_size=5)) + text[at:])


@given(st.integers(0, 255), st.integers(0, 2**63), st.integers(0, 2**63), st.text(alphabet="abc;,= ", max_size=50))
def test_a_record_is_read_back(priority: int, sequence: int, microseconds: int, text: str) -> None:
    record = parse_record(f"{priority},{sequence},{microseconds},-;{text}".encode())
    assert (record.facility, record.level) == divmod(priority, 8)
    assert (record.sequence, record.microseconds, record.text) == (sequence, microseconds, text)


@pytest.mark.parametrize("length", [10_000, 100_000])
def test_long_lines_are_read_in_linear_time(length: int) -> None:
    """A process can write a line of any length, so no pattern may backtrack."""
    for text, _, _, _ in MESSAGES:
        parse_message(text[: len(text) // 2] + "x (" * (length // 3))
    parse_message("mlx5_core 0000:18:00.0: " + "mlx5_cmd_out_err" * (length // 16))
