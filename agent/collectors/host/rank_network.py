"""Collector of the ranks' network: TCP connections with other hosts, and how long the transmit queue was not empty.

A slow link of an Ethernet interface has no error counters. Its traces are in the kernel: data of a connection stays
unacknowledged longer for each byte, and packets wait in the queueing discipline of the sender. The connections of a
rank are those of its processes' descriptors. The queue is that of the interfaces in the rank's network namespace and,
for a rank in a namespace of its own, also that of the host's hardware interfaces, through which its packets leave.

The kernel keeps no time with a queue, so that it is sampled ten times a second while a rank sends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from agent.collectors.block import Block, Collector
from agent.collectors.host.rank_processes import Ranks
from agent.rank_attribution import RankFile
from agent.schema.errors import SourceError
from agent.schema.frame import Column
from agent.sources.network import namespaces
from agent.sources.network.netlink import connect
from agent.sources.network.sockets import NETLINK_ROUTE, NETLINK_SOCK_DIAG, Connection, Netlink
from agent.sources.proc.proc import children_by_parent, children_of, threads_of

COUNTERS = (
    "gangwatch_rank_tcp_sent_bytes_total",
    "gangwatch_rank_tcp_retransmitted_bytes_total",
    "gangwatch_rank_tcp_busy_seconds_total",
    "gangwatch_rank_transmit_queue_seconds_total",
)

INTERVAL_SECONDS = 1.0
SAMPLE_SECONDS = 0.1
"""Interval of samples of the transmit queues."""
READINGS_A_DISCOVERY = 10
"""Number of readings from one search of the ranks' descriptors to the next. It costs one system call a descriptor."""
SENDING_BYTES = 1 << 18
"""Queues are sampled only while a rank of the namespace sends at least this number of bytes from one reading to the
next: a rank that uses RDMA has only control connections."""
MOST_SEARCHES = 60
"""Number of readings for which a rank without connections is searched in each. Later, every tenth reading does it."""
MOST_APART = 3
"""A sample counts for the time since the last one, but at most for this number of intervals of samples."""
MOST_NAMESPACES = 64
"""Maximum number of network namespaces that are read."""
MOST_PROCESSES, MOST_DESCRIPTORS = 1024, 1 << 14
"""Maximum numbers of processes and of their descriptors that are searched for each rank: a job that opens a million
files must not use the agent's processor time. A training rank has some hundred descriptors."""

Enter = Callable[[str, int, Callable[[], socket.socket]], socket.socket]


@dataclass(slots=True)
class _Rank:
    main: RankFile
    namespace: int
    """Inode of its network namespace; 0 if it is unknown."""
    inodes: frozenset[int] = frozenset()
    """Inodes of the sockets that its processes have open."""
    known: dict[int, Connection] = field(default_factory=dict)
    """Newest totals of each connection, by inode."""
    totals: list[int] = field(default_factory=lambda: [0] * len(COUNTERS))
    readable: bool = False
    searches: int = 0
    """Number of readings in which none of its sockets was connected to another host."""

    def add(self, connections: dict[int, Connection]) -> int:
        """Add what the connections have sent since the last reading. Return the number of bytes.

        The first reading of a connection that was open when the agent found the rank adds nothing.
        """
        found = {inode: connections[inode] for inode in self.inodes & connections.keys()}
        sent = 0
        for inode, now in found.items():
            before = self.known.get(inode)
            if before is None:
                continue
            sent += max(0, now.sent_bytes - before.sent_bytes)
            self.totals[1] += max(0, now.retransmitted_bytes - before.retransmitted_bytes)
            self.totals[2] += 1000 * max(0, now.busy_us - before.busy_us)
        self.totals[0] += sent
        self.known = found
        return sent


@dataclass(slots=True)
class _Namespace:
    diagnoses: Netlink
    queues: Netlink
    sends: bool = False

    def close(self) -> None:
        self.diagnoses.close()
        self.queues.close()


