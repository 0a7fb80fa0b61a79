"""Ranks' TCP connections and transmit queues: real connections between network namespaces, and malformed messages."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.collectors.host import rank_network
from agent.collectors.host.rank_network import QueueSampler, RankNetworkCollector
from agent.rank_attribution import RankFile
from agent.schema.errors import SourceError, UnsupportedError
from agent.sources.network import sockets
from agent.sources.network.netlink import HEADER, connect
from agent.sources.network.sockets import Netlink
from agent.sources.proc.proc import read_process_stat
from tests import needs
from tests.agent.catalogued import assert_catalogued, counter

SENT = "gangwatch_rank_tcp_sent_bytes_total"
BUSY = "gangwatch_rank_tcp_busy_seconds_total"
QUEUE = "gangwatch_rank_transmit_queue_seconds_total"
LABELS = {"attempt": "1", "gang": "j-1", "rank": "0"}

SERVE = """
import socket
with socket.create_server(("", 5001)) as server:
    print("ready", flush=True)
    peer, _ = server.accept()
    while peer.recv(1 << 20):
        pass
"""
SEND = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 5001))
while True:
    peer.sendall(bytes(500_000))
    time.sleep(0.05)
"""


class Ranks:
    """One rank: the process with this pid."""

    def __init__(self, pid: int) -> None:
        stat = read_process_stat("/proc", pid)
        assert stat is not None
        self.files = [RankFile("j-1", 1, 0, pid, stat.start_time)]

    def ranks(self) -> list[RankFile]:
        return self.files


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def nodes() -> Iterator[list[str]]:
    """Two network namespaces with one link between them: 10.218.0.1 and 10.218.0.2."""
    needs.component("ip", "iproute2"), needs.component("tc", "iproute2")
    if os.geteuid() != 0:
        needs.absent("root is needed to make network namespaces")
    names = [f"gwt{os.getpid()}n{index}" for index in range(2)]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for index, name in enumerate(names):
            ip("-netns", name, "address", "add", f"10.218.0.{index + 1}/24", "dev", "eth0")
            ip("-netns", name, "link", "set", "eth0", "up")
            ip("-netns", name, "link", "set", "lo", "up")
        yield names
    except subprocess.CalledProcessError as error:
        needs.absent(f"network namespaces can't be made here: {error.stderr.decode().strip()}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def shape(node: str, mbit: int) -> None:
    limit = ("tbf", "rate", f"{mbit}mbit", "burst", "128kb", "limit", "4mb")
    subprocess.run(["tc", "-netns", node, "qdisc", "replace", "dev", "eth0", "root", *limit], check=True)


@contextlib.contextmanager
def running(node: str, program: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = ["ip", "netns", "exec", node, sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def watch(collector: RankNetworkCollector, seconds: float) -> dict[str, int]:
    """Run the collector and its sampler as the agent does. Return the increase of each counter."""
    (sampler,) = collector.members()
    until, first = time.monotonic() + seconds, values(collector)
    while time.monotonic() < until:
        time.sleep(0.1)
        sampler.collect()
    return {name: now - first[name] for name, now in values(collector).items()}


def values(collector: RankNetworkCollector) -> dict[str, int]:
    block = collector.collect()
    assert_catalogued(block)
    return {name: counter(block, name, **LABELS) or 0 for name in (SENT, BUSY, QUEUE)}


def test_a_slow_link_shows_in_the_queue_of_its_node(nodes: list[str]) -> None:
    shape(nodes[0], 400)
    with running(nodes[1], SERVE) as server, running(nodes[0], SEND, "10.218.0.2") as sender:
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        sender.kill()  # it may have started before the server
        sender.wait()
        with running(nodes[0], SEND, "10.218.0.2") as rank:
            collector = RankNetworkCollector(Ranks(rank.pid))
            (sampler,) = collector.members()
            assert isinstance(sampler, QueueSampler)
            end = time.monotonic() + 20
            while sampler.idle:
                assert time.monotonic() < end, "the connection was not found within 20 s"
                time.sleep(0.2)
                collector.collect()
            before = watch(collector, 3.0)
            shape(nodes[0], 40)
            time.sleep(0.5)
            slow = watch(collector, 3.0)
            collector.close()
    assert before[SENT] > 10e6, "half a megabyte, up to twenty times a second"
    assert slow[SENT] < 0.75 * before[SENT]
    assert slow[BUSY] / slow[SENT] > 2 * before[BUSY] / before[SENT]
    assert slow[QUEUE] > 1.5e9 and slow[QUEUE] > 2 * before[QUEUE], "there was a queue most of the time"


def test_a_connection_within_the_host_does_not_count() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            client.sendall(bytes(1 << 19))
            collector = RankNetworkCollector(Ranks(os.getpid()))
            try:
                collector.collect()
                client.sendall(bytes(1 << 16))
                assert values(collector) == {SENT: 0, BUSY: 0, QUEUE: 0}
                assert collector.members()[0].idle  # type: ignore[attr-defined]
            finally:
                collector.close()


def test_a_job_cannot_make_the_agent_search_any_number_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_network, "MOST_DESCRIPTORS", 40)
    searched: list[str] = []
    readlink = os.readlink

    def record(path: str) -> str:
        searched.append(path)
        return readlink(path)

    with contextlib.ExitStack() as opened:
        for _ in range(100):
            opened.enter_context(Path("/dev/null").open())
        monkeypatch.setattr(os, "readlink", record)
        collector = RankNetworkCollector(Ranks(os.getpid()))
        collector.collect()
        collector.close()
    assert len([path for path in searched if "/fd/" in path]) == 40


def test_the_series_of_an_ended_rank_are_removed_and_its_sockets_closed() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    ranks = Ranks(os.getpid())
    collector = RankNetworkCollector(ranks)
    first = collector.collect()
    ranks.files = []
    last = collector.collect()
    assert (len(first.counter_columns), last.counter_columns, collector.idle) == (4, (), True)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    collector.close()


def test_without_permission_to_enter_a_namespace_values_are_absent(nodes: list[str]) -> None:
    def refuse(path: str, inode: int, make: object) -> socket.socket:
        raise SourceError(f"{path}: Operation not permitted; entering a namespace needs CAP_SYS_ADMIN")

    with running(nodes[0], "import time; time.sleep(60)") as process:
        collector = RankNetworkCollector(Ranks(process.pid), enter=refuse)
        end = time.monotonic() + 10
        while Path(f"/proc/{process.pid}/ns/net").stat().st_ino == Path("/proc/self/ns/net").stat().st_ino:
            assert time.monotonic() < end
        block = collector.collect()
        assert len(block.counter_columns) == 4 and not block.counters_valid.any()
        collector.close()


# --- messages --------------------------------------------------------------------------------------------------------


def attribute(kind: int, payload: bytes) -> bytes:
    raw = struct.pack("=HH", 4 + len(payload), kind) + payload
    return raw + bytes(-len(raw) % 4)


def connection(source: bytes, peer: bytes, info: bytes, inode: int = 7) -> bytes:
    family = socket.AF_INET if len(source) == 4 else socket.AF_INET6
    head = struct.pack("=BBBBHH16s16sI8xIIIII", family, 1, 0, 0, 1, 2, source, peer, 0, 0, 0, 0, 0, inode)
    return head + attribute(sockets.TCP_INFO, info)


INFO = bytes(168) + struct.pack("=QQQ", 5_000, 1_500, 0) + bytes(8) + struct.pack("=QQ", 9_000, 100) + bytes(16)


def test_a_connection_is_parsed() -> None:
    data = connection(b"\x0a\0\0\1", b"\x0a\0\0\2", INFO)
    assert sockets.parse_connection(data, 0, len(data)) == (7, 9_000, 100, 3_500)


@pytest.mark.parametrize(
    "data",
    [
        connection(b"\x0a\0\0\1", b"\x0a\0\0\1", INFO),
        connection(b"\x0a\0\0\1", b"\x7f\0\0\1", INFO),
        connection(bytes(15) + b"\1", bytes(15) + b"\1", INFO),
        connection(b"\x0a\0\0\1", b"\x0a\0\0\2", INFO[:192]),
    ],
    ids=["its own address", "loopback", "loopback of IPv6", "an old kernel"],
)
def test_a_connection_that_does_not_count(data: bytes) -> None:
    assert sockets.parse_connection(data, 0, len(data)) is None


def queue(parent: int = sockets.ROOT, backlog: int = 1500) -> bytes:
    inner = attribute(sockets.QUEUE, struct.pack("=IIIII", 1, backlog, 0, 0, 0))
    return (
        struct.pack("=BxHiIII", 0, 0, 3, 1, parent, 0) + attribute(1, b"tbf\0") + attribute(sockets.STATISTICS, inner)
    )


def test_only_the_outermost_queue_of_an_interface_counts() -> None:
    data = queue()
    assert sockets.parse_queue(data, 0, len(data)) == (3, 1500)
    data = queue(parent=0x10001)
    assert sockets.parse_queue(data, 0, len(data)) is None


@pytest.mark.parametrize("parse", [sockets.parse_connection, sockets.parse_queue])
def test_a_malformed_message_is_refused(parse: object) -> None:
    source = random.Random(1)
    for whole in (connection(b"\x0a\0\0\1", b"\x0a\0\0\2", INFO), queue()):
        for _ in range(300):
            data = bytearray(whole[: source.randrange(len(whole) + 1)])
            if data:
                data[source.randrange(len(data))] = source.randrange(256)
            with contextlib.suppress(SourceError):
                parse(bytes(data), 0, len(data))  # type: ignore[operator]
    with pytest.raises(SourceError, match="message of only 3 bytes"):
        parse(b"abc", 0, 3)  # type: ignore[operator]


class Kernel:
    """Socket that answers every request with the same bytes."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.closed = False

    def settimeout(self, _: float) -> None: ...

    def send(self, data: bytes) -> None:
        self.sequence = struct.unpack_from("=IHHI", data)[3]

    def recv_into(self, buffer: bytearray) -> int:
        if not self.answers:
            raise TimeoutError("timed out")
        answer = self.answers.pop(0)
        buffer[: len(answer)] = answer
        return len(answer)

    def close(self) -> None:
        self.closed = True


def message(kind: int, payload: bytes, sequence: int = 1) -> bytes:
    raw = HEADER.pack(16 + len(payload), kind, 2, sequence, 0) + payload
    return raw + bytes(-len(raw) % 4)


DONE = message(sockets.DONE, bytes(4))


def test_a_dump_may_have_several_parts_and_late_messages_of_an_earlier_request() -> None:
    late = message(sockets.NEW_QDISC, queue(backlog=9), sequence=0)
    kernel = Kernel(late + message(sockets.NEW_QDISC, queue()), message(sockets.NEW_QDISC, queue(backlog=2)) + DONE)
    assert Netlink(lambda: kernel).queues() == [(3, 1500), (3, 2)]  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "response of only 0 bytes"),
        (HEADER.pack(400, sockets.NEW_QDISC, 2, 1, 0), "message of 400 bytes with only 16 bytes left"),
        (message(sockets.ERROR, struct.pack("=i", -1)), "Operation not permitted"),
    ],
)
def test_a_failed_dump_closes_the_socket(answer: bytes, words: str) -> None:
    kernel = Kernel(answer)
    client = Netlink(lambda: kernel)  # type: ignore[arg-type, return-value]
    with pytest.raises(SourceError, match=words):
        client.queues()
    assert kernel.closed


def test_a_kernel_without_the_interface_is_unsupported_and_a_silent_one_times_out() -> None:
    kernel = Kernel(message(sockets.ERROR, struct.pack("=i", -2)))
    with pytest.raises(UnsupportedError, match="lacks tcp_diag"):
        Netlink(lambda: kernel).queues()  # type: ignore[arg-type, return-value]
    with pytest.raises(SourceError, match="timed out"):
        Netlink(Kernel).queues()  # type: ignore[arg-type]


def test_this_kernel_answers() -> None:
    client = Netlink(lambda: connect(sockets.NETLINK_SOCK_DIAG))
    assert all(one.sent_bytes >= 0 for one in client.connections())
    client.close()
    client = Netlink(lambda: connect(sockets.NETLINK_ROUTE))
    assert all(one.interface > 0 for one in client.queues())
    client.close()
