"""The kernel log: its messages, its records, and the events made from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.collectors.gpu.xid import XidOccurrences
from agent.collectors.host.kernel_events import MOST_A_RUN, KernelLogCollector
from agent.schema.clock import ManualClock
from agent.schema.errors import SourceError, UnsupportedError
from agent.schema.frame import EventRecord
from agent.sources.kernel.kernel_log import KernelLog, LogRecord, parse_record
from agent.sources.kernel.kernel_messages import KINDS, parse_message
from tests import needs
from tests.agent.catalogued import assert_catalogued, counter
from tests.fakes.sysfs.tree import build

# Messages from the sources of the kernel and drivers, and from published logs.
MESSAGES = [
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1122, GPU has fallen off the bus.", "xid", "0000:3b:00.0", {"code": "79"}),
    ("NVRM: Xid (PCI:0000:03:00): 145, RLW_SRC_TRACK Nonfatal XC0 i0 Link 00", "xid", "0000:03:00.0", {"code": "145"}),
    ("NVRM: Xid (PCI:00000000:3B:00.0): 48", "xid", "0000:3b:00.0", {"code": "48"}),
    (
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
        "nvswitch_error",
        "0000:05:00.0",
        {"code": "12028", "severity": "Non-fatal", "switch": "3"},
    ),
    ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "gpu_lost", "0000:3b:00.0", {}),
    ("NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus.", "gpu_lost", "0000:3b:00.0", {}),
    ("mlx5_core 0000:18:00.0 rail0: Link down", "nic_link", "0000:18:00.0", {"state": "down", "netdev": "rail0"}),
    ("mlx5_core 0000:18:00.0 ens1f0np0: Link up", "nic_link", "0000:18:00.0", {"state": "up"}),
    ("bnxt_en 0000:18:00.0 eth2: NIC Link is Down", "nic_link", "0000:18:00.0", {"state": "Down"}),
    ("ice 0000:18:00.0 eth2: NIC Link is up 100 Gbps Full Duplex", "nic_link", "0000:18:00.0", {"state": "up"}),
    (
        "mlx5_core 0000:18:00.0: poll_health:847:(pid 0): device's health compromised - reached miss count",
        "nic_health",
        "0000:18:00.0",
        {"what": "health compromised"},
    ),
    (
        "mlx5_core 0000:18:00.0: print_health_info:431:(pid 0): Health issue observed, High temperature, severity(3)",
        "nic_health",
        "0000:18:00.0",
        {},
    ),
    (
        "mlx5_core 0000:18:00.0: mlx5_cmd_out_err:838:(pid 2): ACCESS_REG(0x805) op_mod(0x1) failed, status bad "
        "parameter(0x3), syndrome (0x15c356), err(-22)",
        "nic_command_error",
        "0000:18:00.0",
        {"what": "ACCESS_REG(0x805)"},
    ),
    (
        "pcieport 0000:00:1d.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "pcie_error",
        "0000:00:1d.0",
        {"severity": "Corrected", "type": "Physical Layer"},
    ),
    (
        "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer, (Requester)",
        "pcie_error",
        "0000:3b:00.0",
        {"severity": "Uncorrectable (Non-Fatal)"},
    ),
    ("pcieport 0000:15:01.0: DPC: containment event, status:0x1f01", "pcie_containment", "0000:15:01.0", {}),
    ("pcieport 0000:15:01.0: pciehp: Slot(12): Link Down", "pcie_hotplug", "0000:15:01.0", {"slot": "12"}),
    ("mce: [Hardware Error]: Machine check events logged", "machine_check", "kernel", {}),
    (
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0",
        "memory_error",
        "MC0",
        {"severity": "CE", "count": "1"},
    ),
    (
        "Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB",
        "out_of_memory",
        "python3",
        {"pid": "4711", "what": "Out of memory"},
    ),
    (
        "Memory cgroup out of memory: Killed process 4711 (a (b) c) total-vm:1kB",
        "out_of_memory",
        "a (b) c",
        {"what": "Memory cgroup out of memory"},
    ),
    (
        "INFO: task python:1234 blocked for more than 120 seconds.",
        "hung_task",
        "python",
        {"pid": "1234", "seconds": "120"},
    ),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:99]", "lockup", "3", {"what": "soft"}),
    ("nfs: server filer.example not responding, still trying", "nfs_server", "filer.example", {}),
    ("nfs: server filer.example OK", "nfs_server", "filer.example", {"state": "OK"}),
    ("I/O error, dev nvme0n1, sector 4711 op 0x0:(READ) flags 0x0", "disk_error", "nvme0n1", {}),
    (
        "mce: CPU5: Package temperature is above threshold, cpu clock is throttled (total events = 1)",
        "cpu_throttled",
        "5",
        {},
    ),
]


@pytest.mark.parametrize(("text", "kind", "entity", "detail"), MESSAGES)
def test_messages_are_recognised(text: str, kind: str, entity: str, detail: dict[str, str]) -> None:
    event = parse_message(text)
    assert event is not None
    assert (event.kind, event.entity) == (kind, entity)
    assert detail.items() <= event.detail.items()
    assert event.detail["message"] == text


def test_every_kind_has_an_example() -> None:
    assert {kind for _, kind, _, _ in MESSAGES} == set(KINDS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Linux version 6.12.0",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "NVRM: Xid (PCI:0000:c1:00): garbled, Fatal",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): garbled, Fatal",
        "mlx5_core 0000:18:00.0: firmware version: 28.39.1002",
        "usb 1-1: Link down",
        "somebody said: Out of memory: Killed process 1 (init)",
    ],
)
def test_other_messages_are_ignored(text: str) -> None:
    assert parse_message(text) is None


def test_records_are_parsed() -> None:
    assert parse_record(b"6,339,5140900,-;NET: Registered PF_INET6; family") == LogRecord(
        0, 6, 339, 5140900, "NET: Registered PF_INET6; family"
    )
    assert parse_record(b"30,340,5690716,-,caller=T1;udevd").facility == 3
    for line in (b"", b"6,339", b"6,339;x", b"a,b,c,-;x", b"6,-1,2,-;x", "٦,1,2,-;x".encode()):
        with pytest.raises(SourceError):
            parse_record(line)


def test_a_recorded_log_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(b"6,10,1,-;first\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:00.0\n6,11,2,-;sec")
    log = KernelLog(str(path))
    assert [record.text for record in log.read(10)] == ["first"]
    with path.open("ab") as added:
        added.write(b"ond\nnonsense\n6,20,3,-;third\n")
    assert [record.text for record in log.read(10)] == ["second", "third"]
    assert (log.lost, log.malformed) == (8, 1)
    assert log.read(10) == []
    log.close()


@pytest.fixture
def occurrences() -> XidOccurrences:
    return XidOccurrences()


def test_messages_become_events_and_counts(tmp_path: Path, occurrences: XidOccurrences) -> None:
    tree = build(tmp_path, nics=1, gpus=1)
    clock = ManualClock(monotonic_ns=100 * 10**9, wall_ns=1_700_000_100 * 10**9)
    tree.log("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", 50.0)
    tree.log("mlx5_core 0000:18:00.0 rail0: Link down", 60.0)
    collector = KernelLogCollector(str(tree.kernel_log), occurrences, clock=clock)
    block = collector.collect()
    assert_catalogued(block)
    kinds = "gangwatch_kernel_log_events_total"
    assert counter(block, kinds, kind="nic_link") == 0, "messages from before the agent started are not events"
    before = collector.take_records()
    assert [record for record in before if isinstance(record, EventRecord)] == before
    assert [(record.kind, record.entity, record.time_ns) for record in before if isinstance(record, EventRecord)] == [
        ("nic_link", "0000:18:00.0", 1_700_000_060 * 10**9)
    ]
    assert isinstance(before[0], EventRecord) and before[0].detail["before_start"] == "true"
    (xid,) = occurrences.take_records()
    assert isinstance(xid, EventRecord) and xid.time_ns == 1_700_000_050 * 10**9
    assert xid.detail["message"] == "GPU has fallen off the bus." and xid.detail["code"] == "79"

    clock.advance(10)
    tree.log("NVRM: Xid (PCI:0000:1b:00): 31, MMU Fault", 105.0)
    tree.log("mlx5_core 0000:18:00.0 rail0: Link up", 106.0)
    tree.log("a message of a process: NVRM: Xid (PCI:0000:1b:00): 48", 107.0)
    occurrences.add("0000:1b:00.0", 31, 1_700_000_105 * 10**9 + 5, "nvml")
    occurrences.take_records()
    collector.collect()
    assert counter(block, kinds, kind="nic_link") == 1
    assert counter(block, kinds, kind="xid") == 1
    assert occurrences.take_records() == [], "the driver has already reported it"
    (event,) = collector.take_records()
    assert isinstance(event, EventRecord) and "before_start" not in event.detail
    assert collector.take_records() == []
    collector.close()


def test_a_process_cannot_forge_a_kernel_message(tmp_path: Path, occurrences: XidOccurrences) -> None:
    path = tmp_path / "kmsg"
    path.write_text("12,1,200000000,-;NVRM: Xid (PCI:0000:1b:00): 79, forged\n")
    collector = KernelLogCollector(str(path), occurrences)
    collector.collect()
    assert occurrences.take_records() == []
    collector.close()


def test_a_flood_of_messages_is_read_in_limited_pieces(tmp_path: Path, occurrences: XidOccurrences) -> None:
    path = tmp_path / "kmsg"
    clock = ManualClock()
    path.write_text("".join(f"4,{number},1,-;nfs: server filer OK\n" for number in range(3 * MOST_A_RUN)))
    collector = KernelLogCollector(str(path), occurrences, clock=clock)
    runs = 0
    while not runs or counter(collector.collect(), "gangwatch_kernel_log_events_total", kind="nfs_server") != (
        3 * MOST_A_RUN
    ):
        runs += 1
        assert runs < 10
    assert runs >= 2
    assert len(collector.take_records()) == 1024, "memory use is limited"
    collector.close()


def test_a_missing_log_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="absent"):
        KernelLogCollector(str(tmp_path / "absent"))


def test_the_log_of_this_machine_is_read(occurrences: XidOccurrences) -> None:
    try:
        collector = KernelLogCollector(xids=occurrences)
    except UnsupportedError as error:
        needs.absent(f"the kernel's log cannot be read here: {error}")
        raise
    block = collector.collect()
    assert_catalogued(block)
    assert counter(block, "gangwatch_kernel_log_lost_total") == 0
    collector.close()


def test_a_message_from_user_space_is_read_and_not_trusted() -> None:
    try:
        log = KernelLog("/dev/kmsg")
    except UnsupportedError as error:
        needs.absent(f"the kernel's log cannot be read here: {error}")
        raise
    while log.read(MOST_A_RUN):
        pass
    with Path("/dev/kmsg").open("wb", buffering=0) as kernel:
        # The text does not start like a driver message, because other programs may read this machine's log too.
        kernel.write(b"<4>gangwatch test: NVRM: Xid (PCI:0000:1b:00): 79\n")
    (record,) = (one for one in log.read(MOST_A_RUN) if "gangwatch test" in one.text)
    assert record.text == "gangwatch test: NVRM: Xid (PCI:0000:1b:00): 79"
    assert not record.from_kernel
    log.close()