class RankNetworkCollector:
    """Collector of the TCP connections and transmit queues of every rank.

    enter: calls a function in another network namespace, which needs CAP_SYS_ADMIN. Without it, only ranks in the
    agent's own namespace are read.
    """

    name = "rank-network"
    worker = "rank-network"

    def __init__(
        self,
        ranks: Ranks,
        proc_root: str = "/proc",
        sys_root: str = "/sys",
        interval_seconds: float = INTERVAL_SECONDS,
        enter: Enter = namespaces.inside,
    ) -> None:
        self.interval_seconds = interval_seconds
        self._source = ranks
        self._proc_root, self._sys_root = proc_root, sys_root
        self._enter = enter
        self._ranks: dict[tuple[int, int], _Rank] = {}
        self._namespaces: dict[int, _Namespace] = {}
        self._own = _inode(f"{proc_root}/self/ns/net")
        self._host = Netlink(lambda: connect(NETLINK_ROUTE))
        self._hardware: frozenset[int] = frozenset()
        self._block = Block()
        self._run = 0
        self._sampled_ns = 0
        self._sampler = QueueSampler(self)

    @property
    def idle(self) -> bool:
        """True if the node has no rank."""
        return not self._ranks

    def collect(self) -> Block:
        if self._follow_ranks() or self._run % READINGS_A_DISCOVERY == 0:
            self._discover()
        self._run += 1
        self._read()
        self._fill()
        return self._block

    def members(self) -> tuple[Collector, ...]:
        """Return the sampler of the transmit queues. It runs more often, in the same thread."""
        return (self._sampler,)

    @property
    def sends(self) -> bool:
        """Whether a rank sends enough for samples of the queues."""
        return any(one.sends for one in self._namespaces.values())

    def close(self) -> None:
        for one in self._namespaces.values():
            one.close()
        self._namespaces.clear()
        self._host.close()
        self._ranks.clear()

    def _follow_ranks(self) -> bool:
        """Add new ranks, and remove ended ones with the sockets in their namespaces, which would keep these alive."""
        alive = {(main.pid, main.start_time): main for main in self._source.ranks()}
        if alive.keys() == self._ranks.keys():
            return any(not one.known and one.searches < MOST_SEARCHES for one in self._ranks.values())
        self._ranks = {key: self._ranks.get(key) or _Rank(main, 0) for key, main in alive.items()}
        self._make_block()
        return True

    def _discover(self) -> None:
        """Find the descriptors and the namespace of each rank. Both can change: a launcher becomes the training."""
        by_parent: dict[int, list[int]] | None = None
        mains = {pid for pid, _ in self._ranks}
        for rank in self._ranks.values():
            inodes: set[int] = set()
            queue, seen, namespace = [rank.main.pid], {rank.main.pid}, 0
            processes, left = 0, MOST_DESCRIPTORS
            while queue and processes < MOST_PROCESSES:
                pid = queue.pop()
                processes += 1
                found, searched = _sockets(f"{self._proc_root}/{pid}/fd", left)
                left -= searched
                inodes |= found
                if found or not namespace:
                    namespace = _inode(f"{self._proc_root}/{pid}/ns/net") or namespace
                    if namespace and namespace not in self._namespaces:
                        self._open(namespace, f"{self._proc_root}/{pid}/ns/net")
                children = children_of(self._proc_root, pid, threads_of(self._proc_root, pid))
                if children is None:
                    by_parent = children_by_parent(self._proc_root) if by_parent is None else by_parent
                    children = by_parent.get(pid, [])
                fresh = [child for child in children if child not in seen and child not in mains]
                seen.update(fresh)
                queue.extend(fresh)
            rank.inodes, rank.namespace = frozenset(inodes), namespace
            rank.searches += 1
        used = {rank.namespace for rank in self._ranks.values()}
        for inode in self._namespaces.keys() - used:
            self._namespaces.pop(inode).close()
        self._hardware = _hardware_interfaces(self._sys_root)

    def _open(self, inode: int, path: str) -> None:
        if len(self._namespaces) >= MOST_NAMESPACES:
            return

        def connector(protocol: int) -> Callable[[], socket.socket]:
            if inode == self._own:
                return lambda: connect(protocol)
            return lambda: self._enter(path, inode, lambda: connect(protocol))

        self._namespaces[inode] = _Namespace(Netlink(connector(NETLINK_SOCK_DIAG)), Netlink(connector(NETLINK_ROUTE)))

    def _read(self) -> None:
        """Read the connections of all namespaces."""
        for inode, namespace in self._namespaces.items():
            ranks = [rank for rank in self._ranks.values() if rank.namespace == inode]
            try:
                connections = {one.inode: one for one in namespace.diagnoses.connections()}
            except SourceError:
                namespace.sends = False
                for rank in ranks:
                    rank.readable = False
                continue
            sent = 0
            for rank in ranks:
                rank.readable = True
                sent = max(sent, rank.add(connections))
            namespace.sends = sent >= SENDING_BYTES

    def sample(self) -> None:
        """Sample the transmit queues of the namespaces in which a rank sends."""
        now_ns = time.monotonic_ns()
        apart_ns = min(now_ns - self._sampled_ns, round(MOST_APART * 1e9 * SAMPLE_SECONDS))
        self._sampled_ns = now_ns
        of_host: bool | None = None
        for inode, namespace in self._namespaces.items():
            if not namespace.sends:
                continue
            try:
                waiting = any(one.backlog_bytes for one in namespace.queues.queues())
                if inode != self._own and not waiting and self._hardware:
                    if of_host is None:
                        of_host = any(
                            one.backlog_bytes for one in self._host.queues() if one.interface in self._hardware
                        )
                    waiting = of_host
            except SourceError:
                continue
            for rank in self._ranks.values():
                if rank.namespace == inode:
                    rank.totals[3] += apart_ns * waiting

    def _make_block(self) -> None:
        self._block = Block((), [
            Column(metric, (("attempt", str(rank.main.attempt)), ("gang", rank.main.gang),
                            ("rank", str(rank.main.rank))))
            for rank in self._ranks.values()
            for metric in COUNTERS
        ])  # fmt: skip

    def _fill(self) -> None:
        self._block.clear()
        for position, rank in enumerate(self._ranks.values()):
            if rank.readable:
                for index, total in enumerate(rank.totals):
                    self._block.set_counter(position * len(COUNTERS) + index, total)


