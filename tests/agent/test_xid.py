"""XIDs: each occurrence counts once, from either source, with number, time, meaning and NVIDIA's action."""

from __future__ import annotations

import pytest

from agent.collectors.block import RecordSource
from agent.collectors.gpu.xid import MOST_RECORDS, SAME_OCCURRENCE_NS, XidCollector, XidOccurrences
from agent.schema.errors import UnsupportedError
from agent.schema.frame import EventRecord
from agent.schema.xid_codes import XIDS, describe
from tests.agent.catalogued import assert_catalogued, counter, gauge

ADDRESS, UUID = "0000:1a:00.0", "GPU-01000100-0000-0000-0000-000000000000"
NOW = 1_800_000_000_000_000_000
SECOND = 1_000_000_000


def take_events(occurrences: XidOccurrences) -> list[EventRecord]:
    records = occurrences.take_records()
    assert all(isinstance(record, EventRecord) for record in records)
    return [record for record in records if isinstance(record, EventRecord)]


def test_the_table_has_each_code_once_with_an_action_of_nvidia() -> None:
    buckets = {
        "", "CHECK_MECHANICALS", "CHECK_UVM", "CONTACT_SUPPORT", "IGNORE", "RESET_GPU", "RESTART_APP", "RESTART_BM",
        "RESTART_VM", "UPDATE_SWFW", "WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK_ERR", "WORKFLOW_XID_45",
        "WORKFLOW_XID_48", "XID_154",
    }  # fmt: skip
    assert {row.action for row in XIDS.values()} == buckets
    assert all(code == row.code and row.name and row.meaning and "\n" not in row.meaning for code, row in XIDS.items())
    assert len({row.name for row in XIDS.values()}) == len(XIDS)
    assert describe(79).action == "RESTART_BM"
    assert describe(135).name == "ROBUST_CHANNEL_CE19_ERROR"
    assert describe(48).action == "WORKFLOW_XID_48"
    assert describe(9999) == (9999, "XID_9999", "Not in NVIDIA's public catalogue", "")


def test_a_record_has_all_details() -> None:
    occurrences = XidOccurrences()
    occurrences.name_gpu(ADDRESS, UUID)
    assert occurrences.add("0000:1A:00", 79, NOW, "kernel_log", "GPU has fallen off the bus.")
    (record,) = take_events(occurrences)
    assert (record.kind, record.entity, record.time_ns) == ("xid", UUID, NOW)
    assert record.detail == {
        "sequence": "1",
        "code": "79",
        "name": "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
        "meaning": "The GPU does not answer on PCIe any more",
        "action": "RESTART_BM",
        "origin": "kernel_log",
        "pci_address": ADDRESS,
        "message": "GPU has fallen off the bus.",
    }
    assert take_events(occurrences) == []


def test_one_occurrence_from_both_sources_counts_once() -> None:
    for first, second in (("nvml", "kernel_log"), ("kernel_log", "nvml")):
        occurrences = XidOccurrences()
        assert occurrences.add(ADDRESS, 31, NOW, first)  # type: ignore[arg-type]
        assert not occurrences.add("0000:1a:00", 31, NOW + 3 * SECOND, second)  # type: ignore[arg-type]
        assert [total for _, _, total, _ in occurrences.newest().counts] == [1]
        assert len(take_events(occurrences)) == 1


def test_no_repeated_xid_is_lost() -> None:
    occurrences = XidOccurrences()
    for number in range(5):
        assert occurrences.add(ADDRESS, 31, NOW + number, "kernel_log")
    added = [occurrences.add(ADDRESS, 31, NOW + SECOND + number, "nvml") for number in range(6)]
    assert added == [False] * 5 + [True], "five are the same as before; the sixth is new"
    assert occurrences.newest().counts == ((ADDRESS, 31, 6, NOW + SECOND + 5),)
    assert [record.detail["sequence"] for record in take_events(occurrences)] == ["1", "2", "3", "4", "5", "6"]


def test_another_code_gpu_or_time_is_another_occurrence() -> None:
    occurrences = XidOccurrences()
    assert occurrences.add(ADDRESS, 31, NOW, "kernel_log")
    assert occurrences.add(ADDRESS, 43, NOW, "nvml")
    assert occurrences.add("0000:1b:00.0", 31, NOW, "nvml")
    assert occurrences.add(ADDRESS, 31, NOW + SAME_OCCURRENCE_NS + 1, "nvml")
    assert sum(total for _, _, total, _ in occurrences.newest().counts) == 4


def test_the_collector_counts_by_code_from_zero_and_has_the_newest_time() -> None:
    occurrences = XidOccurrences()
    collector = XidCollector(occurrences)
    occurrences.name_gpu(ADDRESS, UUID)
    block = collector.collect()
    assert counter(block, "gangwatch_gpu_xid_events_total", gpu=UUID) == 0
    occurrences.add(ADDRESS, 31, NOW, "nvml")
    occurrences.add(ADDRESS, 79, NOW + SECOND, "nvml")
    occurrences.add(ADDRESS, 31, NOW + 2 * SECOND, "nvml")
    occurrences.add("0000:1b:00", 79, NOW, "kernel_log")
    block = collector.collect()
    assert_catalogued(block)
    assert counter(block, "gangwatch_gpu_xid_total", gpu=UUID, code="31") == 2
    assert counter(block, "gangwatch_gpu_xid_total", gpu=UUID, code="79") == 1
    assert counter(block, "gangwatch_gpu_xid_total", gpu="0000:1b:00.0", code="79") == 1, "its UUID is unknown"
    assert counter(block, "gangwatch_gpu_xid_events_total", gpu=UUID) == 3
    assert gauge(block, "gangwatch_gpu_xid_newest_timestamp_seconds", gpu=UUID, code="31") == NOW / 1e9 + 2
    assert isinstance(collector, RecordSource)
    assert len(collector.take_records()) == 4
    assert collector.collect() is block
    occurrences.name_gpu("0000:1b:00.0", "GPU-b")
    assert counter(collector.collect(), "gangwatch_gpu_xid_total", gpu="GPU-b", code="79") == 1


def test_memory_is_limited_during_a_storm_of_xids() -> None:
    occurrences = XidOccurrences()
    for number in range(3 * MOST_RECORDS):
        occurrences.add(ADDRESS, 31, NOW + number, "kernel_log")
    records = take_events(occurrences)
    assert len(records) == MOST_RECORDS
    assert records[-1].detail["sequence"] == str(3 * MOST_RECORDS)
    for code in range(10_000):
        occurrences.add(ADDRESS, code, NOW, "nvml")
    assert len(occurrences.newest().counts) == 512
    assert occurrences.dropped == 10_000 - 511 - 1


def test_without_a_driver_the_collector_is_unsupported() -> None:
    with pytest.raises(UnsupportedError):
        XidCollector(XidOccurrences(), driver_present=False)
