"""Host collectors on recorded files, on files that a test writes, and on this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from agent.collectors.host.host import HostCollector
from agent.collectors.host.host_devices import HostDeviceCollector
from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.proc import host_figures
from agent.sources.proc.proc import TICK_NS, parse_cpu_count, parse_in_flight, parse_loadavg, parse_pressure
from tests import needs
from tests.agent.catalogued import assert_catalogued, counter, gauge

# Linux 6.1 with two processors; written by hand in the documented formats.
STAT = b"""cpu  301854 612 111922 8979004 3552 2 3944 10 44 36
cpu0 150000 312 55922 4489502 1776 1 1944 5 22 18
cpu1 151854 300 56000 4489502 1776 1 2000 5 22 18
intr 8885917 17 0 0
ctxt 38014093
btime 1418183276
processes 26442
procs_running 3
procs_blocked 1
"""
VMSTAT = b"""nr_free_pages 977769
pgmajfault 175
oom_kill 2
"""
MEMINFO = b"""MemTotal:       15666184 kB
MemFree:          440324 kB
MemAvailable:    9876543 kB
Buffers:         1020128 kB
Cached:          4020128 kB
Active:          3020128 kB
Inactive:        2020128 kB
Shmem:             20128 kB
"""
DISKSTATS = b"""   7       0 loop0 9 0 72 1 0 0 0 0 0 4 1 0 0 0 0 0 0
 259       0 nvme0n1 47114 4 4643973 21650 1078320 43950 39451633 1011053 0 222766 1032546 0 0 0 0 0 0
 259       1 nvme0n1p1 1140 0 9370 16 1 0 1 0 0 16 16 0 0 0 0 0 0
   8       0 sda 25354637 34367663 1003346126 18492372 28444756 11134226 505697032 63877960 0 9653880 82621804
"""
NET_DEV = b"""Inter-|   Receive                           |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 1664039048 1566805 0 0 0 0 0 0 1664039048 1566805 0 0 0 0 0 0
  eth0:68210035552 520993275 7 0 0 0 0 0 9315587528 43451486 9 0 0 0 0 0
