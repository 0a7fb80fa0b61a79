"""RDMA devices of containers: the collector reads them in their network namespaces while the container exists."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.collectors.rdma.rdma import RdmaCollector
from agent.collectors.rdma.rdma_namespaces import ForeignDevices
from agent.schema.errors import SourceError
from agent.sources.network.namespaces import inside, net_namespaces
from agent.sources.rdma.netlink import RdmaNetlink
from tests import needs
from tests.agent.catalogued import assert_catalogued, counter, gauge
from tests.fakes.netlink import FakeRdma
from tests.fakes.sysfs.names import HARDWARE

SO_NETNS_COOKIE = 71
"""asm-generic/socket.h: cookie of the socket's network namespace (Linux 5.14)."""

COUNTERS = [(name, 100 + number) for number, name in enumerate(HARDWARE["mlx5_core"])]
SENT = ("gangwatch_rdma_cnp_sent_total", COUNTERS[[name for name, _ in COUNTERS].index("np_cnp_sent")][1])


OWN = Path("/proc/self/ns/net")


class Containers:
    """Namespaces by inode number, each with its own fake kernel. One of them cannot be entered."""

    def __init__(self) -> None:
        self.ends: dict[int, FakeRdma] = {}
        self.closed: set[int] = set()
        self.sockets: list[socket.socket] = []

    def find(self) -> dict[int, str]:
        return {inode: f"/proc/{inode}/ns/net" for inode in self.ends}

    def enter(self, path: str, inode: int, make: Callable[[], socket.socket]) -> socket.socket:
        assert path == f"/proc/{inode}/ns/net"
        if inode in self.closed:
            raise SourceError(f"{path}: Operation not permitted")
        self.sockets.append(self.ends[inode].connect())
        return self.sockets[-1]


@pytest.fixture
def containers() -> Containers:
    return Containers()


def collector(root: Path, containers: Containers, host: FakeRdma) -> RdmaCollector:
    return RdmaCollector(
        str(root),
        netlink=lambda: RdmaNetlink(host.connect),
        foreign=ForeignDevices(containers.find, containers.enter),
    )


def test_the_device_of_a_container_is_read_in_its_namespace(tmp_path: Path, containers: Containers) -> None:
    parent = collector(tmp_path, containers, FakeRdma(exclusive=True))
    containers.ends = {11: FakeRdma({"mlx5_2": COUNTERS}), 12: FakeRdma({"mlx5_3": COUNTERS})}
    block = parent.collect()
    assert_catalogued(block)
    assert gauge(block, "gangwatch_rdma_namespaces_exclusive") == 1
    assert gauge(block, "gangwatch_rdma_statistics_source_info", device="mlx5_2", source="namespace") == 1
    first, second = parent.members()
    assert (first.name, second.name) == ("rdma/mlx5_2", "rdma/mlx5_3")
    for member, device in ((first, "mlx5_2"), (second, "mlx5_3")):
        found = member.collect()
        assert_catalogued(found)
        assert counter(found, SENT[0], device=device, port="1") == SENT[1]
    assert all(one.fileno() == -1 for one in containers.sockets), "an open socket would keep the namespace alive"
    assert parent.collect() is block and parent.members() == (first, second)
    del containers.ends[11]
    parent.collect()
    assert parent.members() == (second,)
    assert_catalogued(parent.collect())
    parent.close()


def test_a_namespace_without_permission_affects_only_its_series(tmp_path: Path, containers: Containers) -> None:
    parent = collector(tmp_path, containers, FakeRdma(exclusive=True))
    containers.ends = {11: FakeRdma({"mlx5_2": COUNTERS}), 12: FakeRdma({"mlx5_3": COUNTERS})}
    containers.closed = {12}
    assert gauge(parent.collect(), "gangwatch_rdma_namespaces_unreadable") == 1
    (only,) = parent.members()
    containers.closed = {11, 12}
    with pytest.raises(SourceError, match="not permitted"):
        only.collect()
    containers.closed = set()
    assert gauge(parent.collect(), "gangwatch_rdma_namespaces_unreadable") == 0
    assert len(parent.members()) == 2
    parent.close()


@pytest.mark.parametrize("host", [FakeRdma(), FakeRdma(refuses=95)], ids=["shared", "an old kernel"])
def test_in_shared_mode_no_namespace_is_entered(tmp_path: Path, containers: Containers, host: FakeRdma) -> None:
    parent = collector(tmp_path, containers, host)
    containers.ends = {11: FakeRdma({"mlx5_2": COUNTERS})}
    assert gauge(parent.collect(), "gangwatch_rdma_namespaces_exclusive") == 0
    assert parent.members() == () and not containers.sockets
    parent.close()


# --- the kernel's namespaces -----------------------------------------------------------------------------------------


def cookie(one: socket.socket) -> bytes:
    with one:
        return one.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)


def test_a_socket_made_in_a_namespace_belongs_to_it() -> None:
    unshare = needs.component("unshare", "util-linux")
    with subprocess.Popen([unshare, "--net", "sleep", "600"], stderr=subprocess.DEVNULL) as process:
        try:
            own = OWN.stat().st_ino
            path = f"/proc/{process.pid}/ns/net"
            deadline = time.monotonic() + 30
            while process.poll() is None and Path(path).stat().st_ino == own and time.monotonic() < deadline:
                time.sleep(0.01)
            if process.poll() is not None:
                needs.absent("this user may not make a network namespace: run the tests as root")
            inode = Path(path).stat().st_ino
            assert net_namespaces()[inode] == path
            assert own not in net_namespaces()
            before = threading.active_count()
            theirs = cookie(inside(path, inode, socket.socket))
            assert theirs != cookie(socket.socket())
            assert OWN.stat().st_ino == own and threading.active_count() == before
            with pytest.raises(SourceError, match="the namespace has changed"):
                inside(path, inode + 1, socket.socket)
            with pytest.raises(ZeroDivisionError):
                inside(path, inode, lambda: 1 // 0)
        finally:
            process.kill()
    with pytest.raises(SourceError, match="No such"):
        inside(path, inode, socket.socket)