class QueueSampler:
    """Member of the collector that samples the transmit queues. It has no series of its own."""

    name = "rank-network-queues"
    worker = RankNetworkCollector.worker
    interval_seconds = SAMPLE_SECONDS

    def __init__(self, collector: RankNetworkCollector) -> None:
        self._collector = collector
        self._block = Block()

    @property
    def idle(self) -> bool:
        """True if no rank sends over TCP."""
        return not self._collector.sends

    def collect(self) -> Block:
        if self._collector.sends:
            self._collector.sample()
        return self._block

    def close(self) -> None:
        """Do nothing: the collector owns the sockets."""


def _inode(path: str) -> int:
    """Return the inode of a namespace; 0 if the process has ended or may not be inspected."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _sockets(folder: str, most: int) -> tuple[set[int], int]:
    """Return the inodes of the sockets among a process's first `most` descriptors, and the number of these descriptors.

    There are none if they can't be read.
    """
    found: set[int] = set()
    searched = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, most):
            searched += 1
            with contextlib.suppress(OSError, ValueError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found, searched


def _hardware_interfaces(sys_root: str) -> frozenset[int]:
    """Return the indices of the interfaces with a device: not bridges, tunnels, or the host's ends of containers."""
    found: set[int] = set()
    folder = f"{sys_root}/class/net"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if os.path.exists(f"{folder}/{name}/device"):
                with contextlib.suppress(OSError, ValueError), open(f"{folder}/{name}/ifindex") as file:
                    found.add(int(file.read()))
    return frozenset(found)