vethA1: 1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0
"""


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    (proc / "net").mkdir(parents=True)
    (proc / "pressure").mkdir()
    for disk in ("loop0", "nvme0n1", "sda"):
        (sys / "block" / disk).mkdir(parents=True)
    (proc / "stat").write_bytes(STAT)
    (proc / "vmstat").write_bytes(VMSTAT)
    (proc / "loadavg").write_bytes(b"0.21 0.37 0.39 1/719 19737\n")
    (proc / "meminfo").write_bytes(MEMINFO)
    (proc / "diskstats").write_bytes(DISKSTATS)
    (proc / "net" / "dev").write_bytes(NET_DEV)
    (proc / "pressure" / "cpu").write_bytes(b"some avg10=0.10 avg60=2.00 avg300=3.85 total=15\n")
    (proc / "pressure" / "memory").write_bytes(
        b"some avg10=0.10 avg60=2.00 avg300=3.85 total=15\nfull avg10=0.20 avg60=3.00 avg300=4.95 total=25\n"
    )
    return proc, sys


def collector_of(roots: tuple[Path, Path]) -> HostCollector:
    return HostCollector(str(roots[0]))


def devices_of(roots: tuple[Path, Path]) -> HostDeviceCollector:
    return HostDeviceCollector(str(roots[0]), str(roots[1]))


def test_every_host_value_is_collected(roots: tuple[Path, Path]) -> None:
    collector = collector_of(roots)
    block = collector.collect()
    assert_catalogued(block)
    cpu = "gangwatch_host_cpu_seconds_total"
    modes = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    ticks = (301854, 612, 111922, 8979004, 3552, 2, 3944, 10)
    assert [counter(block, cpu, mode=mode) for mode in modes] == [tick * TICK_NS for tick in ticks]
    assert gauge(block, "gangwatch_host_cpus") == 2
    assert gauge(block, "gangwatch_host_load1") == 0.21
    assert gauge(block, "gangwatch_host_memory_total_bytes") == 15666184 * 1024
    assert gauge(block, "gangwatch_host_memory_available_bytes") == 9876543 * 1024
    waiting, stalled = (
        "gangwatch_host_pressure_waiting_seconds_total",
        "gangwatch_host_pressure_stalled_seconds_total",
    )
    assert counter(block, waiting, resource="cpu") == 15_000
    assert counter(block, stalled, resource="cpu") is None, "absent, not zero, if the kernel does not report it"
    assert counter(block, stalled, resource="memory") == 25_000
    assert counter(block, waiting, resource="io") is None, "no such file"
    assert counter(block, "gangwatch_host_context_switches_total") == 38014093
    assert gauge(block, "gangwatch_host_processes_running") == 3
    assert gauge(block, "gangwatch_host_processes_blocked") == 1
    assert counter(block, "gangwatch_host_major_page_faults_total") == 175
    assert counter(block, "gangwatch_host_out_of_memory_kills_total") == 2
    collector.close()


def test_every_device_value_is_collected(roots: tuple[Path, Path]) -> None:
    collector = devices_of(roots)
    block = collector.collect()
    assert_catalogued(block)
    assert counter(block, "gangwatch_host_disk_read_bytes_total", device="nvme0n1") == 4643973 * 512
    assert counter(block, "gangwatch_host_disk_written_bytes_total", device="sda") == 505697032 * 512
    assert counter(block, "gangwatch_host_disk_io_time_seconds_total", device="sda") == 9653880 * 10**6
    assert counter(block, "gangwatch_host_disk_reads_total", device="nvme0n1") == 47114
    assert counter(block, "gangwatch_host_disk_writes_total", device="sda") == 28444756
    assert counter(block, "gangwatch_host_disk_read_time_seconds_total", device="nvme0n1") == 21650 * 10**6
    assert counter(block, "gangwatch_host_disk_write_time_seconds_total", device="sda") == 63877960 * 10**6
    assert gauge(block, "gangwatch_host_disk_requests_in_flight", device="nvme0n1") == 0
    assert counter(block, "gangwatch_host_network_receive_bytes_total", device="eth0") == 68210035552
    assert counter(block, "gangwatch_host_network_transmit_bytes_total", device="lo") == 1664039048
    assert counter(block, "gangwatch_host_network_receive_errors_total", device="eth0") == 7
    assert counter(block, "gangwatch_host_network_transmit_errors_total", device="eth0") == 9
    devices = {dict(column.labels).get("device") for column in block.counter_columns}
    assert devices == {"nvme0n1", "sda", "lo", "eth0"}, "no partition, no loop device, no interface of a pod"
    collector.close()


def test_the_block_stays_the_same_until_a_device_is_added(roots: tuple[Path, Path]) -> None:
    proc, sys = roots
    collector = devices_of(roots)
    first = collector.collect()
    assert collector.collect() is first
    (sys / "block" / "nvme1n1").mkdir()
    (proc / "diskstats").write_bytes(DISKSTATS + b" 259 2 nvme1n1 1 2 3 4 5 6 7 8 9 10 11\n")
    second = collector.collect()
    assert second is not first
    assert_catalogued(second)
    assert counter(second, "gangwatch_host_disk_read_bytes_total", device="nvme1n1") == 3 * 512
    assert counter(second, "gangwatch_host_disk_read_bytes_total", device="nvme0n1") == 4643973 * 512
    collector.close()


def test_decreasing_idle_time_does_not_decrease_a_counter(roots: tuple[Path, Path]) -> None:
    collector = collector_of(roots)
    collector.collect()
    (roots[0] / "stat").write_bytes(STAT.replace(b"8979004 3552", b"8979001 3550"))
    block = collector.collect()
    assert counter(block, "gangwatch_host_cpu_seconds_total", mode="idle") == 8979004 * TICK_NS
    assert counter(block, "gangwatch_host_cpu_seconds_total", mode="iowait") == 3552 * TICK_NS
    collector.close()


def test_busy_milliseconds_wrap_at_32_bits_and_restart_for_a_new_disk(roots: tuple[Path, Path]) -> None:
    def busy(io_ms: int) -> int | None:
        (roots[0] / "diskstats").write_bytes(b"8 0 sda 0 0 0 0 0 0 0 0 0 %d 0\n" % io_ms)
        return counter(collector.collect(), "gangwatch_host_disk_io_time_seconds_total", device="sda")

    collector = devices_of(roots)
    assert busy(2**32 - 10) == (2**32 - 10) * 10**6
    assert busy(5) == (2**32 + 5) * 10**6
    assert busy(7) == (2**32 + 7) * 10**6
    assert busy(3) == 3 * 10**6, "a decrease that is no wrap means another disk of that name"
    collector.close()


def test_columns_that_an_old_kernel_lacks_are_absent(roots: tuple[Path, Path]) -> None:
    (roots[0] / "vmstat").write_bytes(b"nr_free_pages 1\npgmajfault 175\n")
    (roots[0] / "stat").write_bytes(STAT.split(b"intr")[0])
    collector = collector_of(roots)
    block = collector.collect()
    assert counter(block, "gangwatch_host_out_of_memory_kills_total") is None
    assert counter(block, "gangwatch_host_major_page_faults_total") == 175
    assert counter(block, "gangwatch_host_context_switches_total") is None
    assert math.isnan(gauge(block, "gangwatch_host_processes_running"))
    assert gauge(block, "gangwatch_host_cpus") == 2
    collector.close()


def test_a_broken_file_affects_only_its_own_columns(roots: tuple[Path, Path]) -> None:
    collector = collector_of(roots)
    collector.collect()
    (roots[0] / "meminfo").write_bytes(b"nonsense")
    block = collector.collect()
    assert math.isnan(gauge(block, "gangwatch_host_memory_total_bytes"))
    assert gauge(block, "gangwatch_host_load1") == 0.21
    collector.close()


def test_the_error_names_a_file_if_all_are_missing(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=str(tmp_path / "stat")):
        HostCollector(str(tmp_path)).collect()
    with pytest.raises(SourceError, match=str(tmp_path / "diskstats")):
        HostDeviceCollector(str(tmp_path), str(tmp_path)).collect()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_close_closes_all_descriptors(roots: tuple[Path, Path]) -> None:
    for collector in (collector_of(roots), devices_of(roots)):
        before = descriptors()
        collector.collect()
        assert descriptors() > before, "descriptors stay open between runs"
        collector.close()
        assert descriptors() == before


@pytest.mark.parametrize(
    ("parse", "data"),
    [
        (parse_cpu_count, b""),
        (parse_cpu_count, b"cpu  a b c\n"),
        (parse_loadavg, b"\n"),
        (parse_pressure, b"full avg10=0 avg60=0 avg300=0 total=1\n"),
        (parse_pressure, b"some avg10=0\n"),
        (parse_in_flight, b"8 0 sda x x x x x x x x x x x\n"),
    ],
)
def test_malformed_files_are_rejected(parse: object, data: bytes) -> None:
    assert callable(parse)
    with pytest.raises(SourceError):
        parse(data)


def test_process_one_has_the_interfaces_of_the_host_of_a_container(roots: tuple[Path, Path]) -> None:
    host = roots[0] / "1" / "net"
    host.mkdir(parents=True)
    (host / "dev").write_bytes(NET_DEV.replace(b"eth0:68210035552", b"bond0:77"))
    before = psutil.PROCFS_PATH
    assert set(host_figures.interfaces(str(roots[0]))) == {"lo", "bond0", "vethA1"}
    assert before == psutil.PROCFS_PATH, "other users of psutil in this process read their own /proc"


def test_an_interface_name_that_is_no_text_is_readable(roots: tuple[Path, Path]) -> None:
    (roots[0] / "net" / "dev").write_bytes(NET_DEV.replace(b"  eth0:", b"et\xffh0:"))
    assert "et\ufffdh0" in host_figures.interfaces(str(roots[0]))


@pytest.mark.parametrize(
    ("file", "content", "read"),
    [
        ("stat", b"", host_figures.cpu_ticks),
        ("stat", b"cpu  a b c\n", host_figures.cpu_ticks),
        ("stat", STAT.replace(b"301854", b"nan"), host_figures.cpu_ticks),
        ("stat", STAT.replace(b"301854", b"-1"), host_figures.cpu_ticks),
        ("meminfo", b"MemFree: 1 kB\n", host_figures.memory),
        ("meminfo", MEMINFO.replace(b"15666184", b"-15666184"), host_figures.memory),
        ("diskstats", b"8 0 sda x x x x x x x x x x x\n", host_figures.disks),
        ("diskstats", DISKSTATS.replace(b"9653880", b"-9653880"), host_figures.disks),
        ("diskstats", DISKSTATS.replace(b"25354637", b"9" * 21), host_figures.disks),
        ("net/dev", b"\n\neth0: 1 2\n", host_figures.interfaces),
        ("net/dev", NET_DEV.replace(b"9315587528", b"-9315587528"), host_figures.interfaces),
    ],
)
def test_what_psutil_misreads_is_an_error(
    roots: tuple[Path, Path], file: str, content: bytes, read: Callable[[str], object]
) -> None:
    (roots[0] / file).write_bytes(content)
    with pytest.raises(SourceError, match=f"{roots[0]}/{file}"):
        read(str(roots[0]))


def test_a_missing_file_is_not_read_from_this_machine(roots: tuple[Path, Path]) -> None:
    """Without diskstats, psutil alone would return the disks in this machine's /sys/block."""
    (roots[0] / "diskstats").unlink()
    with pytest.raises(UnsupportedError, match="diskstats"):
        host_figures.disks(str(roots[0]))


def test_unknown_available_memory_is_absent(roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    found = psutil.virtual_memory()._replace(available=0)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: found)
    assert host_figures.memory(str(roots[0])).available_bytes is None


def test_recorded_pressure_files_are_read() -> None:
    recorded = needs.data("proc-tree", "pressure")
    assert parse_pressure((recorded / "memory").read_bytes()) == (15, 25)
    assert parse_pressure((recorded / "io").read_bytes()) == (15, 25)
    assert parse_pressure((recorded / "cpu").read_bytes()) == (15, None)


def test_the_host_collectors_run_on_this_machine() -> None:
    collector = HostCollector()
    block = collector.collect()
    assert_catalogued(block)
    assert gauge(block, "gangwatch_host_cpus") == os.sysconf("SC_NPROCESSORS_ONLN")
    first = counter(block, "gangwatch_host_cpu_seconds_total", mode="user")
    second = counter(collector.collect(), "gangwatch_host_cpu_seconds_total", mode="user")
    assert first is not None and second is not None and second >= first > 0
    collector.close()
