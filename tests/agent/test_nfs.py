"""Statistics of NFS mounts in the format of the kernel's documentation and source."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.collectors.host.nfs import OPERATIONS, NfsCollector
from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.proc.mountstats import parse_mountstats
from tests.agent.catalogued import assert_catalogued, counter
from tests.fakes.sysfs.tree import build

MOUNTSTATS = rb"""device rootfs mounted on / with fstype rootfs
device proc mounted on /proc with fstype proc
device nfsd mounted on /proc/fs/nfsd with fstype nfsd
device filer:/srv/data mounted on /mnt/training\040data with fstype nfs4 statvers=1.1
	opts:	rw,vers=4.2,rsize=1048576,hard,proto=tcp
	age:	13968
	events:	52 226 0 0 1 13 398 0 0 331 0 47 0 0 77 0 0 77 0 0 0 0 0 0 0 0 0
	bytes:	1207640230 0 0 0 1210214218 7 295483 0
	RPC iostats version: 1.1  p/v: 100003/4 (nfs)
	xprt:	tcp 832 0 1 0 11 6428 6428 0 12154 0 24 26 5726
	per-op statistics
	NULL: 0 0 0 0 0 0 0 0
	READ: 1298 1300 1 207680 1210292152 6 79386 79407 0
	WRITE: 0 0 0 0 0 0 0 0 0
	GETATTR: 98 99 0 100 200 3 40 50 0
	READLINK: 5 5 0 0 0 1 2 3 0
	LINK: 2 2 0 0 0 10 20 30 0

device other:/x mounted on /x with fstype nfs statvers=1.0
	bytes:	0 0 0 0 1 2 0 0
	per-op statistics
	READ: 7 7 0 0 0 0 0 0
device tmpfs mounted on /run with fstype tmpfs
"""


def test_mount_statistics_are_parsed() -> None:
    data, other = parse_mountstats(MOUNTSTATS)
    assert (data.export, data.mount) == ("filer:/srv/data", "/mnt/training data")
    assert (data.read_bytes, data.written_bytes) == (1210214218, 7)
    assert data.operations["READ"] == (1298, 1300, 1, 6, 79386, 79407)
    assert set(data.operations) == {"NULL", "READ", "WRITE", "GETATTR", "READLINK", "LINK"}
    assert other.operations["READ"].operations == 7
    assert parse_mountstats(b"") == []


@pytest.mark.parametrize(
    "line",
    [b"\tbytes:\t1 2 3\n", b"\tper-op statistics\n\t READ: 1 2 x 4 5 6 7 8\n", b"\tper-op statistics\n\t READ\n"],
)
def test_malformed_lines_are_rejected(line: bytes) -> None:
    with pytest.raises(SourceError, match="mountstats"):
        parse_mountstats(b"device a:/b mounted on /b with fstype nfs statvers=1.1\n" + line)


def test_every_value_of_the_files_is_collected(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "mountstats").write_bytes(MOUNTSTATS)
    collector = NfsCollector(str(tmp_path))
    block = collector.collect()
    assert_catalogued(block)
    mount = "/mnt/training data"
    assert counter(block, "gangwatch_host_nfs_read_bytes_total", export="filer:/srv/data", mount=mount) == 1210214218
    assert counter(block, "gangwatch_host_nfs_written_bytes_total", export="filer:/srv/data", mount=mount) == 7
    read = {"mount": mount, "operation": "READ"}
    assert counter(block, "gangwatch_host_nfs_operations_total", **read) == 1298
    assert counter(block, "gangwatch_host_nfs_retransmissions_total", **read) == 2
    assert counter(block, "gangwatch_host_nfs_timeouts_total", **read) == 1
    assert counter(block, "gangwatch_host_nfs_queue_seconds_total", **read) == 6 * 10**6
    assert counter(block, "gangwatch_host_nfs_response_seconds_total", **read) == 79386 * 10**6
    assert counter(block, "gangwatch_host_nfs_operation_seconds_total", **read) == 79407 * 10**6
    other = {"mount": mount, "operation": "other"}
    assert counter(block, "gangwatch_host_nfs_operations_total", **other) == 7
    assert counter(block, "gangwatch_host_nfs_response_seconds_total", **other) == 22 * 10**6
    assert len(block.counter_columns) == 2 * (2 + 6 * (len(OPERATIONS) + 1))
    assert collector.collect() is block
    (tmp_path / "1" / "mountstats").write_bytes(b"device tmpfs mounted on /run with fstype tmpfs\n")
    assert collector.collect().counter_columns == (), "unmounted"
    collector.close()


def test_the_synthesised_node_has_an_nfs_mount(tmp_path: Path) -> None:
    build(tmp_path, nics=1)
    collector = NfsCollector(str(tmp_path))
    assert counter(collector.collect(), "gangwatch_host_nfs_operations_total", mount="/data", operation="WRITE") == 1000
    collector.close()


def test_the_mounts_of_this_machine_are_read(tmp_path: Path) -> None:
    collector = NfsCollector()
    assert_catalogued(collector.collect())
    collector.close()
    with pytest.raises(UnsupportedError, match="mountstats"):
        NfsCollector(str(tmp_path))
